"""`Result`: the history of a run, the kept model and hyperparameters, and the plain training run beside it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from torch import Tensor, nn

from pactune.columns import Row, column_names
from pactune.errors import DivergenceError
from pactune.problem.provenance import Provenance
from pactune.results.summary import summarize
from pactune.results.weights import copy_with
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


@dataclass(frozen=True, repr=False)
class Result:
    """The outcome of `Tuner.fit`.

    The modules are the user's own. If the tuner goes on, they change: save the result before.

    Attributes:
        model: the user's model, with the kept parameters and buffers, in `eval()` mode.
        hyper: the user's hyper module, with the λ that the kept parameters were trained with.
        status: "completed", "converged", "interrupted" (Ctrl-C) or "diverged".
        zeta: ζ of the kept run.
        kept_run: "tuned", or "plain" if `zeta="auto"` prefers plain training.
        kept_step: the outer step of that run whose parameters were kept; 0 if there is none.
        rows: the history as a sequence of rows.
        plain_rows: the same for plain training with λ fixed at its start.
        trials: with `zeta="auto"`, the held-out score of every candidate and outer step.
        verdict: a sentence that says if tuning paid, with the numbers behind it.
        pays: True if tuning paid, False if it did not, None if that is unclear.
        provenance: the samples that touched the model and the hyperparameters; a certificate needs it.
        out_of_fold: with folds, the prediction for every row by the fold model that did not train on it: the mean if
            there are several, NaN if there is none. None without folds, or if a batch is no tuple (inputs, target).
        fold_states: with folds, the parameters and buffers of the model of every fold at the kept step.
        settings: the problem and the settings of the run, in words and numbers.
        comparison: the rows of `table`, with `pt.tune`.
    """

    model: nn.Module
    hyper: nn.Module
    status: Status
    zeta: float
    kept_run: Literal["tuned", "plain"]
    kept_step: int
    rows: Sequence[Row]
    plain_rows: Sequence[Row]
    trials: list[Row] = field(default_factory=list)
    verdict: str = ""
    pays: bool | None = None
    provenance: Provenance = field(default_factory=Provenance)
    out_of_fold: Tensor | None = None
    fold_states: list[Params] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)
    comparison: list[Row] = field(default_factory=list)

    @cached_property
    def fold_models(self) -> list[nn.Module]:
        """With folds, a copy of the model for every fold, with the parameters of the kept step, in `eval()` mode."""
        return [copy_with(self.model, state) for state in self.fold_states]

    @property
    def history(self) -> pd.DataFrame:
        """A row per outer step: risks, metrics, regularizer, objective, hypergradient norm and seconds."""
        return _frame(self.rows)

    @property
    def plain(self) -> pd.DataFrame:
        """The history of plain training with λ fixed at its start; it has the columns that do not depend on tuning."""
        return _frame(self.plain_rows)

    @property
    def table(self) -> pd.DataFrame:
        """With `pt.tune`, a row per procedure: its metric on held-out rows, its gain over plain training, errors."""
        return _frame(self.comparison)

    @property
    def kept(self) -> Row:
        """The row of the kept outer step."""
        rows = self.rows if self.kept_run == "tuned" else self.plain_rows
        return next((row for row in rows if row["outer_step"] == self.kept_step), {})

    @property
    def best(self) -> Row:
        """The kept outer step: its row, with `run` ("tuned" or "plain") and `zeta`; empty if no step is kept."""
        return {**self.kept, "run": self.kept_run, "zeta": self.zeta} if self.kept else {}

    def state_dict(self) -> dict[str, dict[str, Any]]:
        """Return the weights: the `state_dict()` of the model as "model", that of the hyper module as "hyper"."""
        return {"model": self.model.state_dict(), "hyper": self.hyper.state_dict()}

    def summary(self) -> str:
        """Return a few lines: steps and time, the kept step, risks and metrics before and after, the verdict."""
        return summarize(self).text()

    def save(self, folder: str | Path) -> Path:
        """Write the result to a folder: weights as safetensors, everything else as JSON. `pt.load_result` reads it.

        The folder is new, empty, or that of an earlier result, which is replaced. A crash leaves the earlier result
        as it was. With `parallel`, save on one rank only.

        Returns:
            The folder.

        Raises:
            RunFolderError: the folder holds other files, or cannot be written.
            SettingError: a module has a state that is no tensor.
        """
        from pactune.results.saving import save_result

        return save_result(self, folder)

    def __repr__(self) -> str:
        steps = f"outer_steps={len(self.rows)}, kept_run={self.kept_run!r}, kept_step={self.kept_step}"
        return f"Result(status={self.status!r}, {steps}, zeta={self.zeta:g}, verdict={self.verdict!r})"

    def _repr_html_(self) -> str:
        return summarize(self).html()

    def plot(self) -> Figure:
        """Draw risks, metrics, and the two parts of the objective against the outer step."""
        from pactune.results.plots import draw_history

        return draw_history(self)


def _frame(rows: Sequence[Row]) -> pd.DataFrame:
    import pandas as pd

    return pd.DataFrame(list(rows), columns=column_names(rows))
