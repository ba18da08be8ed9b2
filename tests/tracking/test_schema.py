"""Journals and checkpoints that somebody wrote with right checksums: refused, or harmless; never a raw error."""

from __future__ import annotations

import contextlib
import copy
import json
import math
import shutil
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import pactune as pt
from pactune.storage.documents import parse_json
from pactune.storage.schema import SchemaError, check_line
from pactune.tracking import read_journal
from pactune.tracking.checkpoint import DamagedError, list_checkpoints, load_checkpoint, save_checkpoint
from pactune.tracking.journal import JOURNAL, read_lines
from pactune.tracking.state_schema import _TensorChecks, check_document, check_state
from pactune.tracking.states import decode

CPU = torch.device("cpu")
STEPS = 3
few = settings(max_examples=150, deadline=None, derandomize=True)
WRONG = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.just(10**400),
    st.just(-1),
    st.floats(),
    st.text(max_size=3),
    st.lists(st.integers(), max_size=2),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
    st.builds(torch.zeros, st.sampled_from([(), (2,), (3, 4), (4, 3)])),
    st.builds(lambda: torch.zeros(3, 4, dtype=torch.float64)),
)


def make_tuner() -> pt.Tuner:
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(12, 4, generator=generator), torch.randint(0, 3, (12,), generator=generator)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = torch.nn.Linear(4, 3)
    hyper = pt.WeightDecay(model, init=0.05)
    problem = pt.Problem(
        model, hyper, train=(x[:6], y[:6]), valid=(x[6:], y[6:]), loss=torch.nn.functional.cross_entropy
    )
    outer = torch.optim.Adam(hyper.parameters(), lr=0.1)
    return pt.Tuner(problem, inner=pt.Adam(lr=0.05), inner_steps=2, outer=outer, objective=pt.PACBayes(0.05))


def fit(folder: Path, steps: int = STEPS + 1) -> pt.Result:
    return make_tuner().fit(steps, run_dir=folder, resume=True, progress=False)


def numbers(result: pt.Result) -> list[Any]:
    return [[v for k, v in row.items() if k != "seconds"] for row in result.rows + result.plain_rows]


@pytest.fixture(scope="module", name="whole")
def whole_fixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "run"
    fit(folder, STEPS)
    return folder


@pytest.fixture(scope="module", name="reference")
def reference_fixture() -> list[Any]:
    return numbers(make_tuner().fit(STEPS + 1, progress=False))


@pytest.fixture(name="run")
def run_fixture(whole: Path, tmp_path: Path) -> Path:
    shutil.copytree(whole, tmp_path / "run")
    return tmp_path / "run"


def document(folder: Path) -> dict[str, Any]:
    return load_checkpoint(list_checkpoints(folder)[0], CPU)  # type: ignore[no-any-return]


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the way to everything inside a document."""
    if path:
        yield path
    if isinstance(value, (dict, list, tuple)):
        for key, part in value.items() if isinstance(value, dict) else enumerate(value):
            yield from places(part, (*path, key))


def changed(value: Any, path: tuple[Any, ...], change: Callable[[Any], Any]) -> Any:
    """Return a document with another value in one place; nothing where the change returns `places`."""
    if not path:
        return change(value)
    if isinstance(value, dict):
        parts = {k: changed(v, path[1:], change) if k == path[0] else v for k, v in value.items()}
        return {k: v for k, v in parts.items() if v is not places}
    parts_list = [changed(v, path[1:], change) if i == path[0] else v for i, v in enumerate(value)]
    return type(value)([v for v in parts_list if v is not places])


@few
@given(st.data())
def test_any_field_of_a_checkpoint_may_be_anything(whole: Path, data: st.DataObject) -> None:
    """The schema takes a state, or says what is wrong with it."""
    found = document(whole)
    settings_of_run = copy.deepcopy(found["settings"])
    path = data.draw(st.sampled_from([way for way in places(found) if way[0] in ("state", "step", "histories")]))
    wrong = data.draw(st.one_of(WRONG, st.just(places)))
    document_of_run = changed(found, path, lambda _: wrong)
    with contextlib.suppress(SchemaError):
        check_document(document_of_run, "checkpoint")
        check_state(document_of_run, settings_of_run)


def essential() -> list[tuple[tuple[Any, ...], Any]]:
    """Changes of fields that would end in raw errors or run on with other numbers."""
    zeros = torch.zeros
    return [
        (("histories",), []),
        (("histories", "rows"), places),
        (("histories", "rows", "rows"), 7),
        (("histories", "rows", "rows"), -1),
        (("histories", "rows", "last"), 2),
        (("histories", "rows", "last"), None),
        (("histories", "rows", "digest"), 3),
        (("histories", "plain_rows", "last"), True),
        (("step",), 2),
        (("step",), "x"),
        (("state", "outer_steps"), 2),
        (("state", "plain_steps"), 99),
        (("state", "seconds"), 10**400),
        (("state", "least"), "x"),
        (("state", "zeta"), "auto"),
        (("state", "zeta"), None),
        (("state", "zeta"), 0.5),
        (("state", "zeta"), math.inf),
        (("state", "kept", "step"), 99),
        (("state", "kept", "params", "weight"), zeros(4, 3)),
        (("state", "kept", "hyper"), places),
        (("state", "run"), []),
        (("state", "run", "hyper", "values.weight"), zeros(3, 4, dtype=torch.float64)),
        (("state", "run", "hyper", "values.bias"), places),
        (("state", "run", "chains", 0, "rounds"), 1),
        (("state", "run", "chains", 0, "rounds"), -3),
        (("state", "run", "chains", 0, "chains"), None),
        (("state", "run", "chains", 0, "chains"), []),
        (("state", "run", "chains", 0, "chains", 0, "step"), 5),
        (("state", "run", "chains", 0, "chains", 0, "slots", "first"), places),
        (("state", "run", "chains", 0, "chains", 0, "slots", "second", "weight"), zeros(3, 1)),
        (("state", "run", "chains", 0, "chains", 0, "params", "weight"), 1.0),
        (("state", "run", "plain_chains", 0, "params", "bias"), zeros(3, dtype=torch.int64)),
        (("state", "run", "outer", "param_groups"), []),
        (("state", "run", "outer", "param_groups", 0, "params"), [0]),
        (("state", "run", "outer", "param_groups", 0, "betas"), places),
        (("state", "run", "outer", "param_groups", 0, "lr"), "x"),
        (("state", "run", "outer", "param_groups", 0, "maximize"), True),
        (("state", "run", "outer", "param_groups", 0, "betas"), (0.9, math.nan)),
        (("state", "run", "outer", "param_groups", 0, "params", 0), zeros(3)),
        (("state", "run", "outer", "state", 0, "exp_avg"), zeros(7)),
        (("state", "run", "outer", "state", 0), "x"),
        (("state", "run", "pending"), {"values.weight": zeros(2)}),
        (("state", "run", "last"), (1, 2, 3)),
        (("state", "listeners"), {"a": 3}),
        (("versions",), {"torch": 3}),
        (("versions", "pactune"), 3),
        (("settings",), []),
        (("moved",), [3]),
    ]


@pytest.mark.parametrize("case", range(len(essential())))
def test_a_crafted_checkpoint_falls_back_or_is_refused(case: int, run: Path, reference: list[Any]) -> None:
    path, wrong = essential()[case]
    newest, older = list_checkpoints(run)
    found = {"moved": [], **document(run)}
    save_checkpoint(run, STEPS, changed(found, path, lambda _: wrong))
    assert numbers(fit(run)) == reference, "it goes on from the one before"
    for other in list_checkpoints(run):
        other.unlink()
    save_checkpoint(run, STEPS, changed(found, path, lambda _: wrong))
    with pytest.raises(pt.RunFolderError):
        fit(run)
    assert (newest.name, older.name) == ("checkpoint-00000003.safetensors", "checkpoint-00000002.safetensors")


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        '{"a": ' * 3_000 + "1" + "}" * 3_000,
        '{"a": 1, "a": 2}',
        '{"a": NaN}',
        '{"a": 1e999}',
        '{"a": ' + "9" * 5_000 + "}",
        '{"$tensor": "9"}',
        '{"$tensor": "0", "stride": [1000000000000, 1]}',
        '{"$tensor": "0", "stride": [-1, 2]}',
        '{"$tensor": "0", "stride": [0, 0]}',
        '{"$tensor": "0", "stride": "ab"}',
        '{"$tensor": 0}',
        '{"$tensor": ["0"]}',
        '{"$tuple": 3}',
        '{"$pairs": [1]}',
        '{"$pairs": [[[1], 2]]}',
        '{"$pairs": [[{"$tuple": [[1]]}, 2]]}',
        '{"$pairs": [["a", 1], ["a", 2]]}',
        '{"$float": "x"}',
        '{"$float": []}',
        '{"$float": "inf", "$tuple": []}',
        '{"$other": 1}',
        "nothing",
    ],
)
def test_a_crafted_document_is_refused(text: str) -> None:
    with pytest.raises((ValueError, RecursionError)):
        decode(parse_json(text), {"0": torch.zeros(2, 3)}, CPU)


def test_a_crafted_document_in_a_checkpoint_is_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nested: Any = 1
    for _ in range(600):
        nested = [nested]
    monkeypatch.setattr("pactune.tracking.checkpoint.encode", lambda state, tensors: nested)
    path = save_checkpoint(tmp_path, 1, {})
    monkeypatch.undo()
    with pytest.raises(DamagedError, match="not laid out as a checkpoint"):
        load_checkpoint(path, CPU)


# Journals


def with_checksum(line: dict[str, Any]) -> bytes:
    text = json.dumps(line, allow_nan=False, ensure_ascii=False).encode()
    return text[:-1] + f', "crc": "{zlib.crc32(text):08x}"}}\n'.encode()


def test_every_bit_flip_in_the_first_line_is_repaired(run: Path, reference: list[Any]) -> None:
    journal = run / JOURNAL
    data, settings_of_run = journal.read_bytes(), read_journal(run)[0]["settings"]
    end = data.index(b"\n")
    for position in range(0, end, 7):
        damaged = bytearray(data)
        damaged[position] ^= 1 << (position % 7)
        journal.write_bytes(damaged)
        starts = [line["settings"] for line in read_lines(run) if line["kind"] == "start"]
        assert starts in ([], [settings_of_run]), position
    journal.write_bytes(bytes([data[0] ^ 1]) + data[1:])  # a flip in the word "crc" leaves a line without a checksum
    with pytest.warns(UserWarning, match=r"repaired from the checkpoint: its first line"):
        assert numbers(fit(run)) == reference
    starts = [line["settings"] for line in read_lines(run) if line["kind"] == "start"]
    assert starts == [settings_of_run]


@pytest.mark.filterwarnings("ignore:.*repaired from the checkpoint")
@pytest.mark.parametrize("change", [{"settings": {"seed": 1}}, {"settings": 3}, {"versions": {"pactune": "9"}}])
def test_a_crafted_first_line_does_not_decide(change: dict[str, Any], run: Path, reference: list[Any]) -> None:
    lines = (run / JOURNAL).read_bytes().splitlines(keepends=True)
    start = {k: v for k, v in json.loads(lines[0]).items() if k != "crc"}
    (run / JOURNAL).write_bytes(with_checksum({**start, **change}) + b"".join(lines[1:]))
    assert numbers(fit(run)) == reference
    assert [line for line in read_lines(run) if line["kind"] == "start"][-1]["settings"]["seed"] == 0


@pytest.mark.parametrize(
    "row",
    [
        {"kind": "row", "outer_step": 2, "risk": 0.0, "objective": 0.0},
        {"kind": "row", "outer_step": 4, "risk": 0.0, "objective": 0.0},
        {"kind": "row", "outer_step": "4"},
        {"kind": "row", "outer_step": [4]},
        {"kind": "row", "outer_step": -4},
        {"kind": "row", "outer_step": 4.0},
        {"kind": "row", "outer_step": 10**400},
        {"kind": "row", "outer_step": 2, "risk": 10**400},
        {"kind": "row", "outer_step": True},
        {"kind": "row"},
        {"kind": "plain row", "outer_step": 4, "risk": None},
        {"kind": ["row"]},
        {"kind": "end"},
        {"kind": "end", "status": 3},
        {"kind": "start"},
        {"kind": "resume", "outer_steps_done": -1},
        {"kind": "cell", "status": "completed", "kept_step": "x"},
        {"kind": "row", "time": 3, "outer_step": 4},
    ],
)
@pytest.mark.filterwarnings("ignore:.*repaired from the checkpoint")
def test_a_crafted_row_changes_no_number(row: dict[str, Any], run: Path, reference: list[Any]) -> None:
    with (run / JOURNAL).open("ab") as file:
        file.write(with_checksum(row))
    result = fit(run)
    assert numbers(result) == reference
    found = {line["outer_step"]: line for line in read_lines(run) if line["kind"] == "row"}
    assert [found[step]["objective"] for step in sorted(found)] == [one["objective"] for one in result.rows]


LINES = st.dictionaries(
    st.sampled_from(["kind", "time", "outer_step", "settings", "versions", "status", "name", "risk", "crc", "$float"]),
    st.one_of(
        st.sampled_from(["start", "row", "plain row", "end", "resume", "cell", "sweep"]),
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(allow_nan=False, allow_infinity=False),
        st.text(max_size=4),
        st.lists(st.integers(), max_size=2),
        st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=2),
    ),
)


@few
@given(st.lists(LINES, max_size=4))
def test_any_lines_are_read_or_left_out(tmp_path_factory: pytest.TempPathFactory, lines: list[dict[str, Any]]) -> None:
    folder = tmp_path_factory.getbasetemp()
    (folder / JOURNAL).write_bytes(b"".join(map(with_checksum, lines)))
    for line in read_lines(folder):
        check_line(line)
        assert isinstance(line["kind"], str)


def test_what_is_written_is_what_the_schema_takes(whole: Path) -> None:
    """Else the tests above could pass because everything is refused."""
    assert read_lines(whole) == read_journal(whole)
    assert len(read_lines(whole)) == 2 + 2 * STEPS
    found = document(whole)
    check_document(found, "checkpoint")
    check_state(found, found["settings"])


@pytest.mark.parametrize("models", [1, 3])
def test_a_kept_step_has_one_model_per_fold(models: int) -> None:
    kept = {"step": 1, "params": {}, "buffers": {}, "hyper": {}, "folds": [({}, {})] * models}
    with pytest.raises(SchemaError, match="2 folds"):
        _TensorChecks({"folds": ["a", "b"]}).kept()(kept, "state.kept")
    _TensorChecks({"folds": ["a"] * models}).kept()(kept, "state.kept")
