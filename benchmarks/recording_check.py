"""What it costs to compare a recording with the real step in every round, on a CPU.

    python benchmarks/recording_check.py [--repeats 15]

The first measured step of a round runs as it is written and is compared with its recording. The ratio is the CPU time
of such rounds over the time of rounds that run every step from recordings and compare nothing.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from measuring import interleave, machine, ratio, write
from steps import rounds, tuner
from torch import nn

from pactune.engines import Traced
from pactune.rounds.engine import Engine, RoundChain

NAME = "recording_check.json"
LENGTHS = (10, 50, 1000)
STEPS = 2000  # inner steps that one measurement makes


@dataclass
class Unchecked(Traced):
    """The traced engine without the comparison."""

    def _run(self, round_chain: RoundChain, steps: int) -> int:
        return self._run_recorded(round_chain, 0, steps, self._recordings)


def repeated(engine: Engine, length: int) -> Callable[[], None]:
    """Return a function that makes `STEPS` inner steps in rounds of one length."""
    run = rounds([tuner(nn.Linear(784, 10), (784,), length, engine="eager")], engine)

    def several() -> None:
        for _ in range(STEPS // length):
            run()

    return several


def measure(length: int, repeats: int) -> dict[str, Any]:
    """Compare rounds with and without the comparison."""
    ways = {"checked": repeated(Traced(), length), "unchecked": repeated(Unchecked(), length)}
    taken = interleave(ways, repeats)
    each = {name: round(statistics.median(t) * length / STEPS * 1e6) for name, t in taken.items()}
    return {"microseconds per round": each, "checked ÷ unchecked": ratio(taken["checked"], taken["unchecked"])}


def main() -> None:
    """Measure rounds of all lengths."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=15)
    options = parser.parse_args()
    torch.set_num_threads(1)
    results = {"machine": machine(), **{f"T = {length}": measure(length, options.repeats) for length in LENGTHS}}
    write(NAME, results)
    print(json.dumps(results, indent=1, ensure_ascii=False))


if __name__ == "__main__":
    main()
