"""A spec names functions that are run: only those beside it, or those that the user allows."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import pactune as pt
from pactune.sweeps import read_spec

pytest.importorskip("ray", reason="ray is not installed: pip install 'pactune[sweep]'")

STUDY = """
from os import system
from functools import partial
from pathlib import Path
from inside.more import other

Path(__file__).with_name("ran").touch()

def build(seed):
    return seed

imported = partial(system, "true")
"""


@pytest.fixture(name="folder")
def folder_fixture(tmp_path: Path) -> Iterator[Path]:
    home = tmp_path / "spec"
    (home / "inside").mkdir(parents=True)
    (home / "study.py").write_text(STUDY)
    (home / "inside" / "more.py").write_text("def other(seed):\n    return seed\n")
    (tmp_path / "outside.py").write_text("def build(seed):\n    return seed\n")
    path, modules = list(sys.path), set(sys.modules)
    yield home
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        del sys.modules[name]


def spec(folder: Path, build: str, test: str | None = None) -> Path:
    path = folder / "spec.toml"
    more = f'\ntest = "{test}"' if test else ""
    path.write_text(f'build = "{build}"\n[grid]\nseed = [0]\n[fit]\nouter_steps = 1{more}\n')
    return path


@pytest.mark.parametrize("build", ["study.py:build", "study:build", "inside.more:other", "study.py:other"])
def test_functions_beside_the_spec(build: str, folder: Path) -> None:
    assert read_spec(spec(folder, build)).build(4) == 4


@pytest.mark.parametrize(
    "build",
    [
        "os:system",
        "posix:system",
        "subprocess:call",
        "builtins:exec",
        "shutil:rmtree",
        "os.path:exists",
        "torch.hub:load",
        "pactune.sweeps:sweep",
        "this:s",
        "../outside.py:build",
        "study.py:system",
        "study.py:imported",
        "study.py:Path",
    ],
)
@pytest.mark.parametrize("key", ["build", "test"])
def test_functions_from_elsewhere_are_refused(
    key: str, build: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = spec(folder, build) if key == "build" else spec(folder, "study.py:build", build)
    with pytest.raises(pt.SettingError, match=f"`{key}`: .*--allow MODULE"):
        read_spec(path)
    assert capsys.readouterr().out == "", "nothing was imported"


def test_an_absolute_path_or_a_link_leads_elsewhere(folder: Path) -> None:
    outside = folder.parent / "outside.py"
    (folder / "linked.py").symlink_to(outside)
    for build in (f"{outside}:build", "linked.py:build", "linked:build"):
        with pytest.raises(pt.SettingError, match="not in the folder of the spec"):
            read_spec(spec(folder, build))


def test_a_file_called_like_a_module_of_python_is_not_that_module(folder: Path) -> None:
    (folder / "os.py").write_text("def system(seed):\n    return seed\n")
    with pytest.raises(pt.SettingError, match="not in the folder of the spec"):
        read_spec(spec(folder, "os:system"))
    assert read_spec(spec(folder, "os.py:system")).build(4) == 4


def test_what_the_user_allows(folder: Path) -> None:
    assert read_spec(spec(folder, "os:system"), allow=["os"]).build is os.system
    assert read_spec(spec(folder, "os.path:exists"), allow=["os.path"]).build is os.path.exists
    with pytest.raises(pt.SettingError, match="--allow"):
        read_spec(spec(folder, "os:system"), allow=["os.path"])
    with pytest.raises(pt.SettingError, match="`allow` must be a list"):
        read_spec(spec(folder, "os:system"), allow="os")


def test_the_command_says_that_it_runs_code_and_refuses(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from pactune.cli import main

    for arguments, status, words in (
        (["--help"], 0, "This runs the code"),
        ([str(spec(folder, "os:system")), "--output", str(folder / "out")], 2, "--allow MODULE"),
    ):
        monkeypatch.setattr(sys, "argv", ["pactune", "sweep", *arguments])
        with pytest.raises(SystemExit) as stop:
            main()
        shown = capsys.readouterr()
        assert (stop.value.code or 0) == status
        assert words in shown.out + shown.err
    assert not (folder / "out").exists()


@pytest.mark.parametrize("build", ["a" * 5000 + ".py:build", "a" * 5000 + ":build", "ends.py:build", "lazy.py:build"])
def test_files_that_cannot_be_used_are_named(build: str, folder: Path) -> None:
    (folder / "ends.py").write_text("import sys\nsys.exit(3)\n")
    (folder / "lazy.py").write_text("def __getattr__(name):\n    raise ValueError(name)\n")
    with pytest.raises(pt.SettingError, match="`build`"):
        read_spec(spec(folder, build))
