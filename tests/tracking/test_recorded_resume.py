"""Resumed runs whose steps are recorded or stacked: equal bit for bit to runs that were never interrupted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import pactune as pt
from pactune.engines import Traced
from pactune.tracking.checkpoint import list_checkpoints, step_of
from pactune.tracking.recorder import CheckpointSchedule


def build(seed: int, *, chains: int = 1, inner: Any = None, engine: Any = "auto", **settings: Any) -> pt.Tuner:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(20, 6), nn.Tanh(), nn.Linear(6, 3))
    hyper = pt.WeightDecay(model)
    x, y = torch.randn(40, 20), torch.randint(0, 3, (40,))
    problem = pt.Problem(model, hyper, train=(x[:20], y[:20]), valid=(x[20:], y[20:]), loss=cross_entropy)
    settings = {"objective": pt.PACBayes(0.1), "restart": chains > 1, **settings}
    return pt.Tuner(
        problem,
        inner=inner or pt.SGD(0.5),
        inner_steps=10,
        outer=torch.optim.SGD(hyper.parameters(), lr=0.1),
        chains=chains,
        seed=seed,
        engine=engine,
        **settings,
    )


CHAINS: dict[str, dict[str, Any]] = {
    "Langevin chains that start anew": {"chains": 4, "inner": pt.Langevin(0.05, 1000.0)},
    "chains that go on": {"chains": 3, "restart": False, "inner": pt.Langevin(0.05, 1000.0)},
    "one chain": {},
    "Adam": {"chains": 2, "inner": pt.Adam(0.05)},
    "no path": {"chains": 2, "objective": pt.ValidationRisk()},
}


@pytest.mark.parametrize("kind", CHAINS)
@pytest.mark.parametrize("stop", [2, 4, 6])
def test_a_run_resumes_bit_for_bit_before_and_after_recording_begins(kind: str, stop: int, tmp_path: Path) -> None:
    def run(steps: int, **arguments: Any) -> Any:
        engine = Traced(steps=2, after=30)  # recorded from the fourth outer step on
        result = build(0, engine=engine, **CHAINS[kind]).fit(steps, progress=False, **arguments)
        if steps > stop:
            assert engine._recordings
        return result.history.drop(columns="seconds"), result.plain.drop(columns="seconds", errors="ignore")

    whole = run(7)
    run(stop, run_dir=tmp_path)
    resumed = run(7, run_dir=tmp_path, resume=True)
    assert all(a.equals(b) for a, b in zip(whole, resumed, strict=True))


def grid(steps: int, folder: Path | None = None, *, resume: bool = False) -> Any:
    found = pt.fit_grid(
        lambda seed: build(seed),
        {"seed": [0, 1, 2]},
        outer_steps=steps,
        progress=False,
        run_dir=folder,
        resume=resume,
        engine=Traced(steps=2, after=30),
    )
    return found.history.drop(columns="seconds"), found.plain.drop(columns="seconds", errors="ignore")


@pytest.mark.parametrize("behind", [[], [1, 2], [0], [2]])
def test_a_grid_resumes_bit_for_bit_where_some_runs_were_ahead(behind: list[int], tmp_path: Path) -> None:
    whole = grid(8)
    grid(5, tmp_path)
    for seed in behind:  # as if the process had been killed before these runs wrote their last checkpoint
        list_checkpoints(tmp_path / f"seed={seed}")[0].unlink()
    resumed = grid(8, tmp_path, resume=True)
    assert all(a.equals(b) for a, b in zip(whole, resumed, strict=True))


@pytest.mark.parametrize("stop", [3, 5])
def test_a_grid_resumes_bit_for_bit_after_one_run_diverged(stop: int, tmp_path: Path) -> None:
    def run(steps: int, **arguments: Any) -> Any:
        def wild(seed: int) -> pt.Tuner:
            tuner = build(seed)
            tuner.outer.param_groups[0]["lr"] = 3e4 if seed == 1 else 0.1
            return tuner

        engine = Traced(steps=2, after=30)
        found = pt.fit_grid(wild, {"seed": [0, 1, 2]}, outer_steps=steps, progress=False, engine=engine, **arguments)
        assert [result.status for result in found.results] == ["completed", "diverged", "completed"]
        return found.history.drop(columns="seconds")

    whole = run(7)
    run(stop, run_dir=tmp_path)
    assert whole.equals(run(7, run_dir=tmp_path, resume=True))


def test_a_loss_that_changed_is_not_recorded_after_a_resume(tmp_path: Path) -> None:
    def run(engine: Traced, steps: int, **arguments: Any) -> Any:
        tau = [1.0]
        torch.manual_seed(0)
        model = nn.Linear(4, 3)
        hyper, x, y = pt.WeightDecay(model), torch.randn(20, 4), torch.randint(0, 3, (20,))
        problem = pt.Problem(
            model, hyper, train=(x[:10], y[:10]), valid=(x[10:], y[10:]), loss=lambda p, t: cross_entropy(p / tau[0], t)
        )

        class Anneal(pt.Callback):
            def on_hyper_step(self, tuner: pt.Tuner) -> None:
                tau[0] *= 0.5 if tuner.outer_run.chains.rounds == 2 else 1.0

            def state_dict(self) -> dict[str, Any]:
                return {"tau": tau[0]}

            def load_state_dict(self, state: dict[str, Any]) -> None:
                tau[0] = state["tau"]

        outer = torch.optim.SGD(hyper.parameters(), lr=0.1)
        inner = pt.Langevin(0.05, 1000.0)
        tuner = pt.Tuner(
            problem, inner=inner, inner_steps=8, outer=outer, objective=pt.PACBayes("theory"), engine=engine, chains=3
        )
        result = tuner.fit(steps, callbacks=[Anneal()], progress=False, plain_steps=0, **arguments)
        return result.history.drop(columns="seconds"), tuner.problem in engine.unrecordable

    whole, stateful = run(Traced(steps=2), 6)
    assert stateful
    run(Traced(steps=2), 4, run_dir=tmp_path)
    resumed, stateful = run(Traced(steps=2), 6, run_dir=tmp_path, resume=True)
    assert stateful
    assert whole.equals(resumed)


def test_runs_that_share_a_schedule_write_checkpoints_of_the_same_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    schedule, written = CheckpointSchedule(), dict[int, list[int]]()
    for step in range(12):
        for run in range(3):
            if schedule.is_due(step):
                written.setdefault(step, []).append(run)
                with schedule.timed():
                    now[0] += 2.0  # a slow disk
        now[0] += 100.0
    assert all(runs == [0, 1, 2] for runs in written.values())
    assert list(written) == [0, 4, 8]  # 6 s of writing are followed by a pause of 360 s


def test_the_step_of_a_checkpoint_is_in_its_name(tmp_path: Path) -> None:
    build(0).fit(3, progress=False, run_dir=tmp_path)
    assert [step_of(path) for path in list_checkpoints(tmp_path)] == [3, 2]
