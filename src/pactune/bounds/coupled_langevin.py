"""Run M posterior Langevin chains at once and compute their exact log-ratio to the prior.

The posterior chain moves by its drift g^Q and noise ξ_t. At every θ_t the prior's drift g^P is evaluated too, and
‖Δ_t‖² and ⟨ξ_t, Δ_t⟩ with Δ_t = g^P − g^Q are summed. Both chains have the same step size and the same noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from pactune.errors import DivergenceError, SettingError
from pactune.streams import Streams
from pactune.trees import Params

__all__ = ["CoupledChains", "Drifts", "Paths", "run_coupled"]

Drifts = Callable[[Params], tuple[Params, Params]]
"""Maps the parameters of all chains, shapes (M, ...), to the posterior's and the prior's drift in the same shapes."""

CHECK_EVERY = 100  # steps between checks that the chains are finite; a check waits for the device


@dataclass(frozen=True)
class CoupledChains:
    """The settings of the chains.

    Args:
        lr: η, a number or one per chain.
        inverse_temperature: τ of posterior and prior, a number or one per chain.
        steps: T.
    """

    lr: float | Tensor
    inverse_temperature: float | Tensor
    steps: int

    def __post_init__(self) -> None:
        for name in ("lr", "inverse_temperature"):
            value = torch.as_tensor(getattr(self, name), dtype=torch.float64, device="cpu")
            if not bool(((value > 0) & value.isfinite()).all()):
                raise SettingError(f"`{name}` must be positive and finite, got {getattr(self, name)!r}")
        if self.steps < 0:
            raise SettingError(f"`steps` must be ≥ 0, got {self.steps!r}")


class Paths(NamedTuple):
    """M sampled paths at one number of steps.

    Attributes:
        params: θ_T of every chain. Shapes (M, ...).
        squares: Σ_t‖Δ_t‖², float64. Shape (M,).
        products: Σ_t⟨ξ_t, Δ_t⟩, float64. Shape (M,).
        steps: T.
        chains: the settings of the chains.
    """

    params: Params
    squares: Tensor
    products: Tensor
    steps: int
    chains: CoupledChains

    @property
    def log_ratios(self) -> Tensor:
        """Return log dQ/dP of every path, (ητ/4)Σ‖Δ_t‖² + √(ητ/2)Σ⟨ξ_t, Δ_t⟩; exact. Shape (M,)."""
        return self.kl + (self._rate / 2).sqrt() * self.products

    @property
    def kl(self) -> Tensor:
        """Return (ητ/4)Σ‖Δ_t‖² of every path, whose expectation is the path divergence. Shape (M,)."""
        return self._rate / 4 * self.squares

    @property
    def _rate(self) -> Tensor:
        lr, tau = (torch.as_tensor(value, dtype=torch.float64, device="cpu") for value in _both(self.chains))
        return (lr * tau).to(self.squares.device)

    def pick(self, chains: slice) -> Paths:
        """Return some of the chains."""
        lr, tau = (v if not isinstance(v, Tensor) else v[chains] for v in _both(self.chains))
        params = {name: value[chains] for name, value in self.params.items()}
        kept = CoupledChains(lr, tau, self.chains.steps)
        return Paths(params, self.squares[chains], self.products[chains], self.steps, kept)


def run_coupled(
    chains: CoupledChains,
    start: Params,
    drifts: Drifts,
    streams: Streams,
    *,
    record_at: Sequence[int] = (),
) -> list[Paths]:
    """Run all chains for T steps and return their paths up to the steps `record_at`, by default T.

    A path of fewer steps is the beginning of a longer one, so a grid over T costs one run.

    Args:
        chains: η, τ and T.
        start: θ_0 of every chain. Shapes (M, ...).
        drifts: the posterior's and the prior's drift.
        streams: the seed of the noise. It must be independent of the choice of the drifts.
        record_at: numbers of steps, each at most T.

    Raises:
        DivergenceError: a chain is not finite.
    """
    wanted = set(record_at) or {chains.steps}
    if not all(0 <= t <= chains.steps for t in wanted):
        raise SettingError(f"`record_at` must be between 0 and steps={chains.steps}, got {sorted(wanted)}")
    params = {name: value.detach().clone() for name, value in start.items()}
    first = next(iter(params.values()))
    squares = torch.zeros(len(first), dtype=torch.float64, device=first.device)
    products, found = squares.clone(), []
    generator = streams.generator("certificate noise", device=first.device)
    lr, spread = _per_chain(chains, first)
    with torch.no_grad():
        for t in range(chains.steps + 1):
            if t in wanted:
                found.append(Paths(dict(params), squares.clone(), products.clone(), t, chains))
            if t == chains.steps:
                break
            posterior, prior = drifts(params)
            for name, p in params.items():
                noise = torch.randn(p.shape, generator=generator, dtype=p.dtype, device=p.device)
                delta = prior[name] - posterior[name]
                squares += _sums(delta * delta)
                products += _sums(delta * noise)
                params[name] = p - _wide(lr, p) * posterior[name] + _wide(spread, p) * noise
            if (t + 1) % CHECK_EVERY == 0 or t + 1 == chains.steps:
                _check_finite(squares, products, t + 1)
    return found


def _per_chain(chains: CoupledChains, like: Tensor) -> tuple[Tensor, Tensor]:
    """Return η and √(2η/τ), one per chain or one for all."""
    lr, tau = (torch.as_tensor(value, dtype=torch.float64, device="cpu") for value in _both(chains))
    return lr.to(like), (2 * lr / tau).sqrt().to(like)


def _both(chains: CoupledChains) -> tuple[float | Tensor, float | Tensor]:
    return chains.lr, chains.inverse_temperature


def _wide(value: Tensor, like: Tensor) -> Tensor:
    return value.reshape(-1, *[1] * (like.ndim - 1)) if value.ndim else value


def _sums(values: Tensor) -> Tensor:
    """Return the sum for every chain, in float64."""
    return values.reshape(len(values), -1).sum(1, dtype=torch.float64)


def _check_finite(squares: Tensor, products: Tensor, step: int) -> None:
    if not math.isfinite(float((squares + products).sum())):
        raise DivergenceError(f"a Langevin chain is not finite after {step} steps; lower `lr`")
