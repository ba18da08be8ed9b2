"""Change the numerical code at one random point at a time and count how many changes the tests notice.

    python benchmarks/mutants.py record --calls calls.json          # about 15 minutes on an idle core
    python benchmarks/mutants.py run --calls calls.json --seed 2    # about half a minute per mutant
    python benchmarks/mutants.py again --calls calls.json --seed 2  # the unnoticed ones, after tests were added

`record` runs the tests once and writes which functions each test calls; a test that fails is left out. `run` draws
mutants with the given seed. Each mutant is written into a copy of the repository. There the tests that call the changed
function run, the fastest first, until one fails. A mutant that no test notices either shows a missing test or changes
nothing that can be seen; `mutants_equivalent.json` lists the second kind with the reason. The file of results keeps one
sample per seed. The line numbers of a sample are those of the day it was drawn.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from measuring import RESULTS
from mutations import Mutant, find_mutants

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "pactune"
EQUIVALENT = Path(__file__).parent / "mutants_equivalent.json"
PARTS = [
    *("trees.py", "streams.py", "results/verdict.py", "tuning/auto_zeta.py", "tuning/outer_run.py"),
    *("problem/hyper.py", "problem/hooks.py", "problem/losses.py", "problem/row_identity.py"),
    *("dynamics", "objectives", "hypergradient", "rounds", "engines", "stacking", "gradient_check"),
    *("bounds", "privacy", "selection", "monitor"),
]
# These need a GPU; the last one draws.
LEFT_OUT = {"engines/captured.py", "engines/cuda_graph.py", "engines/replayed_chain.py", "privacy/plots.py"}
TESTS_LEFT_OUT = {"architecture", "build", "docs", "examples"}  # they check no number of the package
FOLDERS = ["bounds", "monitor", "privacy", "selection"]
PLACE = ("file", "line", "column", "change")
FIRST_SECONDS = 15.0  # expected duration of the tests in the first attempt; `--seconds` sets that of the second
PATIENCE = 6.0  # a mutant that takes this many times the expected duration runs for ever: it counts as noticed


class Recorder:
    """A pytest plugin that notes which functions of the package each passing test calls, and its duration."""

    def __init__(self) -> None:
        self.tests: dict[str, dict[str, Any]] = {}
        self._called: set[str] = set()
        self._known: dict[Any, str | None] = {}

    def _on_call(self, frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        if code not in self._known:
            path = Path(code.co_filename)
            inside = path.is_relative_to(SOURCE) and code.co_name != "<module>"
            self._known[code] = f"{path.relative_to(SOURCE)}::{code.co_firstlineno}" if inside else None
        name = self._known[code]
        if name is not None:
            self._called.add(name)

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Watch one test."""
        self._called, start = set(), time.perf_counter()
        sys.settrace(self._on_call)
        yield
        sys.settrace(None)
        found = {"seconds": time.perf_counter() - start, "calls": sorted(self._called)}
        self.tests.setdefault(item.nodeid, {"passed": False}).update(found)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note that a test has passed."""
        if report.when == "call" and report.passed:
            self.tests.setdefault(report.nodeid, {})["passed"] = True


def record(path: Path, chosen: list[str]) -> None:
    """Run tests once and add to the file which functions each one calls."""
    recorder = Recorder()
    os.chdir(ROOT)
    options = ["-q", "--no-header", "-p", "no:cacheprovider", "-m", "not slow"]
    pytest.main([*options, *(chosen or _all_tests())], plugins=[recorder])
    known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    passed = {name: test for name, test in recorder.tests.items() if test["passed"] and test["calls"]}
    path.write_text(json.dumps(known | passed), encoding="utf-8")


def _all_tests() -> list[str]:
    doctests = [f"src/pactune/{part}" for part in PARTS]
    files = sorted(f for f in (ROOT / "tests").glob("test_*.py") if f.stem.removeprefix("test_") not in TESTS_LEFT_OUT)
    return [*doctests, *(f"tests/{folder}" for folder in FOLDERS), *(str(file.relative_to(ROOT)) for file in files)]


def all_mutants() -> list[Mutant]:
    """Return every mutant of the numerical code, in a fixed order."""
    files = [f for part in PARTS for f in ([SOURCE / part] if part.endswith(".py") else (SOURCE / part).glob("*.py"))]
    names = sorted(str(file.relative_to(SOURCE)) for file in files)
    return [mutant for name in names if name not in LEFT_OUT for mutant in find_mutants(SOURCE / name, name)]


def tests_of(mutant: Mutant, tests: dict[str, dict[str, Any]]) -> list[str]:
    """Return the tests that call the changed function, or any of the file where it is outside of functions.

    The fastest parameters of each test come first, then the second fastest, so that few tests see much.
    """
    if mutant.function is not None:
        called = {f"{mutant.file}::{line}" for line in mutant.function}
        found = [name for name, test in tests.items() if called & set(test["calls"])]
    else:
        found = [n for n, test in tests.items() if any(c.startswith(f"{mutant.file}::") for c in test["calls"])]
    found.sort(key=lambda name: tests[name]["seconds"])
    rank: Counter[str] = Counter()
    order = {}
    for name in found:
        rank[name.partition("[")[0]] += 1
        order[name] = (rank[name.partition("[")[0]], tests[name]["seconds"])
    return sorted(found, key=order.__getitem__)


def judge(mutant: Mutant, tests: dict[str, dict[str, Any]], copy: Path, most_seconds: float) -> dict[str, Any]:
    """Run the tests against one mutant and say which of them noticed it."""
    row: dict[str, Any] = {part: getattr(mutant, part) for part in PLACE} | {"noticed_by": None}
    names = tests_of(mutant, tests)
    target = copy / "src" / "pactune" / mutant.file
    whole = target.read_text(encoding="utf-8")
    target.write_text(mutant.source, encoding="utf-8")
    done = 0
    try:
        for seconds in (FIRST_SECONDS, most_seconds):
            chosen = _within(names, tests, seconds)[done:]
            if chosen and row["noticed_by"] is None:
                row["noticed_by"] = _first_failure(chosen, sum(tests[n]["seconds"] for n in chosen), copy)
                done += len(chosen)
    finally:
        target.write_text(whole, encoding="utf-8")
    return row | {"tests": f"{done} of {len(names)}"}


def _within(names: list[str], tests: dict[str, dict[str, Any]], seconds: float) -> list[str]:
    total, kept = 0.0, list[str]()
    for name in names:
        total += tests[name]["seconds"]
        if total > seconds and kept:
            break
        kept.append(name)
    return kept


def _first_failure(names: list[str], seconds: float, copy: Path) -> str | None:
    options = ["-x", "-q", "--no-header", "--tb=no", "-p", "no:cacheprovider", "-p", "no:xdist"]
    environment = os.environ | {"PYTHONPATH": str(copy / "src"), "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", *options, *names]
    limit = 60.0 + PATIENCE * seconds
    try:
        done = subprocess.run(
            command, cwd=copy, env=environment, capture_output=True, text=True, timeout=limit, check=False
        )
    except subprocess.TimeoutExpired:
        return "the time limit"
    if done.returncode == 0:
        return None
    lines = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return lines[0].split(" - ")[0].split(" ", 1)[1] if lines else f"exit status {done.returncode}"


def run(tests: dict[str, dict[str, Any]], options: argparse.Namespace) -> None:
    """Judge a random sample and write the result after every mutant."""
    everything = all_mutants()
    sample = random.Random(options.seed).sample(everything, options.number)
    found: dict[str, Any] = {"seed": options.seed, "possible": len(everything), "mutants": []}
    end = time.monotonic() + 60 * options.minutes
    with copied() as copy:
        for mutant in sample:
            if time.monotonic() > end:
                break
            row = judge(mutant, tests, copy, options.seconds)
            found["mutants"].append(row | {"noticed_at_first": row["noticed_by"] is not None})
            write(options.output, found)


def again(tests: dict[str, dict[str, Any]], options: argparse.Namespace) -> None:
    """Judge the mutants once more that no test noticed, with more time or with the tests added since."""
    found = next(sample for sample in stored(options.output) if sample["seed"] == options.seed)
    known = {tuple(getattr(mutant, part) for part in PLACE): mutant for mutant in all_mutants()}
    write(options.output, found)
    with copied() as copy:
        for row in found["mutants"]:
            if row["noticed_by"] is None and not row["equivalent"]:
                row.update(judge(known[place(row)], tests, copy, options.seconds))
                row["noticed_at_first"] = options.tests_unchanged and row["noticed_by"] is not None
                write(options.output, found)


def place(row: dict[str, Any]) -> tuple[Any, ...]:
    """Return what tells a mutant from all others of its sample."""
    return tuple(row.get(part) for part in PLACE)


def stored(name: str) -> list[dict[str, Any]]:
    """Return the samples in the file of results."""
    path = RESULTS / name
    samples: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["samples"] if path.exists() else []
    return samples


@contextmanager
def copied() -> Iterator[Path]:
    """Give a copy of the repository in which files can be changed."""
    left_out = shutil.ignore_patterns(".git", ".venv", "__pycache__", ".*_cache", "site")
    with tempfile.TemporaryDirectory() as folder:
        yield Path(shutil.copytree(ROOT, Path(folder) / "copy", ignore=left_out))


def write(name: str, found: dict[str, Any]) -> None:
    """Store the sample with the shares that were noticed among the mutants that are not equivalent."""
    judged = json.loads(EQUIVALENT.read_text(encoding="utf-8"))
    reasons = {place(row): row["reason"] for row in judged if row["seed"] == found["seed"]}
    for row in found["mutants"]:
        row["equivalent"] = reasons.get(place(row)) if row["noticed_by"] is None else None
    real = [row for row in found["mutants"] if row["equivalent"] is None]
    noticed = sum(row["noticed_by"] is not None for row in real)
    counts = {
        "sampled": len(found["mutants"]),
        "equivalent": len(found["mutants"]) - len(real),
        "noticed at first": sum(row["noticed_at_first"] for row in real),
        "noticed with the tests added since": noticed,
        "real": len(real),
    }
    print(counts, found["mutants"][-1] if found["mutants"] else "", flush=True)
    sample = {"seed": found["seed"], "possible": found["possible"], "counts": counts, "mutants": found["mutants"]}
    others = [other for other in stored(name) if other["seed"] != found["seed"]]
    document = {"samples": sorted([*others, sample], key=lambda one: one["seed"])}
    (RESULTS / name).write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("record", "run", "again"))
    parser.add_argument("--calls", type=Path, required=True, help="where `record` writes and `run` reads")
    parser.add_argument(
        "--tests", nargs="*", default=[], help="record these alone; all that concern the numbers otherwise"
    )
    parser.add_argument("--tests-unchanged", action="store_true", help="`again` only gives the same tests more time")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--number", type=int, default=60)
    parser.add_argument("--minutes", type=float, default=60.0, help="`run` starts no mutant after this time")
    parser.add_argument("--seconds", type=float, default=200.0, help="expected duration of the tests of one mutant")
    parser.add_argument("--output", default="mutants.json", help="file name under benchmarks/results")
    options = parser.parse_args()
    if options.what == "record":
        record(options.calls, options.tests)
        return
    tests = json.loads(options.calls.read_text(encoding="utf-8"))
    if options.what == "run":
        run(tests, options)
    else:
        again(tests, options)


if __name__ == "__main__":
    main()
