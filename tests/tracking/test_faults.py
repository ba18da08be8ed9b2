"""What a run folder survives: torn lines, damaged checkpoints, full disks, strangers."""

from __future__ import annotations

import errno
import json
import logging
import math
import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import pactune as pt
from pactune.storage import files
from pactune.tracking import Journal, read_journal, recorder
from pactune.tracking.checkpoint import DamagedError, list_checkpoints, load_checkpoint, save_checkpoint
from pactune.tracking.states import decode, encode

CPU = torch.device("cpu")


@pytest.fixture(name="start")
def start_fixture(make: Any, tmp_path: Path) -> Any:
    """Fit with a folder, as a new process would."""

    def start(steps: int = 4, *, resume: bool = True, seed: int = 0, **settings: Any) -> pt.Result:
        tuner = make(inner=pt.Adam(lr=0.05), batch_size=5, seed=seed, **settings)
        return tuner.fit(steps, progress=False, run_dir=tmp_path / "run", resume=resume)

    return start


@pytest.fixture(name="folder")
def folder_fixture(start: Any, tmp_path: Path) -> Path:
    """A run that got as far as step 3."""
    start(3)
    return tmp_path / "run"


@pytest.fixture(name="reference")
def reference_fixture(make: Any) -> list[Any]:
    return values(make(inner=pt.Adam(lr=0.05), batch_size=5).fit(4, progress=False))


def values(result: pt.Result) -> list[Any]:
    return [[v for k, v in row.items() if k != "seconds"] for row in result.rows + result.plain_rows]


def test_layout_of_the_folder(folder: Path) -> None:
    assert [path.name for path in list_checkpoints(folder)] == [
        "checkpoint-00000003.safetensors",
        "checkpoint-00000002.safetensors",
    ]
    lines = read_journal(folder)
    assert [line["kind"] for line in lines] == ["start", *["row", "plain row"] * 3, "end"]
    assert lines[0]["seed"] == 0
    assert lines[0]["settings"]["inner"] == "Adam(lr=0.05, betas=(0.9, 0.999), eps=1e-08, decoupled=True, clip=None)"
    assert {"pactune", "python", "torch"} <= set(lines[0]["versions"])
    assert lines[-1]["status"] == "completed"


def test_torn_last_line_is_dropped(folder: Path, start: Any, reference: Any, caplog: pytest.LogCaptureFixture) -> None:
    journal = folder / "journal.jsonl"
    whole = journal.read_bytes()
    journal.write_bytes(whole[: whole.rindex(b'"kind": "plain row"') + 9])
    assert len(read_journal(folder)) == len(whole.splitlines()) - 2
    assert values(start()) == reference
    assert "torn" in caplog.text
    lines = read_journal(folder)
    assert [line["outer_step"] for line in lines if line["kind"] == "plain row"] == [1, 2, 3, 4]
    assert all(json.loads(line) for line in journal.read_text().splitlines())


def test_a_journal_that_lost_rows_costs_these_rows_only(folder: Path, start: Any, make: Any) -> None:
    """The journal alone holds the rows. The run itself goes on from its checkpoint, with the same numbers."""
    wanted = make(inner=pt.Adam(lr=0.05), batch_size=5).fit(5, progress=False)
    journal = folder / "journal.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join([*lines[:1], b"\x00\xff{" + lines[1][3:], *lines[2:]]))
    with pytest.warns(UserWarning, match=r"journal.jsonl was damaged; 1 rows are lost"):
        result = start(4)
    assert steps_of(result) == ([2, 3, 4], [1, 2, 3, 4])
    assert [row["objective"] for row in result.rows] == [row["objective"] for row in wanted.rows[1:4]]
    assert steps_of(start(4)) == ([2, 3, 4], [1, 2, 3, 4])  # nothing more is lost
    journal.unlink()
    with pytest.warns(UserWarning, match="its first line written again; 7 rows are lost"):
        result = start(5)
    assert steps_of(result) == ([5], [5])
    assert values(result) == [
        [v for k, v in row.items() if k != "seconds"] for row in (wanted.rows[-1], wanted.plain_rows[-1])
    ]
    for name, value in result.model.state_dict().items():
        assert torch.equal(value, wanted.model.state_dict()[name])


def steps_of(result: pt.Result) -> tuple[list[int], list[int]]:
    rows, plain_rows = ([row["outer_step"] for row in rows] for rows in (result.rows, result.plain_rows))
    return rows, plain_rows


def test_a_finished_run_whose_rows_are_lost_is_not_run_again(folder: Path, start: Any) -> None:
    wanted = start(3)
    (folder / "journal.jsonl").unlink()
    with pytest.warns(UserWarning, match="6 rows are lost"):
        result = start(3)
    assert (result.status, result.kept_step, len(result.rows)) == ("completed", 3, 0)
    assert result.verdict == "nothing to compare with plain training"
    assert wanted.kept_step == 3
    assert result.summary()


def test_a_journal_that_lost_its_end_falls_back_to_the_checkpoint_before(
    folder: Path, start: Any, reference: Any, caplog: pytest.LogCaptureFixture
) -> None:
    journal = folder / "journal.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(lines[:5]))  # the start and two outer steps
    assert values(start()) == reference
    assert "the journal lacks rows before it; trying the one before" in caplog.text


def damage_positions(size: int) -> list[int]:
    return [0, 3, 9, 60, size // 4, size // 2, 3 * size // 4, size - 1]


@pytest.mark.parametrize("which", range(8))
@pytest.mark.parametrize("how", ["flip", "cut"])
def test_damaged_checkpoint_falls_back(
    how: str, which: int, folder: Path, start: Any, reference: Any, caplog: pytest.LogCaptureFixture
) -> None:
    newest = list_checkpoints(folder)[0]
    data = bytearray(newest.read_bytes())
    position = damage_positions(len(data))[which]
    if how == "flip":
        data[position] ^= 0x10
    newest.write_bytes(data if how == "flip" else data[:position])
    with pytest.raises(DamagedError):
        load_checkpoint(newest, CPU)
    assert values(start()) == reference
    assert "trying the one before" in caplog.text


def test_every_bit_of_tensors_and_state_is_guarded(tmp_path: Path) -> None:
    path = save_checkpoint(tmp_path, 1, {"a": torch.arange(3.0), "b": [1, None, "x"]})
    data = path.read_bytes()
    expected = load_checkpoint(path, CPU)
    for position in range(len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 1 << (position % 8)
        path.write_bytes(damaged)
        try:
            found = load_checkpoint(path, CPU)
        except DamagedError:
            continue
        # What is left is layout without a meaning, such as padding.
        assert torch.equal(found["a"], expected["a"])
        assert found["b"] == expected["b"]


def test_no_whole_checkpoint_is_an_error(folder: Path, start: Any) -> None:
    for path in list_checkpoints(folder):
        path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(pt.RunFolderError, match="no checkpoint is whole"):
        start()
    for path in list_checkpoints(folder):
        path.unlink()
    with pytest.raises(pt.RunFolderError, match="journal of a run but no checkpoint"):
        start()


def test_folder_of_another_run(folder: Path, start: Any, make: Any, classes: Any) -> None:
    before = (folder / "journal.jsonl").read_bytes()
    with pytest.raises(pt.RunFolderError, match="seed was 0, is 1"):
        start(seed=1)
    with pytest.raises(pt.RunFolderError, match="train was '12 rows in batches of 5, checksum"):
        start(train=classes(12, 9))
    with pytest.raises(pt.RunFolderError, match="holds a run already; pass resume=True"):
        start(resume=False)
    assert (folder / "journal.jsonl").read_bytes() == before


def test_folder_of_another_run_is_refused_before_the_cross_validation(folder: Path, start: Any) -> None:
    with pytest.raises(pt.RunFolderError, match="objective was"):
        start(objective=pt.PACBayes(zeta="auto"))
    with pytest.raises(pt.RunFolderError, match="holds a run already"):
        start(objective=pt.PACBayes(zeta="auto"), resume=False)
    assert not (folder / "start").exists()


def test_folder_of_another_version(
    folder: Path, start: Any, reference: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    versions = recorder.versions_of
    monkeypatch.setattr(recorder, "versions_of", lambda *names: versions(*names) | {"pactune": "99.0"})
    with pytest.raises(pt.RunFolderError, match=r"was written by pactune .* and this is 99.0"):
        start()
    monkeypatch.setattr(recorder, "versions_of", lambda *names: versions(*names) | {"torch": "1.0"})
    assert values(start()) == reference
    assert "numbers may differ" in caplog.text


def test_folder_of_another_format(folder: Path, start: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pactune.tracking.checkpoint.FORMAT", 7)
    with pytest.raises(pt.RunFolderError, match="of checkpoint format 4 and this version reads 7"):
        start()


def test_folder_in_use(folder: Path, start: Any) -> None:
    with Journal(folder), pytest.raises(pt.RunFolderError, match="in use by another run"):
        start()
    start()


@pytest.mark.parametrize("call", ["write", "fsync", "replace"])
@pytest.mark.parametrize("after", [0, 1, 2, 4])
def test_full_disk(
    call: str, after: int, start: Any, reference: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The call fails from the `after`-th time on, a write after half of its bytes."""
    real, count = getattr(os, call), 0

    def full(*args: Any) -> Any:
        nonlocal count
        count += 1
        if count <= after:
            return real(*args)
        if call == "write":
            real(args[0], bytes(args[1])[: len(args[1]) // 2])
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, call, full)
        with pytest.raises(pt.RunFolderError, match=r"No space left on device; .* is intact, so make room and "):
            start()
    journal = tmp_path / "run" / "journal.jsonl"
    assert journal.read_bytes()[-1:] in (b"", b"\n")
    assert not list((tmp_path / "run").glob(f"*{files.PARTIAL}"))
    assert values(start()) == reference


def test_only_a_full_disk_needs_room(tmp_path: Path) -> None:
    with pytest.raises(pt.RunFolderError, match=r"No such file or directory; what was written before is intact$"):
        files.write_atomically(tmp_path / "none" / "file", b"")


def test_half_written_files_are_removed(folder: Path, start: Any, reference: Any) -> None:
    left = folder / f"checkpoint-00000004.safetensors{files.PARTIAL}"
    left.write_bytes(b"half")
    assert values(start()) == reference
    assert not left.exists()


def test_folder_that_cannot_be_made(make: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    for wrong in (tmp_path / "file", tmp_path / "file" / "run"):
        with pytest.raises(pt.RunFolderError, match="cannot be"):
            make().fit(1, run_dir=wrong, progress=False)
    with pytest.raises(pt.SettingError, match="`run_dir` must be a path"):
        make().fit(1, run_dir=3, progress=False)
    with pytest.raises(pt.SettingError, match="`resume=True` needs `run_dir`"):
        make().fit(1, resume=True, progress=False)


def test_a_strangers_folder_executes_nothing(folder: Path, start: Any, tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> Any:
            return (Path.touch, (tmp_path / "exploded",))

    for path in list_checkpoints(folder):
        path.write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(pt.RunFolderError, match="no checkpoint is whole"):
        start()
    torch.save(Bomb(), list_checkpoints(folder)[0])
    save_file({"x": torch.zeros(1)}, list_checkpoints(folder)[1])
    with pytest.raises(pt.RunFolderError, match="no checkpoint is whole"):
        start()
    assert not (tmp_path / "exploded").exists()


def test_no_pickle_in_the_package() -> None:
    root = Path(pt.__file__).parent
    text = "".join(path.read_text() for path in (root / "tracking").glob("*.py"))
    assert not any(word in text for word in ("import pickle", "torch.load(", "torch.save(", "eval(", "exec("))


def test_silent_by_default(
    folder: Path, start: Any, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])  # other libraries of this process may have added some
    list_checkpoints(folder)[0].write_bytes(b"")
    handlers = logging.getLogger("pactune").handlers
    assert any(isinstance(handler, logging.NullHandler) for handler in handlers)
    start()
    assert capfd.readouterr() == ("", "")


def test_states_come_back_as_they_were() -> None:
    shared = torch.arange(6.0).reshape(2, 3)
    state = {
        "numbers": [0.1, math.inf, -math.inf, 3, True, None],
        "pair": (1, ("a",)),
        "keys": {0: "zero", "$tensor": 1, 2.5: "x"},
        "tensors": [shared, shared, shared.T, torch.tensor(True), torch.zeros(0, 2), torch.tensor(3)],
        "types": {str(kind): torch.ones(2, dtype=kind) for kind in (torch.bfloat16, torch.float64, torch.int64)},
    }
    tensors: dict[str, torch.Tensor] = {}
    document = json.loads(json.dumps(encode(state, tensors), allow_nan=False))
    found = decode(document, tensors, CPU)
    assert {k: found[k] for k in ("numbers", "pair", "keys")} == {k: state[k] for k in ("numbers", "pair", "keys")}
    for one, two in zip(found["tensors"], state["tensors"], strict=True):
        assert one.dtype == two.dtype
        assert one.stride() == two.stride()
        assert torch.equal(one, two)
    assert found["tensors"][0] is found["tensors"][1]
    assert all(torch.equal(found["types"][kind], value) for kind, value in state["types"].items())
    assert math.isnan(decode(encode(math.nan, {}), {}, CPU))
    with pytest.raises(pt.SettingError, match="cannot hold a set"):
        encode({"x": {1, 2}}, {})


def test_journal_keeps_numbers_that_json_has_not(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        journal.append("row", risk=math.inf, parts=[1.0, -math.inf], name="ζ")
    [row] = read_journal(tmp_path)
    assert (row["risk"], row["parts"], row["name"]) == (math.inf, [1.0, -math.inf], "ζ")
    with pytest.raises(pt.RunFolderError, match="cannot be read"):
        read_journal(tmp_path / "nothing")


def test_folder_can_be_moved(folder: Path, make: Any, reference: Any, tmp_path: Path) -> None:
    shutil.move(folder, tmp_path / "moved")
    tuner = make(inner=pt.Adam(lr=0.05), batch_size=5)
    assert values(tuner.fit(4, progress=False, run_dir=tmp_path / "moved", resume=True)) == reference
