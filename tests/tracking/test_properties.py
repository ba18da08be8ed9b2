"""Laws of journals and checkpoints that hold for every content, searched by hypothesis."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pactune.tracking import Journal, read_journal
from pactune.tracking.journal import JOURNAL
from pactune.tracking.states import decode, encode

few = settings(max_examples=60, deadline=None, derandomize=True)
SCALARS = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text())
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(min_size=1), inner), max_leaves=8
)
FIELDS = st.dictionaries(st.sampled_from(["risk", "status", "settings"]), VALUES)


def same(one: Any, other: Any) -> bool:
    """Equality in which NaN equals itself and 1 is not 1.0."""
    if isinstance(one, float) and isinstance(other, float):
        return one == other or (math.isnan(one) and math.isnan(other))
    if isinstance(one, dict) and isinstance(other, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and bool(one == other)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("run")


@few
@given(st.lists(FIELDS, max_size=4))
def test_what_a_journal_takes_it_gives_back(folder: Path, lines: list[dict[str, Any]]) -> None:
    (folder / JOURNAL).unlink(missing_ok=True)
    with Journal(folder) as journal:
        for fields in lines:
            journal.append("row", **fields)
    found = [{k: v for k, v in line.items() if k not in ("kind", "time")} for line in read_journal(folder)]
    assert same(found, lines)


@few
@given(st.binary(), st.lists(FIELDS, min_size=1, max_size=3))
def test_damage_never_stops_a_journal(folder: Path, damage: bytes, lines: list[dict[str, Any]]) -> None:
    """Whatever stands in the file, it can be read, and what is appended is found."""
    (folder / JOURNAL).write_bytes(damage)
    with Journal(folder) as journal:
        for fields in lines:
            journal.append("row", **fields)
    found = read_journal(folder)[-len(lines) :]
    assert same([{k: v for k, v in line.items() if k not in ("kind", "time")} for line in found], lines)


@few
@given(VALUES, st.integers(0, 3), st.sampled_from([torch.float32, torch.float64, torch.int64, torch.bool]))
def test_what_a_checkpoint_takes_it_gives_back(value: Any, rows: int, dtype: torch.dtype) -> None:
    tensor = torch.arange(2 * rows).reshape(rows, 2).to(dtype)
    tensors: dict[str, torch.Tensor] = {}
    written = json.dumps(encode({"value": value, "tensor": tensor}, tensors), allow_nan=False)
    found = decode(json.loads(written), tensors, torch.device("cpu"))
    assert same(found["value"], value)
    assert torch.equal(found["tensor"], tensor)
    assert found["tensor"].dtype == dtype
