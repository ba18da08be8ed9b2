"""A solver of ∇²R_T v = b that replaces the Hessian by a matrix of low rank, from some of its columns."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pactune.checks import POSITIVE, check_count
from pactune.hypergradient.solvers import LinearSolver, LinearSystem, Operator, Solution, check_damping
from pactune.trees import Params

__all__ = ["Nystrom"]


@dataclass(frozen=True)
class Nystrom(LinearSolver):
    """v = (H_r + damping·I)⁻¹ b with the Nyström matrix H_r = C W⁺ Cᵀ of ∇²R_T (Hataya and Yamada 2023).

    C has `rank` random columns of the Hessian, drawn anew at every outer step; W has their rows. With as many columns
    as parameters, H_r is the Hessian. No series has to converge: the Hessian products do not depend on each other, and
    a small eigenvalue does not slow the solver down. Choose it if few eigenvalues are much larger than `damping`.
    If H_r + damping·I is not positive definite, the damping is raised to twice the size of the negative eigenvalue.
    From a start v_0, the solver corrects the residual of the true damped system, so that a warm start converges to
    (∇²R_T + damping·I)⁻¹ b.

    Args:
        rank: the number of columns: as many Hessian products, and as many copies of θ in memory.
        damping: added to the diagonal.
    """

    rank: int
    damping: float = 0.01

    def __post_init__(self) -> None:
        check_count("rank", self.rank, words="≥ 1, a whole number")
        check_damping(self.damping, POSITIVE)

    def solve(self, system: LinearSystem) -> Solution:
        """Return v."""
        size = sum(value.numel() for value in system.b.values())
        chosen = torch.randperm(size, generator=system.generator, device="cpu")[: self.rank]
        columns = _columns(system.hessian, chosen.tolist(), system.b)
        if not bool(columns.isfinite().all()):  # training diverged; the caller reports the NaN
            return Solution({name: value * float("nan") for name, value in system.b.items()}, len(chosen))
        basis, values = _eigen(columns, columns[chosen.to(columns.device)])
        damping = max(float(self.damping), -2 * float(values.min()))
        residual = _flat(system.residual(damping))
        inside = basis.T @ residual
        found = (residual - basis @ inside) / damping + basis @ (inside / (values + damping))
        return Solution(system.from_start(_tree(found, system.b)), len(chosen) + int(system.start is not None), damping)


def _columns(hessian: Operator, chosen: list[int], like: Params) -> Tensor:
    """Return columns of the Hessian. Shape (parameters, columns)."""
    first = _flat(like)
    found = first.new_empty(len(first), len(chosen))
    for place, number in enumerate(chosen):
        unit = torch.zeros_like(first)
        unit[number] = 1.0
        found[:, place] = _flat(hessian(_tree(unit, like)))
    return found


def _eigen(columns: Tensor, core: Tensor) -> tuple[Tensor, Tensor]:
    """Return an orthonormal basis of eigenvectors of C W⁺ Cᵀ, and its eigenvalues. Shapes (parameters, r) and (r,)."""
    basis, triangle = torch.linalg.qr(columns)
    rounding = 10 * len(core) * torch.finfo(columns.dtype).eps  # smaller eigenvalues of W are rounding
    inverse = torch.linalg.pinv((core + core.T).double() / 2, hermitian=True, rtol=rounding)
    values, vectors = torch.linalg.eigh(triangle.double() @ inverse @ triangle.double().T)
    return basis @ vectors.to(basis), values.to(basis)


def _flat(tree: Params) -> Tensor:
    return torch.cat([value.reshape(-1) for value in tree.values()])


def _tree(flat: Tensor, like: Params) -> Params:
    parts = torch.split(flat, [value.numel() for value in like.values()])
    return {name: part.reshape(value.shape) for (name, value), part in zip(like.items(), parts, strict=True)}
