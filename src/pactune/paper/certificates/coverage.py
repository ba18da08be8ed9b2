"""Coverage of certificates: how often the true risk exceeds them, on synthetic data whose risk is known exactly.

Two classes y = ±1, x ~ N(yμ, I), a linear score w·x: the true error is Φ(−w·μ/‖w‖). All repetitions and all chains
run at once. A repetition counts as a violation if the mean true error of its M models exceeds the certificate.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from pactune.bounds import hold_out, path_bound
from pactune.bounds.coupled_langevin import CoupledChains, Drifts, run_coupled
from pactune.streams import Streams
from pactune.trees import Params

__all__ = ["Coverage", "CoverageStudy", "run_coverage"]

Mode = Literal["hold-out", "train", "union", "validation", "broken train", "broken validation"]
MODES: tuple[Mode, ...] = ("hold-out", "train", "union", "validation", "broken train", "broken validation")


@dataclass(frozen=True)
class CoverageStudy:
    """Settings of the repetitions.

    Attributes:
        mode: the kind of certificate. "broken train" takes the chain on S_T as the prior, and "broken validation" gives
            the prior the λ tuned on S_V. The library refuses both.
        delta: δ.
        repetitions: their number.
        rows: n of each sample.
        dimensions: d.
        separation: ‖μ‖.
        lr: η.
        inverse_temperature: τ.
        steps: T.
        models: M.
        decay: on the validation side, the decay of features on which S_T and S_V disagree; other features get −1/6 of
            it. This crude tuning overfits S_V.
        seed: seed of the data and of the chains.
    """

    mode: Mode
    delta: float
    repetitions: int = 300
    rows: int = 100
    dimensions: int = 50
    separation: float = 0.3
    lr: float = 0.2
    inverse_temperature: float = 100.0
    steps: int = 50
    models: int = 4
    decay: float = 0.3
    seed: int = 0


class Coverage(NamedTuple):
    """Counts and means over the repetitions.

    Attributes:
        violations: number of repetitions whose true risk exceeds the certificate.
        repetitions: number of all repetitions.
        certificate: the mean certificate.
        empirical: the mean empirical risk on the bound sample.
        risk: the mean true risk.
        moment: the mean of exp(−log dQ/dP); its expectation is 1.
        moment_error: its standard error, from independent repetitions.
    """

    violations: int
    repetitions: int
    certificate: float
    empirical: float
    risk: float
    moment: float
    moment_error: float


class _RepeatedSample(NamedTuple):
    x: Tensor  # (repetitions, rows, dimensions)
    y: Tensor  # (repetitions, rows), ±1

    def gradient(self, w: Tensor) -> Tensor:
        """Return the gradient of the mean logistic loss. `w` has shape (repetitions, models, dimensions)."""
        weight = -torch.sigmoid(-self.margins(w)) * self.y[:, None]
        return torch.einsum("rmn,rnd->rmd", weight, self.x) / self.x.shape[1]

    def margins(self, w: Tensor) -> Tensor:
        """Return y·(w·x). Shape (repetitions, models, rows)."""
        return torch.einsum("rnd,rmd->rmn", self.x, w) * self.y[:, None]

    def errors(self, w: Tensor) -> Tensor:
        """Return the error of every repetition, averaged over its models. Shape (repetitions,)."""
        return (self.margins(w) <= 0).double().mean((1, 2))


def run_coverage(study: CoverageStudy) -> Coverage:
    """Run all repetitions of a study."""
    streams = Streams(study.seed)
    train, valid = _draw(study, streams, "train"), _draw(study, streams, "valid")
    count = study.repetitions * study.models
    start = {"w": torch.zeros(count, study.dimensions, dtype=torch.float64, device="cpu")}
    chains = CoupledChains(study.lr, study.inverse_temperature, study.steps)
    paths = run_coupled(chains, start, _drifts(study, train, valid), streams)[0]
    w = paths.params["w"].view(study.repetitions, study.models, study.dimensions)
    logs = paths.log_ratios.view(study.repetitions, study.models)
    bound_sample = train if "train" in study.mode or study.mode == "union" else valid
    empirical, risk = bound_sample.errors(w), _true_error(study, w)
    pairs = zip(empirical.tolist(), logs.mean(1).tolist(), strict=True)
    values = torch.tensor([_value(study, e, r) for e, r in pairs], device="cpu")
    moments = torch.exp(-logs).mean(1)
    return Coverage(
        violations=int((risk > values).sum()),
        repetitions=study.repetitions,
        certificate=float(values.mean()),
        empirical=float(empirical.mean()),
        risk=float(risk.mean()),
        moment=float(moments.mean()),
        moment_error=float(moments.std() / math.sqrt(study.repetitions)),
    )


def _value(study: CoverageStudy, empirical: float, log_ratio: float) -> float:
    if study.mode == "hold-out":
        return hold_out(empirical, study.rows, study.delta)
    return path_bound(empirical, log_ratio, study.rows, study.delta)


def _draw(study: CoverageStudy, streams: Streams, name: str) -> _RepeatedSample:
    generator = streams.generator("coverage", name)
    shape = (study.repetitions, study.rows)
    y = torch.randint(0, 2, shape, generator=generator, device="cpu").double() * 2 - 1
    x = torch.randn(*shape, study.dimensions, generator=generator, dtype=torch.float64, device="cpu")
    x[..., 0] += study.separation * y
    return _RepeatedSample(x, y)


def _drifts(study: CoverageStudy, train: _RepeatedSample, valid: _RepeatedSample) -> Drifts:
    tuned = "validation" in study.mode
    decay = _tuned_decay(study.decay, train, valid)[:, None] if tuned else torch.zeros((), device="cpu")

    def drifts(params: Params) -> tuple[Params, Params]:
        flat = params["w"]
        w = flat.view(study.repetitions, study.models, study.dimensions)
        on_train, on_valid = train.gradient(w), valid.gradient(w)
        posterior = {
            "union": (on_train + on_valid) / 2,
            "validation": on_train + decay * w,
            "broken validation": on_train + decay * w,
        }.get(study.mode, on_train)
        prior = {"train": on_valid, "union": on_valid, "validation": on_train}.get(study.mode, posterior)
        return {"w": posterior.reshape_as(flat)}, {"w": prior.reshape_as(flat)}

    return drifts


def _tuned_decay(size: float, train: _RepeatedSample, valid: _RepeatedSample) -> Tensor:
    """Return decays that overfit S_V: positive where S_T and S_V disagree on a feature, negative elsewhere."""
    agree = (train.x * train.y[..., None]).mean(1) * (valid.x * valid.y[..., None]).mean(1) > 0
    return torch.where(agree, -size / 6, size).double()


def _true_error(study: CoverageStudy, w: Tensor) -> Tensor:
    """Return Φ(−w·μ/‖w‖), averaged over the models of a repetition. Shape (repetitions,)."""
    score = study.separation * w[..., 0] / w.norm(dim=-1)
    errors: Tensor = torch.special.ndtr(-score)
    return errors.mean(1)
