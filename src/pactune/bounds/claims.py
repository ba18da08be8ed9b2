"""The claims: a model on fresh data, or Langevin chains compared with a prior that is independent of the sample."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from pactune.bounds.certificate import Claim, Evidence
from pactune.bounds.conditions import drift_conditions, overlap, prepared, repeats, unknown, unstated
from pactune.bounds.coupled_langevin import CoupledChains, Drifts, Paths, run_coupled
from pactune.bounds.drifts import train_side, validation_side
from pactune.bounds.losses import BoundedLoss, ZeroOne, mean_losses, row_losses
from pactune.bounds.pac_bayes import LEAST_ROWS
from pactune.bounds.scores import check_single_rows
from pactune.bounds.untrained_parts import untrained_parts
from pactune.dynamics import Langevin
from pactune.errors import SettingError
from pactune.problem import Problem
from pactune.problem.data import Batch, Source, as_source
from pactune.problem.model_inputs import inputs_and_target
from pactune.problem.modules import mode
from pactune.problem.provenance import DataMark, Provenance
from pactune.problem.seen_data import SEEN_DATA
from pactune.rounds.forwards import Forwards
from pactune.rounds.inputs import Initial, RunInputs
from pactune.streams import Streams
from pactune.trees import Params, clone

__all__ = ["HoldOut", "TrainSide", "ValidationSide"]

INDEPENDENT = "the rows of the bound sample are independent draws from the distribution that the number is about"
ONE_DRAW = "the seed of the noise was fixed before, and no other draw was looked at"
ONE_CHOICE = "the settings, or the grid of them that δ is shared over, were fixed before the bound sample was looked at"
SHOWN = "the history of the run showed results on these rows, and nobody acted on them"
ROUNDING = "floating-point rounding and the pseudo-random generator are taken for exact arithmetic and true noise"


@dataclass(frozen=True)
class HoldOut(Claim):
    """A finished model on fresh rows: kl⁻¹(R̂, log(1/δ)/n). It gives the tightest bound if you have such rows.

    Args:
        model: any classifier.
        sample: the fresh rows, as tensors, a `Dataset` or a `DataMark`.
        provenance: the samples that touched "model" and "hyper", for instance `Result.provenance`; also "features" if
            the model has parts that training does not change.
        loss: the loss to bound.
    """

    model: nn.Module
    sample: Any
    provenance: Provenance
    loss: BoundedLoss = field(default_factory=ZeroOne)

    mode = "hold-out"

    def broken(self) -> list[str]:
        """Return the broken conditions."""
        found = unknown(self.provenance, "model", "hyper") + unstated(self.provenance, untrained_parts(self.model))
        recorded = SEEN_DATA.samples_of([*self.model.parameters(), *self.model.buffers()])
        provenance = self.provenance.touch("model", *recorded)
        for thing in ("model", "hyper", "features"):
            words = provenance.touches(thing, self._mark)
            found += [f"fresh sample: {how}, which touched the {thing}" for how in words]
        return found + repeats(self._mark)

    def measure(self) -> Evidence:
        """Return the mean loss on the fresh rows."""
        total, rows = torch.zeros((), dtype=torch.float64, device="cpu"), 0
        with mode(self.model, training=False), torch.no_grad():
            for batch in self._mark.data.evaluation():
                scores = self._scores(batch)
                if not rows:
                    check_single_rows(self._scores, batch, scores)
                total += row_losses(self.loss, scores, inputs_and_target(batch.data).target, batch.rows).sum()
                rows += batch.rows
        return Evidence(float(total) / rows, None, rows, 1)

    def _scores(self, batch: Batch) -> Any:
        return inputs_and_target(batch.data).apply(self.model)

    def assumptions(self) -> list[str]:
        """Return the assumptions that cannot be checked."""
        shown = [SHOWN] if self.provenance.touches("report", self._mark) else []
        chosen = "nothing was chosen by looking at these rows, by hand either"
        return [INDEPENDENT, chosen, prepared(self.provenance), *shown]

    @cached_property
    def _mark(self) -> DataMark:
        device = next((p.device for p in self.model.parameters()), torch.device("cpu"))
        given = self.sample if isinstance(self.sample, DataMark) else DataMark("the fresh sample", self.sample)
        return DataMark(given.name, as_source(given.source, role="fresh", device=device), given.rows)


@dataclass(frozen=True)
class _PathClaim(Claim):
    """M Langevin chains of the problem's model, which are certified together.

    The claim runs the chains itself. The certificate is about these M models, not about the user's trained model.
    """

    problem: Problem
    chain: CoupledChains
    provenance: Provenance
    models: int = 16
    seed: int = 0
    initial: Initial | None = None
    loss: BoundedLoss = field(default_factory=ZeroOne)

    def __post_init__(self) -> None:
        if isinstance(self.models, bool) or not isinstance(self.models, int) or self.models < 1:
            raise SettingError(f"`models` must be a whole number ≥ 1, got {self.models!r}")

    @property
    def sample(self) -> DataMark:
        """The bound sample."""
        raise NotImplementedError

    def drifts(self) -> Drifts:
        """Return the drifts of posterior and prior."""
        raise NotImplementedError

    def start(self) -> Params:
        """Return θ_0 ~ P_0 of every chain. Shapes (M, ...).

        The draws are independent of those of a tuner with the same seed, since λ depends on the tuner's draws.
        """
        drawn = [self._draw_start(chain) for chain in range(self.models)]
        return {name: torch.stack([params[name] for params in drawn]) for name in drawn[0]}

    def _draw_start(self, chain: int = 0) -> Params:
        """Return θ_0 of one chain."""
        streams = Streams(Streams(self.seed).key("certificate start"))
        inputs = RunInputs(self.problem, Langevin(1.0, 1.0), streams, Forwards(stochastic=False), self.initial)
        return inputs.draw(0, chain)

    def paths(self) -> Paths:
        """Run the chains. The model is in training mode, as in all training."""
        with self.problem.training_mode():
            return run_coupled(self.chain, self.start(), self.drifts(), Streams(self.seed))[0]

    def measure(self) -> Evidence:
        """Run the chains; return their mean loss on the bound sample and their mean log-ratio."""
        return self.evidence(self.paths())

    def evidence(self, paths: Paths) -> Evidence:
        """Return the evidence of finished paths."""
        losses = self.losses(paths, self.sample.source)
        return Evidence(float(losses.mean()), float(paths.log_ratios.mean()), self.sample.size, len(losses))

    def losses(self, paths: Paths, source: Source) -> Tensor:
        """Return the mean loss of every kept model on a sample, scaled to [0, 1]. Shape (M,)."""
        return mean_losses(self.problem, paths.params, source, self.loss)

    def assumptions(self) -> list[str]:
        """Return the assumptions that cannot be checked."""
        return [INDEPENDENT, ONE_CHOICE, ONE_DRAW, ROUNDING, prepared(self.provenance)]

    def broken(self) -> list[str]:
        """Return the broken conditions."""
        found = [] if self.sample.size >= LEAST_ROWS else [f"enough rows: the bound sample has {self.sample.size} < 8"]
        found += repeats(self.sample) + overlap(*self.problem.sample_ids)
        if self.problem.has_learning_rates:
            found.append("equal noise: λ changes the step size, so prior and posterior have unequal noise")
        if self.problem.has_initial:
            found.append("common start: λ changes the initial parameters, so the log-ratio is infinite")
        if self.problem.predicts_with_hyper:
            found.append("prediction free of λ: λ is a part of the model, so a path alone does not predict")
        found += drift_conditions(self.problem)
        if self.initial is not None:
            found += unknown(self.provenance, "initial")
        parts = untrained_parts(self.problem.model, drawn=self.initial is None)
        found += unstated(self.provenance, parts)
        found += self._dependent("initial", "distribution of θ_0", () if found else self._draw_start().values())
        model = self.problem.model
        fixed = [*(p for p in model.parameters() if not p.requires_grad), *model.buffers()]
        return found + self._dependent("features", "preparation of the features", fixed)

    def _dependent(self, thing: str, words: str, values: Iterable[Tensor]) -> list[str]:
        """Return a sentence for every record, of the user or of `SEEN_DATA`, that a part has seen the bound sample."""
        touches = self.provenance.touch(thing, *SEEN_DATA.samples_of(values)).touches(thing, self.sample)
        return [f"independent prior: the {words} has seen the bound sample, since {how}" for how in touches]


@dataclass(frozen=True)
class TrainSide(_PathClaim):
    """Bound sample S_T. The prior is a chain on S_V; the posterior one on S_T, or on S_T ∪ S_V, under any λ.

    Args:
        problem: model, λ (of the posterior) and the two samples.
        chain: η, τ and T of both chains.
        provenance: the samples that touched "prior hyper" (λ of the prior), and "initial" if `initial` is given.
        models: M.
        seed: the seed of θ_0 and the noise.
        initial: P_0; it may have seen S_V. None draws with the modules' `reset_parameters`.
        loss: the loss to bound.
        union: train the posterior on S_T ∪ S_V, which is more accurate and nearer to the prior.
        prior_hyper: λ of the prior, chosen without S_T; None takes the problem's λ.
    """

    union: bool = True
    prior_hyper: Params | None = None

    mode = "train side"

    @property
    def sample(self) -> DataMark:
        """S_T."""
        return self.problem.sample_ids[0]

    def drifts(self) -> Drifts:
        """Return the drifts of mode A."""
        tuned = clone(self.problem.hyperparameters())
        prior = tuned if self.prior_hyper is None else self.prior_hyper
        return train_side(self.problem, prior_hyper=prior, posterior_hyper=tuned, union=self.union)

    def broken(self) -> list[str]:
        """Return the broken conditions."""
        found = super().broken() + unknown(self.provenance, "prior hyper")
        values = self.problem.hyper_leaves() if self.prior_hyper is None else self.prior_hyper
        return found + self._dependent("prior hyper", "λ of the prior", values.values())


@dataclass(frozen=True)
class ValidationSide(_PathClaim):
    """Bound sample S_V, on which λ was tuned. Both chains are on S_T: the prior's under λ0, the posterior's under λ*.

    Training and validation data may have different distributions; the bound is about that of S_V.

    Args:
        problem: model, the tuned λ* and the two samples.
        chain: η, τ and T of both chains.
        provenance: the samples that touched "default hyper", and "initial" if `initial` is given; `Result.provenance`.
        models: M.
        seed: the seed of θ_0 and the noise.
        initial: P_0; it may have seen S_T. None draws with the modules' `reset_parameters`.
        loss: the loss to bound.
        default_hyper: λ0, chosen without S_V; `tuner.start_hyper`.
    """

    default_hyper: Params = field(default_factory=dict)

    mode = "validation side"

    @property
    def sample(self) -> DataMark:
        """S_V."""
        return self.problem.sample_ids[1]

    def drifts(self) -> Drifts:
        """Return the drifts of mode V."""
        tuned = clone(self.problem.hyperparameters())
        return validation_side(self.problem, default_hyper=self.default_hyper, tuned_hyper=tuned)

    def broken(self) -> list[str]:
        """Return the broken conditions."""
        missing = [name for name in self.problem.hyperparameters() if name not in self.default_hyper]
        found = [f"known λ0: `default_hyper` lacks {', '.join(missing)}"] if missing else []
        found += super().broken() + unknown(self.provenance, "default hyper")
        return found + self._dependent("default hyper", "default λ0", self.default_hyper.values())
