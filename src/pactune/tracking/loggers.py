"""Callbacks that log a run to TensorBoard, MLflow or Weights & Biases, each an optional extra."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pactune.columns import Row
from pactune.extras import require
from pactune.results.callbacks import Callback
from pactune.tracking.status import succeeded

if TYPE_CHECKING:
    from pactune.results.result import Result

__all__ = ["Logger", "MLflowLogger", "TensorBoardLogger", "WandbLogger"]

ENDING = ("status", "kept_step", "verdict", "error")  # the fields that describe the end of a run
SEND_SECONDS = 1.0  # least seconds between two calls of MLflow
SEND_SHARE = 20.0  # pause after a call as a multiple of its duration
MOST_METRICS = 1000  # numbers in one call; MLflow's limit


class Logger(Callback, ABC):
    """Logs every number of a history: those of the tuned run by their names, those of plain training as `plain/…`.

    To add a logger, write a subclass with `log`, and with `open` and `close` if needed. An opened log is closed exactly
    once, also if an error ends the run.
    """

    _is_open = False

    def on_fit_begin(self, tuner: Any, outer_steps: int) -> None:
        """Open the log."""
        given = tuner.settings
        settings = {"inner": repr(given.inner), "inner_steps": given.inner_steps, "objective": repr(given.objective)}
        settings |= {"hypergradient": repr(given.risk_estimator), "path_hypergradient": repr(given.path_estimator)}
        settings |= {"chains": given.chains, "restart": given.restart, "online": given.online, "seed": given.seed}
        self._is_open = True
        self.open({**settings, "outer": type(tuner.outer).__name__, "outer_steps": outer_steps})

    def on_outer_step(self, tuner: Any, row: Row) -> None:
        """Log a row of the history."""
        self.log(_numbers(row), row["outer_step"])

    def on_plain_step(self, tuner: Any, row: Row) -> None:
        """Log a row of plain training."""
        found = {f"plain/{name}": value for name, value in _numbers(row).items()}
        if found:
            self.log(found, row["outer_step"])

    def on_fit_end(self, tuner: Any, result: Result) -> None:
        """Log how the run ended, and close the log."""
        self._close({"status": result.status, "kept_step": result.kept_step, "verdict": result.verdict})

    def on_fit_error(self, tuner: Any, error: BaseException) -> None:
        """Log the error, and close the log."""
        status = "failed" if isinstance(error, Exception) else "interrupted"
        self._close({"status": status, "error": f"{type(error).__name__}: {error}"})

    def _close(self, ending: dict[str, Any]) -> None:
        if self._is_open:
            self._is_open = False
            self.close(ending)

    def open(self, settings: dict[str, Any]) -> None:
        """Open the log of a new or resumed run with these settings."""

    @abstractmethod
    def log(self, values: dict[str, float], step: int) -> None:
        """Log the numbers of an outer step."""

    def close(self, ending: dict[str, Any]) -> None:
        """Close the log. `ending` has `status`, `kept_step` and `verdict`; after an error `status` and `error`."""


class TensorBoardLogger(Logger):
    """Writes TensorBoard event files; needs `pip install 'pactune[tensorboard]'`.

    Args:
        folder: the folder of the event files, for `tensorboard --logdir`.
    """

    def __init__(self, folder: str | Path) -> None:
        self._module = require("torch.utils.tensorboard")
        self._folder = str(folder)
        self._settings: dict[str, Any] = {}
        self._done: int | None = None
        self._writer: Any = None

    def open(self, settings: dict[str, Any]) -> None:
        """Store the settings; the first number opens the file."""
        self._settings, self._done = settings, None

    def on_resume(self, tuner: Any, rows: list[Row]) -> None:
        """Remove the numbers that were logged after the checkpoint."""
        self._done = rows[-1]["outer_step"] if rows else 0

    def log(self, values: dict[str, float], step: int) -> None:
        """Write scalars."""
        if self._writer is None:
            purge = None if self._done is None else self._done + 1
            self._writer = self._module.SummaryWriter(self._folder, purge_step=purge)
            self._writer.add_text("settings", _as_list(self._settings))
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self, ending: dict[str, Any]) -> None:
        """Write the ending and close the file."""
        if self._writer is not None:
            self._writer.add_text("ending", _as_list(ending))
            self._writer.close()
            self._writer = None


class MLflowLogger(Logger):
    """Logs to MLflow; needs `pip install 'pactune[mlflow]'`. A resumed run continues the same MLflow run.

    Settings are parameters of the MLflow run. `outer_steps` is a tag, since a resumed run may have another number and
    MLflow's parameters cannot change. Numbers are sent together about once a second, and at the end.

    Args:
        experiment: the name of the experiment; it is created if it does not exist.
        tracking_uri: the address of the store; None for MLflow's default.
        run_name: the name of the run; None lets MLflow choose one.
    """

    def __init__(self, experiment: str = "pactune", *, tracking_uri: str | None = None, run_name: str | None = None):
        self._module = require("mlflow")
        self._client = self._module.MlflowClient(tracking_uri=tracking_uri)
        self._experiment, self._name = experiment, run_name
        self._run: str | None = None
        self._waiting: list[list[Any]] = []  # name, value, milliseconds and step of numbers that are not sent yet
        self._next = 0.0  # the time of the next call

    def open(self, settings: dict[str, Any]) -> None:
        """Create a run, or continue that of the resumed run."""
        tags = {"outer_steps": settings["outer_steps"], "status": "running"}
        if self._run is None:
            found = self._client.get_experiment_by_name(self._experiment)
            number = found.experiment_id if found else self._client.create_experiment(self._experiment)
            self._run = self._client.create_run(number, run_name=self._name).info.run_id
            fixed = {name: str(value) for name, value in settings.items() if name not in tags}
            params = [self._module.entities.Param(name, value) for name, value in fixed.items()]
            self._client.log_batch(self._run, params=params, tags=self._tags(tags))
            return
        self._client.update_run(self._run, status="RUNNING")
        for name in self._client.get_run(self._run).data.tags.keys() & set(ENDING):
            self._client.delete_tag(self._run, name)
        self._client.log_batch(self._run, tags=self._tags(tags))

    def log(self, values: dict[str, float], step: int) -> None:
        """Log metrics. Only finite numbers are sent, since some stores of MLflow have no NaN."""
        now = int(time.time() * 1000)
        self._waiting += [[name, value, now, step] for name, value in values.items() if math.isfinite(value)]
        if time.monotonic() >= self._next:
            self._send()

    def close(self, ending: dict[str, Any]) -> None:
        """Send the remaining numbers, log the ending as tags and end the run."""
        if self._run is None:
            return
        status = "FINISHED" if succeeded(ending["status"]) else "FAILED"
        status = "KILLED" if ending["status"] == "interrupted" else status
        try:
            self._send()
            self._client.log_batch(self._run, tags=self._tags(ending))
        finally:
            self._client.set_terminated(self._run, status=status)

    def state_dict(self) -> dict[str, Any]:
        """Return the id of the MLflow run and the numbers that are not sent yet."""
        return {"run": self._run, "waiting": [*self._waiting]} if self._run else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue this run."""
        self._run, self._waiting = state["run"], list(state["waiting"])

    def _send(self) -> None:
        """Send all waiting numbers. One call with many numbers costs about as much as one call with one number."""
        begun = time.monotonic()
        while self._waiting:
            metrics = [self._module.entities.Metric(*entry) for entry in self._waiting[:MOST_METRICS]]
            self._client.log_batch(self._run, metrics=metrics)
            del self._waiting[:MOST_METRICS]
        ended = time.monotonic()
        self._next = ended + max(SEND_SECONDS, SEND_SHARE * (ended - begun))

    def _tags(self, values: dict[str, Any]) -> list[Any]:
        return [self._module.entities.RunTag(name, str(value)) for name, value in values.items()]


class WandbLogger(Logger):
    """Logs to Weights & Biases; needs `pip install 'pactune[wandb]'`. A resumed run continues under the same id.

    Args:
        project: the name of the project.
        mode: "online", or "offline" to write to `folder` only, for `wandb sync` later.
        folder: the folder for files; None for the working directory.
        name: the name of the run; None lets wandb choose one.
    """

    def __init__(
        self,
        project: str = "pactune",
        *,
        mode: str = "online",
        folder: str | Path | None = None,
        name: str | None = None,
    ) -> None:
        self._module = require("wandb")
        self._options = {"project": project, "mode": mode, "dir": None if folder is None else str(folder), "name": name}
        self._id: str | None = None
        self._run: Any = None

    def open(self, settings: dict[str, Any]) -> None:
        """Create a run, or continue that of the resumed run."""
        online = self._options["mode"] == "online"
        resumed = self._id is not None
        resume = {"resume": "allow"} if resumed and online else {}
        self._run = self._module.init(config=settings, id=self._id, **self._options, **resume)
        self._id = self._run.id
        if resumed:  # replace the settings and the ending that an earlier process wrote
            self._run.config.update(settings, allow_val_change=True)
            self._run.summary.update(dict.fromkeys(ENDING))
        self._run.define_metric("*", step_metric="outer_step")

    def log(self, values: dict[str, float], step: int) -> None:
        """Log the numbers against the outer step."""
        self._run.log({**values, "outer_step": step})

    def close(self, ending: dict[str, Any]) -> None:
        """Write the ending as a summary and finish the run."""
        if self._run is None:
            return
        self._run.summary.update(ending)
        self._run.finish(exit_code=0 if succeeded(ending["status"]) else 1)

    def state_dict(self) -> dict[str, Any]:
        """Return the id of the run."""
        return {"id": self._id} if self._id else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue this run."""
        self._id = state["id"]


def _numbers(row: Row) -> dict[str, float]:
    return {name: float(value) for name, value in row.items() if name != "outer_step"}


def _as_list(values: dict[str, Any]) -> str:
    return "\n".join(f"- {name}: `{value}`" for name, value in values.items())
