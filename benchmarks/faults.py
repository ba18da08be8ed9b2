"""Kill runs with SIGKILL again and again, resume them every time, and compare each with a run that was never killed.

    python benchmarks/faults.py --kills 60 --output benchmarks/results/faults.json

The kills are shared by the kinds of run in `fault_runs.py`. Every attempt is a new process, a new interpreter unless
`--fork` is given. Half of the kills come at a random moment of the run, half as soon as a checkpoint is seen being
written. Before every attempt the journals are read: each outer step in them must still be there, with the same numbers,
afterwards. Exit status 1 when a step was lost or a final history differs.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch
from fault_runs import KINDS

import pactune as pt
from pactune.tracking.journal import JOURNAL, read_journal

Rows = dict[Path, dict[tuple[str, int], dict[str, Any]]]
POLL_SECONDS = 0.0005
MOST_STEPS = 5  # a kill comes at most this many outer steps after an attempt has begun to run,
LONGEST_SECONDS = 0.2  # and at most this long after the last of them


@dataclass
class Report:
    """What happened to one kind of run.

    Attributes:
        steps_lost: outer steps that a journal had and that were missing or had other numbers afterwards.
        steps_made_again: outer steps that a journal had and that a resumed run made again, as runs of a grid do that
            were ahead of the others.
    """

    kills: int = 0
    kills_while_a_checkpoint_was_written: int = 0
    kills_that_left_a_torn_line: int = 0
    kills_before_the_first_new_step: int = 0
    outer_steps: int = 0
    steps_lost: int = 0
    steps_made_again: int = 0
    history_equal: bool = False
    plain_history_equal: bool = False
    result_equal: bool = False
    seconds: float = 0.0
    steps_at_kills: list[int] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """Whether nothing was lost and all is equal."""
        return not self.steps_lost and self.history_equal and self.plain_history_equal and self.result_equal

    def count_losses(self, before: Rows, folder: Path) -> None:
        """Compare the rows that the journals had before an attempt with what they have now."""
        after = _rows(folder)
        for path, rows in before.items():
            self.steps_lost += sum(after[path].get(key) != row for key, row in rows.items())
            resumed = [line["outer_steps_done"] for line in _journal(path) if line["kind"] == "resume"]
            done = max((step for kind, step in rows if kind == "row"), default=0)
            self.steps_made_again += max(0, done - resumed[-1]) if resumed else 0


@dataclass(frozen=True)
class Plan:
    """Which run, how many kills during how many outer steps, and how processes start: new interpreters or forks."""

    kind: str
    kills: int
    steps: int
    start: str
    seed: int = 0


def work(kind: str, folder: Path, steps: int) -> None:
    """Run, or resume, the run that is being killed."""
    torch.set_num_threads(1)
    ended = KINDS[kind](folder, steps)
    (folder / "final.json").write_text(json.dumps(ended), encoding="utf-8")


def attempt(folder: Path, plan: Plan) -> BaseProcess:
    """Start a process that runs or resumes."""
    context: Any = multiprocessing.get_context(plan.start)  # a context of its kind has processes
    process: BaseProcess = context.Process(target=work, args=(plan.kind, folder, plan.steps))
    process.start()
    return process


def kill_once(folder: Path, plan: Plan, moment: random.Random, report: Report) -> bool:
    """Run or resume, kill, and note what was left; return False when the run finished before."""
    begun = _lines(folder)
    process = attempt(folder, plan)
    while process.is_alive() and _lines(folder) == begun:  # still importing
        time.sleep(POLL_SECONDS)
    lines = 2 * len(_paths(folder))  # of an outer step: a row and a plain row in every journal
    aimed, until = moment.random() < 0.5, _lines(folder) + lines * moment.randint(0, MOST_STEPS)
    while process.is_alive() and _lines(folder) < until:
        time.sleep(POLL_SECONDS)
    if not aimed:
        time.sleep(moment.uniform(0, LONGEST_SECONDS))
    while aimed and process.is_alive() and not _being_written(folder):
        time.sleep(POLL_SECONDS)
    if not process.is_alive():
        return False
    process.kill()
    process.join()
    report.kills += 1
    report.kills_while_a_checkpoint_was_written += _being_written(folder)
    report.kills_that_left_a_torn_line += any(not path.read_bytes().endswith(b"\n") for path in _paths(folder))
    report.steps_at_kills.append(_steps(folder))
    return True


def run(folder: Path, plan: Plan) -> Report:
    """Kill and resume until the run is through; then compare."""
    report, moment, begun = Report(outer_steps=plan.steps), random.Random(plan.seed), time.monotonic()
    (folder / "killed").mkdir()
    (folder / "reference").mkdir()
    while report.kills < plan.kills:
        before, rows = _steps(folder / "killed"), _rows(folder / "killed")
        if not kill_once(folder / "killed", plan, moment, report):
            raise SystemExit(f"the run was through after {report.kills} kills; ask for more --steps")
        report.count_losses(rows, folder / "killed")
        report.kills_before_the_first_new_step += report.steps_at_kills[-1] == before
        print(
            f"{plan.kind}: kill {report.kills}/{plan.kills}: {report.steps_at_kills[-1]} of {plan.steps} steps",
            file=sys.stderr,
            flush=True,
        )
    for name in ("killed", "reference"):
        rows = _rows(folder / name)
        process = attempt(folder / name, plan)
        process.join()
        if process.exitcode:
            raise SystemExit(f"the {name} run failed")
        report.count_losses(rows, folder / name)
    killed, reference = (_final(folder / name) for name in ("killed", "reference"))
    report.history_equal = _timeless(killed["rows"]) == _timeless(reference["rows"])
    report.plain_history_equal = _timeless(killed["plain_rows"]) == _timeless(reference["plain_rows"])
    report.result_equal = killed["result"] == reference["result"]
    report.seconds = round(time.monotonic() - begun, 1)
    return report


def _paths(folder: Path) -> list[Path]:
    return sorted(folder.rglob(JOURNAL))


def _journal(path: Path) -> list[dict[str, Any]]:
    return read_journal(path.parent)


def _rows(folder: Path) -> Rows:
    """Return the last row of every outer step in every journal, without its seconds."""
    return {
        path: {
            (line["kind"], line["outer_step"]): _timeless([line])[0]
            for line in _journal(path)
            if line["kind"] in ("row", "plain row")
        }
        for path in _paths(folder)
    }


def _steps(folder: Path) -> int:
    """Return how many outer steps all runs of a folder have made."""
    return min((max((step for _, step in rows), default=0) for rows in _rows(folder).values()), default=0)


def _lines(folder: Path) -> int:
    return sum(path.read_bytes().count(b"\n") for path in _paths(folder))


def _being_written(folder: Path) -> bool:
    return any(folder.rglob("*.partial"))


def _final(folder: Path) -> Any:
    return json.loads((folder / "final.json").read_text(encoding="utf-8"))


def _timeless(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name not in ("seconds", "time")} for row in rows]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=60, help="shared by the kinds of run")
    parser.add_argument("--kinds", nargs="+", choices=list(KINDS), default=list(KINDS))
    parser.add_argument("--steps", type=int, default=None, help="outer steps of a run; 12 for every kill by default")
    parser.add_argument("--seed", type=int, default=0, help="of the moments of the kills")
    parser.add_argument("--output", type=Path, help="write the report there, as JSON")
    parser.add_argument("--fork", action="store_true", help="fork the processes instead of starting new interpreters")
    options = parser.parse_args()
    if options.fork:  # what is imported here need not be imported again after every kill
        _ = pt.Tuner, torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    reports = {}
    for number, kind in enumerate(options.kinds):
        share = options.kills // len(options.kinds) + (number < options.kills % len(options.kinds))
        start = "fork" if options.fork else "spawn"
        plan = Plan(kind, share, options.steps or max(40, 12 * share), start, options.seed)
        with tempfile.TemporaryDirectory() as folder:
            reports[kind] = run(Path(folder), plan)
    passed = all(report.passed for report in reports.values())
    kinds = {kind: {**asdict(report), "passed": report.passed} for kind, report in reports.items()}
    document = {"kills": sum(report.kills for report in reports.values()), "passed": passed, "kinds": kinds}
    if options.output:
        options.output.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(document, indent=1))
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
