"""Tables on a terminal: no name is cut, however narrow it is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pactune.report.page import Table
from pactune.report.printing import table_lines
from pactune.report.progress import stderr_progress

PATH = Table(
    ("step", "feature", "objective", "risk", "regularizer", "validation R²", ""),
    [
        ["0", "(none)", "-0.0000", "1.0000", "0.0000", "-0.0000", ""],
        ["9", "worst fractal dimension", "-710.8354", "0.2440", "91.8226", "0.7419", "selected"],
    ],
)
CELLS = st.text(alphabet="abc 1.", max_size=12).map(str.strip)
TABLES = st.integers(1, 6).flatmap(
    lambda columns: st.builds(
        Table,
        st.lists(CELLS.filter(bool), min_size=columns, max_size=columns),
        st.lists(st.lists(CELLS, min_size=columns, max_size=columns), min_size=1, max_size=4),
    )
)


def words(lines: list[str]) -> list[str]:
    return sorted(word.strip(",") for line in lines for word in line.split() if word.strip(","))


@pytest.mark.parametrize("width", [40, 60, 100])
def test_a_long_name_stays_whole(width: int) -> None:
    lines = table_lines(PATH, width)
    assert max(map(len, lines)) <= width
    assert "…" not in "".join(lines)
    assert {"worst", "fractal", "dimension", "selected", "-710.8354"} <= set(words(lines))


def test_a_wide_terminal_has_a_row_per_row() -> None:
    lines = table_lines(PATH, 100)
    assert len(lines) == 3
    assert lines[2].split("  ")[0] == "9"
    assert "worst fractal dimension" in lines[2]


def test_a_narrow_terminal_has_a_paragraph_per_row() -> None:
    lines = table_lines(PATH, 60)
    assert lines[3] == "step 9 worst fractal dimension"
    assert lines[4].startswith("    objective -710.8354, risk 0.2440")


@given(table=TABLES, width=st.integers(20, 80))
def test_every_word_is_there_and_every_line_fits(table: Table, width: int) -> None:
    lines = table_lines(table, width)
    shown = words(lines)
    assert {word for row in table.rows for cell in row for word in cell.split()} <= set(shown)
    longest = max((len(word) for word in shown), default=0)
    below = [line for line in lines if line.startswith("    ")]  # the line of names above them is never cut
    assert max(map(len, below), default=0) <= max(width, longest + 5)


def test_progress_estimates_the_time_left(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    clock = [0.0]
    monkeypatch.setattr("pactune.report.progress.time.monotonic", lambda: clock[0])
    show = stderr_progress("freedman")
    for done in range(3):
        show("data seeds", done, 10)
        clock[0] += 11.0
    assert capsys.readouterr().err.splitlines() == [
        "freedman: data seeds 1/10, about 1 min 39 s left for this part",
        "freedman: data seeds 2/10, about 1 min 28 s left for this part",
    ]
