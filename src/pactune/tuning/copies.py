"""Copies of the modules that a run trains, so that several runs can go on at once."""

from __future__ import annotations

import logging
from dataclasses import replace

import torch

from pactune.problem import Problem
from pactune.problem.modules import copied
from pactune.rounds.online import has_hooks
from pactune.rounds.replay import hook_functions, same_values
from pactune.streams import Streams, forked_rng, seed_forward
from pactune.trees import Params, clone
from pactune.tuning.settings import TunerSettings

__all__ = ["copied_settings"]

log = logging.getLogger("pactune.tuning")


def copied_settings(settings: TunerSettings, count: int) -> list[TunerSettings] | None:
    """Return the settings `count` times, each with its own model, hyper module and outer optimizer.

    None if a copy would not do what the original does: a module cannot be copied, a loss or a penalty uses a module
    that it holds itself and not the copy, or the optimizer has hooks, which `copy.deepcopy` leaves behind.
    """
    if has_hooks(settings.outer):
        log.info("runs go one after the other: the outer optimizer has hooks")
        return None
    try:
        copies = [_copied(settings) for _ in range(count)]
    except Exception as error:  # a module may do anything when it is copied
        log.info("runs go one after the other: copying failed with %s: %s", type(error).__name__, error)
        return None
    if not _behaves_alike(settings.problem, copies[0].problem):
        log.info("runs go one after the other: copies of the modules give other risks or penalties than the modules")
        return None
    return copies


def _copied(settings: TunerSettings) -> TunerSettings:
    model, hyper, outer = copied(settings.problem.model, settings.problem.hyper, settings.outer)
    return replace(settings, problem=settings.problem.with_modules(model, hyper), outer=outer)


def _behaves_alike(problem: Problem, twin: Problem) -> bool:
    """Compare risks and hooks at a random θ and λ. Code that holds an original module does not see them in the copy.

    A NaN decides nothing, so it counts as a difference.
    """
    params, hyper = _shifted(problem.parameters(), "θ"), _shifted(problem.hyperparameters(), "λ")
    for found, wanted in zip(_results(twin, params, hyper), _results(problem, params, hyper), strict=True):
        if any(value.isnan().any() for value in found.values()) or not same_values(found, wanted):
            return False
    return True


def _shifted(tree: Params, name: str) -> Params:
    generator = Streams(0).generator("shift", name)
    drawn = {key: torch.rand(value.shape, generator=generator, device="cpu").to(value) for key, value in tree.items()}
    return {key: value + 0.1 * drawn[key] * (1 + value.abs()) for key, value in tree.items()}


def _results(problem: Problem, params: Params, hyper: Params) -> list[Params]:
    """Return both risks, and the results of the hooks."""
    sides = ((problem.train_risk, problem.train), (problem.valid_risk, problem.valid))
    found: list[Params] = []
    with forked_rng(problem.device), problem.training_mode(), torch.no_grad():
        for risk, source in sides:
            seed_forward(problem.device, 0)
            found.append({"": risk(params, hyper, clone(problem.buffers()), source.first())})
        found += [hook() for hook in hook_functions(problem, params, hyper).values()]
    return [{name: value.detach() for name, value in tree.items()} for tree in found]
