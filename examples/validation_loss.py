"""A temperature in the validation loss
====================================

A hyperparameter in the validation loss: a temperature that calibrates the model's probabilities.

The general form of `Problem` takes two closures. The training loss leaves the temperature out; the validation loss
divides the scores by it. Its gradient is direct, so any truncation of the risk can see it. A decay is tuned beside it:
two modules in an ordinary `nn.ModuleDict`.
"""

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F

import pactune as pt


class Temperature(nn.Module):
    """A positive number."""

    def __init__(self) -> None:
        super().__init__()
        self.log = nn.Parameter(torch.zeros(()))

    def value(self) -> torch.Tensor:
        """Return the temperature."""
        return self.log.exp()


def train_loss(model, batch, hyper):
    x, y = batch
    return F.cross_entropy(model(x), y)


def valid_loss(model, batch, hyper):
    x, y = batch
    return F.cross_entropy(model(x) / hyper["temperature"].value(), y)


def accuracy(model, batch):
    x, y = batch
    return {"accuracy": (model(x).argmax(1) == y).float().mean()}


x, y = load_digits(return_X_y=True)
order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
x, y = torch.tensor(x, dtype=torch.float32)[order] / 16, torch.tensor(y)[order]

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
hyper = nn.ModuleDict({"temperature": Temperature(), "decay": pt.WeightDecay(model, per="global")})
problem = pt.Problem(
    model,
    hyper,
    train=(x[:100], y[:100]),
    valid=(x[100:300], y[100:300]),
    train_loss=train_loss,
    valid_loss=valid_loss,
    metrics=accuracy,
)
tuner = pt.Tuner(
    problem,
    inner=pt.Adam(lr=1e-2),
    inner_steps=20,
    outer=torch.optim.Adam(hyper.parameters(), lr=0.05),
    objective=pt.PACBayes(zeta=1e-3),
)
result = tuner.fit(outer_steps=20, test=(x[300:], y[300:]))

last, plain = result.rows[-1], result.plain.iloc[-1]
print(f"temperature {hyper['temperature'].value().item():.2f}, decay {hyper['decay'].values['all'].item():.3f}")
print(f"test accuracy, tuned / plain:            {last['test_accuracy']:.3f} / {plain['test_accuracy']:.3f}")
print(f"test negative log-likelihood (calibration): {last['test_risk']:.3f} / {plain['test_risk']:.3f}")

# %%
# The negative log-likelihood on the test rows.

figure, axes = plt.subplots()
axes.plot(result.history["outer_step"], result.history["test_risk"], label="tuned")
axes.plot(result.plain["outer_step"], result.plain["test_risk"], "--", color="0.5", label="plain training")
axes.set(xlabel="outer step", ylabel="negative log-likelihood", title="Calibration by a tuned temperature")
axes.locator_params(axis="x", integer=True)
axes.legend()
plt.show()
