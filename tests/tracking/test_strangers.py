"""Run folders of strangers: nothing is written through links, nothing waits for a FIFO, no lock outlives its run."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import pactune as pt
from pactune.report.page import write_page
from pactune.storage import files
from pactune.storage.files import check_name, folder_inside, write_atomically
from pactune.tracking import Journal, RunFolder, read_journal
from pactune.tracking.checkpoint import list_checkpoints
from pactune.tracking.spreadsheets import plain_cell, write_csv

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such files")

SECRET = b"precious\n"


def soft(path: Path, target: Path) -> None:
    path.symlink_to(target)


def hard(path: Path, target: Path) -> None:
    os.link(target, path)


def dangling(path: Path, target: Path) -> None:
    path.symlink_to(target.with_name("not there"))


def fifo(path: Path, target: Path) -> None:
    os.mkfifo(path)


def folder(path: Path, target: Path) -> None:
    path.mkdir()


def bound(path: Path, target: Path) -> None:
    here = os.getcwd()
    os.chdir(path.parent)  # the name of a socket is short
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(path.name)
    os.chdir(here)


def device(path: Path, target: Path) -> None:
    path.symlink_to("/dev/null")


TRAPS = {"link": soft, "dangling": dangling, "fifo": fifo, "folder": folder, "socket": bound, "device": device}


@pytest.fixture(name="target")
def target_fixture(tmp_path: Path) -> Path:
    path = tmp_path / "precious"
    path.write_bytes(SECRET)
    return path


@pytest.fixture(autouse=True)
def _no_waiting() -> Any:
    """Fail instead of waiting for the other end of a FIFO."""

    def ring(*_: Any) -> None:
        raise TimeoutError("waited for a FIFO")

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("trap", [*TRAPS.values(), hard], ids=[*TRAPS, "hard link"])
def test_a_journal_is_a_plain_file(trap: Callable[..., None], target: Path, make: Any, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    trap(run / "journal.jsonl", target)
    calls: list[Callable[[], Any]] = [
        lambda: make().fit(1, run_dir=run, resume=True, progress=False),
        lambda: Journal(run),
        lambda: RunFolder(run).append("seed", seed=0),
    ]
    for call in calls:
        with pytest.raises(pt.RunFolderError, match=r"journal\.jsonl"):
            call()
    assert target.read_bytes() == SECRET
    assert not target.with_name("not there").exists()
    if trap is not hard:
        with pytest.raises(pt.RunFolderError, match=r"journal\.jsonl cannot be"):
            read_journal(run)


@pytest.mark.parametrize("trap", TRAPS.values(), ids=TRAPS)
@pytest.mark.parametrize("suffix", ["", files.PARTIAL])
def test_a_checkpoint_is_a_plain_file(
    suffix: str, trap: Callable[..., None], target: Path, make: Any, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    trap(run / f"checkpoint-00000001.safetensors{suffix}", target)
    with contextlib.suppress(pt.RunFolderError):  # either it is refused, or it is no obstacle
        make().fit(2, run_dir=run, resume=True, progress=False)
    assert target.read_bytes() == SECRET
    assert not target.with_name("not there").exists()


def test_a_damaged_checkpoint_of_a_high_number_does_not_cost_the_others(make: Any, tmp_path: Path) -> None:
    make().fit(2, run_dir=tmp_path / "run", progress=False)
    for number in (77, 78):
        (tmp_path / "run" / f"checkpoint-{number:08d}.safetensors").write_bytes(b"nothing")
    make().fit(4, run_dir=tmp_path / "run", resume=True, progress=False)
    names = [path.name for path in list_checkpoints(tmp_path / "run")]
    assert "checkpoint-00000004.safetensors" in names
    assert len(make().fit(4, run_dir=tmp_path / "run", resume=True, progress=False).rows) == 4


@pytest.mark.parametrize("trap", [soft, dangling, fifo, folder, bound, device])
def test_what_is_written_whole_never_goes_through(trap: Callable[..., None], target: Path, tmp_path: Path) -> None:
    table = pd.DataFrame({"a": [1]})
    for i, write in enumerate(
        [
            lambda path: write_atomically(path, b"new"),
            lambda path: write_csv(table, path),
            lambda path: write_page(path, "title", []),
            lambda path: RunFolder(path.parent).write_results({}),
        ]
    ):
        (tmp_path / str(i)).mkdir()
        path = tmp_path / str(i) / "results.json"
        trap(path, target)
        with pytest.raises(pt.RunFolderError, match="cannot be used: it is"):
            write(path)
        assert not list(path.parent.glob("*.partial"))
    assert target.read_bytes() == SECRET
    assert not target.with_name("not there").exists()


def test_a_second_name_of_a_written_file_keeps_its_content(target: Path, tmp_path: Path) -> None:
    os.link(target, tmp_path / "page.html")
    write_atomically(tmp_path / "page.html", b"new")
    assert (target.read_bytes(), (tmp_path / "page.html").read_bytes()) == (SECRET, b"new")


def test_figures_do_not_go_through_links(target: Path, tmp_path: Path) -> None:
    from matplotlib.figure import Figure

    from pactune.report.figure_files import save_figure

    (tmp_path / "path.png").symlink_to(target)
    with pytest.raises(pt.RunFolderError, match="it is a link"):
        save_figure(Figure(), tmp_path / "path.png")
    assert target.read_bytes() == SECRET


def test_the_folder_that_is_named_may_be_a_link_and_no_folder_inside(make: Any, tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "run").symlink_to(tmp_path / "disk")
    auto = pt.PACBayes(zeta=pt.AutoZeta(folds=2))
    make().fit(1, run_dir=tmp_path / "run", progress=False)
    assert (tmp_path / "disk" / "journal.jsonl").exists()
    (tmp_path / "auto").mkdir()
    (tmp_path / "auto" / "start").symlink_to(tmp_path / "disk")
    before = sorted(path.name for path in (tmp_path / "disk").iterdir())
    with pytest.raises(pt.RunFolderError, match="is a link"):
        make(objective=auto).fit(1, run_dir=tmp_path / "auto", progress=False)
    assert sorted(path.name for path in (tmp_path / "disk").iterdir()) == before
    (tmp_path / "grid").mkdir()
    (tmp_path / "grid" / "seed=0").symlink_to(tmp_path / "disk")
    with pytest.raises(pt.RunFolderError, match="is a link"):
        pt.fit_grid(lambda seed: make(), {"seed": [0]}, outer_steps=1, run_dir=tmp_path / "grid", progress=False)


@pytest.mark.parametrize(
    "name", ["../x", "/x", "a/b", "..", ".", "", ".hidden", "a\0b", "a\\b", "c:x", "x" * 300, 3, None]
)
def test_names_that_are_no_names(name: Any, tmp_path: Path) -> None:
    with pytest.raises(pt.RunFolderError, match="a name in a run folder must be"):
        check_name(name)
    with pytest.raises(pt.RunFolderError, match="a name in a run folder must be"):
        folder_inside(tmp_path, name)


def test_a_name_that_is_too_long(make: Any, tmp_path: Path) -> None:
    with pytest.raises(pt.RunFolderError, match="name too long"):
        make().fit(1, run_dir=tmp_path / ("x" * 300), progress=False)


@pytest.mark.parametrize("cell", ["=1+1", "+x", "-2+3", "@sum(a)", "\tx", "\rx", "\n=x", " =1", "＝1", "-cmd|' /C'!A0"])
def test_no_cell_is_a_formula(cell: str, tmp_path: Path) -> None:
    write_csv(pd.DataFrame({cell: [cell, "fine"], "n": [-1.5, 2.0]}), tmp_path / "table.csv")
    found = pd.read_csv(tmp_path / "table.csv")
    assert list(found.columns) == [f"'{cell}".replace("\r", "\n"), "n"]
    assert str(found.iloc[0, 0]).startswith("'")
    assert found["n"].tolist() == [-1.5, 2.0]
    assert [plain_cell(value) for value in ("-1", "+2.5e-3", -1, None, "a=b")] == ["-1", "+2.5e-3", -1, None, "a=b"]
    assert plain_cell("fine\r=1+1") == "fine\n=1+1", "a carriage return must not begin a new row"


WORKER = """
import sys, time
import torch
from torch.utils.data import DataLoader, TensorDataset
from pathlib import Path
from pactune.tracking import Journal

journal = Journal(Path(sys.argv[1]))
data = TensorDataset(torch.zeros(4, 1))
loader = DataLoader(data, num_workers=1, multiprocessing_context="fork", persistent_workers=True)
iterator = iter(loader)
next(iterator)
journal.append("seed", seed=0)
print(iterator._workers[0].pid, flush=True)
time.sleep(60)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing is forked here")
def test_a_forked_worker_does_not_keep_the_lock(tmp_path: Path) -> None:
    """The main process is killed while its worker lives on, stopped so that it cannot notice."""
    command = [sys.executable, "-c", textwrap.dedent(WORKER), str(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    worker = int(process.stdout.readline())
    os.kill(worker, signal.SIGSTOP)
    with pytest.raises(pt.RunFolderError, match="in use"):
        Journal(tmp_path)
    process.kill()
    process.wait()
    try:
        os.kill(worker, 0)  # it is still there
        with Journal(tmp_path) as journal:
            journal.append("seed", seed=1)
    finally:
        os.kill(worker, signal.SIGKILL)
    assert [line["seed"] for line in read_journal(tmp_path)] == [0, 1]


def test_a_child_that_is_forked_leaves_the_lock_to_its_parent(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        child = os.fork()
        if child == 0:
            try:
                journal.append("seed", seed=9)
            except pt.RunFolderError:
                os._exit(0)
            os._exit(1)
        time.sleep(0.05)
        assert os.waitpid(child, 0)[1] == 0, "the child wrote into its parent's journal"
        with pytest.raises(pt.RunFolderError, match="in use"):
            Journal(tmp_path)
        journal.append("seed", seed=0)
    assert [line["seed"] for line in read_journal(tmp_path)] == [0]
