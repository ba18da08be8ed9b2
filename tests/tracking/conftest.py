"""The fixture that starts a recorded run and resumes it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import pactune as pt


@pytest.fixture(name="start")
def start_fixture(make: Any, linear: Any, tmp_path: Path) -> Any:
    """Start or resume the run of a folder; `settings` replaces parts of a small tuner."""

    def start(settings: dict[str, Any], steps: int, *, tuner: pt.Tuner | None = None) -> pt.Result:
        given = dict(settings)
        outer = given.pop("outer", {"lr": 0.1})
        module = given.pop("model", linear)()
        hyper = given.pop("hyper", lambda: pt.WeightDecay(module))()
        groups = [{"params": list(hyper.parameters()), **outer}]
        made = make(module, hyper, outer=torch.optim.SGD(groups, lr=0.1), **given) if tuner is None else tuner
        return made.fit(steps, run_dir=tmp_path / "run", resume=True, progress=False)

    return start
