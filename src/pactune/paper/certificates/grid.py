"""Certificates on the train side, over a grid of chains that is declared before any chain runs."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional

from pactune.bounds import TrainSide, hold_out
from pactune.bounds.certificate import issue
from pactune.bounds.coupled_langevin import CoupledChains, Paths, run_coupled
from pactune.columns import Row
from pactune.errors import CertificateError, DataError
from pactune.paper.certificates.splits import Split
from pactune.problem import Problem
from pactune.problem.data import Source, as_source
from pactune.problem.hyper import WeightDecay
from pactune.problem.provenance import Provenance
from pactune.rounds.inputs import Initial
from pactune.streams import Streams
from pactune.trees import Params

__all__ = [
    "DIGITS",
    "FROM_TRAINED",
    "MNIST",
    "MNIST_NETWORK",
    "Grid",
    "best",
    "run_grid",
    "start_at_zero",
    "train_on",
]

Report = Callable[[str], None]


@dataclass(frozen=True)
class Grid:
    """A declared grid: all combinations share δ, with the posterior on S_T and on S_T ∪ S_V.

    Attributes:
        name: name of the study.
        lrs: η.
        betas: β = τ/n_T.
        steps: T.
        posteriors: the samples on which the posterior trains.
        models: M, the number of models kept per combination.
        delta: δ of the whole grid.
        seed: seed of θ_0 and of the noise.
    """

    name: str
    lrs: tuple[float, ...]
    betas: tuple[float, ...]
    steps: tuple[int, ...]
    posteriors: tuple[str, ...] = ("train", "union")
    models: int = 4
    delta: float = 0.05
    seed: int = 1

    @property
    def size(self) -> int:
        """How many certificates share δ."""
        return len(self.lrs) * len(self.betas) * len(self.steps) * len(self.posteriors)

    def settings(self) -> Row:
        """Return the grid as plain data."""
        return {**asdict(self), "size": self.size}


DIGITS = Grid("digits, linear", (0.2, 0.5, 1.0), (0.3, 1.0, 3.0), (30, 100), models=16)
MNIST = Grid("MNIST, linear", (0.05, 0.1, 0.3), (0.3, 1.0, 3.0), (300, 1000, 3000), models=4)
MNIST_NETWORK = Grid("MNIST, network of 100 hidden units", (0.1, 0.3), (0.3, 1.0, 3.0), (300, 1000), models=4)
FROM_TRAINED = Grid("start trained on S_V", (0.01, 0.1), (1.0, 10.0, 100.0), (1, 10, 100), models=4)


class _Cell(NamedTuple):
    lr: float
    beta: float
    chains: slice


def run_grid(
    grid: Grid,
    split: Split,
    model: nn.Module,
    *,
    initial: Initial | None,
    prior_saw: Mapping[str, str] | None = None,
    record: Callable[[Row], None] | None = None,
    report: Report | None = None,
) -> list[Row]:
    """Run all chains of a grid, one batch for all η and τ; return a row per certificate.

    Args:
        grid: the declared grid.
        split: S_T, S_V and test rows, on the model's device.
        model: a classifier; its present parameters are not used.
        initial: P_0; None draws the default initialisation of the modules.
        prior_saw: the sample that touched the "initial" distribution or the "features", such as {"features": "valid"}.
        record: called with every row.
        report: called with a line of progress.

    Raises:
        CertificateError: a condition is not met.
    """
    problem = make_problem(split, model)
    test = as_source(split.test, role="test", device=problem.device)
    rows: list[Row] = []
    for posterior in grid.posteriors:
        claim = _claim(grid, problem, posterior, initial, prior_saw or {})
        if broken := claim.broken():
            raise CertificateError(broken)
        cells = [
            _Cell(lr, beta, slice(i * grid.models, (i + 1) * grid.models))
            for i, (lr, beta) in enumerate(itertools.product(grid.lrs, grid.betas))
        ]
        begun = time.perf_counter()
        for paths in _run(grid, claim, cells):
            for cell in cells:
                found = _row(grid, claim, cell, paths.pick(cell.chains), posterior, test)
                rows.append(found | {"seconds": time.perf_counter() - begun})
                if record is not None:
                    record(rows[-1])
            if report is not None:
                report(f"{grid.name}, posterior on {posterior}: {paths.steps} steps")
    return rows


def make_problem(split: Split, model: nn.Module) -> Problem:
    """Return the problem with λ = 0 for both chains: nothing is tuned."""
    hyper = WeightDecay(model, per="global")
    return Problem(model, hyper, train=split.train, valid=split.valid, loss=functional.cross_entropy)


def _claim(grid: Grid, problem: Problem, posterior: str, initial: Initial | None, saw: Mapping[str, str]) -> TrainSide:
    sample_ids = dict(zip(("train", "valid"), problem.sample_ids, strict=True))
    provenance = Provenance().touch("prior hyper")
    for thing in ("initial", "features"):
        provenance = provenance.touch(thing, *([sample_ids[saw[thing]]] if thing in saw else []))
    chain = CoupledChains(1.0, 1.0, 0)  # the cells bring η, τ and T
    return TrainSide(
        problem, chain, provenance, models=grid.models, seed=grid.seed, initial=initial, union=posterior == "union"
    )


def _run(grid: Grid, claim: TrainSide, cells: list[_Cell]) -> list[Paths]:
    """Run M chains of every cell at once."""
    rows = claim.sample.size
    lr = torch.tensor([cell.lr for cell in cells], dtype=torch.float64, device="cpu").repeat_interleave(grid.models)
    betas = torch.tensor([cell.beta for cell in cells], dtype=torch.float64, device="cpu")
    tau = (betas * rows).repeat_interleave(grid.models)
    start = {name: value.repeat(len(cells), *[1] * (value.ndim - 1)) for name, value in claim.start().items()}
    chains = CoupledChains(lr, tau, max(grid.steps))
    return run_coupled(chains, start, claim.drifts(), Streams(grid.seed), record_at=grid.steps)


def _row(grid: Grid, claim: TrainSide, cell: _Cell, paths: Paths, posterior: str, test: Source) -> Row:
    """Return one certificate and the errors on all three samples."""
    certificate = issue(claim, claim.evidence(paths), delta=grid.delta, grid=grid.size)
    valid = float(claim.losses(paths, claim.problem.valid).mean())
    share, test_error = grid.delta / grid.size, float(claim.losses(paths, test).mean())
    untouched = posterior == "train" and not any(claim.provenance.touched[t] for t in ("initial", "features"))
    return {
        "posterior": posterior,
        "lr": cell.lr,
        "beta": cell.beta,
        "steps": paths.steps,
        "certificate": certificate.value,
        "train_error": certificate.empirical,
        "valid_error": valid,
        "hold_out": hold_out(valid, claim.problem.valid.rows, share) if untouched else None,
        "test_error": test_error,
        "test_hold_out": hold_out(test_error, test.rows, share),
        "log_ratio_per_row": certificate.kl / certificate.n,
        "kl_per_row": float(paths.kl.mean()) / certificate.n,
    }


def best(rows: list[Row], posterior: str) -> Row:
    """Return the row of the least certificate; sharing δ over the grid allows reporting it."""
    found = [row for row in rows if row["posterior"] == posterior]
    if not found:
        raise DataError(f"no row with the posterior on {posterior!r}")
    return min(found, key=lambda row: float(row["certificate"]))


def start_at_zero(model: nn.Module) -> Initial:
    """Return the P_0 that is always zero; use it for linear models only."""
    zeros = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    return lambda _generator: zeros


def train_on(
    model: nn.Module, sample: tuple[torch.Tensor, torch.Tensor], *, epochs: int, seed: int, lr: float = 1e-3
) -> Params:
    """Train a model by Adam on one sample, in place; return its parameters."""
    x, y = sample
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    generator = Streams(seed).generator("order")
    for _ in range(epochs):
        order = torch.randperm(len(x), generator=generator, device="cpu").to(x.device)
        for first in range(0, len(x), 128):
            at = order[first : first + 128]
            optimizer.zero_grad(set_to_none=True)
            functional.cross_entropy(model(x[at]), y[at]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        schedule.step()
    return {name: p.detach().clone() for name, p in model.named_parameters()}
