"""The predictions for rows by the models of the folds that did not train on them."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from pactune.problem import Problem
from pactune.tuning.plain_run import KeptStep

__all__ = ["out_of_fold"]


def out_of_fold(problem: Problem, kept: KeptStep) -> Tensor | None:
    """Return the prediction for every row by the models that did not train on it; None if they cannot be called.

    A row that validates in several folds has the mean of its predictions, and a row that validates in none has NaN.
    """
    sums: Tensor | None = None
    counts = torch.zeros(problem.train.rows, device=problem.device)
    for fold, rows, (params, buffers) in zip(problem.subproblems, problem.fold_rows, kept.folds, strict=True):
        found = fold.at(params, kept.hyper, buffers, partial(_predicted, fold))
        if found is None:
            return None
        places = rows.valid.to(problem.device)
        sums = found.new_zeros((problem.train.rows, *found.shape[1:])) if sums is None else sums
        sums.index_add_(0, places, found)
        counts.index_add_(0, places, torch.ones(len(places), device=problem.device))
    if sums is None:
        return None
    return sums / counts.to(sums).reshape(-1, *[1] * (sums.ndim - 1))


def _predicted(fold: Problem) -> Tensor | None:
    """Return the predictions for the validation rows of a fold. In the general form the model may take other inputs."""
    try:
        return fold.predictions(fold.valid)
    except Exception:  # a model that only its loss knows how to call
        if fold.is_general(fold.train):
            return None
        raise
