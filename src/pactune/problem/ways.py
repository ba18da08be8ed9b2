"""The three ways in which the data of a problem come: two sets, folds of one set, or tasks."""

from __future__ import annotations

from typing import Any

from pactune.errors import SettingError

__all__ = ["check_ways"]


def check_ways(
    train: Any, valid: Any, data: Any, folds: Any, groups: Any, tasks: Any, tasks_per_step: int | None
) -> None:
    """Raise unless the data come in exactly one way."""
    ways = [train is not None or valid is not None, data is not None, tasks is not None]
    if sum(ways) != 1:
        raise SettingError(
            "pass the data in one way: `train` and `valid`, or `data` with `folds`, or `tasks` with `tasks_per_step`"
        )
    if ways[0] and valid is None:
        raise SettingError("`valid` is missing: pass a validation set, or all rows as `data` with `folds`")
    if (folds is not None or groups is not None) and data is None:
        raise SettingError("`folds` and `groups` split `data`; pass the rows as `data`")
    if tasks_per_step is not None and tasks is None:
        raise SettingError("`tasks_per_step` needs `tasks`")
