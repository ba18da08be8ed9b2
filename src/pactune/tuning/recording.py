"""The recorder of a fit in a folder, on every rank."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from pactune.checks import check_flag
from pactune.errors import SettingError
from pactune.problem.data import as_source
from pactune.storage.files import as_folder
from pactune.tracking.rank_recorder import RankRecorder
from pactune.tracking.recorder import CheckpointSchedule, FolderRecorder, Recorder
from pactune.tuning.description import describe_run, parts_of
from pactune.tuning.fit_settings import FitSettings
from pactune.tuning.outer_run import OuterRun

__all__ = ["check_folder", "recorded_in"]


def check_folder(run_dir: str | Path | None, *, resume: bool) -> None:
    """Check the folder of a run before anything runs.

    Raises:
        SettingError: a setting breaks its rule.
        RunFolderError: the folder cannot be made, or holds a run that is not to be resumed.
    """
    place = _place(run_dir, resume=resume)
    if place is not None and not resume:
        FolderRecorder(place, resume=False, settings={})  # raises if the folder holds a run


def _place(run_dir: str | Path | None, *, resume: bool) -> Path | None:
    """Return the path of a run folder; None without one."""
    check_flag("resume", resume)
    if run_dir is None and resume:
        raise SettingError("`resume=True` needs `run_dir`, the folder of the run to go on with")
    return None if run_dir is None else as_folder("run_dir", run_dir, none=True)


def recorded_in(
    run_dir: str | Path | None,
    run: OuterRun,
    settings: FitSettings,
    *,
    resume: bool,
    schedule: CheckpointSchedule | None = None,
    **chosen: Any,
) -> FitSettings:
    """Return the settings of a fit that is recorded in `run_dir`.

    Args:
        run_dir: the folder; None records nothing.
        run: the run.
        settings: the settings of the fit.
        resume: go on with the run in the folder.
        schedule: decides when checkpoints are written; the runs of a grid share one.
        chosen: further settings that a resumed run must share, as JSON can hold them.

    Raises:
        SettingError: a setting breaks its rule.
        RunFolderError: the folder cannot be used.
    """
    place = _place(run_dir, resume=resume)
    if place is None:
        return settings
    device, ranks = run.problem.device, run.ranks
    test = None if settings.test is None else as_source(settings.test, role="test", device=device)
    if not ranks.leader:
        return replace(settings, recorder=RankRecorder(Recorder(), ranks))
    described, parts = {**describe_run(run, settings, test), **chosen}, partial(parts_of, run)
    folder = FolderRecorder(place, resume=resume, settings=described, parts=parts, schedule=schedule)
    return replace(settings, recorder=folder if ranks.count == 1 else RankRecorder(folder, ranks))
