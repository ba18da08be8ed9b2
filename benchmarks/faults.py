"""Kill a run with SIGKILL again and again, resume it every time, and compare it with a run that was never killed.

    python benchmarks/faults.py --kills 60 --output benchmarks/results/faults.json

Every attempt is a new process, a new interpreter unless `--fork` is given. Half of the kills come at a random moment of
the run, half as soon as a checkpoint is seen being written. Before every attempt the journal is read: each outer step
in it must still be there afterwards. Exit status 1 when a step was lost or the final history differs.
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
from torch import nn

import pactune as pt
from pactune.tracking.journal import JOURNAL, read_journal

POLL_SECONDS = 0.0005
MOST_STEPS = 5  # a kill comes at most this many outer steps after an attempt has begun to run,
LONGEST_SECONDS = 0.2  # and at most this long after the last of them


@dataclass
class Report:
    """What happened."""

    kills: int = 0
    kills_while_a_checkpoint_was_written: int = 0
    kills_that_left_a_torn_line: int = 0
    kills_before_the_first_new_step: int = 0
    outer_steps: int = 0
    steps_lost: int = 0
    history_equal: bool = False
    plain_history_equal: bool = False
    result_equal: bool = False
    seconds: float = 0.0
    steps_at_kills: list[int] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """Whether nothing was lost and all is equal."""
        return not self.steps_lost and self.history_equal and self.plain_history_equal and self.result_equal


@dataclass(frozen=True)
class Plan:
    """How many kills during how many outer steps, and how processes start: "spawn" (new interpreters) or "fork"."""

    kills: int
    steps: int
    start: str
    seed: int = 0


def work(folder: Path, steps: int) -> None:
    """Run, or resume, the run that is being killed: mini-batches, dropout, BatchNorm, two chains, Adam and RMSprop."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 3))
    hyper = pt.WeightDecay(model)
    x, y = torch.randn(300, 20), torch.randint(0, 3, (300,))
    problem = pt.Problem(
        model,
        hyper,
        train=(x[:100], y[:100]),
        valid=(x[100:200], y[100:200]),
        batch_size=30,
        loss=nn.functional.cross_entropy,
    )
    outer = torch.optim.RMSprop(hyper.parameters(), lr=1e-2)
    tuner = pt.Tuner(
        problem, inner=pt.Adam(lr=1e-2), inner_steps=3, outer=outer, objective=pt.PACBayes(1e-3), chains=2, seed=1
    )
    result = tuner.fit(
        steps, test=(x[200:], y[200:]), run_dir=folder, resume=True, progress=False, keep="best-objective"
    )
    sums = {
        name: value.double().sum().item() for name, value in [*model.state_dict().items(), *hyper.state_dict().items()]
    }
    kept = {"status": result.status, "kept_step": result.kept_step, "verdict": result.verdict, "sums": sums}
    final = {"rows": result.rows, "plain_rows": result.plain_rows, "result": kept}
    (folder / "final.json").write_text(json.dumps(final), encoding="utf-8")


def attempt(folder: Path, plan: Plan) -> BaseProcess:
    """Start a process that runs or resumes."""
    process = multiprocessing.get_context(plan.start).Process(target=work, args=(folder, plan.steps))
    process.start()
    return process


def kill_once(folder: Path, plan: Plan, moment: random.Random, report: Report) -> bool:
    """Run or resume, kill, and note what was left; return False when the run finished before."""
    begun = _lines(folder)
    process = attempt(folder, plan)
    while process.is_alive() and _lines(folder) == begun:  # still importing
        time.sleep(POLL_SECONDS)
    aimed, until = moment.random() < 0.5, _lines(folder) + 2 * moment.randint(0, MOST_STEPS)
    while process.is_alive() and _lines(folder) < until:  # two lines for every outer step
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
    report.kills_that_left_a_torn_line += not (folder / JOURNAL).read_bytes().endswith(b"\n")
    report.steps_at_kills.append(_steps(folder))
    return True


def run(folder: Path, plan: Plan) -> Report:
    """Kill and resume until the run is through; then compare."""
    report, moment, begun = Report(outer_steps=plan.steps), random.Random(plan.seed), time.monotonic()
    (folder / "killed").mkdir()
    (folder / "reference").mkdir()
    while report.kills < plan.kills:
        before = _steps(folder / "killed")
        if not kill_once(folder / "killed", plan, moment, report):
            raise SystemExit(f"the run was through after {report.kills} kills; ask for more --steps")
        report.steps_lost += _lost(folder / "killed", before)
        report.kills_before_the_first_new_step += report.steps_at_kills[-1] == before
        print(
            f"kill {report.kills}/{plan.kills}: {report.steps_at_kills[-1]} of {plan.steps} steps",
            file=sys.stderr,
            flush=True,
        )
    for name in ("killed", "reference"):
        before = _steps(folder / name)
        process = attempt(folder / name, plan)
        process.join()
        if process.exitcode:
            raise SystemExit(f"the {name} run failed")
        report.steps_lost += _lost(folder / name, before)
    killed, reference = (_final(folder / name) for name in ("killed", "reference"))
    report.history_equal = _timeless(killed["rows"]) == _timeless(reference["rows"])
    report.plain_history_equal = _timeless(killed["plain_rows"]) == _timeless(reference["plain_rows"])
    report.result_equal = killed["result"] == reference["result"]
    report.seconds = round(time.monotonic() - begun, 1)
    return report


def _lost(folder: Path, before: int) -> int:
    """Return how many of the steps that the journal had were missing when the last attempt resumed."""
    resumed = [line["outer_steps_done"] for line in _journal(folder) if line["kind"] == "resume"]
    return max(0, before - resumed[-1]) if resumed and before else 0


def _journal(folder: Path) -> list[dict[str, Any]]:
    return read_journal(folder) if (folder / JOURNAL).exists() else []


def _steps(folder: Path) -> int:
    return max((line["outer_step"] for line in _journal(folder) if line["kind"] == "row"), default=0)


def _lines(folder: Path) -> int:
    path = folder / JOURNAL
    return path.read_bytes().count(b"\n") if path.exists() else 0


def _being_written(folder: Path) -> bool:
    return any(folder.glob("*.partial"))


def _final(folder: Path) -> Any:
    return json.loads((folder / "final.json").read_text(encoding="utf-8"))


def _timeless(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name != "seconds"} for row in rows]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=60)
    parser.add_argument("--steps", type=int, default=None, help="outer steps; 12 for every kill by default")
    parser.add_argument("--seed", type=int, default=0, help="of the moments of the kills")
    parser.add_argument("--output", type=Path, help="write the report there, as JSON")
    parser.add_argument("--fork", action="store_true", help="fork the processes instead of starting new interpreters")
    options = parser.parse_args()
    start = "fork" if options.fork else "spawn"
    plan = Plan(options.kills, options.steps or 12 * options.kills, start, options.seed)
    if options.fork:  # what is imported here need not be imported again after every kill
        _ = pt.Tuner, torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    with tempfile.TemporaryDirectory() as folder:
        report = run(Path(folder), plan)
    document = {**asdict(report), "passed": report.passed}
    if options.output:
        options.output.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print(json.dumps({name: value for name, value in document.items() if name != "steps_at_kills"}, indent=1))
    return 0 if report.passed else 1


if __name__ == "__main__":
    sys.exit(main())
