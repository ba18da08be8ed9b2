"""Differentially private SGLD (Algorithm A.1, corrected): per-example clipping, one pass, disjoint batches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from pactune.checks import check_count, check_type, shown
from pactune.dynamics import Langevin
from pactune.dynamics.base import StepInputs
from pactune.errors import DataError, SettingError
from pactune.privacy.accounting import Privacy
from pactune.privacy.per_example import Loss, clipped_sums, try_public_row
from pactune.trees import Params

__all__ = ["DPSGLD", "PrivateRun", "secret_generator"]


class PrivateRun(NamedTuple):
    """The outcome of a private run.

    Attributes:
        params: θ_T of every chain without frozen parameters. Shapes (chains, ...).
        privacy: the privacy cost of all chains together.
        steps: T.
    """

    params: Params
    privacy: Privacy
    steps: int


@dataclass(frozen=True)
class DPSGLD:
    """θ ← θ − (η/h) Σ_{i∈batch} clip_γ(∇ℓ_i(θ)) + √(2η/τ) ξ, over disjoint batches of h rows, at most one pass.

    The gradient of every example is clipped separately, so that no row changes the sum by more than γ, rounding
    included. Clipping the mean, as printed in Algorithm A.1, would have a sensitivity of 2ηγ instead of 2ηγ/h. This is
    no `Dynamics` for a `Tuner`, since a `Tuner` passes the mean gradient of a batch.

    Args:
        lr: η.
        clip: γ.
        batch_size: h.
        inverse_temperature: τ; None takes the number of rows, as the paper does.
    """

    lr: float
    clip: float
    batch_size: int
    inverse_temperature: float | None = None

    def __post_init__(self) -> None:
        tau = 1.0 if self.inverse_temperature is None else self.inverse_temperature
        Privacy(self.batch_size, self.clip, self.lr, tau)

    def privacy(self, rows: int, chains: int = 1) -> Privacy:
        """Return the privacy cost of a run on `rows` rows."""
        check_count("rows", rows)
        return Privacy(self.batch_size, self.clip, self.lr, self.inverse_temperature or float(rows), chains)

    def run(
        self,
        model: nn.Module,
        data: tuple[Tensor, Tensor],
        *,
        loss: Loss,
        generator: torch.Generator,
        chains: int = 1,
        steps: int | None = None,
        initial: Params | None = None,
        public_row: tuple[Tensor, Tensor] | None = None,
    ) -> PrivateRun:
        """Run C chains; each has its own order of the rows and its own noise.

        A row adds nothing to its step if its gradient is not finite or its loss raises an exception. No message reports
        this, since a message would reveal that such a row exists.

        Args:
            model: computes the forward; its parameters are not changed. Frozen parameters are not trained.
            data: inputs and targets. Shapes (s, ...) and (s, ...).
            loss: `loss(prediction, target)` of a batch of one row.
            generator: draws the order and the noise. There is no default, since anyone who knows the seed can subtract
                the noise. `secret_generator(device)` seeds one from the system's entropy.
            chains: C.
            steps: T ≤ s/h; None takes the whole pass.
            initial: θ_0 of all chains, independent of the data; None takes the model's parameters.
            public_row: an input and a target that are no secret, in the shapes of a row; None takes zeros. The loss is
                called on it first, so that a mistake in the model or the loss is reported.

        Raises:
            SettingError: more than one pass, a model with batch statistics, no generator, or a loss that fails on the
                public row.
        """
        x, y = _check_run(model, data, loss, initial)
        rows = len(x)
        total = rows // self.batch_size if steps is None else steps
        self._check(model, rows, total, chains, generator)
        langevin = Langevin(self.lr, self.inverse_temperature or float(rows))
        params = _stack(initial if initial is not None else _own(model), chains)
        row = _public_row(public_row, x, y)
        try_public_row(model, loss, params, row)
        order = torch.stack([torch.randperm(rows, generator=generator, device=generator.device) for _ in range(chains)])
        for t in range(total):
            index = order[:, t * self.batch_size : (t + 1) * self.batch_size].to(x.device)
            sums = clipped_sums(model, loss, params, x[index], y[index], self.clip)
            noise = {name: _normal(p, generator) for name, p in params.items()}
            params = self._step(langevin, params, sums, noise, t)
        return PrivateRun(params, self.privacy(rows, chains), total)

    def _step(self, langevin: Langevin, params: Params, sums: Params, noise: Params, t: int) -> Params:
        """Return θ after a step in float64, then in the parameters' own types: all rounding comes after the noise."""
        gradient = {name: total / self.batch_size for name, total in sums.items()}
        inputs = StepInputs(gradient, None, {}, _double(noise), langevin.numbers(t))
        moved, _ = langevin.step(_double(params), {}, inputs)
        return {name: value.to(params[name].dtype) for name, value in moved.items()}

    def _check(self, model: nn.Module, rows: int, steps: int, chains: int, generator: object) -> None:
        if not isinstance(generator, torch.Generator):
            raise SettingError("`generator` must be a torch.Generator; there is no default seed for private noise")
        if rows < 1:
            raise DataError("the data set is empty: it needs at least one row")
        check_count("chains", chains)
        check_count("steps", steps, 0)
        if not 1 <= steps <= rows // self.batch_size:
            raise SettingError(
                f"`steps` must be between 1 and rows // batch_size = {rows // self.batch_size}, got {steps}: "
                "every row may be used once, or the privacy of one pass is not what is claimed"
            )
        norms = [name for name, module in model.named_modules() if isinstance(module, _BatchNorm)]
        if norms:
            raise SettingError(
                f"{', '.join(norms)}: BatchNorm mixes the examples of a batch, so the gradient of one example depends "
                "on the others and clipping it bounds nothing; use GroupNorm or LayerNorm"
            )


def _check_run(model: object, data: object, loss: object, initial: object) -> tuple[Tensor, Tensor]:
    """Return inputs and targets; raise if an argument of `run` has the wrong type or shape."""
    check_type("model", model, nn.Module, "an nn.Module")
    pair = data if isinstance(data, (tuple, list)) else ()
    if (
        len(pair) != 2
        or not all(isinstance(part, Tensor) and part.ndim for part in pair)
        or len(pair[0]) != len(pair[1])
    ):
        raise DataError(f"`data` must be two tensors (inputs, targets) with the same number of rows, got {shown(data)}")
    if not callable(loss):
        raise SettingError(f"`loss` must be callable, got {shown(loss)}")
    shapes = {name: p.shape for name, p in _own(cast(nn.Module, model)).items()}
    if not any(shape.numel() for shape in shapes.values()):
        raise SettingError("`model` must have a parameter that requires a gradient, got none")
    if initial is not None and (
        not isinstance(initial, dict) or {name: getattr(p, "shape", None) for name, p in initial.items()} != shapes
    ):
        raise SettingError(
            f"`initial` must be a dict of all trainable parameters in their shapes or None, got {shown(initial)}"
        )
    return pair[0], pair[1]


def secret_generator(device: torch.device | str = "cpu") -> torch.Generator:
    """Return a generator seeded from the system's entropy; the seed is not stored anywhere else."""
    generator = torch.Generator(device=device)
    generator.seed()
    return generator


def _public_row(given: object, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return the public row; raise unless it has the shapes of a row."""
    if given is None:
        return torch.zeros_like(x[0]), torch.zeros_like(y[0])
    pair = given if isinstance(given, (tuple, list)) else ()
    shapes = [getattr(part, "shape", None) for part in pair]
    if shapes != [x.shape[1:], y.shape[1:]] or not all(isinstance(part, Tensor) for part in pair):
        raise SettingError(
            f"`public_row` must be an input of shape {tuple(x.shape[1:])} and a target of shape {tuple(y.shape[1:])}, "
            f"got {shown(given)}"
        )
    return pair[0].to(x), pair[1].to(y)


def _own(model: nn.Module) -> Params:
    """Return the parameters that are trained."""
    return {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}


def _double(tree: Params) -> Params:
    return {name: value.double() for name, value in tree.items()}


def _stack(params: Params, chains: int) -> Params:
    return {name: p.detach().expand(chains, *p.shape).clone() for name, p in params.items()}


def _normal(like: Tensor, generator: torch.Generator) -> Tensor:
    drawn = torch.randn(like.shape, generator=generator, dtype=like.dtype, device=generator.device)
    return drawn.to(like.device)
