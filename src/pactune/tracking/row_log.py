"""The rows of a history in a journal. A checkpoint holds only their number and a checksum, whatever their number."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from pactune.columns import CLOCK_COLUMNS, JOURNAL_COLUMNS, Row
from pactune.storage.schema import count, optional, record, text

__all__ = ["RowLog", "RowMark", "check_mark", "find_rows", "overwritten_rows"]

check_mark = record({"rows": count, "last": optional(count), "digest": text})


class RowMark(NamedTuple):
    """What a checkpoint keeps of the rows before it.

    Attributes:
        rows: their number.
        last: the outer step of the last row; None without rows.
        digest: a checksum over all rows in their order, without times.
    """

    rows: int = 0
    last: int | None = None
    digest: str = ""

    def after(self, row: Row) -> RowMark:
        """Return the mark with one more row."""
        content = f"{self.digest} {sorted(_without_times(row).items())}"
        return RowMark(self.rows + 1, row["outer_step"], hashlib.blake2b(content.encode(), digest_size=16).hexdigest())


class RowLog:
    """The rows of one history that a journal holds.

    Args:
        kind: the kind of the rows' lines.
        lines: the lines of the journal when it was opened.
        mark: the rows that belong to the run to resume. Later ones were written after its checkpoint: the run makes
            these steps again, and writes their rows only if they differ.
    """

    def __init__(self, kind: str, lines: Iterable[Row] = (), mark: RowMark | None = None) -> None:
        self.kind, self.mark = kind, mark or RowMark()
        done = self.mark.last or 0
        later = (line for line in lines if line["kind"] == kind and line["outer_step"] > done)
        self._ahead = {line["outer_step"]: line for line in later}

    def advance(self, rows: Sequence[Row]) -> list[Row]:
        """Go on to the end of a history; return the lines that the journal lacks."""
        fresh = []
        for row in rows[self.mark.rows :]:
            self.mark = self.mark.after(row)
            known = self._ahead.pop(row["outer_step"], None)
            if known is None or _without_times(known) != _without_times(row):
                fresh.append({"kind": self.kind, **row})
        return fresh


def find_rows(kind: str, lines: Iterable[Row], mark: RowMark) -> tuple[list[Row], bool]:
    """Return the rows of a journal up to a mark, and True if they are those that the mark was made of.

    A step that was made again with other numbers has two rows, of which the later one is right. A row that somebody
    added has no right to that, so the earlier rows are tried too.
    """
    found = [line for line in lines if line["kind"] == kind and line["outer_step"] <= (mark.last or 0)]
    later = _by_step(found)
    for rows in (later, _by_step(found[::-1])):
        reached = RowMark()
        for row in rows:
            reached = reached.after(row)
        if reached == mark:
            return rows, True
    return later, False


def overwritten_rows(kind: str, lines: Iterable[Row], rows: Iterable[Row]) -> list[Row]:
    """Return the lines of those rows that a later row of the journal contradicts."""
    last = {line["outer_step"]: line for line in lines if line["kind"] == kind}
    wrong = [row for row in rows if _without_times(last[row["outer_step"]]) != _without_times(row)]
    return [{"kind": kind, **row} for row in wrong]


def _by_step(lines: list[Row]) -> list[Row]:
    """Return one row per outer step in their order, the last one of each, without what the journal adds."""
    by_step = {line["outer_step"]: line for line in lines}
    return [
        {name: value for name, value in by_step[step].items() if name not in JOURNAL_COLUMNS}
        for step in sorted(by_step)
    ]


def _without_times(row: Row) -> dict[str, Any]:
    """Return the numbers of a row as text, so that NaN equals NaN."""
    return {name: repr(value) for name, value in row.items() if name not in (*JOURNAL_COLUMNS, *CLOCK_COLUMNS)}
