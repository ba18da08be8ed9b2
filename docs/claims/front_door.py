"""The numbers of docs/evidence/gains.md: `pt.tune` against what a user would do instead."""

from __future__ import annotations

from typing import Any

from claims.text import n, read

__all__ = ["claims"]

SETTINGS = {
    "breast cancer, 80 rows, linear": "breast-cancer",
    "wine, 60 rows, linear": "wine",
    "digits, 100 rows, linear": "digits",
    "MNIST, 100 rows, linear": "mnist-linear",
    "MNIST, 100 rows, MLP 784-128-10": "mnist-mlp",
}
WAYS = ("tune", "plain", "one_decay", "logistic_regression_cv", "mlp_classifier")


def _summary(name: str) -> dict[str, Any]:
    found: dict[str, Any] = read("benchmarks/results/front_door.json")[f"{name}, draws from 0"]["summary"]
    return found


def claims() -> list[str]:
    """Return the rows of the table, and the sentence about wine."""
    rows = []
    for words, name in SETTINGS.items():
        found = _summary(name)
        cells = " | ".join(n(found[way], ".1f") for way in WAYS)
        rows.append(f"| {words} | {cells} | {n(found['seconds'], '.0f')} |")
    gap = _summary("wine")["tune − logistic_regression_cv"]
    return [*rows, f"on wine by {n(-gap['mean'], '.1f')} ± {n(gap['half_width'], '.1f')} points"]
