"""Copies of the modules that a run trains, so that several runs can go on at once."""

from __future__ import annotations

import copy
import logging
from dataclasses import replace

import torch
from torch import Tensor

from pactune.problem import Problem
from pactune.streams import Streams, forked_rng, seed_forward
from pactune.trees import Params, clone
from pactune.tuning.settings import TunerSettings

__all__ = ["copied_settings"]

log = logging.getLogger("pactune.tuning")


def copied_settings(settings: TunerSettings, count: int) -> list[TunerSettings] | None:
    """Return the settings `count` times, each with its own model, hyper module and outer optimizer.

    None if a copy would not do what the original does: a module cannot be copied, a loss uses a module that it holds
    itself in place of the one that it is given, or the optimizer has hooks, which `copy.deepcopy` leaves behind.
    """
    if _has_hooks(settings.outer):
        log.info("runs go one after the other: the outer optimizer has hooks")
        return None
    try:
        copies = [_copied(settings) for _ in range(count)]
    except Exception as error:  # a module may do anything when it is copied
        log.info("runs go one after the other: copying failed with %s: %s", type(error).__name__, error)
        return None
    if not _same_risks(settings.problem, copies[0].problem):
        log.info("runs go one after the other: a copy of the modules has other risks, so a loss holds a module itself")
        return None
    return copies


def _copied(settings: TunerSettings) -> TunerSettings:
    model, hyper, outer = copy.deepcopy((settings.problem.model, settings.problem.hyper, settings.outer))
    return replace(settings, problem=settings.problem.with_modules(model, hyper), outer=outer)


def _has_hooks(outer: torch.optim.Optimizer) -> bool:
    return bool(outer._optimizer_step_pre_hooks or outer._optimizer_step_post_hooks or "step" in vars(outer))


def _same_risks(problem: Problem, twin: Problem) -> bool:
    """Compare both risks at a random θ and λ. A loss that holds the original module would not see them in the copy."""
    params, hyper = _shifted(problem.parameters(), "θ"), _shifted(problem.hyperparameters(), "λ")
    found = [_risks(one, params, hyper) for one in (problem, twin)]
    return bool(torch.equal(*found) or found[1].isnan().any())


def _shifted(tree: Params, name: str) -> Params:
    generator = Streams(0).generator("shift", name)
    drawn = {key: torch.rand(value.shape, generator=generator, device="cpu").to(value) for key, value in tree.items()}
    return {key: value + 0.1 * drawn[key] * (1 + value.abs()) for key, value in tree.items()}


def _risks(problem: Problem, params: Params, hyper: Params) -> Tensor:
    sides = ((problem.train_risk, problem.train), (problem.valid_risk, problem.valid))
    values = []
    with forked_rng(problem.device), problem.training_mode(), torch.no_grad():
        for risk, source in sides:
            seed_forward(problem.device, 0)
            values.append(risk(params, hyper, clone(problem.buffers()), source.first()))
    return torch.stack(values)
