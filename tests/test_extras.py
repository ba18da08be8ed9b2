"""The core tunes without any optional package, and a missing one is asked for by name."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

import pactune as pt
from pactune.extras import EXTRAS, is_installed, require

HERE = Path(__file__).parent
PROJECT = tomllib.loads((HERE.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def names(requirements: list[str]) -> set[str]:
    """Return the packages of a list of requirements, without their versions."""
    return {re.split(r"[<>=]", text)[0] for text in requirements}


def extras_of(name: str) -> set[str]:
    """Return the extras of pactune that an extra brings."""
    found = [re.fullmatch(r"pactune\[(.*)\]", text) for text in PROJECT["optional-dependencies"][name]]
    return {extra for match in found if match for extra in match[1].split(",")}


@pytest.fixture(scope="module")
def without(tmp_path_factory: pytest.TempPathFactory) -> Any:
    command = [sys.executable, str(HERE / "without_extras.py"), str(tmp_path_factory.mktemp("runs"))]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_the_core_tunes_without_extras(without: Any) -> None:
    assert without.returncode == 0, without.stderr
    assert "outer step 1/1: objective" in without.stderr, "a terminal without rich shows plain lines"


def test_a_missing_package_is_asked_for_by_name(without: Any) -> None:
    errors = json.loads(without.stdout)
    assert {use.split(": ")[1] for use in errors} == set(EXTRAS) - {"rich"}
    for use, error in errors.items():
        package, extra = EXTRAS[use.split(": ")[1]]
        kind = "SystemExit: pactune" if use.startswith("command line") else "MissingPackageError"
        assert error == f"{kind}: {package} is not installed: pip install 'pactune[{extra}]'", use


def test_the_error_belongs_to_two_families() -> None:
    assert issubclass(pt.MissingPackageError, pt.PactuneError)
    assert issubclass(pt.MissingPackageError, ImportError)


def test_a_broken_package_is_not_called_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "wandb.py").write_text("raise ImportError('protobuf is too old')\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    with pytest.raises(pt.MissingPackageError, match=r"wandb cannot be imported \(protobuf is too old\): pip install"):
        require("wandb")


def test_a_folder_is_no_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "no_package").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    assert is_installed("json")
    assert not is_installed("no_package")
    assert not is_installed("nowhere")


def test_every_package_is_in_its_extra() -> None:
    assert names(PROJECT["dependencies"]) == {"torch", "numpy", "pandas", "safetensors"}
    for package, extra in EXTRAS.values():
        assert package in names(PROJECT["optional-dependencies"][extra])
    assert extras_of("all") == {extra for _, extra in EXTRAS.values()} | {"report"}  # pages need what plots need
    assert names(PROJECT["optional-dependencies"]["report"]) == names(PROJECT["optional-dependencies"]["plots"])
    left_out = {"tensorboard", "mlflow", "wandb", "lightning", "ray"}  # large; their tests are skipped without them
    assert extras_of("dev") == (extras_of("all") - left_out) | {"docs"}


def test_the_page_of_the_installation_lists_every_extra() -> None:
    page = (HERE.parent / "docs" / "start" / "install.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)) == {*extras_of("all"), "all"}
