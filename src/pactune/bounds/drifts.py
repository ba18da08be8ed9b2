"""The drifts of posterior and prior for both modes, on whole samples and for all chains at once."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor
from torch.func import grad, vmap

from pactune.bounds.coupled_langevin import Drifts
from pactune.problem import Problem
from pactune.problem.data import Batch, Source
from pactune.trees import Params, add, axpy, scale

__all__ = ["train_side", "validation_side"]

Risk = Callable[[Params, Params, Params, Batch], Tensor]
Gradient = Callable[[Params], Params]


def train_side(problem: Problem, *, prior_hyper: Params, posterior_hyper: Params, union: bool) -> Drifts:
    """Return the drifts of mode A: the prior's on S_V under λ_V, the posterior's on S_T or S_T ∪ S_V under λ*.

    On the union, Δ is smaller by the factor n_T/(n_T + n_V) and the divergence by its square: 1/4 at equal sizes.
    """
    on_train = _whole_gradient(problem.train_risk, problem.train, posterior_hyper)
    on_valid = _whole_gradient(problem.valid_risk, problem.valid, posterior_hyper)
    prior_data = on_valid if not problem.enters_losses else None
    prior_alone = _whole_gradient(problem.valid_risk, problem.valid, prior_hyper)
    share = problem.train.rows / (problem.train.rows + problem.valid.rows)

    def drifts(params: Params) -> tuple[Params, Params]:
        train = on_train(params)
        prior = (prior_data or prior_alone)(params)
        valid = prior if prior_data is not None or not union else on_valid(params)
        posterior = axpy(share, train, scale(1 - share, valid)) if union else train
        return _penalised(problem, posterior, params, posterior_hyper), _penalised(problem, prior, params, prior_hyper)

    return drifts


def validation_side(problem: Problem, *, default_hyper: Params, tuned_hyper: Params) -> Drifts:
    """Return the drifts of mode V: both on S_T, the prior's under λ0, the posterior's under the tuned λ*."""
    tuned = _whole_gradient(problem.train_risk, problem.train, tuned_hyper)
    default = _whole_gradient(problem.train_risk, problem.train, default_hyper)

    def drifts(params: Params) -> tuple[Params, Params]:
        posterior = tuned(params)
        prior = default(params) if problem.enters_losses else posterior
        return _penalised(problem, posterior, params, tuned_hyper), _penalised(problem, prior, params, default_hyper)

    return drifts


def _whole_gradient(risk: Risk, source: Source, hyper: Params) -> Gradient:
    """Return the gradient of the mean risk over all rows, as a function of the parameters of all chains."""
    batches = list(source.epoch())
    rows = sum(batch.rows for batch in batches)

    def of(batch: Batch) -> Gradient:
        found: Gradient = vmap(grad(lambda values: risk(values, hyper, {}, batch)))
        return found

    gradients = [(batch.rows / rows, of(batch)) for batch in batches]

    def whole(params: Params) -> Params:
        if len(gradients) == 1:
            return gradients[0][1](params)
        total = scale(gradients[0][0], gradients[0][1](params))
        for share, gradient in gradients[1:]:
            total = axpy(share, gradient(params), total)
        return total

    return whole


def _penalised(problem: Problem, gradient: Params, params: Params, hyper: Params) -> Params:
    if not problem.has_penalty:
        return gradient
    penalty: Params = vmap(lambda values: problem.penalty_gradient(values, hyper))(params)
    return add(gradient, penalty)
