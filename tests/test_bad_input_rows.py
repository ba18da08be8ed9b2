"""The tables of bad input are long enough, and cover the library and the command line."""

from __future__ import annotations

import ast
from pathlib import Path

HERE = Path(__file__).parent
TABLES = sorted(path for path in HERE.rglob("test_bad_*.py") if path.name != Path(__file__).name)


def rows(path: Path) -> int:
    """Count the entries of the dict that a module calls CASES."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id == "CASES":
            assert isinstance(node.value, ast.Dict)
            names = [ast.literal_eval(key) for key in node.value.keys if key is not None]
            assert len(set(names)) == len(names), "a row hides another one of the same name"
            return len(names)
    raise AssertionError(f"{path} has no CASES")


def test_there_are_rows_for_the_library_and_the_command_line() -> None:
    found = {str(path.relative_to(HERE)): rows(path) for path in TABLES}
    assert found["test_bad_input.py"] + found["test_bad_numbers.py"] >= 60
    assert found["cli/test_bad_input.py"] >= 60
    assert {"monitor/test_bad_input.py", "sweeps/test_bad_input.py"} <= set(found)
