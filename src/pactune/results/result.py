"""`Result`: the history of a run, the kept model and hyperparameters, and the plain training run beside it."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Literal, NamedTuple

import torch
from torch import Tensor, nn

from pactune.columns import Row
from pactune.errors import DivergenceError
from pactune.problem.provenance import Provenance
from pactune.stacking.requests import RoundValue
from pactune.trees import Params

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

__all__ = ["ObjectiveValue", "Result", "Status"]

Status = Literal["completed", "converged", "interrupted", "diverged"]


class ObjectiveValue(NamedTuple):
    """J(λ) and its parts: total = risk + ζ · regularizer."""

    risk: float
    regularizer: float
    total: float

    @classmethod
    def of(cls, found: RoundValue, zeta: float) -> ObjectiveValue:
        """Return J and its parts.

        Raises:
            DivergenceError: J or its gradient is not finite.
        """
        value = cls(found.risk, found.regularizer, found.risk + zeta * found.regularizer)
        if not (math.isfinite(value.total) and math.isfinite(found.length)):
            raise DivergenceError(
                f"the objective or its gradient is not finite (risk {value.risk:.4g}, "
                f"regularizer {value.regularizer:.4g}, gradient norm {found.length:.4g}); "
                "look for NaN in the data, or lower the inner or the outer learning rate"
            )
        return value


@dataclass(frozen=True)
class Result:
    """The outcome of `Tuner.fit`.

    Attributes:
        model: the user's model, with the kept parameters and buffers.
        hyper: the user's hyper module, with the λ that the kept parameters were trained with.
        status: "completed", "converged", "interrupted" (Ctrl-C) or "diverged".
        zeta: ζ of the kept run.
        kept_run: "tuned", or "plain" if `zeta="auto"` prefers plain training.
        kept_step: the outer step of that run whose parameters were kept; 0 if there is none.
        rows: the history as a list of rows.
        plain_rows: the same for plain training with λ fixed at its start.
        trials: with `zeta="auto"`, the held-out score of every candidate and outer step.
        verdict: a sentence that says if tuning paid, with the numbers behind it.
        pays: True if tuning paid, False if it did not, None if that is unclear.
        provenance: the samples that touched the model and the hyperparameters; a certificate needs it.
        out_of_fold: with folds, the prediction for every row by the fold model that did not train on it: the mean if
            there are several, NaN if there is none. None without folds, or if a batch is no tuple (inputs, target).
        fold_states: with folds, the parameters and buffers of the model of every fold at the kept step.
    """

    model: nn.Module
    hyper: nn.Module
    status: Status
    zeta: float
    kept_run: Literal["tuned", "plain"]
    kept_step: int
    rows: list[Row] = field(repr=False)
    plain_rows: list[Row] = field(repr=False)
    trials: list[Row] = field(repr=False, default_factory=list)
    verdict: str = ""
    pays: bool | None = None
    provenance: Provenance = field(repr=False, default_factory=Provenance)
    out_of_fold: Tensor | None = field(repr=False, default=None)
    fold_states: list[Params] = field(repr=False, default_factory=list)

    @cached_property
    def fold_models(self) -> list[nn.Module]:
        """With folds, a copy of the model for every fold, with the parameters of the kept step, in `eval()` mode."""
        return [_loaded(self.model, state) for state in self.fold_states]

    @property
    def history(self) -> pd.DataFrame:
        """A row per outer step: risks, metrics, regularizer, objective, hypergradient norm and seconds."""
        return _frame(self.rows)

    @property
    def plain(self) -> pd.DataFrame:
        """The history of plain training with λ fixed at its start; it has the columns that do not depend on tuning."""
        return _frame(self.plain_rows)

    @property
    def kept(self) -> Row:
        """The row of the kept outer step."""
        rows = self.rows if self.kept_run == "tuned" else self.plain_rows
        return next((row for row in rows if row["outer_step"] == self.kept_step), {})

    def plot(self) -> Figure:
        """Draw risks, metrics, and the two parts of the objective against the outer step."""
        from pactune.results.plots import draw_history

        return draw_history(self)


@torch.no_grad()
def _loaded(model: nn.Module, state: Params) -> nn.Module:
    """Return a copy of a model with other parameters and buffers."""
    twin = copy.deepcopy(model).eval()
    tensors = {**dict(twin.named_parameters()), **dict(twin.named_buffers())}
    for name, value in state.items():
        tensors[name].copy_(value)
    return twin


def _frame(rows: list[Row]) -> pd.DataFrame:
    import pandas as pd

    return pd.DataFrame(rows)
