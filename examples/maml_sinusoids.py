"""MAML, first-order MAML and iMAML
================================

Meta-learning on sinusoids: a start from which five steps on ten points fit a new sinusoid.

Every outer step draws eight tasks. Three methods tune the start λ = θ_0:

- MAML differentiates through the five steps: `Windowed(5)`.
- First-order MAML takes the gradient of the validation risk at θ_T for that of λ, without second derivatives:
  `FirstOrder()`.
- iMAML pulls θ towards λ by a penalty and differentiates the minimum of the penalised risk: `Implicit`. It needs a
  minimum, so its model is linear in twenty fixed bumps.
"""

import math
from typing import Any

import matplotlib.pyplot as plt
import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

import pactune as pt

OUTER_STEPS = 120
ROWS, STEPS = 10, 5


def draw(generator: torch.Generator) -> Any:
    """Return a task: ten training and ten validation points of a random sinusoid."""
    amplitude = 0.1 + 4.9 * torch.rand((), generator=generator)
    phase = math.pi * torch.rand((), generator=generator)
    x = 10 * torch.rand(2 * ROWS, 1, generator=generator) - 5
    y = amplitude * torch.sin(x - phase)
    return (x[:ROWS], y[:ROWS]), (x[ROWS:], y[ROWS:])


class Bumps(nn.Module):
    """Twenty features of x: Gaussian bumps."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the features."""
        return torch.exp(-((x - torch.linspace(-5, 5, 20)) ** 2))


class Proximal(nn.Module):
    """θ_0 = λ and the penalty ½ s Σ(θ − λ)²."""

    def __init__(self, model: nn.Module, strength: float) -> None:
        super().__init__()
        self.start, self.strength = pt.Initialization(model), strength

    def initial(self, params: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return θ_0."""
        return self.start.initial(params)

    def penalty(self, params: dict[str, Tensor]) -> Tensor:
        """Return the penalty."""
        start = self.start.initial(params)
        return 0.5 * self.strength * sum(((p - start[name]) ** 2).sum() for name, p in params.items())


def tuner_for(method: str) -> pt.Tuner:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1, 40), nn.Tanh(), nn.Linear(40, 40), nn.Tanh(), nn.Linear(40, 1))
    if method == "iMAML":
        model = nn.Sequential(Bumps(), nn.Linear(20, 1))
    hyper = Proximal(model, 0.5) if method == "iMAML" else pt.Initialization(model)
    estimator: Any = pt.FirstOrder() if method == "first-order MAML" else pt.Windowed(STEPS)
    inner, steps = pt.SGD(lr=0.02), STEPS
    if method == "iMAML":
        estimator, inner, steps = pt.Implicit(pt.ConjugateGradient(20)), pt.SGD(lr=0.2), 50
    problem = pt.Problem(model, hyper, tasks=draw, tasks_per_step=8, loss=mse_loss)
    outer = torch.optim.Adam(hyper.parameters(), lr=2e-2 if method == "iMAML" else 3e-3)
    settings: dict[str, Any] = {"objective": pt.ValidationRisk(), "hypergradient": estimator, "restart": True}
    return pt.Tuner(problem, inner=inner, inner_steps=steps, outer=outer, **settings)


curves = {}
for method in ("MAML", "first-order MAML", "iMAML"):
    tuner, risks = tuner_for(method), []
    for _ in range(OUTER_STEPS):
        risks.append(tuner.hypergradient().risk)
        tuner.outer.step()
    curves[method] = risks
    few = max(1, OUTER_STEPS // 10)
    first, last = sum(risks[:few]) / few, sum(risks[-few:]) / few
    print(f"{method}: risk on new tasks after training {first:.2f} at first, {last:.2f} at last")

# %%
# The risk on new sinusoids, as means over ten outer steps. iMAML has another model, so its first value is lower.

figure, axes = plt.subplots()
for method, risks in curves.items():
    means = torch.tensor(risks).unfold(0, 10, 10).mean(1)  # of ten outer steps each
    axes.plot(range(10, OUTER_STEPS + 1, 10), means, "o-", label=method)
axes.set(xlabel="outer step", ylabel="risk after training", yscale="log", title="New sinusoids")
axes.locator_params(axis="x", integer=True)
axes.legend()
plt.show()
