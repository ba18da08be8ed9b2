"""Listeners that log a run elsewhere: TensorBoard, MLflow and Weights & Biases, each an optional extra."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pactune.callbacks import Callback
from pactune.errors import SettingError

if TYPE_CHECKING:
    from pactune.result import Result, Row
    from pactune.tuner import Tuner

__all__ = ["Logger", "MLflowLogger", "TensorBoardLogger", "WandbLogger"]


class Logger(Callback, ABC):
    """Logs every number of a history: those of the tuned run by their name, those of plain training as `plain/…`.

    To add one, subclass and write `log`, and `open` and `close` where there is something to open.
    """

    def on_fit_begin(self, tuner: Tuner, outer_steps: int) -> None:
        """Open the log."""
        settings = {"inner": repr(tuner.inner), "inner_steps": tuner.inner_steps, "objective": repr(tuner.objective)}
        settings |= {"hypergradient": repr(tuner.risk_estimator), "path_hypergradient": repr(tuner.path_estimator)}
        settings |= {"chains": tuner.chains, "restart": tuner.restart, "online": tuner.online, "seed": tuner.seed}
        self.open({**settings, "outer": type(tuner.outer).__name__, "outer_steps": outer_steps})

    def on_outer_step(self, tuner: Tuner, row: Row) -> None:
        """Log a row of the history."""
        self.log(_numbers(row), row["outer_step"])

    def on_plain_step(self, tuner: Tuner, row: Row) -> None:
        """Log a row of plain training."""
        found = {f"plain/{name}": value for name, value in _numbers(row).items()}
        if found:
            self.log(found, row["outer_step"])

    def on_fit_end(self, tuner: Tuner, result: Result) -> None:
        """Log how it ended, and close the log."""
        self.close({"status": result.status, "kept_step": result.kept_step, "verdict": result.verdict})

    def open(self, settings: dict[str, Any]) -> None:
        """Begin, or go on, with the run's settings."""

    @abstractmethod
    def log(self, values: dict[str, float], step: int) -> None:
        """Log the numbers of an outer step."""

    def close(self, ending: dict[str, Any]) -> None:
        """End, with status, kept step and verdict."""


class TensorBoardLogger(Logger):
    """Writes TensorBoard event files; needs `pip install 'pactune[tensorboard]'`.

    Args:
        folder: for the event files; `tensorboard --logdir` shows them.
    """

    def __init__(self, folder: str | Path) -> None:
        self._module = _imported("torch.utils.tensorboard", "tensorboard")
        self._folder = str(folder)
        self._settings: dict[str, Any] = {}
        self._done: int | None = None
        self._writer: Any = None

    def open(self, settings: dict[str, Any]) -> None:
        """Note the settings; the file is opened with the first number."""
        self._settings, self._done = settings, None

    def on_resume(self, tuner: Tuner, rows: list[Row]) -> None:
        """Let TensorBoard forget what was logged after the checkpoint."""
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
    """Logs to MLflow; needs `pip install 'pactune[mlflow]'`. A resumed run goes on in the same MLflow run.

    Args:
        experiment: the experiment's name; it is made where there is none.
        tracking_uri: where; MLflow's own default when None.
        run_name: the run's name; MLflow invents one when None.
    """

    def __init__(self, experiment: str = "pactune", *, tracking_uri: str | None = None, run_name: str | None = None):
        self._client = _imported("mlflow", "mlflow").MlflowClient(tracking_uri=tracking_uri)
        self._experiment, self._name = experiment, run_name
        self._run: str | None = None

    def open(self, settings: dict[str, Any]) -> None:
        """Make a run, or go on with the one that was remembered."""
        if self._run is not None:
            self._client.update_run(self._run, status="RUNNING")
            return
        found = self._client.get_experiment_by_name(self._experiment)
        number = found.experiment_id if found else self._client.create_experiment(self._experiment)
        self._run = self._client.create_run(number, run_name=self._name).info.run_id
        for name, value in settings.items():
            self._client.log_param(self._run, name, value)

    def log(self, values: dict[str, float], step: int) -> None:
        """Log metrics; MLflow has no NaN in some stores, so only finite numbers go there."""
        for name, value in values.items():
            if math.isfinite(value):
                self._client.log_metric(self._run, name, value, step=step)

    def close(self, ending: dict[str, Any]) -> None:
        """Log the ending as tags and end the run."""
        for name, value in ending.items():
            self._client.set_tag(self._run, name, str(value))
        status = {"interrupted": "KILLED", "diverged": "FAILED"}.get(ending["status"], "FINISHED")
        self._client.set_terminated(self._run, status=status)

    def state_dict(self) -> dict[str, Any]:
        """Return which run it is."""
        return {"run": self._run} if self._run else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with that run."""
        self._run = state["run"]


class WandbLogger(Logger):
    """Logs to Weights & Biases; needs `pip install 'pactune[wandb]'`. A resumed run goes on under the same id.

    Args:
        project: the project's name.
        mode: "online", or "offline" to write to `folder` only, for `wandb sync` later.
        folder: where files go; the working directory when None.
        name: the run's name; invented when None.
    """

    def __init__(
        self,
        project: str = "pactune",
        *,
        mode: str = "online",
        folder: str | Path | None = None,
        name: str | None = None,
    ) -> None:
        self._module = _imported("wandb", "wandb")
        self._options = {"project": project, "mode": mode, "dir": None if folder is None else str(folder), "name": name}
        self._id: str | None = None
        self._run: Any = None

    def open(self, settings: dict[str, Any]) -> None:
        """Make a run, or go on with the one that was remembered."""
        online = self._options["mode"] == "online"
        resume = {"resume": "allow"} if self._id is not None and online else {}
        self._run = self._module.init(config=settings, id=self._id, **self._options, **resume)
        self._id = self._run.id
        self._run.define_metric("*", step_metric="outer_step")

    def log(self, values: dict[str, float], step: int) -> None:
        """Log the numbers against the outer step."""
        self._run.log({**values, "outer_step": step})

    def close(self, ending: dict[str, Any]) -> None:
        """Write the ending as a summary and finish the run."""
        self._run.summary.update(ending)
        self._run.finish(exit_code=0 if ending["status"] in ("completed", "converged") else 1)

    def state_dict(self) -> dict[str, Any]:
        """Return which run it is."""
        return {"id": self._id} if self._id else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with that run."""
        self._id = state["id"]


def _numbers(row: Row) -> dict[str, float]:
    return {name: float(value) for name, value in row.items() if name != "outer_step"}


def _as_list(values: dict[str, Any]) -> str:
    return "\n".join(f"- {name}: `{value}`" for name, value in values.items())


def _imported(module: str, extra: str) -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        raise SettingError(f"this logger needs {extra}: pip install 'pactune[{extra}]'") from error
