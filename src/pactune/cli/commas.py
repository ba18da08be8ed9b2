"""Commas in numbers: decimal commas, thousands separators, or numbers that can be read in both ways."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["MISTAKES", "comma_mistake"]

_DECIMAL = r"\s*[-+]?\d+,\d+\s*"
_GROUPED = r"\s*[-+]?[1-9]\d{0,2}(?:,\d{3})+(?:\.\d*)?\s*"
_TWO_MARKS = r",.*[,.]"  # a number has one decimal mark, so the first of two is a thousands separator
_SHARE = 0.5  # of the texts of a column, from which it is one of numbers

# Kind of the commas -> a message about columns.
MISTAKES = {
    "decimal": "numbers with a decimal comma in {}; write them with a point",
    "thousands": "numbers with thousands separators in {}; remove the separators",
    "unclear": (
        "the commas in {} may be thousands separators or decimal commas; "
        "remove the separators, or write decimals with a point"
    ),
}


def comma_mistake(texts: pd.Series[Any]) -> str:
    """Return the kind of the commas in a column of texts, a key of `MISTAKES`; empty if it holds no such numbers.

    >>> import pandas as pd
    >>> [comma_mistake(pd.Series([text])) for text in ("1,5", "0,125", "1,234", "1,234,567", "1,234.5", "a,b")]
    ['decimal', 'decimal', 'unclear', 'thousands', 'thousands', '']
    """
    grouped = texts.str.fullmatch(_GROUPED)
    numbers = grouped | texts.str.fullmatch(_DECIMAL)
    if not numbers.mean() >= _SHARE:
        return ""
    if not grouped[numbers].all():
        return "decimal"
    return "thousands" if texts[numbers].str.contains(_TWO_MARKS).any() else "unclear"
