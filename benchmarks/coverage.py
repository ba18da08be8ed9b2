"""The long coverage study: how often is the true risk above the certificate? Writes results/certificate/coverage.json.

The second part makes attempts at a false certificate, each of which must be refused or true; it exits with 1 otherwise.

Run: python benchmarks/coverage.py [--repetitions 2000] [--attempts 20] [--output results/certificate/coverage.json]
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from pactune.paper.certificates.attempt_cases import ATTEMPTS
from pactune.paper.certificates.attempts import run_attempt
from pactune.paper.certificates.coverage import CoverageStudy, Mode, run_coverage

OVERFIT = {"decay": 0.1, "inverse_temperature": 50.0}
TUNED_HARD = {"decay": 4.0, "dimensions": 200, "rows": 50, "inverse_temperature": 1000.0}
SMALL_RATIO = {"dimensions": 10, "inverse_temperature": 3.0, "decay": 0.1}
STUDIES: list[tuple[str, Mode, dict[str, float]]] = [
    ("hold-out", "hold-out", {}),
    ("train side", "train", {}),
    ("train side, union", "union", {}),
    ("validation side", "validation", OVERFIT),
    ("broken: the prior has seen S_T", "broken train", {}),
    ("broken: the prior's λ was tuned on S_V", "broken validation", TUNED_HARD),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=2000)
    parser.add_argument("--attempts", type=int, default=20, help="repetitions of every attempt")
    parser.add_argument("--output", type=Path, default=Path("results/certificate/coverage.json"))
    options = parser.parse_args()
    attempts = try_attempts(options.attempts)
    document = {"coverage": cover(options.repetitions), "moments": measure_moments(options.repetitions)}
    document |= {"attempts": attempts}
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(document, ensure_ascii=False, indent=1) + "\n")
    if any(found["false"] for found in attempts):
        sys.exit("an attempt obtained a false certificate")


def try_attempts(repetitions: int) -> list[dict[str, Any]]:
    """Make every attempt; print and return what came of it."""
    found = []
    for attempt in ATTEMPTS:
        outcome = run_attempt(attempt, repetitions)
        found.append(outcome._asdict())
        counts = f"refused {outcome.refused}, false {outcome.false} of {repetitions}"
        print(f"{outcome.item:22} {outcome.name:30} {counts}", flush=True)
    return found


def cover(repetitions: int) -> list[dict[str, Any]]:
    """Count the violations of every study."""
    rows = []
    for name, mode, settings in STUDIES:
        for delta in (0.5, 0.05):
            begun = time.perf_counter()
            study = CoverageStudy(mode, delta, repetitions=repetitions, **settings)  # type: ignore[arg-type]
            found = run_coverage(study)
            rows.append({"name": name, "delta": delta, **found._asdict(), "seconds": time.perf_counter() - begun})
            print(f"{name:42} δ {delta:<5} violations {found.violations}/{found.repetitions}", flush=True)
    return rows


def measure_moments(repetitions: int) -> list[dict[str, Any]]:
    """Measure the moment of the log-ratio, which is 1 in expectation."""
    moments = []
    for mode in ("train", "union", "validation"):
        found = run_coverage(CoverageStudy(mode, 0.5, repetitions=10 * repetitions, **SMALL_RATIO))  # type: ignore[arg-type]
        moments.append({"mode": mode, "moment": found.moment, "error": found.moment_error})
        print(f"E exp(−log dQ/dP), {mode}: {found.moment:.4f} ± {found.moment_error:.4f}", flush=True)
    return moments


if __name__ == "__main__":
    main()
