"""A slow, obvious reference for the lasso family: explicit matrices, coordinate descent and dense Jacobians.

    w(α, ρ) = argmin ‖y − Xw‖²/(2n) + Σ α_j|w_j| + ½ρ‖w‖²,    criterion ‖y_V − X_V w‖²/n_V.

These are the models and the criterion of sparse-ho (Bertrand et al. 2020, 2022). The derivatives are those with respect
to log α_j and log ρ.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

Array = np.ndarray


class Regression(NamedTuple):
    """Training and validation rows."""

    x: Array
    y: Array
    x_valid: Array
    y_valid: Array

    @classmethod
    def draw(cls, rows: int, features: int, seed: int) -> Regression:
        """Return rows whose target depends on the first five features."""
        generator = np.random.default_rng(seed)
        x = generator.normal(size=(2 * rows, features))
        y = x[:, :5] @ np.array([1.0, -1.0, 2.0, 0.5, -0.5]) + 0.5 * generator.normal(size=2 * rows)
        return cls(x[:rows], y[:rows], x[rows:], y[rows:])

    @property
    def hessian(self) -> Array:
        """XᵀX/n."""
        return self.x.T @ self.x / len(self.x)

    def criterion(self, w: Array) -> float:
        """Return the validation error."""
        return float(np.mean((self.y_valid - self.x_valid @ w) ** 2))

    def criterion_gradient(self, w: Array) -> Array:
        """Return its gradient with respect to w."""
        return -2 * self.x_valid.T @ (self.y_valid - self.x_valid @ w) / len(self.x_valid)


class Derivatives(NamedTuple):
    """The criterion and its derivatives."""

    value: float
    by_log_alpha: Array
    by_log_ridge: float


def soft(value: Array, threshold: Array) -> Array:
    return np.sign(value) * np.maximum(np.abs(value) - threshold, 0)


def solve(data: Regression, alpha: Array, ridge: float, sweeps: int = 5000) -> Array:
    """Return the minimiser by coordinate descent."""
    hessian, target = data.hessian, data.x.T @ data.y / len(data.x)
    w = np.zeros(len(target))
    for _ in range(sweeps):
        before = w.copy()
        for j in range(len(w)):
            partial = target[j] - hessian[j] @ w + hessian[j, j] * w[j]
            w[j] = soft(partial, alpha[j]) / (hessian[j, j] + ridge)
        if np.abs(w - before).max() < 1e-15:
            break
    return w


def implicit(data: Regression, alpha: Array, ridge: float) -> Derivatives:
    """Differentiate the optimality condition on the support: (H + ρI) w = Xᵀy/n − α sign(w)."""
    w = solve(data, alpha, ridge)
    support = w != 0
    block = data.hessian[np.ix_(support, support)] + ridge * np.eye(support.sum())
    adjoint = np.linalg.solve(block, data.criterion_gradient(w)[support])
    by_alpha = np.zeros(len(w))
    by_alpha[support] = -adjoint * np.sign(w[support]) * alpha[support]
    return Derivatives(data.criterion(w), by_alpha, float(-adjoint @ w[support] * ridge))


def forward(data: Regression, alpha: Array, ridge: float, lr: float, momentum: float, steps: int) -> Derivatives:
    """Run proximal gradient steps from 0 with their Jacobian. Columns: log α_j, then log ρ."""
    hessian, target, count = data.hessian, data.x.T @ data.y / len(data.x), len(alpha)
    w, buffer = np.zeros(count), np.zeros(count)
    jac, jac_buffer = np.zeros((count, count + 1)), np.zeros((count, count + 1))
    for t in range(steps):
        size = lr * sum(momentum**s for s in range(t + 1))
        direct = np.hstack([np.zeros((count, count)), ridge * w[:, None]])
        jac_buffer = momentum * jac_buffer + hessian @ jac + ridge * jac + direct
        buffer = momentum * buffer + hessian @ w - target + ridge * w
        point, jac = w - lr * buffer, jac - lr * jac_buffer
        w = soft(point, size * alpha)
        free = (w != 0)[:, None]
        jac = np.where(free, jac - np.hstack([np.diag(size * alpha * np.sign(point)), np.zeros((count, 1))]), 0)
    slope = jac.T @ data.criterion_gradient(w)
    return Derivatives(data.criterion(w), slope[:-1], float(slope[-1]))
