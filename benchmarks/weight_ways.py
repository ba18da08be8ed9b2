"""Example weights under wrong labels: Eq. 5, HyperDrift and ζ = 0 by a linear classifier, on the same draws.

    python benchmarks/weight_ways.py design
    python benchmarks/weight_ways.py runs [--draws 0 1 2 ...] [--ways eq5 drift ...]
    python benchmarks/weight_ways.py runs --tiny

A draw has 1000 MNIST images that train, many of them with a wrong label, and 100 clean ones that validate. The rows,
the wrong labels and the start are functions of the draw. "pair" turns 45 % of the labels c into c + 1. "random"
replaces 80 % of the labels by uniform ones, of which a tenth are right by chance. Every training row has a weight,
which starts at 1.

"eq5", "drift" and "zero" tune the weights: T1–T2 for the risk, K = 0 for the regularizer. "zero, ten steps" has K = 10
for the risk. "plain", "clean" and "both" keep all weights at 1 and train on the noisy rows, on the clean ones, and on
all of them.

"design" runs a few learning rates on two draws that "runs" does not use; `RATES` holds the choice. The file keeps the
test accuracy in per cent, and how well the weights at the end separate wrong labels from right ones. A run that is in
the file is not made again.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from measuring import RESULTS, machine
from sklearn.metrics import roc_auc_score
from torch import Tensor
from torch.nn.functional import cross_entropy

import pactune as pt
from pactune.objectives.base import Objective
from pactune.paper.data import DataName, Images, load_images
from pactune.paper.models import make_model
from pactune.streams import Streams

Noise = Literal["pair", "random"]
NOISES: tuple[Noise, ...] = ("pair", "random")
SHARES = {"pair": 0.45, "random": 0.8}
ZETAS = (1e-4, 3e-4, 1e-3, 2e-3, 3e-3, 1e-2, 1e-1, 1.0)
DESIGN_DRAWS = (100, 101)


class Scale(NamedTuple):
    """How large the runs are; tuned runs are evaluated at every `evaluate_every`-th outer step."""

    data: DataName = "mnist"
    outer_steps: int = 100
    inner_steps: int = 10
    rows: int = 1000
    clean_rows: int = 100
    evaluate_every: int = 5
    test_rows: int | None = None


class Rates(NamedTuple):
    """The learning rates of SGD inside and of Adam outside; an outer rate of 0 keeps all weights at 1."""

    inner: float
    outer: float


class Way(NamedTuple):
    """One way to train on a draw.

    Attributes:
        objective: what the weights minimise.
        train: the rows that train.
        tuned: False keeps all weights at 1.
        zetas: ζ of the runs.
        truncation: K of the risk.
    """

    objective: Literal["zero", "eq5", "drift"]
    train: Literal["noisy", "clean", "both"] = "noisy"
    tuned: bool = True
    zetas: tuple[float, ...] = (0.0,)
    truncation: int = 1


class Scene(NamedTuple):
    """The rows of one draw, and which of the noisy rows have a wrong label."""

    noisy: tuple[Tensor, Tensor]
    clean: tuple[Tensor, Tensor]
    wrong: Tensor


RATES = Rates(0.03, 0.1)
WAYS = {
    "plain": Way("zero", tuned=False),
    "clean": Way("zero", "clean", tuned=False),
    "both": Way("zero", "both", tuned=False),
    "zero": Way("zero"),
    "zero, ten steps": Way("zero", truncation=10),
    "eq5": Way("eq5", zetas=ZETAS),
    "drift": Way("drift", zetas=ZETAS),
}
DESIGN = {  # rates and ζ
    "zero": ([Rates(*pair) for pair in itertools.product((0.01, 0.03, 0.1), (0.03, 0.1, 0.3))], (0.0,)),
    "eq5": ([Rates(0.03, 0.1), Rates(0.03, 0.3)], (0.1,)),
    "drift": ([Rates(0.03, 0.1), Rates(0.03, 0.3)], (3e-3, 1e-2)),
}


def scene(images: Images, scale: Scale, noise: Noise, draw: int) -> Scene:
    """Return the rows of a draw; the same draw has the same images under both kinds of noise."""
    (x, y), (clean_x, clean_y) = images.draw(draw, scale.rows)
    generator = torch.Generator().manual_seed(Streams(0).key("noise", noise, draw))
    other = (y + 1) % 10 if noise == "pair" else torch.randint(0, 10, y.shape, generator=generator)
    labels = torch.where(torch.rand(len(y), generator=generator) < SHARES[noise], other, y)
    clean = clean_x[: scale.clean_rows].flatten(1), clean_y[: scale.clean_rows]
    return Scene((x.flatten(1), labels), clean, labels != y)


def make_tuner(way: Way, zeta: float, rates: Rates, scale: Scale, draw: int, found: Scene) -> pt.Tuner:
    """Return the tuner of one run."""
    both = tuple(torch.cat(parts) for parts in zip(found.noisy, found.clean, strict=True))
    train = {"noisy": found.noisy, "clean": found.clean, "both": both}[way.train]
    model = make_model("linear", (found.clean[0].shape[1],), seed=Streams(0).key("start", draw))
    weights = pt.ExampleWeights(len(train[1]))
    objective: Objective = pt.ValidationRisk()
    if way.objective != "zero":
        objective = pt.PACBayes(zeta=zeta) if way.objective == "eq5" else pt.HyperDrift(zeta=zeta)
    return pt.Tuner(
        pt.Problem(model, weights, train=train, valid=found.clean, loss=cross_entropy),
        inner=pt.SGD(lr=rates.inner),
        inner_steps=scale.inner_steps,
        outer=torch.optim.Adam(weights.parameters(), lr=rates.outer),
        objective=objective,
        hypergradient=pt.Truncated(min(way.truncation, scale.inner_steps)),
        path_hypergradient=pt.Truncated(0),
    )


def run(way: Way, zeta: float, rates: Rates, scale: Scale, images: Images, noise: Noise, draw: int) -> dict[str, Any]:
    """Return the test accuracy along one run, and the weights of wrong and of right labels at its end."""
    begun, found = time.perf_counter(), scene(images, scale, noise, draw)
    x, y = images.test
    test = (x[: scale.test_rows].flatten(1), y[: scale.test_rows])
    every = scale.evaluate_every if way.tuned else 1
    tuner = make_tuner(way, zeta, rates if way.tuned else rates._replace(outer=0.0), scale, draw, found)
    fitted = tuner.fit(scale.outer_steps, test=test, plain_steps=0, evaluate_every=every, progress=False)
    looks = [row["test_accuracy"] for row in fitted.rows if row["outer_step"] % every == 0]
    ended: dict[str, Any] = {"test_accuracy": [round(100 * value, 2) for value in looks]}
    if way.tuned:
        weights = tuner.problem.hyper.weights().detach()  # type: ignore[operator]
        ended["auc"] = round(float(roc_auc_score(found.wrong, -weights)), 4)
        ended["right"], ended["wrong"] = (round(float(weights[rows].mean()), 3) for rows in (~found.wrong, found.wrong))
    return ended | {"seconds": round(time.perf_counter() - begun, 1)}


def planned(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the cells to run, draw by draw, so that a part of them is whole draws."""
    if options.part == "design":
        return [
            {"way": way, "noise": noise, "draw": draw, "zeta": zeta, "rates": list(rates)}
            for draw, noise, way in itertools.product(options.draws or DESIGN_DRAWS, NOISES, DESIGN)
            for rates, zeta in itertools.product(*DESIGN[way])
        ]
    cells = itertools.product(options.draws or range(8), NOISES, options.ways or WAYS)
    return [
        {"way": way, "noise": noise, "draw": draw, "zeta": zeta, "rates": list(RATES)}
        for draw, noise, way in cells
        for zeta in WAYS[way].zetas
    ]


def main() -> None:
    """Make the runs that are not in the file yet, and add them to it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("design", "runs"))
    parser.add_argument("--draws", type=int, nargs="+")
    parser.add_argument("--ways", nargs="+", choices=WAYS, help="all by default")
    parser.add_argument("--data-dir", type=Path, help="of the image files")
    parser.add_argument("--output", type=Path, help="JSON file; one under benchmarks/results by default")
    parser.add_argument("--tiny", action="store_true", help="digits, in seconds; nothing is written by default")
    options = parser.parse_args()
    scale = Scale("digits", 4, 2, 60, 20, 2, 50) if options.tiny else Scale()
    images = load_images(scale.data, options.data_dir)
    assert images is not None  # it was to be downloaded, so that it is there
    path = options.output or (None if options.tiny else RESULTS / "weight_ways.json")
    stored: dict[str, Any] = json.loads(path.read_text("utf-8")) if path and path.exists() else {}
    stored |= {"command": f"python benchmarks/{Path(__file__).name} runs", "machine": machine(), **scale._asdict()}
    made: list[dict[str, Any]] = stored.setdefault(options.part, [])
    for cell in planned(options):
        if any(cell.items() <= other.items() for other in made):
            continue
        rates, zeta, draw = Rates(*cell["rates"]), cell["zeta"], cell["draw"]
        made.append(cell | run(WAYS[cell["way"]], zeta, rates, scale, images, cell["noise"], draw))
        last = made[-1]
        print(*cell.values(), last["test_accuracy"][-1], last.get("auc"), last["seconds"], flush=True)
        if path:
            text = json.dumps(stored, ensure_ascii=False, separators=(",", ":")).replace('{"way"', '\n{"way"')
            path.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
