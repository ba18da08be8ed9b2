"""CSV tables for spreadsheets. Untrusted text in them cannot run as a formula."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pactune.storage.files import write_atomically

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["plain_cell", "write_csv"]

# A spreadsheet reads a cell with such a beginning as a formula; some skip spaces, and some accept the wide forms.
FORMULA = re.compile(r"[\t\r\n]|\s*[=+\-@＝＋－＠]")
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


def write_csv(table: pd.DataFrame, path: Path) -> None:
    """Write a table as CSV, with an apostrophe before every text that a spreadsheet would read as a formula.

    Raises:
        RunFolderError: the file cannot be written.
    """
    shown = table.copy()
    for name in table.columns:
        if table[name].dtype.kind not in "iufb":  # columns of numbers need no change
            shown[name] = table[name].map(plain_cell)
    shown.columns = [plain_cell(name) for name in table.columns]
    write_atomically(path, shown.to_csv(index=False).encode(errors="replace"))


def plain_cell(value: Any) -> Any:
    """Return a cell that no spreadsheet reads as a formula; numbers, also as text, are not changed.

    >>> plain_cell("=1+1"), plain_cell("-3.5"), plain_cell(-3.5), plain_cell("a=b")
    ("'=1+1", '-3.5', -3.5, 'a=b')
    """
    if not isinstance(value, str) or NUMBER.fullmatch(value):
        return value
    text = re.sub(r"\r\n?", "\n", value)  # pandas does not quote a carriage return, which may start a new row
    return f"'{text}" if FORMULA.match(value) else text
