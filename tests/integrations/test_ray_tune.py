"""Eq. 5 as a metric of Ray Tune."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

import pactune as pt
from pactune.integrations.ray_tune import report
from pactune.integrations.reading import RiskReading

# Plain ray is there with the dev extra, and raises an ImportError where the rest of ray[tune] is missing.
pytest.importorskip("ray.tune", reason="ray[tune] is not installed", exc_type=ImportError)


def reading(lr: float) -> RiskReading:
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(16, 4, generator=generator), torch.arange(16) % 3
    model = nn.Linear(4, 3)
    monitor = pt.CoherenceMonitor(model, F.cross_entropy)
    monitor.step((x[:8], y[:8]), (x[8:], y[8:]))
    return RiskReading(monitor, 0.5, lr)


def test_report_hands_over_all_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    from ray import tune

    seen: list[dict[str, Any]] = []
    monkeypatch.setattr(tune, "report", lambda metrics, checkpoint=None: seen.append(metrics))
    found = reading(0.04)
    report(found, zeta="theory", epoch=3)
    assert seen[0]["epoch"] == 3
    assert seen[0]["zeta"] == pytest.approx(0.1, rel=1e-9)
    assert seen[0]["objective"] == pytest.approx(0.5 + 0.1 * found.monitor.regularizer, rel=1e-12)


@pytest.mark.slow
def test_a_real_tuner_minimises_equation_5(tmp_path: Path) -> None:
    import ray
    from ray import tune

    def trainable(config: dict[str, float]) -> None:
        report(reading(config["lr"]), zeta="theory")

    ray.init(num_cpus=1, include_dashboard=False, configure_logging=False)
    try:
        tuner = tune.Tuner(
            trainable,
            param_space={"lr": tune.grid_search([0.01, 1.0])},
            tune_config=tune.TuneConfig(metric="objective", mode="min"),
            run_config=tune.RunConfig(storage_path=str(tmp_path), verbose=0),
        )
        results = tuner.fit()
        assert not results.errors
        assert results.get_best_result().config["lr"] == 0.01
    finally:
        ray.shutdown()
