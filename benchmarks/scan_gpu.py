"""A scan over ζ of a row of the paper's table on a CUDA device, all runs at once (Figures C.14 to C.19).

    python benchmarks/scan_gpu.py resnet18-mnist --export results/weight-decay
    python benchmarks/scan_gpu.py --tiny --device cpu

The runs at ζ = 0 measure the regularizer. Those at the paper's ζ are taken from the row's study in the export folder
(`benchmarks/table_gpu.py`) if it has them. The export writes a file for each of the commands `scan` and `correlation`
of `pactune reproduce`. All runs are cut to the number of outer steps that all have.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import os
from pathlib import Path

import table_gpu
import torch
from table_gpu import CONNECTIONS, TINY, TableRow, history, machine_of, parse_row, read_run, short_cell, study_facts

from pactune.columns import Row
from pactune.paper.weight_decay.records import CELLS, RunRecord, StudyRecord, export_study, read_studies
from pactune.paper.weight_decay.setting import paper_zeta
from pactune.tracking.journal import read_lines
from pactune.tuning.cells import Cell, cell_name

ITEMS = ("scan", "correlation")
ZETAS = (0.0, 1e-7, 1e-6, 1e-4)  # and the paper's
NOTE = "`python benchmarks/scan_gpu.py {row}` makes these runs."
OF_TABLE = " Those at zeta {paper:g} are the runs of table-{row}.json, which were made earlier."
Key = tuple[float, int, int]  # ζ, draw and initial weights


def cells_of(row: TableRow, draws: list[int]) -> list[Cell]:
    """Return the runs of a scan. Their folders are those of the table's runs, except at ζ = 0."""
    zetas = sorted({*ZETAS, paper_zeta(row.model, row.data)})
    cells = [{**row.cell("eq5", draw), "zeta": zeta} for zeta, draw in itertools.product(zetas, draws)]
    return [cell if cell["zeta"] else {**cell, "measured": True} for cell in cells]


def key_of(cell: Cell) -> Key:
    """Return what tells the runs of a row apart."""
    return cell["zeta"], cell["draw"], cell["init"]


def stored_runs(row: TableRow, folder: Path) -> dict[Key, RunRecord]:
    """Return the offline runs of the row's study in a folder, without those at ζ = 0."""
    studies = read_studies(folder) if folder.is_dir() else []
    found = [run for study in studies if study.name == f"table-{row.name}" for run in study.records]
    return {key_of(run.cell): run for run in found if run.cell["zeta"] and not run.setting["online"]}


def export_scan(row: TableRow, options: argparse.Namespace) -> list[Path]:
    """Write the studies of a scan, from the journals and the stored study of the row."""
    folder: Path = options.export or options.folder
    known, records, lines = stored_runs(row, folder), list[RunRecord](), list[Row]()
    cells, of_table = cells_of(row, options.draws), ""
    for cell in cells:
        journal = read_lines(options.folder / CELLS / cell_name(cell))
        own = RunRecord(row.setting.as_dict(), short_cell(cell), [], [], {}, {})
        if history(journal):
            records.append(read_run(own, journal, options.device))
            lines += journal
        elif key_of(cell) in known:
            records.append(known[key_of(cell)])
            of_table = OF_TABLE
    if not lines:
        raise SystemExit(f"{options.folder} has no run of the scan")
    steps = min(len(run.rows) for run in records)
    records = [run._replace(rows=run.rows[:steps], plain=[]) for run in records]
    settings = {
        "outer_steps": steps,
        "device": torch.device(options.device).type,
        "machine": options.machine or machine_of(options.device),
        "engine": next(line["settings"]["engine"] for line in lines if line["kind"] == "start"),
        "note": (NOTE + of_table).format(row=row.name, paper=paper_zeta(row.model, row.data)),
    }
    facts = study_facts(lines, {}, "done" if len(records) == len(cells) else "interrupted")
    finished = len(records)
    studies = [
        StudyRecord(item, f"{item}-{row.name}", settings, records, len(cells), finished, facts) for item in ITEMS
    ]
    return [export_study(study, folder) for study in studies]


def main() -> None:
    """Run and export a scan."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("row", nargs="?", type=parse_row, default=TableRow("resnet18", "mnist"))
    parser.add_argument("--draws", type=int, nargs="+", default=[0, 1], help="draws of the images")
    table_gpu.add_run_options(parser, "runs/table-gpu")
    options = parser.parse_args()
    os.environ.setdefault(CONNECTIONS, "32")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    row = TableRow("linear", "digits", TINY) if options.tiny else options.row
    if not options.export_only:
        known = stored_runs(row, options.export or options.folder)
        cells = [cell for cell in cells_of(row, options.draws) if key_of(cell) not in known]
        table_gpu.run_cells([row], cells, options)
    for path in export_scan(row, options):
        table_gpu.print_study(path)


if __name__ == "__main__":
    main()
