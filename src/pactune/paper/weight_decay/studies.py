"""The studies of section 4.2 and its appendix: the runs of each, and the function that runs them."""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from pactune.paper.data import DataName, Images
from pactune.paper.weight_decay.cells import Execution, run_cells
from pactune.paper.weight_decay.records import CELLS
from pactune.paper.weight_decay.setting import Start, StudySetting, builder, evaluation_set, paper_zeta
from pactune.storage.files import folder_inside
from pactune.tracking.run_folder import RunFolder
from pactune.tuning.cells import Cell

__all__ = [
    "QUICK",
    "QUICK_SCALE",
    "QUICK_ZETAS",
    "ZETAS",
    "Group",
    "Scale",
    "Study",
    "curves",
    "restart",
    "run_study",
    "table",
    "truncation",
    "zeta_grid",
]

ZETAS = (0.0, 1e-8, 1e-7, 3e-7, 1e-6, 3e-6, 1e-5, 3e-5, 1e-4, 1e-3, 5e-3)
PATHS = ("truncated-0", "truncated-1", "windowed-10", "windowed-100", "windowed-1000")


class Group(NamedTuple):
    """Runs that share a setting, so that they can run together; `plain` adds plain training beside each."""

    setting: StudySetting
    cells: list[Cell]
    plain: bool = False


@dataclass(frozen=True)
class Scale:
    """How much a study runs.

    Attributes:
        outer_steps: number of updates of λ.
        draws: numbers of the draws of the images.
        inits: number of initial weights per draw.
    """

    outer_steps: int = 100
    draws: tuple[int, ...] = (0,)
    inits: int = 5

    def cells(self, *zetas: float | str) -> list[Cell]:
        """Return the cells of these ζ for all draws and initial weights."""
        return [{"zeta": z, "draw": d, "init": i} for z in zetas for d in self.draws for i in range(self.inits)]


@dataclass(frozen=True)
class Study:
    """A study as `pactune reproduce` runs it.

    Attributes:
        item: the name of its command.
        groups: its runs.
        outer_steps: number of outer steps of each run.
        tag: ends the name of its folder, so that other settings of the same item get another folder.
    """

    item: str
    groups: tuple[Group, ...]
    outer_steps: int
    tag: str = ""

    @property
    def name(self) -> str:
        """The name of its folder."""
        first = self.groups[0].setting
        return "-".join(filter(None, (self.item, first.model, first.data, self.tag)))

    def settings(self) -> dict[str, Any]:
        """Return the settings that the journal stores."""
        groups = [
            {"folder": g.setting.name, "setting": g.setting.as_dict(), "cells": g.cells, "plain": g.plain}
            for g in self.groups
        ]
        return {"outer_steps": self.outer_steps, "groups": groups}


# The quick forms take large steps, so that ζ = 0 overfits the validation images within a second and Eq. 5 does not.
QUICK = StudySetting(inner_steps=20, lr=5e-3, outer_lr=1e-1)
QUICK_SCALE = Scale(outer_steps=24, inits=2)
QUICK_ZETA = 1e-4
QUICK_ZETAS = (0.0, 1e-6, 1e-5, QUICK_ZETA)


def curves(setting: StudySetting, scale: Scale, zetas: Sequence[float]) -> Study:
    """Return the study of test and validation curves at ζ = 0 and other ζ (Figures 4.2 and C.5 to C.13)."""
    groups = (_base(setting, scale), Group(setting, scale.cells(*_positive(setting, zetas))))
    return Study("weight-decay", groups, scale.outer_steps, _tag(setting, scale))


def table(
    setting: StudySetting, scale: Scale, zetas: Sequence[float] = (), *, online: bool = False, auto: bool = False
) -> Study:
    """Return the study behind a row of Table C.1: ζ = 0, Eq. 5 offline and online, and `zeta="auto"`."""
    groups = [_base(setting, scale), Group(setting, scale.cells(*_positive(setting, zetas)))]
    if online:
        moving = replace(setting, online=True)
        groups.append(Group(moving, scale.cells(*_positive(moving, ()))))
    if auto:
        groups.append(Group(setting, scale.cells("auto"), plain=True))
    return Study("table", tuple(groups), scale.outer_steps, _tag(setting, scale))


def zeta_grid(item: str, setting: StudySetting, scale: Scale, zetas: Sequence[float]) -> Study:
    """Return the study over a range of ζ; `correlation` and `scan` share its runs."""
    groups = (_base(setting, scale), Group(setting, scale.cells(*[zeta for zeta in zetas if zeta])))
    return Study(item, groups, scale.outer_steps, _tag(setting, scale))


def truncation(setting: StudySetting, scale: Scale, paths: Sequence[str] = PATHS) -> Study:
    """Return the study that minimises the regularizer alone, by gradients of different truncation (Figure B.1)."""
    last = f"windowed-{setting.inner_steps}"
    kept = [path for path in paths if int(path.partition("-")[2]) < setting.inner_steps]
    groups = [Group(replace(setting, alone=True, path=path), scale.cells(1.0)) for path in [*kept, last]]
    return Study("truncation", tuple(groups), scale.outer_steps, _tag(setting, scale))


def restart(setting: StudySetting, scale: Scale, zetas: Sequence[float] = ()) -> Study:
    """Return the study that resets or redraws θ_0 at every outer step (the paper mentions it without results)."""
    starts: tuple[Start, ...] = ("kept", "same", "fresh")
    groups = []
    for start in starts:
        own = replace(setting, start=start)
        base = _base(own, scale)
        groups += [base._replace(plain=start == "kept"), Group(own, scale.cells(*_positive(setting, zetas)))]
    return Study("restart", tuple(groups), scale.outer_steps, _tag(setting, scale))


def run_study(study: Study, home: Path, load: Callable[[DataName], Images], execution: Execution) -> Path:
    """Run all runs of a study that are not finished yet; studies in the same folder share their runs.

    Args:
        study: the study.
        home: folder of all studies.
        load: returns a data set by its name.
        execution: where and how to run.

    Returns:
        The folder of the study.
    """
    folder = RunFolder(home / study.name)
    machine = {"device": execution.device, "machine": _machine(execution.device), "engine": execution.engine}
    with folder.run(study.item, {**study.settings(), **machine}):
        for group in study.groups:
            images = load(group.setting.data)
            run_cells(
                builder(group.setting, images, execution.device, execution.engine),
                group.cells,
                folder_inside(home, CELLS, group.setting.name),
                outer_steps=study.outer_steps,
                test=evaluation_set(group.setting, images, execution.device),
                plain_steps=None if group.plain else 0,
                execution=execution,
            )
    return folder.folder


def _machine(device: str) -> str:
    """Return the product name of the device."""
    found = torch.device(device)
    return torch.cuda.get_device_name(found) if found.type == "cuda" else platform.processor() or platform.machine()


def _base(setting: StudySetting, scale: Scale) -> Group:
    """Return the runs of Eq. 4 (ζ = 0) with plain training beside them: the baseline of both algorithms."""
    return Group(replace(setting, online=False), scale.cells(0.0), plain=True)


def _positive(setting: StudySetting, zetas: Sequence[float]) -> list[float]:
    """Return the positive ζ of a list, or the paper's ζ if the list has none."""
    return [z for z in zetas if z] or [paper_zeta(setting.model, setting.data, online=setting.online)]


def _tag(setting: StudySetting, scale: Scale) -> str:
    parts = ["online"] if setting.online else []
    parts += ["paper-protocol"] if setting.protocol == "paper" else []
    first, last = scale.draws[0], scale.draws[-1]
    parts += [f"draws{first}-{last}" if last != first else f"draw{first}"] if first else []
    return "-".join(parts)
