"""Bad input to `pt.sweep` and to the folders of runs gets a clear error before anything runs: one row per mistake."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

import pactune as pt
from pactune.sweeps import CellResult
from pactune.tracking import Journal

pytest.importorskip("ray", reason="ray is not installed: pip install 'pactune[sweep]'")

X, Y = torch.randn(8, 4, generator=torch.Generator().manual_seed(0)), torch.arange(8) % 3


def build(seed: int) -> pt.Tuner:
    model = nn.Linear(4, 3)
    hyper = pt.WeightDecay(model)
    problem = pt.Problem(model, hyper, train=(X, Y), valid=(X, Y), loss=nn.functional.cross_entropy)
    return pt.Tuner(
        problem,
        inner=pt.SGD(0.1),
        inner_steps=1,
        outer=torch.optim.SGD(hyper.parameters(), lr=0.1),
        objective=pt.PACBayes("theory"),
    )


def sweep(folder: Path, *, made: Any = build, grid: Any = None, **changes: Any) -> pt.SweepResult:
    settings: dict[str, Any] = {"outer_steps": 1, "run_dir": folder / "sweep"} | changes
    return pt.sweep(made, {"seed": [0]} if grid is None else grid, **settings)


def fit(folder: Path, **settings: Any) -> pt.Result:
    return build(0).fit(1, progress=False, **settings)


def locked(folder: Path) -> Callable[[Path], Any]:
    lock = threading.Lock()
    return lambda seed: lock


def with_file(folder: Path) -> Path:
    (folder / "file").write_text("")
    return folder / "file"


def in_use(folder: Path) -> None:
    (folder / "sweep").mkdir()
    with Journal(folder / "sweep"):
        sweep(folder)


def of_another_run(folder: Path) -> None:
    fit(folder, run_dir=folder / "sweep")
    sweep(folder)


def of_another_function(folder: Path) -> None:
    (folder / "sweep" / "cells" / "seed=0").mkdir(parents=True)
    with Journal(folder / "sweep" / "cells" / "seed=0") as journal:
        journal.append("cell", status="completed", build="make_something_else")
    sweep(folder)


def result(folder: Path, status: Any) -> pt.SweepResult:
    cell = CellResult({"seed": 0}, status, folder, [], [], {}, "")
    return pt.SweepResult(folder, [cell], build, {})


class Case(NamedTuple):
    call: Callable[[Path], Any]
    error: type[Exception]
    message: str


S, D, R = pt.SettingError, pt.DataError, pt.RunFolderError
CASES: dict[str, Case] = {
    # what is swept
    "build that is none": Case(lambda f: sweep(f, made="build"), S, "`build` must be a function"),
    "build that cannot travel": Case(lambda f: sweep(f, made=locked(f)), S, "must be picklable: TypeError"),
    "grid that is none": Case(lambda f: sweep(f, grid=[0, 1]), S, "`grid` must map"),
    "grid of nothing": Case(lambda f: sweep(f, grid={}), S, "`grid` must map at least one name"),
    "text for a list": Case(lambda f: sweep(f, grid={"model": "linear"}), S, "must be a list of at least one"),
    "empty array": Case(lambda f: sweep(f, grid={"seed": torch.zeros(0)}), S, "at least one value"),
    "lists in a list": Case(lambda f: sweep(f, grid={"sizes": [[1, 2]]}), S, "name what is more than that by a text"),
    "modules in a list": Case(lambda f: sweep(f, grid={"model": [nn.ReLU()]}), S, "name what is more than that"),
    "infinite value": Case(lambda f: sweep(f, grid={"zeta": [float("inf")]}), S, "finite numbers"),
    "a number for a key": Case(lambda f: sweep(f, grid={3: [1]}), S, "name of an argument"),
    "a column for a key": Case(lambda f: sweep(f, grid={"test_risk": [1]}), S, "a column of the history"),
    # how
    "no outer steps": Case(lambda f: sweep(f, outer_steps=0), S, "`outer_steps` must be a whole number ≥ 1"),
    "truth for outer steps": Case(lambda f: sweep(f, outer_steps=True), S, "`outer_steps` must be"),
    "negative plain steps": Case(lambda f: sweep(f, plain_steps=-1), S, "`plain_steps` must be ≥ 0"),
    "tolerance of NaN": Case(lambda f: sweep(f, tolerance=float("nan")), S, "`tolerance` must be ≥ 0"),
    "empty test set": Case(lambda f: sweep(f, test=(X[:0], Y[:0])), D, "`test` is empty"),
    "test rows that differ": Case(lambda f: sweep(f, test=(X, Y[:3])), D, "same number of rows"),
    "test of words": Case(lambda f: sweep(f, test="mnist"), D, "`test` must be a tensor"),
    "cpus in words": Case(lambda f: sweep(f, cpus="all"), S, "`cpus` must be a number > 0"),
    "gpus of NaN": Case(lambda f: sweep(f, gpus=float("nan")), S, "`gpus` must be a number ≥ 0"),
    "half a retry": Case(lambda f: sweep(f, retries=0.5), S, "`retries` must be a whole number"),
    "address of a number": Case(lambda f: sweep(f, address=6379), S, "`address` must be that of a Ray cluster"),
    # where
    "no folder": Case(lambda f: sweep(f, run_dir=None), S, "`run_dir` must be a path, got None"),
    "folder below a file": Case(lambda f: sweep(f, run_dir=with_file(f) / "x"), R, "cannot be made: Not a directory"),
    "file for a folder": Case(lambda f: sweep(f, run_dir=with_file(f)), R, "cannot be made: File exists"),
    "folder in use": Case(in_use, R, "in use by another run"),
    "folder of a single run": Case(of_another_run, R, "holds a single run, not a sweep"),
    "folder of another function": Case(of_another_function, R, "made by `make_something_else` and `build` is `build`"),
    "run below a file": Case(lambda f: fit(f, run_dir=with_file(f) / "x"), R, "cannot be made: Not a directory"),
    "run in a file": Case(lambda f: fit(f, run_dir=with_file(f)), R, "cannot be made: File exists"),
    "run in a number": Case(lambda f: fit(f, run_dir=3), S, "`run_dir` must be a path or None"),
    "resume of nothing": Case(lambda f: fit(f, resume=True), S, "`resume=True` needs `run_dir`"),
    "journal that is not there": Case(lambda f: pt.tracking.read_journal(f / "none"), R, "cannot be read: No such"),
    # what came out
    "cell that is not there": Case(lambda f: result(f, "completed").load(seed=1), S, "no cell has {'seed': 1}"),
    "cell that failed": Case(lambda f: result(f, "failed").load(seed=0), S, "only the model of a finished cell"),
}


@pytest.mark.parametrize("name", CASES)
def test_mistake_gets_a_clear_error(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    with pytest.raises(case.error, match=case.message) as caught:
        case.call(tmp_path)
    assert isinstance(caught.value, pt.PactuneError)


@pytest.mark.parametrize("call", [lambda f: fit(f, run_dir=f / "run"), lambda f: sweep(f)], ids=["fit", "sweep"])
def test_a_folder_that_cannot_be_written(call: Callable[[Path], Any], tmp_path: Path) -> None:
    tmp_path.chmod(0o555)
    try:
        if os.access(tmp_path, os.W_OK):
            pytest.skip("root, or a file system without permissions, may write everywhere")
        with pytest.raises(pt.RunFolderError, match="cannot be made: Permission denied"):
            call(tmp_path)
    finally:
        tmp_path.chmod(0o755)


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="only Linux has a folder that even root cannot write")
@pytest.mark.parametrize("call", [lambda f: fit(f, run_dir=f / "run"), lambda f: sweep(f)], ids=["fit", "sweep"])
def test_a_folder_that_nobody_can_write(call: Callable[[Path], Any]) -> None:
    with pytest.raises(pt.RunFolderError, match="cannot be made"):
        call(Path("/proc/self"))
