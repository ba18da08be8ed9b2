"""Options of `pactune reproduce`: those that commands share, and those of the weight-decay studies."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal

import typer

from pactune.report.printing import FormatOption, OutputFormat
from pactune.storage.user_paths import output_folder

__all__ = ["Data", "Model", "Options", "Output", "Quick", "begin", "numbers"]

Output = Annotated[Path | None, typer.Option("--output", help="Run folder; runs/ITEM by default.")]
Quick = Annotated[bool, typer.Option("--quick", help="A small version, to see that it works.")]

Engine = Literal["auto", "eager", "traced", "compiled", "captured", "fused"]


class Model(StrEnum):
    """A classifier."""

    LINEAR = "linear"
    RESNET18 = "resnet18"
    RESNET34 = "resnet34"


class Data(StrEnum):
    """A data set."""

    MNIST = "mnist"
    CIFAR10 = "cifar10"
    DIGITS = "digits"


@dataclass(frozen=True)
class Options:
    """All options of the weight-decay commands; each command leaves out those that do not apply to it."""

    model: Annotated[list[Model], typer.Option(help="Classifier; may be repeated.")]
    data: Annotated[list[Data], typer.Option(help="Data set; may be repeated. digits need no files.")]
    draws: Annotated[str, typer.Option(help="Draws of the images, such as 0-11 or 3; the item's own by default.")] = ""
    seeds: Annotated[int, typer.Option(min=0, help="Initial weights per draw; 0 is the item's own number.")] = 0
    zeta: Annotated[list[float], typer.Option(min=0, help="ζ in the scale of Eq. 5; may be repeated.")] = ()  # type: ignore[assignment]
    outer_steps: Annotated[int, typer.Option(min=0, help="Outer steps; 0 is the item's own number.")] = 0
    online: Annotated[bool, typer.Option("--online", help="Move λ at every inner step too (Algorithm C.2).")] = False
    auto: Annotated[bool, typer.Option("--auto", help='Also zeta="auto": 11 tuned and 6 plain runs each.')] = False
    protocol: Annotated[Literal["eval", "paper"], typer.Option(help="Evaluate in eval() or as the authors.")] = "eval"
    output: Annotated[Path, typer.Option(help="Folder of all studies, which share their runs.")] = Path("runs/paper")
    data_dir: Annotated[Path | None, typer.Option(help="Folder with mnist/ and cifar10/; $PACTUNE_DATA or cache.")] = (
        None
    )
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu"
    engine: Annotated[Engine, typer.Option(help="How the inner loops are run.")] = "auto"
    quick: Annotated[bool, typer.Option("--quick", help="A small version; on digits where there are no files.")] = False
    output_format: FormatOption = OutputFormat.TABLE


def begin(name: str, folder: Path) -> Path:
    """Say where the results go, before anything slow is imported; return the folder.

    Raises:
        SettingError: the folder cannot be written.
    """
    typer.echo(f"{name}: results go to {folder}", err=True)
    return output_folder(folder)


def numbers(text: str) -> tuple[int, ...]:
    """Return the whole numbers that a text such as "0-2,7" names.

    >>> numbers("0-2,7")
    (0, 1, 2, 7)
    """
    found: list[int] = []
    for part in text.split(","):
        low, _, high = part.strip().partition("-")
        if not (low.isdigit() and (high or low).isdigit()):
            raise typer.BadParameter(f"--draws must be numbers and ranges such as 0-11 or 0-2,7, got {text!r}")
        found += range(int(low), int(high or low) + 1)
    if not found:
        raise typer.BadParameter(f"--draws {text!r} is empty: a range goes from the smaller to the larger number")
    return tuple(dict.fromkeys(found))
