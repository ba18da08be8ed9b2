"""`pactune reproduce weight-decay`, `table`, `correlation`, `scan`, `truncation` and `restart`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import TYPE_CHECKING, Any, get_type_hints

import typer

from pactune.paper.commands.options import Data, Model, Options, begin, numbers
from pactune.report.printing import print_result

if TYPE_CHECKING:
    from pathlib import Path

    from pactune.paper.data import DataName, Images
    from pactune.paper.weight_decay.cells import Execution
    from pactune.paper.weight_decay.setting import StudySetting
    from pactune.paper.weight_decay.studies import Scale, Study
    from pactune.report.page import Section

__all__ = ["COMMANDS"]


@dataclass(frozen=True)
class _Command:
    """A command.

    Attributes:
        name: typed behind `pactune reproduce`.
        help: its text in `--help`.
        without: options that do not apply to it.
        data: default data sets.
        seeds: default number of initial weights per draw.
        draws: default draws of the images for the linear classifier.
        residual_draws: default draws for residual networks, which cost more.
    """

    name: str
    help: str
    without: tuple[str, ...] = ()
    data: tuple[Data, ...] = (Data.MNIST,)
    seeds: int = 5
    draws: str = "0"
    residual_draws: str = "0"

    def function(self) -> Callable[..., None]:
        """Return a function whose signature tells typer the options of this command."""
        hints = get_type_hints(Options, include_extras=True)
        defaults: dict[str, Any] = {"model": [Model.LINEAR], "data": list(self.data), "zeta": []}
        kept = [field for field in fields(Options) if field.name not in self.without]

        def command(**given: Any) -> None:
            _run(self, Options(**given))

        kind = inspect.Parameter.KEYWORD_ONLY
        parameters = [
            inspect.Parameter(f.name, kind, default=defaults.get(f.name, f.default), annotation=hints[f.name])
            for f in kept
        ]
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {field.name: hints[field.name] for field in kept}
        command.__doc__ = self.help
        return command


COMMANDS = (
    _Command("weight-decay", "Draw test and validation curves at ζ = 0 and at other ζ.", ("auto",)),
    _Command(
        "table",
        "Compare the methods over draws of the images: least weight norm, Eq. 5, plain training and others.",
        data=(Data.MNIST, Data.CIFAR10),
        seeds=1,
        draws="0-11",
        residual_draws="0-2",
    ),
    _Command(
        "correlation",
        "Draw the generalisation error against the regularizer over a range of ζ.",
        ("auto", "online"),
    ),
    _Command("scan", "Draw the test loss against ζ.", ("auto", "online")),
    _Command(
        "truncation",
        "Minimise the regularizer alone, by gradients of different truncation.",
        ("auto", "online", "zeta"),
    ),
    _Command("restart", "Set θ_0 back, or draw it anew, at every outer step.", ("auto", "online")),
)


def _run(command: _Command, options: Options) -> None:
    """Run the studies of a command, write their figures and the report, and print their tables."""
    begin(command.name, options.output)
    from pactune.paper.contents import study_contents
    from pactune.report.folder import write_report

    studies = _studies(command, options)
    _run_studies(command, options, studies)
    sections = _save_figures(options.output, {study.name for study in studies})
    page = write_report(options.output, studies=study_contents(options.output))
    typer.echo(f"{command.name}: written to {options.output}, report: {page}", err=True)
    tables = [(section.heading, table) for section in sections for table in section.tables]
    print_result(options.output_format, [_document(section) for section in sections], tables)


def _studies(command: _Command, options: Options) -> list[Study]:
    """Return a study per classifier and data set; without files, --quick may turn two data sets into one study."""
    studies: dict[str, Study] = {}
    for model in options.model:
        for data in options.data:
            found = _available(command, options, data.value)
            study = _study(command, options, *_plan(command, options, model.value, found))
            studies[study.name] = study
    return list(studies.values())


def _run_studies(command: _Command, options: Options, studies: list[Study]) -> None:
    from pactune.paper.weight_decay.studies import run_study

    execution, load = _execution(command, options), _loader(options)
    try:
        for study in studies:
            run_study(study, options.output, load, execution)
    except KeyboardInterrupt:
        typer.echo(f"{command.name}: interrupted; the same command goes on where it stopped", err=True)
        raise typer.Exit(130) from None


def _save_figures(home: Path, names: set[str]) -> list[Section]:
    """Write the figures of the named studies into their folders; return their sections."""
    from pactune.paper.weight_decay.records import read_studies
    from pactune.paper.weight_decay.sections import study_section
    from pactune.report.figure_files import save_panels

    sections = {study.name: study_section(study) for study in read_studies(home) if study.name in names}
    for name, section in sections.items():
        save_panels(section.figures, home / name)
    return list(sections.values())


def _study(command: _Command, options: Options, setting: StudySetting, scale: Scale) -> Study:
    from pactune.paper.weight_decay import studies

    zetas = options.zeta or ([studies.QUICK_ZETA] if options.quick else [])
    match command.name:
        case "weight-decay":
            return studies.curves(replace(setting, online=options.online), scale, zetas)
        case "table":
            return studies.table(setting, scale, zetas, online=options.online, auto=options.auto)
        case "truncation":
            return studies.truncation(setting, replace(scale, inits=1, outer_steps=8) if options.quick else scale)
        case "restart":
            return studies.restart(setting, scale, zetas)
    grid = options.zeta or (studies.QUICK_ZETAS if options.quick else studies.ZETAS)
    return studies.zeta_grid(command.name, setting, scale, grid)


def _plan(command: _Command, options: Options, model: Any, data: DataName) -> tuple[StudySetting, Scale]:
    """Return the setting of a study and how much of it to run."""
    from pactune.paper.weight_decay.setting import StudySetting
    from pactune.paper.weight_decay.studies import QUICK, QUICK_SCALE, Scale

    base, amount = (QUICK, QUICK_SCALE) if options.quick else (StudySetting(), Scale(inits=command.seeds))
    usual = command.draws if model == "linear" else command.residual_draws
    draws = options.draws or ("0-1" if options.quick and command.name == "table" else "0" if options.quick else usual)
    scale = replace(
        amount,
        draws=numbers(draws),
        inits=options.seeds or amount.inits,
        outer_steps=options.outer_steps or amount.outer_steps,
    )
    setting = replace(base, model=model, data=data, protocol=options.protocol)
    if options.quick and model != "linear":
        return replace(setting, inner_steps=2), replace(scale, outer_steps=options.outer_steps or 2, inits=1)
    return setting, scale


def _available(command: _Command, options: Options, data: DataName) -> DataName:
    """Return the data set; if its files are missing, a quick run takes the digits and says so."""
    from pactune.paper.data import load_images

    if not options.quick or load_images(data, options.data_dir, download=False) is not None:
        return data
    typer.echo(
        f"{command.name}: no files of {data}; --quick takes scikit-learn's digits, enlarged to 28 × 28", err=True
    )
    return "digits"


def _loader(options: Options) -> Callable[[DataName], Images]:
    from pactune.paper.data import load_images

    @cache
    def load(name: DataName) -> Images:
        found = load_images(name, options.data_dir, report=lambda words: typer.echo(words, err=True))
        assert found is not None
        return found

    return load


def _execution(command: _Command, options: Options) -> Execution:
    import torch

    from pactune.paper.weight_decay.cells import Execution

    try:
        torch.zeros(1, device=options.device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).partition("\n")[0]
        raise typer.BadParameter(f"--device {options.device} cannot be used: {reason}; cpu always can") from error
    report = lambda words: typer.echo(f"{command.name}: {words}", err=True)  # noqa: E731
    return Execution(options.device, options.engine, progress=True, report=report)


def _document(section: Section) -> dict[str, Any]:
    """Return the tables of a study for JSON."""
    tables = [{"header": table.header, "rows": table.rows} for table in section.tables]
    return {"study": section.heading, "tables": tables}
