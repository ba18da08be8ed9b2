"""Cells have names that are unique, safe and stable; specs are read or refused."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pactune as pt
from pactune.sweeps.spec import read_spec
from pactune.tuning.cells import LONGEST_NAME, scalar_cells, unique_cell_name

few = settings(max_examples=200, deadline=None, derandomize=True)
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text(max_size=150)
)
CELLS = st.dictionaries(st.sampled_from(["zeta", "seed", "model"]), SCALARS, min_size=1)
ROOT = Path(__file__).parents[2]


def typed(values: dict[str, Any]) -> list[Any]:
    """Python says 1 == 1.0 == True, and a grid must not."""
    return [(name, type(value), repr(value)) for name, value in values.items()]


@few
@given(CELLS, CELLS)
def test_two_cells_never_share_a_folder(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert (unique_cell_name(one) == unique_cell_name(other)) == (typed(one) == typed(other))


@few
@given(CELLS)
def test_a_name_is_one_folder_on_every_system(values: dict[str, Any]) -> None:
    name = unique_cell_name(values)
    assert re.fullmatch(r"[\w.,=+-]+", name)
    assert len(name) <= LONGEST_NAME + 9
    assert Path("a") / name == Path("a", name).parent / name


@few
@given(
    st.dictionaries(
        st.from_regex(r"k[a-z]{0,3}", fullmatch=True),
        st.lists(st.integers(), min_size=1, max_size=4, unique=True),
        min_size=1,
        max_size=3,
    )
)
def test_a_grid_is_its_product(grid: dict[str, list[int]]) -> None:
    cells = scalar_cells(grid)
    assert [tuple(cell.values()) for cell in cells] == list(itertools.product(*grid.values()))
    assert len({unique_cell_name(cell) for cell in cells}) == len(cells)


def test_values_that_look_alike_are_different_cells() -> None:
    alike = [1, 1.0, "1", "1.0", True, "true", None, "null", "", "a b", "a_b", "x,seed=1"]
    assert len({unique_cell_name({"model": value}) for value in alike}) == len(alike)


def test_numpy_makes_plain_numbers() -> None:
    cells = scalar_cells({"zeta": np.array([0.5, 1.0]), "seed": range(2), "rows": [np.int64(3)]})
    assert [type(value) for value in cells[0].values()] == [float, int, int]
    assert unique_cell_name(cells[-1]) == "zeta=1.0,seed=1,rows=3"


@few
@given(st.text())
def test_any_text_is_a_spec_or_refused(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = tmp_path_factory.getbasetemp() / "any.toml"
    path.write_text(text, encoding="utf-8", errors="surrogatepass")
    with pytest.raises(pt.SettingError):
        read_spec(path)


def test_the_example_is_a_spec() -> None:
    pytest.importorskip("ray", reason="ray is not installed: pip install 'pactune[sweep]'")
    asked = read_spec(ROOT / "examples" / "sweep_digits.toml")
    assert len(scalar_cells(asked.grid)) == 18
    assert isinstance(asked.build(**scalar_cells(asked.grid)[-1]), pt.Tuner)
    assert asked.settings["outer_steps"] == 20
    assert {"cpus", "gpus", "retries", "test"} <= set(asked.settings)


def test_the_page_shows_the_spec_of_the_example() -> None:
    import tomllib

    page = (ROOT / "docs" / "guides" / "sweeps.md").read_text(encoding="utf-8")
    shown = tomllib.loads(re.findall(r"```toml\n(.*?)```", page, re.DOTALL)[0])
    held = tomllib.loads((ROOT / "examples" / "sweep_digits.toml").read_text(encoding="utf-8"))
    assert {key: shown[key] for key in ("build", "grid", "fit")} == {key: held[key] for key in ("build", "grid", "fit")}
