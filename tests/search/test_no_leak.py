"""The rows of a held-out fold have no part in what is chosen for it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

import pactune as pt
from pactune.search import many
from tests.search.calls import (
    NOISE,
    NUMBERS,
    ROWS,
    X,
    network,
    same,
    tune,
    tuning,
)

pytestmark = pytest.mark.usefixtures("short_search")


def chosen_for(fold: int, data: tuple[Tensor, Tensor], **changes: Any) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return the scores by which a decay is chosen, and λ of the tuned run, while a fold is held out."""
    runs, found = list[Any](), list[Any]()
    tune_run, search = many.tune, tuning.search_scalars

    def noted(run: Any, *arguments: Any) -> Any:
        runs.append(run)
        return tune_run(run, *arguments)

    def kept(*arguments: Any) -> Any:
        found.append(search(*arguments))
        return found[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(many, "tune", noted)
        patch.setattr(tuning, "search_scalars", kept)
        tune(network(outputs=1), data, loss=F.mse_loss, folds=PAIRS, **changes)
    scores = {str(decay): curve for decay, curve in found[0].table(fold).items()}
    return scores, {name: value.detach().clone() for name, value in runs[fold].problem.hyperparameters().items()}


PAIRS = [(sorted({*range(ROWS)} - {*range(k, ROWS, 5)}), list(range(k, ROWS, 5))) for k in range(5)]


@pytest.mark.slow
@pytest.mark.parametrize("fold", [0, 2, 4])
@pytest.mark.parametrize("part", ["targets", "inputs"])
def test_what_is_chosen_for_a_fold_does_not_depend_on_its_rows(part: str, fold: int) -> None:
    x, y = X.clone(), NUMBERS.clone()
    held = torch.tensor(PAIRS[fold][1])
    if part == "targets":
        y[held] = 30 + 10 * NOISE[held, None]
    else:
        x[held] = 0.5 - x[held]
    # CorrelatedInputs reads the inputs of all rows; hyperparameters of the user's own replace it
    own = (lambda: pt.ExampleWeights(ROWS)) if part == "inputs" else (lambda: None)
    for judged in (fold, (fold + 1) % 5):
        before, after = (chosen_for(judged, data, hyper=own()) for data in ((X, NUMBERS), (x, y)))
        for one, other in zip(before, after, strict=True):
            assert same(one, other) == (judged == fold)  # the rows of another fold do choose
