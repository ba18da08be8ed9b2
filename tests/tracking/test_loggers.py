"""The loggers log what the history says, each where its package is installed."""

from __future__ import annotations

import importlib.util
import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch import nn

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


class Fail(pt.Callback):
    """Raises an error in one of its calls."""

    def __init__(self, where: str, error: BaseException) -> None:
        def fail(*_: Any) -> None:
            raise error

        setattr(self, where, fail)


ERRORS = [
    ("on_outer_step", RuntimeError("no"), {"status": "failed", "error": "RuntimeError: no"}),
    ("on_plain_step", ValueError("no"), {"status": "failed", "error": "ValueError: no"}),
    ("on_hyper_step", SystemExit(1), {"status": "interrupted", "error": "SystemExit: 1"}),
    ("on_fit_begin", OSError("no"), {"status": "failed", "error": "OSError: no"}),
    ("on_fit_end", KeyboardInterrupt(), {"status": "interrupted", "error": "KeyboardInterrupt: "}),
]


@pytest.mark.parametrize(
    ("where", "error", "ending"), ERRORS, ids=lambda value: value if isinstance(value, str) else ""
)
def test_a_log_is_closed_when_another_listener_raises(make: Any, where: str, error: Any, ending: Any) -> None:
    memory = Memory()
    with pytest.raises(type(error)):
        make().fit(2, progress=False, callbacks=[Fail(where, error), memory])
    opened = [event for event in memory.events if isinstance(event, dict) and "inner" in event]
    closed = [event for event in memory.events if isinstance(event, dict) and "status" in event]
    assert closed == ([ending] if opened else [])
    first = Memory()
    with pytest.raises(type(error)):
        make().fit(2, progress=False, callbacks=[first, Fail(where, error)])
    expected = {"status": "completed", "kept_step": 2} if where == "on_fit_end" else ending
    assert [event for event in first.events if isinstance(event, dict)][1:] == [first.events[-1]]
    assert expected.items() <= first.events[-1].items()


def test_a_log_is_closed_when_the_model_raises(make: Any) -> None:
    memory, calls = Memory(), []

    def loss(prediction: Any, target: Any) -> Any:
        calls.append(None)
        if len(calls) > 30:
            raise RuntimeError("broken")
        return nn.functional.cross_entropy(prediction, target)

    with pytest.raises(RuntimeError, match="broken"):
        make(loss=loss, engine="eager").fit(9, progress=False, callbacks=[memory])
    assert memory.events[-1] == {"status": "failed", "error": "RuntimeError: broken"}


def test_a_logger_that_cannot_close_hides_no_error(make: Any) -> None:
    class Broken(Memory):
        def close(self, ending: dict[str, Any]) -> None:
            raise OSError("the server is gone")

    memory = Memory()
    listeners = [Broken(), Fail("on_outer_step", ValueError("first")), memory]
    with pytest.raises(ValueError, match="first"), pytest.warns(UserWarning, match="the server is gone"):
        make().fit(2, progress=False, callbacks=listeners)
    assert memory.events[-1]["status"] == "failed"


def test_divergence_closes_a_log_once(make: Any) -> None:
    memory = Memory()
    with pytest.raises(pt.DivergenceError):
        make(inner=pt.SGD(lr=1e30)).fit(5, progress=False, callbacks=[memory])
    endings = [event for event in memory.events if isinstance(event, dict) and "status" in event]
    assert [ending["status"] for ending in endings] == ["diverged"]


class FakeMLflow:
    """Stands for the package: keeps one run and counts the calls."""

    def __init__(self) -> None:
        self.entities, self.calls, self.status = self, list[str](), ""
        self.params, self.tags, self.metrics = dict[str, str](), dict[str, str](), list[Any]()

    def Param(self, name: str, value: str) -> tuple[str, str]:  # noqa: N802
        return name, value

    RunTag = Param

    def Metric(self, name: str, value: float, time: int, step: int) -> tuple[str, float, int]:  # noqa: N802
        return name, value, step

    def MlflowClient(self, tracking_uri: str | None) -> FakeMLflow:  # noqa: N802
        return self

    def get_experiment_by_name(self, name: str) -> None:
        return None

    def create_experiment(self, name: str) -> str:
        return "1"

    def create_run(self, experiment: str, run_name: str | None) -> Any:
        self.status = "RUNNING"
        return SimpleNamespace(info=SimpleNamespace(run_id="a"))

    def get_run(self, run: str) -> Any:
        return SimpleNamespace(data=SimpleNamespace(tags=self.tags))

    def delete_tag(self, run: str, name: str) -> None:
        del self.tags[name]

    def log_batch(self, run: str, metrics: Any = (), params: Any = (), tags: Any = ()) -> None:
        assert len(metrics) <= 1000
        self.calls.append("log_batch")
        self.metrics += metrics
        self.params |= dict(params)
        self.tags |= dict(tags)

    def update_run(self, run: str, status: str) -> None:
        self.status = status

    set_terminated = update_run


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeMLflow:
    found = FakeMLflow()
    monkeypatch.setattr(loggers, "require", lambda name: found)
    return found


def steps_of(fake: FakeMLflow, name: str) -> list[int]:
    return [step for key, _, step in fake.metrics if key == name]


def test_mlflow_is_called_once_for_many_numbers(make: Any, fake: FakeMLflow, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loggers, "SEND_SECONDS", 60.0)
    result = make().fit(30, progress=False, callbacks=[MLflowLogger()])
    assert fake.calls == ["log_batch"] * 4  # parameters, the first numbers, all others, the ending
    rows = [("objective", row["objective"], row["outer_step"]) for row in result.rows]
    assert [metric for metric in fake.metrics if metric[0] == "objective"] == rows
    assert len(fake.metrics) == len(set(fake.metrics)) > 300
    assert (fake.status, fake.tags["status"]) == ("FINISHED", "completed")


def test_mlflow_splits_what_is_too_much_for_one_call(fake: FakeMLflow) -> None:
    logger = MLflowLogger()
    logger.open({"outer_steps": 1})
    logger.log({f"x{i}": float(i) for i in range(2500)}, 1)
    assert len(fake.metrics) == 2500


def test_mlflow_loses_no_number_of_a_checkpoint(
    make: Any, fake: FakeMLflow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Numbers that wait to be sent are in the checkpoint: a process may be killed before it sends them."""
    monkeypatch.setattr(loggers, "SEND_SECONDS", 60.0)
    monkeypatch.setattr(MLflowLogger, "on_fit_error", lambda *_: None)  # SIGKILL tells nobody
    result = stopped_and_resumed(make, tmp_path, MLflowLogger)
    assert sorted(set(steps_of(fake, "objective"))) == [1, 2, 3, 4]
    assert len(result.rows) == 4


def test_mlflow_follows_a_resume(make: Any, fake: FakeMLflow, tmp_path: Path) -> None:
    listeners = [MLflowLogger(), Fail("on_hyper_step", RuntimeError("no"))]
    with pytest.raises(RuntimeError, match="no"):
        make().fit(2, progress=False, run_dir=tmp_path, callbacks=listeners)
    assert (fake.status, fake.tags["status"], fake.tags["outer_steps"]) == ("FAILED", "failed", "2")
    assert "outer_steps" not in fake.params  # MLflow's parameters can never change
    make().fit(5, progress=False, run_dir=tmp_path, resume=True, callbacks=[MLflowLogger()])
    assert (fake.status, fake.tags["status"], fake.tags["outer_steps"]) == ("FINISHED", "completed", "5")
    assert "error" not in fake.tags


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


@needs("tensorboard")
def test_tensorboard_is_closed_when_another_listener_raises(make: Any, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    listeners = [TensorBoardLogger(tmp_path), Fail("on_outer_step", ValueError("no"))]
    with pytest.raises(ValueError, match="no"):
        make().fit(2, progress=False, callbacks=listeners)
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert "ending/text_summary" in events.Tags()["tensors"]


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
    assert run.data.tags["outer_steps"] == "4"
    assert "error" not in run.data.tags  # of the first part, which was killed
    assert run.data.params["inner_steps"] == "4"
    assert run.data.tags["status"] == "completed"


@needs("mlflow")
@pytest.mark.parametrize(("error", "status"), [(ValueError(), "FAILED"), (Kill(), "KILLED")])
def test_mlflow_ends_with_the_run(make: Any, tmp_path: Path, error: BaseException, status: str) -> None:
    from mlflow import MlflowClient

    place = f"sqlite:///{tmp_path}/mlflow.db"
    listeners = [MLflowLogger("tests", tracking_uri=place), Fail("on_outer_step", error)]
    with pytest.raises(type(error)):
        make().fit(2, progress=False, callbacks=listeners)
    client = MlflowClient(tracking_uri=place)
    [run] = client.search_runs([client.get_experiment_by_name("tests").experiment_id])
    assert run.info.status == status
    assert "objective" in run.data.metrics


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
    numbers = [json.dumps(row["objective"])[:12].encode() for row in result.rows]  # JSON texts in the file
    deadline = time.monotonic() + 10.0  # another process of wandb writes it, also after `finish`
    while not all(text in next(folder.glob("run-*.wandb")).read_bytes() for text in numbers):
        assert time.monotonic() < deadline, "the numbers are not in the file"
        time.sleep(0.05)
    again = WandbLogger("tests", mode="offline", folder=tmp_path)
    again.load_state_dict(logger.state_dict())
    make().fit(1, progress=False, callbacks=[again])
    assert again.state_dict() == logger.state_dict()
