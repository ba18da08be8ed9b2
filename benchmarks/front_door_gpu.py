"""`pt.tune` with ResNet-18 on 100 MNIST images against plain training and one decay, both chosen by folds.

    python benchmarks/front_door_gpu.py --draw 0 [--data-dir DIR] [--output front_door_resnet18.json]
    python benchmarks/front_door_gpu.py --tiny --device cpu

The others are written by hand with PyTorch alone. They train as `pt.tune` does, with its learning rate, mini-batches
and moving average, but with more decays. They stop at the decay and the step with the best accuracy over five folds,
and are then trained on all images. "best step" is chosen by the test images, so no user can have it. A command makes
one draw and adds it to the file.
"""

from __future__ import annotations

import argparse
import json
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from hand_training import HandRun, on_device, start_model, train
from measuring import RESULTS, machine, write
from sklearn.model_selection import StratifiedKFold
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import pactune as pt
from pactune.paper.data import DataName, Images, load_images
from pactune.paper.models import ModelName

FOLDS = 5


class Scale(NamedTuple):
    """What is trained, for how many steps, and the decays that are tried."""

    model: ModelName = "resnet18"
    data: DataName = "mnist"
    half: int = 50
    steps: int = 2000
    interval: int = 100
    decays: tuple[float, ...] = (0.0, 0.03, 0.1, 0.3, 1.0, 3.0)
    batch: int = 16


TINY = Scale("linear", "digits", 20, 40, 20, (0.0, 0.3), 8)
BETA = 0.995


class DecoupledSGD(torch.optim.SGD):
    """SGD with momentum, which shrinks the parameters by (1 − lr · decay) after each step."""

    def __init__(self, params: Sequence[Tensor], lr: float, decay: float) -> None:
        super().__init__(params, lr=lr, momentum=0.9, fused=params[0].is_cuda)
        self._params, self._shrink = list(params), 1 - lr * decay

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        """Take a step, then shrink the parameters."""
        super().step()
        torch._foreach_mul_(self._params, self._shrink)


class AveragedRun(HandRun):
    """A run on random mini-batches, whose evaluations are about the moving average of its parameters.

    The statistics of BatchNorm are computed anew at the average, on all training images.
    """

    def __init__(self, *arguments: Any, batch: int) -> None:
        super().__init__(*arguments)
        self._batch, self._steps = batch, torch.zeros((), device=self._x.device)
        self._average = [p.detach().clone() for p in self._params]

    def rows(self) -> tuple[Tensor, Tensor]:
        """Return a random mini-batch."""
        chosen = torch.rand(len(self._y), device=self._y.device).argsort()[: self._batch]
        return self._x[chosen], self._y[chosen]

    def step(self) -> None:
        """Take one step, then move the average."""
        super().step()
        with torch.no_grad():
            self._steps += 1
            weight = torch.clamp(1 / self._steps, min=1 - BETA)
            for average, p in zip(self._average, self._params, strict=True):
                average.lerp_(p, weight)

    def restart(self) -> None:
        """Put the average back to the parameters."""
        self._steps.zero_()
        for average, p in zip(self._average, self._params, strict=True):
            average.copy_(p.detach())

    @torch.no_grad()
    def evaluate(self, step: int) -> None:
        """Add the numbers of the average to the record."""
        before = {name: value.clone() for name, value in self._model.state_dict().items()}
        for average, p in zip(self._average, self._params, strict=True):
            p.copy_(average)
        norms = [module for module in self._model.modules() if isinstance(module, nn.BatchNorm2d)]
        momentum = [norm.momentum for norm in norms]
        for norm in norms:
            norm.momentum = 1.0
        self._model(self._x)
        for norm, own in zip(norms, momentum, strict=True):
            norm.momentum = own
        super().evaluate(step)
        self._model.load_state_dict(before)


def sgd(rate: float, decay: float) -> Callable[[list[nn.Parameter]], torch.optim.Optimizer]:
    """Return a function that makes the optimizer of a run."""
    return lambda params: DecoupledSGD(params, rate, decay)


def train_all(
    scale: Scale, images: Images, own: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor], draw: int, rate: float
) -> list[list[dict[str, Any]]]:
    """Train at every decay on five folds and on all images; return the records, those of all images last."""
    x, y = own
    splits = StratifiedKFold(FOLDS, shuffle=True, random_state=draw).split(x.cpu().flatten(1), y.cpu())
    parts = [((x[fit], y[fit]), (x[held], y[held])) for fit, held in splits]
    parts.append((own, test))
    runs = [
        [
            AveragedRun(start_model(scale.model, images, draw), *part, sgd(rate, decay), {}, batch=scale.batch)
            for part in parts
        ]
        for decay in scale.decays
    ]
    for _ in train([run for same in runs for run in same], scale.steps, scale.interval, x.device):
        pass
    return [[run.record for run in same] for same in runs]


def best_by_folds(records: list[list[dict[str, Any]]], scale: Scale) -> dict[str, Any]:
    """Return decay, steps and test accuracy at the best mean accuracy over folds; the loss decides ties."""

    def column(name: str) -> Tensor:
        return torch.tensor([[fold[name] for fold in same[:FOLDS]] for same in records], dtype=torch.float64).mean(1)

    score = column("test_accuracy") - 1e-6 * column("test_risk").nan_to_num(nan=1e3).clamp(max=1e3)
    which, look = divmod(int(score.argmax()), score.shape[1])
    whole = records[which][FOLDS]["test_accuracy"]
    return {
        "accuracy": round(100 * whole[look], 2),
        "decay": scale.decays[which],
        "steps": (look + 1) * scale.interval,
        "accuracy over folds": round(100 * float(column("test_accuracy")[which, look]), 2),
        "best step": round(100 * max(max(same[FOLDS]["test_accuracy"]) for same in records), 2),
        "course": course(whole),
    }


def course(accuracies: Iterable[float]) -> list[float]:
    """Return the test accuracies of a training on all images, look by look, in percent."""
    return [round(100 * value, 2) for value in accuracies]


def run_draw(scale: Scale, images: Images, draw: int, device: torch.device, *, only_tune: bool) -> dict[str, Any]:
    """Return the test accuracies of one draw."""
    x, y = (torch.cat(part) for part in zip(*images.draw(draw, scale.half), strict=True))
    own, test = (on_device(pair, scale.model, device) for pair in ((x, y), images.test))
    model = start_model(scale.model, images, draw).to(device)
    begun = time.perf_counter()
    rows = own[0].contiguous(), own[1]  # as a user would have them
    result = pt.tune(model, rows, loss=cross_entropy, seed=draw, test=test, progress=False)
    seconds = time.perf_counter() - begun
    with torch.no_grad():
        right = [model(a).argmax(1) == b for a, b in zip(test[0].split(2500), test[1].split(2500), strict=True)]
    found: dict[str, Any] = {"draw": draw, "tune": round(100 * float(torch.cat(right).double().mean()), 2)}
    rate = float(result.settings["learning_rate"])
    found |= {"seconds": round(seconds, 1), "learning_rate": rate, "verdict": result.verdict}
    found["table"] = result.comparison
    found["course"] = course(row["test_accuracy"] for row in [*result.rows, *result.plain_rows])
    if only_tune:
        return found
    print(json.dumps(found, ensure_ascii=False), flush=True)
    begun = time.perf_counter()
    records = train_all(scale, images, own, test, draw, rate)
    found |= {"plain": best_by_folds(records[:1], scale), "one decay": best_by_folds(records, scale)}
    found["seconds of the others"] = round(time.perf_counter() - begun, 1)
    return found


def add_draw(name: str, found: dict[str, Any], device: torch.device) -> None:
    """Add a draw to the file, and the means over all draws in it."""
    path = RESULTS / name
    known = {one["draw"]: one for one in (json.loads(path.read_text("utf-8"))["draws"] if path.exists() else [])}
    known[found["draw"]] = {**known.get(found["draw"], {}), **found}
    draws = [known[number] for number in sorted(known)]
    columns = {"tune": [one["tune"] for one in draws]} | {
        name: [one[name]["accuracy"] for one in draws]
        for name in ("plain", "one decay")
        if all(name in one for one in draws)
    }
    means = {column: round(sum(values) / len(values), 2) for column, values in columns.items()}
    where = {**machine(), "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"}
    write(name, {"command": "python benchmarks/front_door_gpu.py --draw N", "machine": where, **means, "draws": draws})


def main() -> None:
    """Run one draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draw", type=int, default=0)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--data-dir", type=Path, help="of the image files")
    parser.add_argument("--output", help="name of a file under benchmarks/results; none is written by default")
    parser.add_argument("--only-tune", action="store_true", help="leave the others as they are in the file")
    parser.add_argument("--tiny", action="store_true", help="a linear classifier of digits, in seconds")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    scale, device = TINY if options.tiny else Scale(), torch.device(options.device)
    images = load_images(scale.data, options.data_dir)
    assert images is not None  # it was to be downloaded, so that it is there
    found = run_draw(scale, images, options.draw, device, only_tune=options.only_tune)
    print(json.dumps(found, ensure_ascii=False), flush=True)
    if options.output:
        add_draw(options.output, found, device)


if __name__ == "__main__":
    main()
