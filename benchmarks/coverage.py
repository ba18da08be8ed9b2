"""The long coverage study: how often is the true risk above the certificate? Writes results/certificate/coverage.json.

Run: python benchmarks/coverage.py [--repetitions 2000] [--output results/certificate/coverage.json]
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

from pactune.experiments.coverage import CoverageStudy, Mode, run_coverage

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
    parser.add_argument("--output", type=Path, default=Path("results/certificate/coverage.json"))
    options = parser.parse_args()
    rows = []
    for name, mode, settings in STUDIES:
        for delta in (0.5, 0.05):
            begun = time.perf_counter()
            study = CoverageStudy(mode, delta, repetitions=options.repetitions, **settings)  # type: ignore[arg-type]
            found = run_coverage(study)
            rows.append({"name": name, "delta": delta, **found._asdict(), "seconds": time.perf_counter() - begun})
            print(f"{name:42} δ {delta:<5} violations {found.violations}/{found.repetitions}", flush=True)
    moments = []
    for mode in ("train", "union", "validation"):
        found = run_coverage(CoverageStudy(mode, 0.5, repetitions=10 * options.repetitions, **SMALL_RATIO))  # type: ignore[arg-type]
        moments.append({"mode": mode, "moment": found.moment, "error": found.moment_error})
        print(f"E exp(−log dQ/dP), {mode}: {found.moment:.4f} ± {found.moment_error:.4f}", flush=True)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps({"coverage": rows, "moments": moments}, ensure_ascii=False, indent=1) + "\n")


if __name__ == "__main__":
    main()
