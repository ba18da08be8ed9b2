"""Run folders: the journal and the checkpoints of `Tuner.fit(run_dir=…)`, and callbacks that log to other tools.

A recorder writes a run and reads it back to resume it. A new logger belongs in `loggers`. A change of the state in a
checkpoint needs a rule in `state_schema`. Names are imported when they are first used, so that commands which only
write files start without torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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

_HOME_OF = {
    "FolderRecorder": "recorder",
    "Journal": "journal",
    "Logger": "loggers",
    "MLflowLogger": "loggers",
    "Recorder": "recorder",
    "RunFolder": "run_folder",
    "TensorBoardLogger": "loggers",
    "WandbLogger": "loggers",
    "read_journal": "journal",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME_OF[name]}"), name)
