"""`pactune certify`: a bound on the risk from counts or from a data file, or a refusal that names its reason."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pactune.errors import SettingError
from pactune.report.printing import FormatOption, OutputFormat, print_result
from pactune.storage.user_paths import input_file

if TYPE_CHECKING:
    from torch import nn

    from pactune.bounds import Certificate
    from pactune.paper.certificates.splits import Split
    from pactune.problem import Problem

__all__ = ["app"]


class Posterior(StrEnum):
    """The sample on which the posterior chain trains."""

    UNION = "union"
    TRAIN = "train"


class Loss(StrEnum):
    """The loss that a certificate bounds."""

    ZERO_ONE = "zero-one"
    CROSS_ENTROPY = "cross-entropy"


app = typer.Typer(help="Certify the risk of a classifier, or say what is missing.", no_args_is_help=True)

Data = Annotated[str, typer.Argument(help='"digits", or an .npz file with x_train, y_train, x_valid, y_valid.')]
Delta = Annotated[float, typer.Option(help="Failure probability of the whole grid.")]
GridSize = Annotated[int, typer.Option("--grid", min=1, help="How many settings were declared beforehand.")]
Lr = Annotated[float, typer.Option(help="Step size of the chains.")]
Beta = Annotated[float, typer.Option(help="Inverse temperature per row of the bound sample.")]
Steps = Annotated[int, typer.Option(min=1, help="Steps of the chains.")]
Models = Annotated[int, typer.Option(min=1, help="Models to keep and certify together.")]
Hidden = Annotated[int, typer.Option(min=0, help="Hidden units; 0 for a linear classifier.")]
Seed = Annotated[int, typer.Option(help="Of the split of the digits, the start and the noise.")]
About = Annotated[Loss, typer.Option("--loss", help="What is bounded.")]


@app.command("hold-out")
def hold_out(
    errors: Annotated[int, typer.Option(min=0, help="Wrong predictions on the sample.")],
    rows: Annotated[int, typer.Option(min=1, help="Rows of the sample.")],
    fresh: Annotated[bool, typer.Option("--fresh", help="State that nothing has seen or been chosen by it.")] = False,
    delta: Delta = 0.05,
    grid: GridSize = 1,
    output_format: FormatOption = OutputFormat.TABLE,
) -> None:
    """Certify from the number of errors on rows that nothing has seen."""
    typer.echo(f"certify: {errors} errors on {rows} rows", err=True)
    from pactune.bounds import CountedHoldOut, Evidence, certify

    if errors > rows:
        raise SettingError(f"`--errors` must be at most `--rows`={rows}, got {errors}")
    claim = CountedHoldOut(Evidence(errors / rows, None, rows, 1), fresh=fresh)
    _print(certify(claim, delta=delta, grid=grid), output_format)


@app.command("train")
def train_side(
    data: Data = "digits",
    posterior: Annotated[Posterior, typer.Option(help="What the posterior trains on.")] = Posterior.UNION,
    lr: Lr = 0.5,
    beta: Beta = 1.0,
    steps: Steps = 100,
    models: Models = 16,
    hidden: Hidden = 0,
    seed: Seed = 0,
    delta: Delta = 0.05,
    grid: GridSize = 1,
    about: About = Loss.ZERO_ONE,
    output_format: FormatOption = OutputFormat.TABLE,
) -> None:
    """Certify Langevin chains on the training sample; the prior is a chain on the validation sample."""
    typer.echo(f"certify: reading {data}", err=True)
    from pactune.bounds import TrainSide, certify
    from pactune.bounds.coupled_langevin import CoupledChains
    from pactune.problem.provenance import Provenance

    problem, _ = _problem(_read(data, 700, 700, seed, centre="valid"), hidden)
    provenance = Provenance().touch("prior hyper").touch("initial").touch("features", problem.sample_ids[1])
    chain = CoupledChains(lr, beta * problem.train.rows, steps)
    union = posterior is Posterior.UNION
    claim = TrainSide(
        problem,
        chain,
        provenance,
        models=models,
        seed=seed,
        initial=_start(problem, hidden),
        loss=_loss(about),
        union=union,
    )
    _print(certify(claim, delta=delta, grid=grid), output_format)


@app.command("validation")
def validation_side(
    data: Data = "digits",
    outer_steps: Annotated[int, typer.Option(min=1, help="How often the decays move.")] = 50,
    outer_lr: Annotated[float, typer.Option(help="Of Adam on the decays.")] = 0.003,
    lr: Lr = 0.5,
    beta: Beta = 0.3,
    steps: Steps = 100,
    models: Models = 16,
    hidden: Hidden = 0,
    seed: Seed = 0,
    delta: Delta = 0.05,
    grid: GridSize = 1,
    about: About = Loss.ZERO_ONE,
    output_format: FormatOption = OutputFormat.TABLE,
) -> None:
    """Tune a weight decay for every parameter on the validation sample, and certify on the same sample."""
    typer.echo(f"certify: reading {data}", err=True)
    import torch

    from pactune.bounds import ValidationSide, certify
    from pactune.bounds.coupled_langevin import CoupledChains
    from pactune.dynamics import Langevin
    from pactune.hypergradient import Windowed
    from pactune.objectives import HyperDrift
    from pactune.tuning.tuner import Tuner

    problem, hyper = _problem(_read(data, 60, 1000, seed, centre="train"), hidden, per="element")
    tau, start = beta * problem.valid.rows, _start(problem, hidden)
    tuner = Tuner(
        problem,
        inner=Langevin(lr, tau),
        inner_steps=steps,
        outer=torch.optim.Adam(hyper.parameters(), lr=outer_lr),
        objective=HyperDrift("theory"),
        hypergradient=Windowed(steps),
        path_hypergradient=Windowed(steps),
        restart=True,
        initial=start,
        seed=seed,
    )
    result = tuner.fit(outer_steps, keep="best-objective", plain_steps=0)
    claim = ValidationSide(
        problem,
        CoupledChains(lr, tau, steps),
        result.provenance.touch("features", problem.sample_ids[0]),
        models=models,
        seed=seed,
        initial=start,
        loss=_loss(about),
        default_hyper=tuner.start_hyper,
    )
    _print(certify(claim, delta=delta, grid=grid), output_format)


def _read(data: str, train: int, valid: int, seed: int, *, centre: str) -> Split:
    from pactune.cli.arrays import read_samples
    from pactune.paper.certificates.splits import Split, split_digits

    if data == "digits":
        return split_digits(train, valid, seed).centred_by("train" if centre == "train" else "valid")
    path = input_file(Path(data), 'data other than "digits"', (".npz",))
    train_pair, valid_pair = read_samples(path)
    split = Split(train_pair, valid_pair, valid_pair)
    return split.centred_by("train" if centre == "train" else "valid")


def _problem(split: Split, hidden: int, per: Any = "global") -> tuple[Problem, nn.Module]:
    from torch import nn
    from torch.nn import functional

    from pactune.problem import Problem
    from pactune.problem.hyper import WeightDecay

    inputs = split.train[0].shape[1]
    classes = int(max(split.train[1].max(), split.valid[1].max())) + 1
    model: nn.Module = nn.Linear(inputs, classes)
    if hidden:
        model = nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, classes))
    hyper = WeightDecay(model, per=per)
    return Problem(model, hyper, train=split.train, valid=split.valid, loss=functional.cross_entropy), hyper


def _start(problem: Problem, hidden: int) -> Any:
    """Return the start at zero for a linear classifier; None, for a network, draws the default initialisation."""
    from pactune.paper.certificates.grid import start_at_zero

    return None if hidden else start_at_zero(problem.model)


def _loss(about: Loss) -> Any:
    from pactune.bounds import ClippedCrossEntropy, ZeroOne

    return ZeroOne() if about is Loss.ZERO_ONE else ClippedCrossEntropy()


def _print(certificate: Certificate, output_format: OutputFormat) -> None:
    print_result(output_format, certificate.describe(), notes=[str(certificate)])
