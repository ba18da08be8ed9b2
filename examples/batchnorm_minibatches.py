"""DataLoaders and BatchNorm
=========================

Mini-batches on both sides, running statistics from training forwards only.

The validation forwards inside tuning never touch the running mean and variance. After `fit` the model is the trained
one, buffers included, and works in `eval()`.
"""

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import pactune as pt

x, y = load_digits(return_X_y=True)
order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
x, y = torch.tensor(x, dtype=torch.float32)[order] / 16, torch.tensor(y)[order]
train = DataLoader(TensorDataset(x[:300], y[:300]), batch_size=50, shuffle=True, drop_last=True)
valid = DataLoader(TensorDataset(x[300:600], y[300:600]), batch_size=50, shuffle=True, drop_last=True)

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 10))
hyper = pt.WeightDecay(model, per="tensor")
problem = pt.Problem(model, hyper, train=train, valid=valid, loss=F.cross_entropy)
tuner = pt.Tuner(
    problem,
    inner=pt.Adam(lr=1e-2),
    inner_steps=30,
    outer=torch.optim.RMSprop(hyper.parameters(), lr=1e-2),
    objective=pt.PACBayes(zeta=1e-4),
)
result = tuner.fit(outer_steps=10, test=(x[600:], y[600:]))

model.eval()
accuracy = (model(x[600:]).argmax(1) == y[600:]).float().mean()
print(f"training batches seen by BatchNorm: {int(model[1].num_batches_tracked)} (10 outer × 30 inner steps)")
print(f"test accuracy of the model in eval(): {accuracy:.3f}, in the history: {result.kept['test_accuracy']:.3f}")
print(f"test accuracy of plain training:      {result.plain['test_accuracy'].iloc[-1]:.3f}")

# %%
# The test accuracy after each outer step.

figure, axes = plt.subplots()
axes.plot(result.history["outer_step"], result.history["test_accuracy"], label="tuned")
axes.plot(result.plain["outer_step"], result.plain["test_accuracy"], "--", color="0.5", label="plain training")
axes.set(xlabel="outer step", ylabel="test accuracy", title="A network with BatchNorm")
axes.locator_params(axis="x", integer=True)
axes.legend()
plt.show()
