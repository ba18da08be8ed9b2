"""Draw docs/assets/effect.png: what the regularizer does, from real runs on scikit-learn's digits.

Every draw takes 50 training, 50 validation and 1000 test images at random. A linear classifier is trained by Adam
while 650 weight decays, one per parameter, are tuned. `python docs/make_effect.py` draws the stored curves;
`python docs/make_effect.py --run` runs the six draws at every ζ again, in minutes, and stores their curves.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from sklearn.datasets import load_digits
from torch.nn import functional as F

import pactune as pt

OUTPUT = Path(__file__).parent / "assets" / "effect.png"
STORED = Path(__file__).parents[1] / "benchmarks" / "results" / "effect.json"
ZETAS = [0.0, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2]
PLAIN = "plain"
SHOWN = {  # key of the stored curves: colour (Okabe and Ito's palette), label
    "1e-05": ("#0072B2", "pactune,\nζ = 1e-5"),
    PLAIN: ("#555555", "no tuning"),
    "0": ("#D55E00", "validation loss\nalone"),
}
Curves = dict[str, list[list[float]]]


def run(draw: int, zeta: float, outer_steps: int) -> pt.Result:
    """Tune per-element weight decay on one draw of the data."""
    x, y = load_digits(return_X_y=True)
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(draw))
    images, labels = torch.tensor(x, dtype=torch.float32)[order] / 16, torch.tensor(y)[order]
    with torch.random.fork_rng():
        torch.manual_seed(draw)
        model = torch.nn.Linear(64, 10)
    hyper = pt.WeightDecay(model, per="element")
    train, valid, test = ((images[a:b], labels[a:b]) for a, b in ((0, 50), (50, 100), (100, 1100)))
    problem = pt.Problem(model, hyper, train=train, valid=valid, loss=F.cross_entropy)
    tuner = pt.Tuner(
        problem,
        inner=pt.Adam(lr=1e-3),
        inner_steps=100,
        outer=torch.optim.RMSprop(hyper.parameters(), lr=1e-2),
        objective=pt.PACBayes(zeta) if zeta else pt.ValidationRisk(),
        seed=draw,
    )
    return tuner.fit(outer_steps, test=test, plain_steps=None if zeta == 0 else 1)


def collect(zetas: list[float], draws: int, outer_steps: int) -> Curves:
    """Return test accuracies [draw][step] by ζ, and those of plain training, which runs beside ζ = 0."""
    curves: Curves = {PLAIN: [], **{f"{zeta:g}": [] for zeta in zetas}}
    for draw in range(draws):
        for zeta in zetas:
            result = run(draw, zeta, outer_steps)
            curves[f"{zeta:g}"].append(_accuracies(result.rows, outer_steps))
            if zeta == 0:
                curves[PLAIN].append(_accuracies(result.plain_rows, outer_steps))
    return curves


def _accuracies(rows: Sequence[dict[str, Any]], outer_steps: int) -> list[float]:
    """Return the test accuracies; a run that ends early, its gradient exactly 0, stays where it ended."""
    found = [round(row["test_accuracy"], 4) for row in rows]
    return found + found[-1:] * (outer_steps - len(found))


def draw_curves(curves: Curves, path: Path) -> None:
    """Draw mean and standard error over draws against the outer step."""
    figure = Figure(figsize=(7.2, 3.6), layout="constrained")
    axis = figure.subplots()
    for name, (color, label) in SHOWN.items():
        values = 100 * np.array(curves[name])
        mean, error = values.mean(0), values.std(0, ddof=1) / len(values) ** 0.5
        steps = np.arange(1, len(mean) + 1)
        axis.plot(steps, mean, color=color, linewidth=2, linestyle="--" if name == PLAIN else "-")
        axis.fill_between(steps, mean - error, mean + error, color=color, alpha=0.18, linewidth=0)
        axis.text(steps[-1] + 1.5, mean[-1], label, color=color, va="center", fontsize=9)
    axis.set(xlabel="outer step", ylabel="accuracy on new images, %", xlim=(0, 100), ylim=(40, 90))
    axis.set_title("650 hyperparameters tuned on 50 validation images", fontsize=11, loc="left")
    axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)


def main() -> None:
    """Read the command line, run if asked to, and draw."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run", action="store_true", help="run again, and store the curves")
    parser.add_argument("--draws", type=int, default=6)
    parser.add_argument("--outer-steps", type=int, default=100)
    options = parser.parse_args()
    if options.run:
        found = collect(ZETAS, options.draws, options.outer_steps)
        STORED.write_text(json.dumps(found, separators=(",", ":")) + "\n", encoding="utf-8")
    draw_curves(json.loads(STORED.read_text(encoding="utf-8")), OUTPUT)


if __name__ == "__main__":
    main()
