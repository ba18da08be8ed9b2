"""Runs that last: the journal and the checkpoints of `Tuner.fit(run_dir=…)`, and listeners that log elsewhere."""

from pactune.tracking.journal import Journal, read_journal
from pactune.tracking.loggers import Logger, MLflowLogger, TensorBoardLogger, WandbLogger
from pactune.tracking.recorder import FolderRecorder, Recorder
from pactune.tracking.run_folder import RunFolder

__all__ = [
    "FolderRecorder",
    "Journal",
    "Logger",
    "MLflowLogger",
    "Recorder",
    "RunFolder",
    "TensorBoardLogger",
    "WandbLogger",
    "read_journal",
]
