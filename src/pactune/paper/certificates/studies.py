"""The certificates of `pactune reproduce certificate`: the model, the start and the samples of each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from pactune.columns import Row
from pactune.paper.certificates.grid import (
    DIGITS,
    FROM_TRAINED,
    MNIST,
    MNIST_NETWORK,
    Grid,
    best,
    run_grid,
    start_at_zero,
    train_on,
)
from pactune.paper.certificates.hyper_drift import (
    DIGITS_DRIFT,
    MNIST_DRIFT,
    MNIST_LARGE_DRIFT,
    DriftStudy,
    quick_study,
    run_drift,
)
from pactune.paper.certificates.splits import Split, split_digits, split_mnist
from pactune.rounds.inputs import Initial
from pactune.streams import Streams, forked_rng

__all__ = ["digits_studies", "mnist_large_studies", "mnist_small_studies", "summarise"]

Record = Callable[..., None]
Report = Callable[[str], None]
ROWS = {"digits": 700, "mnist": 30_000}
RAW: Row = {}
CENTRED: Row = {"features": "valid"}
TRAINED: Row = {"features": "valid", "initial": "valid"}


class _Studies:
    """Runs studies one after the other and collects their rows in `found`."""

    def __init__(self, record: Record | None, report: Report | None) -> None:
        self._record, self._report = record, report
        self.found: dict[str, Row] = {}

    def grid(self, grid: Grid, split: Split, model: nn.Module, *, initial: Initial | None, saw: Row) -> None:
        def keep(row: Row) -> None:
            if self._record is not None:
                self._record("certificate", study=grid.name, **row)

        rows = run_grid(
            grid,
            split,
            model,
            initial=initial,
            prior_saw=saw,
            record=keep,
            report=self._report,
        )
        self.found[grid.name] = {"kind": "train side", "settings": grid.settings(), "rows": rows}

    def drift(self, study: DriftStudy, split: Split) -> None:
        def keep(row: Row) -> None:
            if self._record is not None:
                self._record("certificate", study=study.name, **row)
            if self._report is not None:
                self._report(f"{study.name}: {row['objective']}")

        rows = run_drift(study, split, record=keep)
        self.found[study.name] = {"kind": "validation side", "settings": study.settings(), "rows": rows}


def digits_studies(
    seed: int = 0, *, quick: bool = False, record: Record | None = None, report: Report | None = None
) -> dict[str, Row]:
    """Certify on scikit-learn's digits: 700/700 on the train side, 60/1000 with tuned decays on the validation side."""
    studies = _Studies(record, report)
    split = split_digits(ROWS["digits"], ROWS["digits"], seed)
    grid = replace(DIGITS, lrs=(0.5,), betas=(1.0,), models=4) if quick else DIGITS
    linear = nn.Linear(64, 10)
    studies.grid(replace(grid, name=f"{grid.name}, raw"), split, linear, initial=start_at_zero(linear), saw=RAW)
    grid, centred = replace(grid, name=f"{grid.name}, centred"), split.centred_by("valid")
    studies.grid(grid, centred, linear, initial=start_at_zero(linear), saw=CENTRED)
    study = quick_study(DIGITS_DRIFT) if quick else DIGITS_DRIFT
    studies.drift(study, split_digits(study.train, study.valid, seed).centred_by("train"))
    return studies.found


def mnist_large_studies(
    folder: Path, device: str, seed: int = 0, *, record: Record | None = None, report: Report | None = None
) -> dict[str, Row]:
    """Certify on MNIST at 30,000/30,000: linear and network, from a data-free start and from one trained on S_V."""
    studies = _Studies(record, report)
    split = split_mnist(folder, ROWS["mnist"], ROWS["mnist"], seed).to(device)
    centred = split.centred_by("valid")
    linear = nn.Linear(784, 10).to(device)
    zero = start_at_zero(linear)
    studies.grid(replace(MNIST, name="MNIST, linear, raw"), split, linear, initial=zero, saw=RAW)
    studies.grid(replace(MNIST, name="MNIST, linear, centred"), centred, linear, initial=zero, saw=CENTRED)
    for name, hidden in (("linear", 0), ("network of 256", 256)):
        model = _classifier(hidden, seed).to(device)
        trained = train_on(model, centred.valid, epochs=15, seed=seed)
        grid = replace(FROM_TRAINED, name=f"MNIST, {name}, start trained on S_V")
        studies.grid(grid, centred, model, initial=_at(trained), saw=TRAINED)
    studies.drift(MNIST_LARGE_DRIFT, split.centred_by("train"))
    network = _classifier(100, seed).to(device)
    studies.grid(replace(MNIST_NETWORK, name="MNIST, network of 100"), centred, network, initial=None, saw=CENTRED)
    return studies.found


def mnist_small_studies(
    folder: Path, device: str, seed: int = 0, *, record: Record | None = None, report: Report | None = None
) -> dict[str, Row]:
    """Train a linear classifier on 1000 MNIST images, tune its decays on 30,000 others, and certify on those."""
    studies = _Studies(record, report)
    split = split_mnist(folder, MNIST_DRIFT.train, MNIST_DRIFT.valid, seed).to(device)
    studies.drift(MNIST_DRIFT, split.centred_by("train"))
    return studies.found


def summarise(studies: dict[str, Row]) -> list[Row]:
    """Return the row of the least certificate per study and posterior; sharing δ over the grid allows this choice."""
    lines: list[Row] = []
    for name, study in studies.items():
        if study["kind"] == "train side":
            for posterior in study["settings"]["posteriors"]:
                row = best(study["rows"], posterior)
                sizes = [r["certificate"] for r in study["rows"] if r["posterior"] == posterior]
                lines.append({"study": name, **row, "of": len(sizes), "non_vacuous": sum(c < 0.9 for c in sizes)})
        else:
            lines += [{"study": name, **row} for row in study["rows"]]
    return lines


def _classifier(hidden: int, seed: int) -> nn.Module:
    """Return a linear classifier or a network with one hidden layer, whose start is a function of the seed."""
    with forked_rng(torch.device("cpu")):
        torch.default_generator.manual_seed(Streams(seed).key("classifier", hidden))
        if not hidden:
            return nn.Linear(784, 10)
        return nn.Sequential(nn.Linear(784, hidden), nn.ReLU(), nn.Linear(hidden, 10))


def _at(params: dict[str, torch.Tensor]) -> Initial:
    return lambda _generator: params
