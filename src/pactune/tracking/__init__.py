"""Runs that last: the journal and the checkpoints of `Tuner.fit(run_dir=…)`, and listeners that log elsewhere."""

from pactune.tracking.journal import Journal, read_journal
from pactune.tracking.recorder import FolderRecorder, Recorder
from pactune.tracking.run_folder import RunFolder

__all__ = ["FolderRecorder", "Journal", "Recorder", "RunFolder", "read_journal"]
