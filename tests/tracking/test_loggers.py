"""The loggers log what the history says, each where its package is installed."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

import pactune as pt
from pactune.tracking import Logger, MLflowLogger, TensorBoardLogger, WandbLogger, loggers


def needs(package: str) -> pytest.MarkDecorator:
    missing = importlib.util.find_spec(package) is None
    return pytest.mark.skipif(missing, reason=f"{package} is not installed: pip install 'pactune[{package}]'")


class Memory(Logger):
    """Logs into lists."""

    def __init__(self) -> None:
        self.events: list[Any] = []

    def open(self, settings: dict[str, Any]) -> None:
        self.events.append(settings)

    def log(self, values: dict[str, float], step: int) -> None:
        self.events.append((step, values))

    def close(self, ending: dict[str, Any]) -> None:
        self.events.append(ending)


def test_every_number_is_logged(make: Any, classes: Any) -> None:
    memory = Memory()
    result = make().fit(2, progress=False, test=classes(9, 3), callbacks=[memory])
    settings, *steps, ending = memory.events
    assert settings["inner"].startswith("SGD(lr=0.1")
    assert settings["seed"] == 0
    assert ending == {"status": "completed", "kept_step": 2, "verdict": result.verdict}
    tuned = {step: values for step, values in steps if "objective" in values}
    plain = {step: values for step, values in steps if "objective" not in values}
    assert tuned == {row["outer_step"]: {k: v for k, v in row.items() if k != "outer_step"} for row in result.rows}
    assert plain[2]["plain/test_risk"] == result.plain_rows[1]["test_risk"]


@pytest.mark.parametrize(
    ("kind", "extra"), [(TensorBoardLogger, "tensorboard"), (MLflowLogger, "mlflow"), (WandbLogger, "wandb")]
)
def test_missing_package_is_named(kind: Any, extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(loggers, "import_module", nothing)
    with pytest.raises(pt.SettingError, match=rf"this logger needs {extra}: pip install 'pactune\[{extra}\]'"):
        kind("x")


class Kill(BaseException):
    """Ends a run at once."""


class KillAt(pt.Callback):
    """Kills before a step is saved."""

    def __init__(self, step: int) -> None:
        self._step = step

    def on_outer_step(self, tuner: pt.Tuner, row: Any) -> None:
        if row["outer_step"] == self._step:
            raise Kill


def stopped_and_resumed(make: Any, folder: Path, logger: Any) -> pt.Result:
    """Run, die at the third step after it was logged, and go on."""
    with pytest.raises(Kill):
        make().fit(4, progress=False, run_dir=folder, callbacks=[logger(), KillAt(3)])
    return make().fit(4, progress=False, run_dir=folder, resume=True, callbacks=[logger()])


@needs("tensorboard")
def test_tensorboard(make: Any, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    result = stopped_and_resumed(make, tmp_path / "run", lambda: TensorBoardLogger(tmp_path / "log"))
    events = EventAccumulator(str(tmp_path / "log"))
    events.Reload()
    found = {event.step: event.value for event in events.Scalars("objective")}
    assert found == pytest.approx({row["outer_step"]: row["objective"] for row in result.rows}, rel=1e-6)
    assert len(events.Scalars("plain/valid_risk")) == 4
    assert {"settings/text_summary", "ending/text_summary"} <= set(events.Tags()["tensors"])


@needs("mlflow")
def test_mlflow(make: Any, tmp_path: Path) -> None:
    from mlflow import MlflowClient

    place = f"sqlite:///{tmp_path}/mlflow.db"
    result = stopped_and_resumed(make, tmp_path / "run", lambda: MLflowLogger("tests", tracking_uri=place))
    client = MlflowClient(tracking_uri=place)
    [run] = client.search_runs([client.get_experiment_by_name("tests").experiment_id])
    found = {metric.step: metric.value for metric in client.get_metric_history(run.info.run_id, "objective")}
    assert found == {row["outer_step"]: row["objective"] for row in result.rows}
    assert run.info.status == "FINISHED"
    assert run.data.params["inner_steps"] == "4"
    assert run.data.tags["status"] == "completed"


@needs("wandb")
def test_wandb_offline(make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WANDB_DATA_DIR", "WANDB_CACHE_DIR", "WANDB_CONFIG_DIR"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setenv("WANDB_SILENT", "true")
    logger = WandbLogger("tests", mode="offline", folder=tmp_path)
    result = make().fit(3, progress=False, callbacks=[logger])
    [folder] = (tmp_path / "wandb").glob("offline-run-*")
    assert [path.suffix for path in folder.glob("run-*")] == [".wandb"]
    assert logger.state_dict() == {"id": folder.name.rsplit("-", 1)[1]}
    written = next(folder.glob("run-*.wandb")).read_bytes()  # numbers are JSON texts in it
    assert all(json.dumps(row["objective"])[:12].encode() in written for row in result.rows)
    again = WandbLogger("tests", mode="offline", folder=tmp_path)
    again.load_state_dict(logger.state_dict())
    make().fit(1, progress=False, callbacks=[again])
    assert again.state_dict() == logger.state_dict()
