"""Dependencies point one way, and importing the package is cheap."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import pactune

ROOT = Path(pactune.__file__).parent
# A part may import what stands on its own line or above it.
LAYERS = [
    {"errors"},
    {"checks"},
    {"columns"},
    {"trees"},
    {"interrupts", "streams", "swap"},
    {"modules"},
    {"data"},
    {"evaluation", "row_identity"},
    {"provenance"},
    {"ledger"},
    {"hooks", "hyper", "losses", "trials"},
    {"problem"},
    {"parallel"},
    {"dynamics"},
    {"objectives"},
    {"hypergradient"},
    {"engine"},
    {"callbacks", "plots", "result", "verdict"},
    {"tracking"},
    {"fit_settings"},
    {"plain_run", "recording"},
    {"fitting"},
    {"auto", "settings"},
    {"tuner"},
    {"grid"},
    {"check", "testing"},
    {"monitor"},
    {"privacy"},
    {"bounds"},
    {"selection"},
    {"experiments"},
    {"report"},
    {"sweeps"},
    {"integrations"},
    {"cli"},
]
LEVEL = {part: level for level, parts in enumerate(LAYERS) for part in parts}
APPLICATIONS = {"experiments", "report", "sweeps", "cli"}
FILES = sorted(path for path in ROOT.rglob("*.py") if path != ROOT / "__init__.py")


def part_of(path: Path) -> str:
    first = path.relative_to(ROOT).parts[0]
    return first.removesuffix(".py")


def imported(path: Path) -> set[str]:
    """Return the parts of pactune that a file imports, except for type checking only."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    skipped = {
        child
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        for child in ast.walk(node)
    }
    names: set[str] = set()
    for node in ast.walk(tree):
        if node in skipped:
            continue
        if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            wanted = [f"{node.module}.{alias.name}" for alias in node.names]
            names |= {name.split(".")[1] for name in wanted if name.split(".")[0] == "pactune"}
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[1] for alias in node.names if alias.name.startswith("pactune.")}
    return names - {"__version__"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_file_imports_only_what_stands_above_it(path: Path) -> None:
    own = part_of(path)
    assert own in LEVEL, f"{own} has no place in the order of layers: give it one"
    wrong = {name for name in imported(path) if LEVEL.get(name, len(LAYERS)) > LEVEL[own]}
    assert not wrong, f"{own} imports {wrong}, which stands below it"


def test_the_library_proper_imports_no_application() -> None:
    library = [path for path in FILES if part_of(path) not in APPLICATIONS]
    assert library
    assert not {path: found for path in library if (found := imported(path) & APPLICATIONS)}


def test_the_parser_sees_imports(tmp_path: Path) -> None:
    file = tmp_path / "x.py"
    file.write_text(
        "from typing import TYPE_CHECKING\nimport pactune.cli\nfrom pactune import tuner\n"
        "if TYPE_CHECKING:\n    from pactune.report import page\n"
        "def f():\n    from pactune.sweeps import grid\n"
    )
    assert imported(file) == {"cli", "tuner", "sweeps"}


@pytest.mark.parametrize("module", ["pactune", "pactune.cli"])
def test_import_is_cheap(module: str) -> None:
    code = f"import {module}, sys; print(sorted({{'torch', 'pandas', 'matplotlib', 'sklearn'}} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_public_name_is_there() -> None:
    assert sorted(pactune.__all__) == sorted(pactune._HOME_OF)
    for name in pactune.__all__:
        assert getattr(pactune, name).__name__ == name
        assert getattr(pactune, name).__doc__
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        pactune.nothing  # noqa: B018
