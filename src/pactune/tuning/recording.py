"""The recorder of a fit in a folder, on every rank."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

from pactune.checks import check_flag
from pactune.errors import SettingError
from pactune.problem.data import as_source
from pactune.tracking.files import as_folder
from pactune.tracking.rank_recorder import RankRecorder
from pactune.tracking.recorder import CheckpointSchedule, FolderRecorder, Recorder
from pactune.tuning.description import describe_run, parts_of
from pactune.tuning.fit_settings import FitSettings
from pactune.tuning.outer_run import OuterRun

__all__ = ["recorded_in"]


def recorded_in(
    run_dir: str | Path | None,
    run: OuterRun,
    settings: FitSettings,
    *,
    resume: bool,
    schedule: CheckpointSchedule | None = None,
) -> FitSettings:
    """Return the settings of a fit that is recorded in `run_dir`. The runs of a grid share a schedule of checkpoints.

    Raises:
        SettingError: a setting breaks its rule.
        RunFolderError: the folder cannot be used.
    """
    check_flag("resume", resume)
    if run_dir is None:
        if resume:
            raise SettingError("`resume=True` needs `run_dir`, the folder of the run to go on with")
        return settings
    place = as_folder("run_dir", run_dir, none=True)
    device, ranks = run.problem.device, run.ranks
    test = None if settings.test is None else as_source(settings.test, role="test", device=device)
    if not ranks.leader:
        return replace(settings, recorder=RankRecorder(Recorder(), ranks))
    described, parts = describe_run(run, settings, test), partial(parts_of, run)
    folder = FolderRecorder(place, resume=resume, settings=described, parts=parts, schedule=schedule)
    return replace(settings, recorder=folder if ranks.count == 1 else RankRecorder(folder, ranks))
