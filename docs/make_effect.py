"""Draw docs/assets/effect.png: what the regularizer does, from real runs on scikit-learn's digits.

Every draw takes 50 training, 50 validation and 1000 test images at random. A linear classifier is trained by Adam
while 650 weight decays, one per parameter, are tuned. `python docs/make_effect.py` takes a few minutes. The table of
docs/choosing-k-and-zeta.md comes from

    python docs/make_effect.py --zetas 0 1e-6 1e-5 1e-4 1e-3 1e-2 --table benchmarks/results/effect.json
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure
from sklearn.datasets import load_digits
from torch.nn import functional as F

import pactune as pt

OUTPUT = Path(__file__).parent / "assets" / "effect.png"
PLAIN = "plain"
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
    curves: Curves = {PLAIN: []} | {f"{zeta:g}": [] for zeta in zetas}
    for draw in range(draws):
        for zeta in zetas:
            result = run(draw, zeta, outer_steps)
            curves[f"{zeta:g}"].append(_accuracies(result.rows, outer_steps))
            if zeta == 0:
                curves[PLAIN].append(_accuracies(result.plain_rows, outer_steps))
    return curves


def _accuracies(rows: list[dict[str, float]], outer_steps: int) -> list[float]:
    """Return the test accuracies; a run that ends early, its gradient exactly 0, stays where it ended."""
    found = [row["test_accuracy"] for row in rows]
    return found + found[-1:] * (outer_steps - len(found))


def draw_curves(curves: Curves, path: Path) -> None:
    """Draw mean and standard error over draws against the outer step."""
    figure = Figure(figsize=(6.4, 3.8), layout="constrained")
    axis = figure.subplots()
    for (name, runs), color in zip(curves.items(), ("0.45", "tab:red", "tab:blue", "tab:green"), strict=False):
        values = 100 * np.array(runs)
        mean, error = values.mean(0), values.std(0, ddof=1) / len(values) ** 0.5
        steps = np.arange(1, len(mean) + 1)
        label = {PLAIN: "plain training, no decay", "0": "ζ = 0: validation risk alone"}.get(name, f"ζ = {name}")
        axis.plot(steps, mean, color=color, label=label, linestyle="--" if name == PLAIN else "-")
        axis.fill_between(steps, mean - error, mean + error, color=color, alpha=0.18, linewidth=0)
    axis.set_xlabel("outer step (100 inner steps each)")
    axis.set_ylabel("test accuracy, %")
    axis.set_title("650 weight decays tuned on 50 validation images (digits)", fontsize=10)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False, fontsize=9, loc="lower left", bbox_to_anchor=(0.06, 0.0))
    figure.savefig(path, dpi=120)


def summary(curves: Curves) -> dict[str, dict[str, list[float]]]:
    """Return the test accuracies of every draw at step 25 and at the last one, by ζ."""
    return {
        name: {str(step): [run[step - 1] for run in runs] for step in (min(25, len(runs[0])), len(runs[0]))}
        for name, runs in curves.items()
        if runs
    }


def main() -> None:
    """Read the command line, run, then draw or print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draws", type=int, default=6)
    parser.add_argument("--outer-steps", type=int, default=100)
    parser.add_argument("--zetas", type=float, nargs="+", default=[0.0, 1e-5])
    parser.add_argument("--table", type=Path, help="write the accuracies of every draw as JSON and draw nothing")
    options = parser.parse_args()
    curves = collect(options.zetas, options.draws, options.outer_steps)
    if options.table is None:
        draw_curves(curves, OUTPUT)
    else:
        options.table.write_text(json.dumps(summary(curves), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
