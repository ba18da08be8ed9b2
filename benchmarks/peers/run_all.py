"""Run every comparison with a peer, each in a process of its own, and print one line per ratio.

    python benchmarks/peers/run_all.py [--repeats 7] [--without-fit] [--only darts]

Each comparison writes `benchmarks/results/peers_<name>.json`. A ratio is the CPU time of pactune over that of the peer,
the median over repeats that were neighbours in time. Betty and `higher` are in `pactune[bench]`; hypertorch is
the package `hypergrad` of github.com/prolearner/hypertorch, to be put on the path by hand.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RESULTS = HERE.parent / "results"
COMPARISONS: dict[str, tuple[str, ...]] = {
    "meta_weight_net": ("meta_weight_net.py",),
    "logistic_l2_cg": ("logistic_l2.py", "--method", "cg"),
    "logistic_l2_unroll": ("logistic_l2.py", "--method", "unroll"),
    "conv_maml": ("conv_maml.py",),
    "imaml": ("imaml.py",),
    "darts_1": ("darts.py", "--order", "1"),
    "darts_2": ("darts.py", "--order", "2"),
    "dataset_distillation": ("dataset_distillation.py",),
    "stocbio_cleaning": ("stocbio.py", "--problem", "cleaning"),
    "stocbio_regularization": ("stocbio.py", "--problem", "regularization"),
    "gpt": ("gpt.py",),
}


def lines(name: str, found: dict[str, Any]) -> Iterator[str]:
    """Yield one line per ratio, and one per peer that is missing."""
    for peer, ratios in found["÷"].items():
        for kind, ratio in ratios.items():
            bar = found["bars"].get("fit" if kind.startswith("fit,") else peer if kind == "own loop" else "")
            wanted = f", bar {bar}" if bar is not None else ""
            gap = found["largest gap of gradients"].get(peer)
            agreement = f", gradients agree to {gap:.0e}" if gap is not None and kind == "own loop" else ""
            yield f"{name}: {kind} ÷ {peer} {ratio['median']}{wanted}{agreement}"
    for peer, reason in found["left out"].items():
        yield f"{name}: {peer} is left out: {reason}"


def main() -> None:
    options = sys.argv[1:]
    only = options.pop(options.index("--only") + 1) if "--only" in options else ""
    options = [option for option in options if option != "--only"]
    failed = []
    for name, (script, *arguments) in COMPARISONS.items():
        if only not in name:
            continue
        command = [sys.executable, "-W", "ignore", str(HERE / script), *arguments, *options]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            failed.append(name)
            print(f"{name} failed: {done.stderr.strip().splitlines()[-1]}", flush=True)
            continue
        found = json.loads((RESULTS / f"peers_{name}.json").read_text(encoding="utf-8"))
        print("\n".join(lines(name, found)), flush=True)
    if not only or only in "maml":
        subprocess.run([sys.executable, str(HERE.parent / "maml.py")], check=True)
    raise SystemExit(1 if failed else 0)


if __name__ == "__main__":
    main()
