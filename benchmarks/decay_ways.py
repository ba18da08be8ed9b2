"""What a decay is worth on 100 images: many ways to get one, by a linear classifier, on the same draws.

    python benchmarks/decay_ways.py mnist [--draws 12] [--ways eq5 drift ...] [--device cuda]
    python benchmarks/decay_ways.py --tiny

Half of a draw's images train and half validate, as in the paper: a decay per parameter, Adam, T1–T2. "one decay" and
"plain" have no validation images and train on half or on all of them. "folds" tunes on five folds of all images and
trains on all of them. The signs of λ are free, or λ ≥ 0 by a softplus or by clamping after each outer step. "tune" is
`pt.tune` with its defaults on all images; it chooses the dynamics and the hyperparameters itself.

"drift" is `HyperDrift` with λ0 = 0, the start of λ: its regularizer is √Σ‖λ ⊙ θ‖², the part of Δ_t that holds λ. The
other part, the difference of the two gradients, has no direct derivative by λ, so alone it changes nothing at K = 0.

All other runs have 100 outer steps of 1000 inner ones. The file keeps the test accuracy of each, in per cent; nothing
is chosen by it.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from measuring import RESULTS, machine
from torch import Tensor
from torch.nn.functional import cross_entropy

import pactune as pt
from pactune.objectives.base import Objective
from pactune.paper.data import DataName, Images, load_images
from pactune.paper.models import ModelName, make_model
from pactune.paper.weight_decay.setting import paper_zeta
from pactune.streams import Streams

ZETAS = (1e-8, 1e-7, 3e-7, 1e-6, 3e-6, 1e-5, 3e-5, 1e-4, 1e-3)
DECAYS = (0.0, 0.1, 0.3, 1.0, 3.0, 10.0)
OUTER_LRS = (1e-2, 1e-1, 3e-1)
FOLDS = 5


class Scale(NamedTuple):
    """How large the runs are."""

    data: DataName
    outer_steps: int = 100
    inner_steps: int = 1000
    half: int = 50
    test_rows: int | None = None
    model: ModelName = "linear"


class Way(NamedTuple):
    """One way to get decays; the runs of a way differ only in draw, ζ and the start of λ.

    Attributes:
        objective: what λ minimises.
        rows: the images that train: "half", "all", or "folds" of all.
        sign: how λ ≥ 0 is kept, "any" if it is not.
        outer_lr: of RMSprop; 0 keeps λ at its start.
        per: what shares a λ.
        zetas: ζ of the runs; None stands for the paper's.
        decays: the starts of λ.
        folds: number of folds, if there are any.
        online: move λ at every inner step too (Algorithm C.2).
    """

    objective: Literal["zero", "eq5", "drift"]
    rows: Literal["half", "all", "folds"] = "half"
    sign: Literal["any", "softplus", "clamped"] = "any"
    outer_lr: float = OUTER_LRS[0]
    per: Literal["element", "global"] = "element"
    zetas: tuple[float | None, ...] = (0.0,)
    decays: tuple[float, ...] = (0.0,)
    folds: int = FOLDS
    online: bool = False

    def run(
        self, scale: Scale, images: Images, draws: Iterable[int], device: torch.device, engine: str
    ) -> list[dict[str, Any]]:
        """Return the test accuracy of every run after every outer step."""
        paper = paper_zeta("linear", scale.data)
        zetas = dict.fromkeys(paper if zeta is None else zeta for zeta in self.zetas)
        cells = [{"draw": d, "zeta": z, "decay": w} for d, z, w in itertools.product(draws, zetas, self.decays)]
        test = test_rows(scale, images, device)
        build = builder(self, scale, images, device)
        fits: dict[str, Any] = {
            "outer_steps": scale.outer_steps,
            "test": test,
            "plain_steps": 0,
            "engine": engine,
            "progress": False,
        }
        history = pt.fit_grid(build, cells, **fits).history
        found = []
        for cell in cells:
            own = history[(history["draw"] == cell["draw"]) & (history["zeta"] == cell["zeta"])]
            own = own[own["decay"] == cell["decay"]]
            accuracy = [round(100 * value, 2) for value in own["test_accuracy"]]
            found.append({**cell, "test_accuracy": accuracy})
        return found


class Tuned(NamedTuple):
    """`pt.tune` with its defaults on all images."""

    rows: Literal["all"] = "all"

    def run(
        self, scale: Scale, images: Images, draws: Iterable[int], device: torch.device, _engine: str
    ) -> list[dict[str, Any]]:
        """Return the test accuracy of the model that `pt.tune` keeps on every draw, and which of its models that is."""
        x, y = test_rows(scale, images, device)
        found = []
        for draw in draws:
            model = make_model(scale.model, images.shape, seed=Streams(0).key("start", draw)).to(device)
            parts = zip(*images.draw(draw, scale.half), strict=True)
            rows, labels = (torch.cat(part).to(device) for part in parts)
            result = pt.tune(model, (inputs(scale.model, rows), labels), loss=cross_entropy, progress=False)
            with torch.no_grad():
                accuracy = float((result.model(x).argmax(1) == y).double().mean())
            kept = next(row["model"] for row in result.comparison if row["kept"])
            cell = {"draw": draw, "zeta": 0.0, "decay": 0.0}
            found.append({**cell, "test_accuracy": [round(100 * accuracy, 2)], "kept": kept})
        return found


def all_ways() -> dict[str, Way | Tuned]:
    """Return the ways by name."""
    every = (*ZETAS, None)  # the paper's ζ for CIFAR-10 is none of the nine
    found: dict[str, Way | Tuned] = {name: Way(name, zetas=every) for name in ("eq5", "drift")}  # type: ignore[arg-type]
    for rows in ("half", "all"):
        found[f"one decay, {rows}"] = Way("zero", rows, outer_lr=0.0, per="global", decays=DECAYS)  # type: ignore[arg-type]
    for sign, rate in itertools.product(("any", "softplus", "clamped"), OUTER_LRS):
        found[f"zero, {sign}, {rate:g}"] = Way("zero", sign=sign, outer_lr=rate)  # type: ignore[arg-type]
    for objective, rate in itertools.product(("eq5", "drift"), OUTER_LRS[1:]):
        found[f"{objective}, {rate:g}"] = Way(objective, outer_lr=rate, zetas=(None,))  # type: ignore[arg-type]
    found["zero, softplus, other starts"] = Way("zero", sign="softplus", decays=DECAYS[1:5])
    for rate in OUTER_LRS:
        found[f"eq5, clamped, {rate:g}"] = Way("eq5", sign="clamped", outer_lr=rate, zetas=(None,))
    for objective, sign in (("drift", "any"), ("eq5", "any"), ("zero", "softplus"), ("zero", "clamped")):
        zetas = (0.0,) if objective == "zero" else (None, 1e-5)
        found[f"folds, {objective}, {sign}"] = Way(objective, "folds", sign, zetas=zetas)  # type: ignore[arg-type]
    return found | {"tune": Tuned()}


class ClampedRMSprop(torch.optim.RMSprop):
    """RMSprop after whose steps no parameter is negative."""

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        """Take a step, then clamp."""
        super().step()
        for group in self.param_groups:
            torch._foreach_clamp_min_(group["params"], 0.0)


def inputs(model: ModelName, x: Tensor) -> Tensor:
    """Return images in the form that a model takes."""
    return x.flatten(1) if model == "linear" else x


def test_rows(scale: Scale, images: Images, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the test images that count, on the device."""
    x, y = images.test
    return inputs(scale.model, x)[: scale.test_rows].to(device), y[: scale.test_rows].to(device)


def builder(way: Way, scale: Scale, images: Images, device: torch.device) -> Callable[..., pt.Tuner]:
    """Return a function that makes the tuner of a run."""

    def build(draw: int, zeta: float, decay: float) -> pt.Tuner:
        model = make_model(scale.model, images.shape, seed=Streams(0).key("start", draw)).to(device)
        positive = way.sign == "softplus"
        hyper = pt.WeightDecay(model, per=way.per, init=max(decay, 1e-3) if positive else decay, positive=positive)
        first, second = ((inputs(scale.model, x).to(device), y.to(device)) for x, y in images.draw(draw, scale.half))
        whole = tuple(torch.cat(parts) for parts in zip(first, second, strict=True))
        data: dict[str, Any] = {"train": first, "valid": second}
        if way.rows != "half":
            data = {"data": whole, "folds": way.folds} if way.rows == "folds" else {"train": whole, "valid": whole}
        problem = pt.Problem(model, hyper, loss=cross_entropy, **data)
        kind = ClampedRMSprop if way.sign == "clamped" else torch.optim.RMSprop
        objectives: dict[str, Callable[[], Objective]] = {
            "zero": pt.ValidationRisk,
            "eq5": lambda: pt.PACBayes(zeta=zeta),
            "drift": lambda: pt.HyperDrift(zeta=zeta),
        }
        return pt.Tuner(
            problem,
            inner=pt.Adam(lr=1e-4),
            inner_steps=scale.inner_steps,
            outer=kind(hyper.parameters(), lr=way.outer_lr, alpha=0.99, eps=1e-8),
            objective=objectives[way.objective](),
            online=way.online,
        )

    return build


def main() -> None:
    """Run the ways that are asked for, and add them to the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="?", choices=("mnist", "cifar10"), default="mnist")
    parser.add_argument("--ways", nargs="+", help="some of them; all by default")
    parser.add_argument("--draws", type=int, default=12)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--engine", help='of all ways but "tune": by default "fused" on CUDA, "compiled" on a CPU')
    parser.add_argument("--data-dir", type=Path, help="of the image files")
    parser.add_argument("--output", type=Path, help="JSON file; one under benchmarks/results by default")
    parser.add_argument("--tiny", action="store_true", help="digits, in seconds; nothing is written by default")
    options = parser.parse_args()
    scale = Scale("digits", 2, 3, 10, 50) if options.tiny else Scale(options.data)
    images, device = load_images(scale.data, options.data_dir), torch.device(options.device)
    assert images is not None  # it was to be downloaded, so that it is there
    path = options.output or RESULTS / f"decay_ways_{scale.data}.json"
    where = {**machine(), "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"}
    ways = all_ways()
    engine = options.engine or ("fused" if device.type == "cuda" else "compiled")
    together = options.draws if device.type == "cuda" else 1  # the images of one draw fit into the cache of a core
    for name in options.ways or ways:
        begun, runs = time.perf_counter(), list[dict[str, Any]]()
        for first in range(0, options.draws, together):
            runs += ways[name].run(scale, images, range(first, first + together), device, engine)
        seconds = round(time.perf_counter() - begun, 1)
        last = sum(run["test_accuracy"][-1] for run in runs) / len(runs)
        print(f"{name}: {len(runs)} runs, {seconds} s, {last:.2f} % in the mean at the last step", flush=True)
        if options.output or not options.tiny:
            store(path, scale, where, name, {**ways[name]._asdict(), "seconds": seconds, "runs": runs})


def store(path: Path, scale: Scale, where: dict[str, Any], name: str, way: dict[str, Any]) -> None:
    """Add a way to the file, which other processes may have written to since this one began."""
    found: dict[str, Any] = json.loads(path.read_text("utf-8")) if path.exists() else {"machine": where, "ways": {}}
    found |= {"command": "python benchmarks/decay_ways.py", **scale._asdict()}
    found["ways"][name] = way if where == found["machine"] else {"machine": where, **way}
    text = json.dumps(found, ensure_ascii=False, separators=(",", ":")).replace('{"draw"', '\n{"draw"')
    path.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
