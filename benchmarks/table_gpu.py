"""Make rows of the paper's table on a CUDA device, all runs of a row at once: ResNet-18 and ResNet-34 in minutes.

    python benchmarks/table_gpu.py resnet34-mnist --export results/weight-decay
    python benchmarks/table_gpu.py --tiny --device cpu

`pactune reproduce table` makes the same rows one grid after the other. Three things are done for speed here. Eq. 5,
ζ = 0 and plain training share one grid, so that their kernels fill the device together. The runs at ζ = 0 minimise
`ValidationRisk` and measure no regularizer. Plain training is a run with an outer learning rate of 0.

Runs that are finished are not run again, and those that were interrupted go on from their checkpoints. `--draws` and
`--kinds` choose some of the runs; "online" is Algorithm C.2 at the paper's ζ for it, and is not among the default ones.
The export keeps what is in the study's file already, unless a journal has more.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast, get_args

import torch

from pactune.columns import Row
from pactune.engines import Captured, Engine
from pactune.objectives import ValidationRisk
from pactune.paper.data import DataName, Images, load_images
from pactune.paper.models import ModelName
from pactune.paper.weight_decay.method_tables import markdown
from pactune.paper.weight_decay.records import CELLS, RunRecord, StudyRecord, export_study, read_studies
from pactune.paper.weight_decay.sections import study_section
from pactune.paper.weight_decay.setting import StudySetting, builder, evaluation_set, paper_zeta
from pactune.problem.data import as_source
from pactune.results.verdict import judge_run
from pactune.tracking.journal import read_lines
from pactune.tracking.status import ended_early, journal_is_finished
from pactune.tuning.cells import Cell, cell_name
from pactune.tuning.grid import fit_grid
from pactune.tuning.tuner import Tuner

KINDS = ("zero", "eq5", "plain", "online")
CONNECTIONS = "CUDA_DEVICE_MAX_CONNECTIONS"  # hardware queues: with more of them, more runs are side by side
NOTE = (
    "`python benchmarks/table_gpu.py {row}` makes these runs. Those at zeta 0 minimise ValidationRisk, which measures "
    "no regularizer."
)
PLAIN = "Plain training is a run of its own per draw, from the same start, with an outer learning rate of 0"


@dataclass(frozen=True)
class Scale:
    """How large the runs are.

    Attributes:
        outer_steps: how often λ moves.
        inner_steps: T.
        rows: training images, and as many validation images.
        test_rows: test images, None for all.
    """

    outer_steps: int = 100
    inner_steps: int = 1000
    rows: int = 50
    test_rows: int | None = None


TINY = Scale(outer_steps=2, inner_steps=2, rows=6, test_rows=32)


@dataclass(frozen=True)
class TableRow:
    """A classifier, a data set, and how large their runs are."""

    model: ModelName
    data: DataName
    scale: Scale = Scale()

    @property
    def name(self) -> str:
        """The row as the command line has it."""
        return f"{self.model}-{self.data}"

    @property
    def setting(self) -> StudySetting:
        """What the tuned runs share."""
        return StudySetting(self.model, self.data, inner_steps=self.scale.inner_steps, rows=self.scale.rows)

    def setting_of(self, kind: str) -> StudySetting:
        """Return the settings of the runs of a kind."""
        return (
            replace(self.setting, outer_lr=0.0) if kind == "plain" else replace(self.setting, online=kind == "online")
        )

    def cell(self, kind: str, draw: int) -> Cell:
        """Return a run as a plain description, which is also the name of its folder."""
        zeta = paper_zeta(self.model, self.data, online=kind == "online") if kind in ("eq5", "online") else 0.0
        cell = {"model": self.model, "data": self.data, "zeta": zeta, "draw": draw, "init": 0, "plain": kind == "plain"}
        return {**cell, "online": True} if kind == "online" else cell


def build_tuner(row: TableRow, images: Images, device: str, cell: Cell) -> Tuner:
    """Return the tuner of a run. At ζ = 0 it measures the regularizer only if the cell asks for it."""
    setting = row.setting_of("plain" if cell["plain"] else "online" if "online" in cell else "eq5")
    tuner = builder(setting, images, device)(zeta=cell["zeta"], draw=cell["draw"], init=cell["init"])
    if cell["zeta"] or cell.get("measured"):
        return tuner
    return Tuner(
        tuner.problem,
        inner=tuner.inner,
        inner_steps=tuner.inner_steps,
        outer=tuner.outer,
        objective=ValidationRisk(),
        hypergradient=tuner.settings.risk_estimator,
        seed=tuner.seed,
    )


def run_rows(rows: Sequence[TableRow], options: argparse.Namespace) -> None:
    """Run all runs of some rows that are not finished, in one grid."""
    run_cells(rows, [row.cell(kind, draw) for row in rows for kind in options.kinds for draw in options.draws], options)


def run_cells(rows: Sequence[TableRow], cells: Sequence[Cell], options: argparse.Namespace) -> None:
    """Run all cells of some rows that are not finished, in one grid."""
    home: Path = options.folder / CELLS
    by_name = {(row.model, row.data): row for row in rows}
    steps = rows[0].scale.outer_steps
    cells = [cell for cell in cells if not journal_is_finished(read_lines(home / cell_name(cell)), steps)]
    if not cells:
        return
    images = {row.data: _images(row, options.data_dir) for row in rows}
    place = torch.device(options.device)
    test = {
        row.data: as_source(evaluation_set(row.setting, images[row.data], place), role="test", device=place)
        for row in rows
    }

    def build(**cell: Any) -> Tuner:
        return build_tuner(by_name[cell["model"], cell["data"]], images[cell["data"]], options.device, cell)

    begun = time.perf_counter()
    engine: str | Engine = "eager"
    if place.type == "cuda":
        engine = Captured(steps=9, fuse="steps", tf32=True, channels_last=True)
    print(f"{len(cells)} runs at once", flush=True)
    fit_grid(
        build,
        cells,
        outer_steps=steps,
        test=lambda **cell: test[cell["data"]],
        plain_steps=0,
        run_dir=home,
        resume=True,
        engine=engine,
    )
    print(f"done after {time.perf_counter() - begun:.0f} s", flush=True)


def export_row(row: TableRow, options: argparse.Namespace) -> Path:
    """Write the study of a row: its journals, and what its file holds of other runs."""
    name = f"table-{row.name}"
    folder: Path = options.export or options.folder
    stored = {study.name: study for study in read_studies(folder)}.get(name) if folder.is_dir() else None
    known = list(stored.records) if stored else []
    draws = sorted({*options.draws, *(run.cell["draw"] for run in known)})
    records, lines = list[RunRecord](), list[Row]()
    for kind, draw in itertools.product(("zero", "eq5", "online"), draws):
        cells = (row.cell(one, draw) for one in (kind, "plain" if kind == "zero" else kind))
        tuned, plain = (read_lines(options.folder / CELLS / cell_name(cell)) for cell in cells)
        own = RunRecord(row.setting_of(kind).as_dict(), short_cell(row.cell(kind, draw)), [], [], {}, {})
        old = next((run for run in known if (run.setting, run.cell) == (own.setting, own.cell)), own)
        known = [run for run in known if run is not old]
        run = read_run(own, tuned, options.device) if len(history(tuned)) > len(old.rows) else old
        if run.rows:
            records.append(_with_plain(run, max(old.plain, history(plain) if kind == "zero" else [], key=len)))
        lines += tuned
    if not records:
        raise SystemExit(f"{options.folder} has no tuned run of {row.name}, beside which plain training is kept")
    records += known
    finished = sum(len(run.rows) >= row.scale.outer_steps or ended_early(run.end.get("status", "")) for run in records)
    online = sum(run.setting["online"] for run in records)
    asked = max(2 * len(draws) + online, stored.asked if stored else 0)
    settings = {
        "outer_steps": row.scale.outer_steps,
        "device": torch.device(options.device).type,
        "machine": options.machine or machine_of(options.device),
        "engine": next((line["settings"]["engine"] for line in lines if line["kind"] == "start"), ""),
    }
    settings |= stored.settings if stored else {}
    settings["remark"] = options.remark or settings.get("remark", "")
    settings["note"] = f"{_note(row, records, partial=finished < asked)} {settings['remark']}".strip()
    facts = study_facts(lines, stored.facts if stored else {}, "done" if finished == asked else "interrupted")
    return export_study(StudyRecord("table", name, settings, records, asked, finished, facts), folder)


def print_study(path: Path) -> None:
    """Print the tables of an exported study."""
    (study,) = (one for one in read_studies(path.parent) if one.name == path.stem)
    print("\n\n".join([str(path), *map(markdown, study_section(study).tables)]), flush=True)


def short_cell(cell: Cell) -> Cell:
    """Return a cell as the table's studies have it."""
    return {name: cell[name] for name in ("zeta", "draw", "init")}


def read_run(run: RunRecord, journal: Sequence[Row], device: str) -> RunRecord:
    """Return a run with what its journal says."""
    start = next(line for line in journal if line["kind"] == "start")
    end: Row = next((line for line in reversed(journal) if line["kind"] == "end"), {})
    kept: Row = {name: end[name] for name in ("status", "kept_run", "kept_step", "zeta", "verdict") if name in end}
    rows = history(journal)
    facts = {"seed": start["seed"], "versions": start["versions"], "device": torch.device(device).type}
    facts |= {"engine": start["settings"]["engine"], "seconds": rows[-1]["seconds"]}
    return run._replace(rows=rows, end=kept, facts=facts)


def study_facts(lines: Sequence[Row], old: Row, status: str) -> Row:
    """Return versions and times of the tuned runs, those that were exported before included."""
    starts = [line for line in lines if line["kind"] == "start"]
    times = [line["time"] for line in lines if line["kind"] in ("start", "end")]
    times += [old[name] for name in ("began", "ended") if name in old]
    versions = old["versions"] if old else starts[0]["versions"]
    return {"versions": versions, "began": min(times), "ended": max(times), "status": status}


def history(journal: Sequence[Row]) -> list[Row]:
    """Return the history of a run; an outer step that was run again after a resume counts once."""
    by_step = {line["outer_step"]: line for line in journal if line["kind"] == "row"}
    return [by_step[step] for step in sorted(by_step)]


def _with_plain(run: RunRecord, plain: list[Row]) -> RunRecord:
    """Put plain training beside a run where it went further than what the run has, and judge the run by it."""
    if len(plain) <= len(run.plain):
        return run
    judged = judge_run(cast(Any, SimpleNamespace(rows=run.rows, plain_rows=plain, kept=run.rows[-1])))
    return run._replace(plain=plain, end={**run.end, "verdict": judged.verdict})


def _note(row: TableRow, records: Sequence[RunRecord], *, partial: bool) -> str:
    """Say how the runs are made, and which of them are short."""
    steps = [len(run.plain) for run in records if run.cell["zeta"] == 0]
    short = sorted({count for count in steps if count < row.scale.outer_steps})
    plain = PLAIN
    if not any(steps):
        plain = "Plain training was not run"
    elif short:
        plain += f"; it was stopped after {' or '.join(map(str, short))} of {row.scale.outer_steps} outer steps"
    words = f"{NOTE.format(row=row.name)} {plain}."
    return f"Partial: some runs are missing. {words}" if partial else words


def _images(row: TableRow, folder: Path | None) -> Images:
    images = load_images(row.data, folder)
    assert images is not None  # it was to be downloaded, so that it is there
    x, y = images.held
    return images._replace(held=(x[: row.scale.test_rows], y[: row.scale.test_rows]))


def machine_of(device: str) -> str:
    """Return the product name of a CUDA device."""
    return torch.cuda.get_device_name(device) if torch.device(device).type == "cuda" else "CPU"


def parse_row(name: str) -> TableRow:
    """Return the row that a word of the command line names.

    Raises:
        ArgumentTypeError: it is not MODEL-DATA.
    """
    model, _, data = name.partition("-")
    if model not in get_args(ModelName) or data not in get_args(DataName):
        raise argparse.ArgumentTypeError(f"must be MODEL-DATA such as resnet34-mnist, got {name}")
    return TableRow(cast(ModelName, model), cast(DataName, data))


def add_run_options(parser: argparse.ArgumentParser, folder: str) -> None:
    """Add the options that scripts for a CUDA device share: where to run, and what to do with the runs."""
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--folder", type=Path, default=Path(folder), help="of the run folders")
    parser.add_argument("--data-dir", type=Path, help="of the image files")
    parser.add_argument("--export", type=Path, help="folder of the JSON; that of the runs by default")
    parser.add_argument("--export-only", action="store_true", help="run nothing")
    parser.add_argument("--machine", default="", help="the device's name, where the runs were made elsewhere")
    parser.add_argument("--tiny", action="store_true", help="a linear classifier of digits, in seconds")


def _chosen(options: argparse.Namespace) -> list[TableRow]:
    if options.tiny:
        return [TableRow("linear", "digits", TINY)]
    return options.rows or [TableRow("resnet34", "mnist")]


def main() -> None:
    """Run and export the rows that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", type=parse_row, help="such as resnet34-mnist; several go into one grid")
    parser.add_argument("--draws", type=int, nargs="+", default=[0, 1, 2], help="draws of the images")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS[:3]), help="which runs of each draw")
    add_run_options(parser, "runs/table-gpu")
    parser.add_argument("--remark", default="", help="more about how the runs were made; later exports keep it")
    options = parser.parse_args()
    os.environ.setdefault(CONNECTIONS, "32")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    rows = _chosen(options)
    if not options.export_only:
        run_rows(rows, options)
    for row in rows:
        print_study(export_row(row, options))


if __name__ == "__main__":
    main()
