"""The studies of section 4.2 and its appendix: which runs each is made of, and how they are run."""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from pactune.paper.data import DataName, Images
from pactune.paper.weight_decay.cells import Cell, Execution, run_cells
from pactune.paper.weight_decay.records import CELLS
from pactune.paper.weight_decay.setting import Start, StudySetting, builder, evaluation_set, paper_zeta
from pactune.tracking.files import folder_inside
from pactune.tracking.run_folder import RunFolder

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
    """Runs that share a setting and so can go together; `plain` adds plain training beside each."""

    setting: StudySetting
    cells: list[Cell]
    plain: bool = False


@dataclass(frozen=True)
class Scale:
    """How much is run.

    Attributes:
        outer_steps: how often λ moves.
        draws: draws of the images, as numbers.
        inits: initial weights per draw.
    """

    outer_steps: int = 100
    draws: tuple[int, ...] = (0,)
    inits: int = 5

    def cells(self, *zetas: float | str) -> list[Cell]:
        """Return all cells at these ζ."""
        return [{"zeta": z, "draw": d, "init": i} for z in zetas for d in self.draws for i in range(self.inits)]


@dataclass(frozen=True)
class Study:
    """A study as `pactune reproduce` runs it.

    Attributes:
        item: what the command is called.
        groups: its runs.
        outer_steps: of each.
        tag: what tells it from the same item with other settings.
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
        """Return what the journal holds."""
        groups = [
            {"folder": g.setting.name, "setting": g.setting.as_dict(), "cells": g.cells, "plain": g.plain}
            for g in self.groups
        ]
        return {"outer_steps": self.outer_steps, "groups": groups}


# The quick forms: large steps, so that ζ = 0 overfits the validation images within a second, and Eq. 5 does not.
QUICK = StudySetting(inner_steps=20, lr=5e-3, outer_lr=1e-1)
QUICK_SCALE = Scale(outer_steps=24, inits=2)
QUICK_ZETA = 1e-4
QUICK_ZETAS = (0.0, 1e-6, 1e-5, QUICK_ZETA)


def curves(setting: StudySetting, scale: Scale, zetas: Sequence[float]) -> Study:
    """Test and validation curves at ζ = 0 and other ζ, with plain training (Figures 4.2 and C.5 to C.13)."""
    groups = (_base(setting, scale), Group(setting, scale.cells(*_positive(setting, zetas))))
    return Study("weight-decay", groups, scale.outer_steps, _tag(setting, scale))


def table(
    setting: StudySetting, scale: Scale, zetas: Sequence[float] = (), *, online: bool = False, auto: bool = False
) -> Study:
    """One row of the paper's table over draws of the images: ζ = 0, Eq. 5 offline and online, and `zeta="auto"`."""
    groups = [_base(setting, scale), Group(setting, scale.cells(*_positive(setting, zetas)))]
    if online:
        moving = replace(setting, online=True)
        groups.append(Group(moving, scale.cells(*_positive(moving, ()))))
    if auto:
        groups.append(Group(setting, scale.cells("auto"), plain=True))
    return Study("table", tuple(groups), scale.outer_steps, _tag(setting, scale))


def zeta_grid(item: str, setting: StudySetting, scale: Scale, zetas: Sequence[float]) -> Study:
    """Runs over a range of ζ, for `correlation` and `scan`, which share them."""
    groups = (_base(setting, scale), Group(setting, scale.cells(*[zeta for zeta in zetas if zeta])))
    return Study(item, groups, scale.outer_steps, _tag(setting, scale))


def truncation(setting: StudySetting, scale: Scale, paths: Sequence[str] = PATHS) -> Study:
    """The regularizer minimised alone, by gradients of different truncation (Figure B.1)."""
    last = f"windowed-{setting.inner_steps}"
    kept = [path for path in paths if int(path.partition("-")[2]) < setting.inner_steps]
    groups = [Group(replace(setting, alone=True, path=path), scale.cells(1.0)) for path in [*kept, last]]
    return Study("truncation", tuple(groups), scale.outer_steps, _tag(setting, scale))


def restart(setting: StudySetting, scale: Scale, zetas: Sequence[float] = ()) -> Study:
    """θ_0 set back or drawn anew at every outer step, beside runs that go on (mentioned in the paper, not shown)."""
    starts: tuple[Start, ...] = ("kept", "same", "fresh")
    groups = []
    for start in starts:
        own = replace(setting, start=start)
        base = _base(own, scale)
        groups += [base._replace(plain=start == "kept"), Group(own, scale.cells(*_positive(setting, zetas)))]
    return Study("restart", tuple(groups), scale.outer_steps, _tag(setting, scale))


def run_study(study: Study, home: Path, load: Callable[[DataName], Images], execution: Execution) -> Path:
    """Run what is not finished yet; runs that another study in the same folder made are not made again.

    Args:
        study: what to run.
        home: folder of all studies.
        load: returns a data set.
        execution: where and how.

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
    """Return what the device is called by its maker."""
    found = torch.device(device)
    return torch.cuda.get_device_name(found) if found.type == "cuda" else platform.processor() or platform.machine()


def _base(setting: StudySetting, scale: Scale) -> Group:
    """Return the runs of Eq. 4 (ζ = 0), the baseline of both algorithms, with plain training beside them."""
    return Group(replace(setting, online=False), scale.cells(0.0), plain=True)


def _positive(setting: StudySetting, zetas: Sequence[float]) -> list[float]:
    """Return the ζ > 0 that are asked for; the paper's where there are none."""
    return [z for z in zetas if z] or [paper_zeta(setting.model, setting.data, online=setting.online)]


def _tag(setting: StudySetting, scale: Scale) -> str:
    parts = ["online"] if setting.online else []
    parts += ["paper-protocol"] if setting.protocol == "paper" else []
    first, last = scale.draws[0], scale.draws[-1]
    parts += [f"draws{first}-{last}" if last != first else f"draw{first}"] if first else []
    return "-".join(parts)
