"""A run that is killed and goes on
================================

`fit(run_dir=…, resume=True)`.

The same script serves for the first start and for every restart. Here the "machine" dies twice, at the third and at the
sixth outer step; the history is then, to the last bit, that of a run which was never stopped.
"""

import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from torch.nn import functional as F

import pactune as pt
from pactune.tracking import read_journal

x, y = load_digits(return_X_y=True)
order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
x, y = torch.tensor(x, dtype=torch.float32)[order] / 16, torch.tensor(y)[order]


class PowerFailure(BaseException):
    """What nobody catches."""


class FailAt(pt.Callback):
    """Ends the process, as it were, before an outer step is saved."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_outer_step(self, tuner: pt.Tuner, row: dict[str, float]) -> None:
        """Fail at the step."""
        if row["outer_step"] == self.step:
            raise PowerFailure


def start(run_dir: Path | None, fail_at: int = 0) -> pt.Result:
    torch.manual_seed(0)
    model = torch.nn.Linear(64, 10)
    hyper = pt.WeightDecay(model)
    problem = pt.Problem(
        model, hyper, train=(x[:50], y[:50]), valid=(x[50:100], y[50:100]), batch_size=20, loss=F.cross_entropy
    )
    outer = torch.optim.RMSprop(hyper.parameters(), lr=1e-2)
    tuner = pt.Tuner(problem, inner=pt.Adam(lr=2e-3), inner_steps=20, outer=outer, objective=pt.PACBayes(1e-5))
    return tuner.fit(8, run_dir=run_dir, resume=run_dir is not None, callbacks=[FailAt(fail_at)], progress=False)


with tempfile.TemporaryDirectory() as folder:
    run_dir = Path(folder) / "run"
    for step in (3, 6):
        try:
            start(run_dir, fail_at=step)
        except PowerFailure:
            print(f"power failure at outer step {step}")
    resumed = start(run_dir)
    print("journal:", [line["kind"] for line in read_journal(run_dir) if line["kind"] != "plain row"])

uninterrupted = start(None)
columns = [name for name in uninterrupted.history if name != "seconds"]
same = resumed.history[columns].equals(uninterrupted.history[columns])
print("resumed history equals the uninterrupted one:", same)
assert same

# %%
# The objective of the resumed run lies on that of the uninterrupted one.

figure, axes = plt.subplots()
axes.plot(uninterrupted.history["outer_step"], uninterrupted.history["objective"], label="never stopped")
axes.plot(resumed.history["outer_step"], resumed.history["objective"], "o", label="killed and resumed")
for step in (3, 6):
    axes.axvline(step, color="0.7", linestyle=":")
axes.set(xlabel="outer step; the dotted lines are power failures", ylabel="objective", title="Bit for bit")
axes.locator_params(axis="x", integer=True)
axes.legend()
plt.show()
