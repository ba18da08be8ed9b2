"""The schema of a stored study, in journals and in exported JSON; its names must be valid file names."""

from __future__ import annotations

import re
from dataclasses import fields
from typing import TYPE_CHECKING, Any, get_args

from pactune.paper.data import DataName
from pactune.paper.models import ModelName
from pactune.paper.weight_decay.setting import Protocol, Start, StudySetting
from pactune.storage.files import check_name
from pactune.storage.schema import (
    Check,
    anything,
    count,
    finite,
    listed,
    mapping,
    named,
    need,
    number,
    optional,
    record,
    text,
)

if TYPE_CHECKING:
    from pactune.paper.weight_decay.records import StudyRecord

__all__ = ["COLUMNS", "check_groups", "check_run", "check_study"]

# The columns of a history that an export keeps; the others follow from them.
COLUMNS = (
    "outer_step",
    "train_risk",
    "train_accuracy",
    "valid_risk",
    "valid_accuracy",
    "test_risk",
    "test_accuracy",
    "weight_norm",
    "regularizer",
)
AUTO = "table"  # the item in which ζ may be "auto"


def _one_of(*known: object) -> Check:
    def checked(value: Any, where: str) -> None:
        need(isinstance(value, (str, bool)) and value in known, where, f"one of {list(known)}", value)

    return checked


def _path(value: Any, where: str) -> None:
    fits = isinstance(value, str) and re.fullmatch(r"(truncated|windowed)-\d{1,9}", value) is not None
    need(fits, where, "truncated-K or windowed-W", value)


_KNOWN = {"model": get_args(ModelName), "data": get_args(DataName), "start": get_args(Start)}
_KNOWN |= {"protocol": get_args(Protocol), "online": (True, False), "alone": (True, False)}
_SETTING = record(
    {
        **{f.name: {int: count, float: finite, str: text}.get(type(f.default), anything) for f in fields(StudySetting)},
        **{name: _one_of(*known) for name, known in _KNOWN.items()},
        "path": _path,
    }
)
_VERSIONS = named(text)
_END = record({}, {"status": text, "kept_run": text, "kept_step": count, "zeta": optional(number), "verdict": text})
_FACTS = record({"seed": anything, "versions": _VERSIONS, "device": optional(text), "seconds": number})
_STUDY = record(
    {
        "item": text,
        "settings": record({"outer_steps": count, "device": text, "machine": text, "engine": text}),
        "asked": count,
        "finished": count,
        "facts": record({"versions": _VERSIONS, "began": text, "status": text}, {"ended": text}),
    }
)
check_groups = listed(record({"folder": text, "setting": mapping, "cells": listed(mapping)}))
check_run = record(
    {
        "setting": mapping,
        "cell": mapping,
        "end": mapping,
        "facts": mapping,
        "rows": named(listed(number)),
        "plain": named(listed(number)),
    }
)


def check_study(study: StudyRecord) -> None:
    """Check a study that was read from a file.

    Raises:
        SchemaError: a field breaks its rule; the message names both.
        RunFolderError: the name of the study cannot be that of a file.
    """
    check_name(study.name)
    _STUDY(study._asdict(), study.name)
    zeta = _zeta if study.item == AUTO else number
    cell = record({"zeta": zeta, "draw": count, "init": count})
    for i, run in enumerate(study.records):
        where = f"{study.name}: run {i}"
        for value, check in ((run.setting, _SETTING), (run.cell, cell), (run.end, _END), (run.facts, _FACTS)):
            check(value, where)
        _check_rows(run.rows, COLUMNS, where)
        _check_rows(run.plain, COLUMNS[:-1], where)


def _check_rows(rows: list[dict[str, Any]], columns: tuple[str, ...], where: str) -> None:
    last = 0
    for row in rows:
        record(dict.fromkeys(columns, number))(row, where)
        step = row["outer_step"]
        need(type(step) is int and step > last, f"{where}: outer_step", f"a whole number > {last}", step)
        last = step


def _zeta(value: Any, where: str) -> None:
    if value != "auto":
        number(value, where)
