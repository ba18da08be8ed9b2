"""The Nyström solver against dense matrices, in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import pactune as pt
from pactune.hypergradient import LinearSystem, Solution
from pactune.trees import Params
from tests.test_quadratic import LONG, LR, SIZE, Setup, relative

DOUBLE, WIDTH = torch.float64, 12


def matrix(*eigenvalues: float, seed: int = 0) -> Tensor:
    """Return a symmetric matrix with these eigenvalues, then zeros."""
    generator = torch.Generator().manual_seed(seed)
    vectors = torch.linalg.qr(torch.randn(WIDTH, WIDTH, generator=generator, dtype=DOUBLE))[0]
    values = torch.tensor([*eigenvalues, *[0.0] * (WIDTH - len(eigenvalues))], dtype=DOUBLE)
    return vectors @ torch.diag(values) @ vectors.T


def solved(hessian: Tensor, solver: pt.Nystrom, *, seed: int = 0, start: Tensor | None = None) -> Solution:
    """Solve with b = 1; θ has two tensors."""

    def product(v: Params) -> Params:
        image = hessian @ torch.cat([v["a"].ravel(), v["b"]])
        return tree(image)

    guess = None if start is None else tree(start)
    b = tree(torch.ones(WIDTH, dtype=hessian.dtype))
    return solver.solve(LinearSystem(product, b, 0.1, torch.Generator().manual_seed(seed), guess))


def tree(flat: Tensor) -> Params:
    return {"a": flat[:8].reshape(2, 4), "b": flat[8:]}


def flat(found: Solution) -> Tensor:
    return torch.cat([value.ravel() for value in found.value.values()])


def dense(hessian: Tensor, damping: float) -> Tensor:
    return torch.linalg.solve(hessian + damping * torch.eye(WIDTH, dtype=DOUBLE), torch.ones(WIDTH, dtype=DOUBLE))


@pytest.mark.parametrize("damping", [1e-4, 0.01, 1.0])
@pytest.mark.parametrize("rank", [WIDTH, WIDTH + 5])
def test_all_columns_give_the_dense_solution(rank: int, damping: float) -> None:
    hessian = matrix(*(0.5 * 1.5**i for i in range(WIDTH)))
    found = solved(hessian, pt.Nystrom(rank, damping))
    torch.testing.assert_close(flat(found), dense(hessian, damping), rtol=1e-9, atol=1e-9)
    assert (found.products, found.damping) == (WIDTH, damping)


@pytest.mark.parametrize("rank", [3, 5, WIDTH])
def test_as_many_columns_as_eigenvalues_are_exact(rank: int) -> None:
    """Columns of a matrix of rank 3 span its range, zero columns and repeated information included."""
    hessian = matrix(5.0, 2.0, 0.7)
    found = flat(solved(hessian, pt.Nystrom(rank, 0.01)))
    torch.testing.assert_close(found, dense(hessian, 0.01), rtol=1e-8, atol=1e-8)


def test_the_formula_of_the_paper() -> None:
    """(H_r + ρI)⁻¹ = I/ρ − C (W + CᵀC/ρ)⁻¹ Cᵀ/ρ², Hataya and Yamada's Eq. 6, for the same columns."""
    hessian, damping = matrix(*(1.0 / (1 + i) for i in range(WIDTH))), 0.05
    chosen = torch.randperm(WIDTH, generator=torch.Generator().manual_seed(7))[:4]
    columns = hessian[:, chosen]
    core = columns[chosen] + columns.T @ columns / damping
    b = torch.ones(WIDTH, dtype=DOUBLE)
    wanted = b / damping - columns @ torch.linalg.solve(core, columns.T @ b) / damping**2
    torch.testing.assert_close(flat(solved(hessian, pt.Nystrom(4, damping), seed=7)), wanted, rtol=1e-9, atol=1e-10)


def test_a_row_of_zeros_is_no_obstacle() -> None:
    hessian = matrix(*(1.0 + i for i in range(WIDTH)))
    hessian[3], hessian[:, 3] = 0.0, 0.0
    torch.testing.assert_close(flat(solved(hessian, pt.Nystrom(WIDTH, 0.1))), dense(hessian, 0.1), rtol=1e-8, atol=1e-8)


def test_a_negative_eigenvalue_raises_the_damping() -> None:
    hessian = matrix(*(1.0 + i for i in range(WIDTH - 1)), -0.5)
    found = solved(hessian, pt.Nystrom(WIDTH, 0.01))
    assert found.damping == pytest.approx(1.0, rel=1e-9)
    torch.testing.assert_close(flat(found), dense(hessian, found.damping), rtol=1e-8, atol=1e-8)


def test_a_start_converges_to_the_dense_solution() -> None:
    """Few columns leave an error; corrections of the true residual remove it."""
    hessian, solver = matrix(*(2.0 / (1 + i) ** 2 for i in range(WIDTH))), pt.Nystrom(6, 0.1)
    wanted, found = dense(hessian, 0.1), None
    errors = []
    for seed in range(60):
        found = flat(solved(hessian, solver, seed=seed, start=found))
        errors.append(float((found - wanted).norm() / wanted.norm()))
    assert errors[0] > 1e-3
    assert errors[-1] < 1e-8


def test_float32_is_accurate() -> None:
    hessian = matrix(*(0.5 * 1.5**i for i in range(WIDTH)))
    found = flat(solved(hessian.float(), pt.Nystrom(WIDTH, 0.1)))
    assert float((found.double() - dense(hessian, 0.1)).norm() / dense(hessian, 0.1).norm()) < 1e-4


def test_as_a_solver_of_implicit_it_has_the_closed_form() -> None:
    estimator = pt.Implicit(pt.Nystrom(SIZE, damping=0.3))
    setup = Setup(pt.SGD(LR), steps=LONG, zeta=None, hypergradient=estimator)
    _, gradient, theta = setup.run()
    damped = setup.quadratic.A + torch.diag(setup.decay + 0.3)
    slope = setup.quadratic.B @ theta - setup.quadratic.c
    assert relative(gradient, -theta * torch.linalg.solve(damped, slope)) < 1e-9


def test_the_columns_are_drawn_anew_in_every_round_and_are_a_function_of_the_seed() -> None:
    def residuals(seed: int) -> list[float]:
        settings: dict[str, Any] = {"hypergradient": pt.Implicit(pt.Nystrom(2, damping=0.3)), "seed": seed}
        setup = Setup(pt.SGD(LR), steps=LONG, zeta=None, **settings)
        setup.tuner.outer_run.settings.outer.param_groups[0]["lr"] = 0.0
        rows = setup.tuner.fit(4, progress=False, plain_steps=0).rows
        return [row["implicit_residual"] for row in rows]

    assert residuals(0) == residuals(0)
    assert len({round(value, 9) for value in residuals(0)}) > 1


@pytest.mark.parametrize("settings", [{"rank": 0}, {"rank": 2, "damping": 0.0}, {"rank": 2, "damping": -1.0}], ids=str)
def test_settings_are_checked(settings: Any) -> None:
    with pytest.raises(pt.SettingError, match="must be"):
        pt.Nystrom(**settings)
