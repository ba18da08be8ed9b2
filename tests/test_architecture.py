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
    {"checks", "extras"},
    {"columns", "nested", "trees"},
    {"storage"},
    {"drawing"},
    {"interrupts", "streams", "threads"},
    {"problem"},
    {"parallel"},
    {"dynamics"},
    {"objectives"},
    {"hypergradient"},
    {"rounds"},
    {"engines"},
    {"stacking"},
    {"results"},
    {"tracking"},
    {"tuning"},
    {"search"},
    {"sklearn"},
    {"gradient_check"},
    {"monitor"},
    {"integrations"},
    {"privacy"},
    {"bounds"},
    {"selection"},
    {"report"},
    {"demo"},
    {"sweeps"},
    {"paper"},
    {"cli"},
    {"__main__"},
]
LEVEL = {part: level for level, parts in enumerate(LAYERS) for part in parts}
APPLICATIONS = {"demo", "paper", "report", "sweeps", "cli", "__main__"}
OF_TORCH = {"grad", "benchmark", "allow_tf32"}  # attributes of tensors and of torch.backends
FILES = sorted(path for path in ROOT.rglob("*.py") if path != ROOT / "__init__.py")


def part_of(path: Path) -> str:
    first = path.relative_to(ROOT).parts[0]
    return first.removesuffix(".py")


def imported(path: Path) -> set[str]:
    """Return the parts of pactune that a file imports, for type checking too."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    names: set[str] = set()
    for node in ast.walk(tree):
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


def test_a_dozen_modules_at_the_top_level() -> None:
    assert len([path for path in FILES if path.parent == ROOT]) <= 12


def test_no_file_is_long() -> None:
    assert not {path.name: lines for path in FILES if (lines := path.read_text("utf-8").count("\n")) > 400}


def test_no_class_name_twice() -> None:
    defined = [
        node.name
        for path in FILES
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef)
    ]
    assert len(defined) > 100
    assert sorted(set(defined)) == sorted(defined)


def test_private_words_stay_away() -> None:
    private = {
        "Lane",
        "World",
        "Tick",
        "Tape",
        "Outside",
        "Places",
        "Watch",
        "Team",
        "Job",
        "Question",
        "Reading",
        "Move",
    }
    names = {
        node.id if isinstance(node, ast.Name) else node.name
        for path in FILES
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, (ast.Name, ast.ClassDef))
    }
    assert "ChainStates" in names
    assert not names & private


def test_nothing_below_the_tuner_imports_it() -> None:
    above = LEVEL["tuning"]
    wrong = [
        path
        for path in FILES
        if LEVEL[part_of(path)] <= above and path.name not in ("tuner.py", "grid.py")
        if "tuning.tuner" in path.read_text(encoding="utf-8")
    ]
    assert not wrong


def test_no_object_assigns_an_attribute_of_another() -> None:
    rooms = {"rounds", "engines", "stacking", "tuning"}
    targets = [
        (path, target)
        for path in FILES
        if part_of(path) in rooms
        for target in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(target, ast.Attribute) and isinstance(target.ctx, ast.Store)
    ]
    others = [(path, target) for path, target in targets if ast.unparse(target.value) not in ("self", "cls")]
    ours = [f"{path.name}: {ast.unparse(target)}" for path, target in others if target.attr not in OF_TORCH]
    assert len(targets) > 50
    assert not ours


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
    assert imported(file) == {"cli", "tuner", "report", "sweeps"}


@pytest.mark.parametrize("module", ["pactune", "pactune.cli.app"])
def test_import_is_cheap(module: str) -> None:
    code = f"import {module}, sys; print(sorted({{'torch', 'pandas', 'matplotlib', 'sklearn'}} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_compiler_is_imported_only_where_something_is_compiled() -> None:
    code = (
        "import pactune.engines, pactune as pt, sys; pt.Tuner; print({'sympy', 'torch._inductor'} & set(sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "set()\n"


def test_every_public_name_is_there() -> None:
    assert sorted(pactune.__all__) == sorted(pactune._HOME_OF)
    for name in pactune.__all__:
        assert getattr(pactune, name).__name__ == name
        assert getattr(pactune, name).__doc__
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        pactune.nothing  # noqa: B018
