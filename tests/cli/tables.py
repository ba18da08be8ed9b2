"""A small table, the command line in this process, and training with as few steps as possible."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from pactune.cli import main

ROWS = 60


def small_table() -> pd.DataFrame:
    """Return numbers, texts, a flag, an identifier and a constant, with missing values, and two targets."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"age": rng.normal(40, 10, ROWS).round(1), "town": rng.choice(["Basel", "Bern", "Zug"], ROWS)})
    frame["member"], frame["id"], frame["unit"] = rng.choice([True, False], ROWS), [f"p{i}" for i in range(ROWS)], 1
    frame["price"] = 100 + 3 * frame["age"] + 40 * (frame["town"] == "Zug") + rng.normal(0, 3, ROWS)
    frame["kind"] = np.where(frame["price"] > frame["price"].median(), "dear", "cheap")
    frame.loc[[3, 4], "age"], frame.loc[9, "town"], frame.loc[[11, 12], ["price", "kind"]] = np.nan, None, np.nan
    return frame


def train_quickly(patch: pytest.MonkeyPatch) -> None:
    """Let the estimators of the command line take as few steps as possible."""
    from pactune.sklearn.estimators import _TunedEstimator

    for name, value in {"inner_steps": 1, "engine": "eager"}.items():
        patch.setitem(_TunedEstimator.__init__.__kwdefaults__, name, value)


def run_pactune(patch: pytest.MonkeyPatch, capture: Any, *arguments: Any) -> tuple[int, str, str]:
    """Run the command line in this process; return the exit status, stdout and stderr."""
    patch.setattr(sys, "argv", ["pactune", *map(str, arguments)])
    status: Any = 0
    try:
        main()
    except SystemExit as stop:
        status = stop.code or 0
    captured = capture.readouterr()
    return int(status), captured.out, captured.err


def write(folder: Path, frame: pd.DataFrame, name: str = "data.csv") -> Path:
    """Write a table to a folder."""
    frame.to_csv(folder / name, index=False)
    return folder / name
