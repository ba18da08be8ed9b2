"""Statistics of BatchNorm that belong to given parameters."""

from __future__ import annotations

from itertools import islice

import torch
from torch import nn

from pactune.problem.problem import Problem
from pactune.streams import forked_rng, seed_forward
from pactune.trees import Params, clone

__all__ = ["fresh_statistics"]

NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
COUNT = "num_batches_tracked"
MOST_BATCHES = 20  # of the training rows


@torch.no_grad()
def fresh_statistics(problem: Problem, params: Params, buffers: Params) -> Params:
    """Return the buffers with the running statistics of BatchNorm replaced by those of the training rows at θ.

    A running mean follows the iterates of training. At an average of the iterates it can be far off.
    """
    norms = {name: m for name, m in problem.model.named_modules() if isinstance(m, NORMS) and m.track_running_stats}
    counts = [name for name in (f"{norm}.{COUNT}" if norm else COUNT for norm in norms) if name in buffers]
    if not counts:
        return buffers
    fresh, momenta = clone(buffers), {name: norm.momentum for name, norm in norms.items()}
    for name in counts:
        fresh[name].zero_()
    try:
        for norm in norms.values():
            norm.momentum = None  # a mean with equal weights
        with problem.training_mode(), forked_rng(problem.device):
            seed_forward(problem.device, 0)
            for batch in islice(problem.train.evaluation(), MOST_BATCHES):
                problem.train_risk(params, problem.hyperparameters(), fresh, batch)
    finally:
        for name, momentum in momenta.items():
            norms[name].momentum = momentum
    return {**fresh, **{name: buffers[name] for name in counts}}
