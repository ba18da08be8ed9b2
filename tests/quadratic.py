"""A slow, obvious reference for quadratic risks: every iterate and derivative by explicit matrix recursion.

Training risk ½ θᵀA θ − bᵀθ + ½ Σ λ_i θ_i², validation risk ½ θᵀB θ − cᵀθ, heavy-ball steps with optional noise:

    u_{t+1} = μ u_t + (A + Λ) θ_t − b,      θ_{t+1} = θ_t − η u_{t+1} + s ξ_t.

Everything is affine in the data and polynomial in λ. With S_t = dθ_t/dλ and U_t = du_t/dλ (both zero at the anchor of
the estimator) the recursion differentiates to U_{t+1} = μ U_t + (A + Λ) S_t + diag(θ_t) and S_{t+1} = S_t − η U_{t+1}.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from pactune.hypergradient.base import Estimator

__all__ = ["Quadratic", "QuadraticRun"]


@dataclass(frozen=True)
class Quadratic:
    """Two quadratic risks. Shapes: A, B (m, m) symmetric; b, c (m,)."""

    A: Tensor
    b: Tensor
    B: Tensor
    c: Tensor

    @classmethod
    def draw(cls, size: int, generator: torch.Generator) -> Quadratic:
        """Return random risks whose Hessians have eigenvalues between 0.5 and about 2."""

        def hessian() -> Tensor:
            root = torch.randn(size, 2 * size, generator=generator, dtype=torch.float64, device=generator.device)
            return root @ root.T / (4 * size) + 0.5 * torch.eye(size, dtype=root.dtype, device=root.device)

        def vector() -> Tensor:
            return torch.randn(size, generator=generator, dtype=torch.float64, device=generator.device)

        return cls(hessian(), vector(), hessian(), vector())

    def train_risk(self, theta: Tensor) -> Tensor:
        """Return ½ θᵀA θ − bᵀθ."""
        return 0.5 * theta @ self.A @ theta - self.b @ theta

    def valid_risk(self, theta: Tensor) -> Tensor:
        """Return ½ θᵀB θ − cᵀθ."""
        return 0.5 * theta @ self.B @ theta - self.c @ theta

    def module(self, start: Tensor) -> nn.Module:
        """Return a model whose only parameter is θ; its forward ignores the data."""
        return _Vector(start)

    def implicit_gradient(self, decay: Tensor) -> Tensor:
        """Return d/dλ of R_V at the exact minimiser of the training risk."""
        hessian = self.A + torch.diag(decay)
        theta: Tensor = torch.linalg.solve(hessian, self.b)
        adjoint: Tensor = torch.linalg.solve(hessian, self.B @ theta - self.c)
        return -theta * adjoint


@dataclass(frozen=True)
class QuadraticRun:
    """Heavy-ball or Langevin steps on a `Quadratic`.

    Attributes:
        problem: the risks.
        lr: η.
        momentum: μ.
        noise: s ξ_t by step, shape (T, m), or None.
    """

    problem: Quadratic
    lr: float
    momentum: float = 0.0
    noise: Tensor | None = None

    def states(self, theta: Tensor, decay: Tensor, steps: int) -> list[tuple[Tensor, Tensor]]:
        """Return (θ_t, u_t) for t = 0 … T."""
        path = [(theta, torch.zeros_like(theta))]
        for t in range(steps):
            theta, u = path[-1]
            u = self.momentum * u + self._gradient(theta, decay)
            path.append((theta - self.lr * u + self._noise(t), u))
        return path

    def gradient(
        self, theta: Tensor, decay: Tensor, steps: int, zeta: float, risk: Estimator, path: Estimator
    ) -> tuple[float, Tensor]:
        """Return J and its λ-gradient as the two estimators define it."""
        states = self.states(theta, decay, steps)
        final = states[steps][0]
        value = self.problem.valid_risk(final)
        slope = self.problem.B @ final - self.problem.c
        gradient = self._sensitivity(states, decay, risk.anchor(steps, steps), steps).T @ slope
        total, total_gradient = theta.new_zeros(()), torch.zeros_like(theta)
        for t in range(steps):
            sensitivity = self._sensitivity(states, decay, path.anchor(t, steps), t)
            delta = self._difference(states[t][0], decay)
            jacobian = (self.problem.A + torch.diag(decay) - self.problem.B) @ sensitivity + torch.diag(states[t][0])
            total, total_gradient = total + delta @ delta, total_gradient + 2 * jacobian.T @ delta
        root = math.sqrt(float(total))
        weight = zeta / (2 * root) if root > 0 else 0.0
        return float(value) + zeta * root, gradient + weight * total_gradient

    def _sensitivity(self, states: list[tuple[Tensor, Tensor]], decay: Tensor, anchor: int, t: int) -> Tensor:
        """Return dθ_t/dλ with (θ, u) held fixed at the anchor. Shape (m, m)."""
        size = len(decay)
        S, U = decay.new_zeros(size, size), decay.new_zeros(size, size)
        for step in range(anchor, t):
            U = self.momentum * U + (self.problem.A + torch.diag(decay)) @ S + torch.diag(states[step][0])
            S = S - self.lr * U
        return S

    def _gradient(self, theta: Tensor, decay: Tensor) -> Tensor:
        return self.problem.A @ theta - self.problem.b + decay * theta

    def _difference(self, theta: Tensor, decay: Tensor) -> Tensor:
        return self._gradient(theta, decay) - (self.problem.B @ theta - self.problem.c)

    def _noise(self, t: int) -> Tensor | float:
        return 0.0 if self.noise is None else self.noise[t]


class _Vector(nn.Module):
    def __init__(self, start: Tensor) -> None:
        super().__init__()
        self.theta = nn.Parameter(start.clone())

    def forward(self, x: Tensor) -> Tensor:
        return self.theta.expand(len(x), -1)
