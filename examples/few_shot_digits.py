"""Few-shot learning of digits
===========================

Five-way few-shot learning: a start from which five steps on five images per class tell five digits apart.

Every task chooses five of the ten digits, in any order, with five training and five validation images of each. The
model has convolutions and BatchNorm; batch statistics are used in training and validation, as in the paper of MAML.
MNIST is read from `$PACTUNE_DATA` if it is there; scikit-learn's digits, enlarged to 28 × 28, take its place if not.
"""

from typing import Any

import matplotlib.pyplot as plt
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import pactune as pt
from pactune.paper.data import load_images

OUTER_STEPS = 40
WAYS, SHOTS, STEPS = 5, 5, 5

images = load_images("mnist", download=False) or load_images("digits")
halves = images.draw(0, rows=min(2000, len(images.pool[1]) // 2))
x, y = (torch.cat(pair) for pair in zip(*halves, strict=True))
by_class = [x[y == digit] for digit in range(10)]


def draw(generator: torch.Generator) -> Any:
    parts = []
    for digit in torch.randperm(10, generator=generator)[:WAYS].tolist():
        chosen = torch.randperm(len(by_class[digit]), generator=generator)[: 2 * SHOTS]
        parts.append(by_class[digit][chosen])
    labels = torch.arange(WAYS).repeat_interleave(SHOTS)
    return (torch.cat([p[:SHOTS] for p in parts]), labels), (torch.cat([p[SHOTS:] for p in parts]), labels)


torch.manual_seed(0)
model = nn.Sequential(
    *(nn.Conv2d(1, 16, 3, stride=2), nn.BatchNorm2d(16), nn.ReLU()),
    *(nn.Conv2d(16, 16, 3, stride=2), nn.BatchNorm2d(16), nn.ReLU()),
    *(nn.Flatten(), nn.Linear(16 * 6 * 6, WAYS)),
)
start = pt.Initialization(model)
problem = pt.Problem(model, start, tasks=draw, tasks_per_step=4, loss=cross_entropy)
tuner = pt.Tuner(
    problem,
    inner=pt.SGD(lr=0.1),
    inner_steps=STEPS,
    outer=torch.optim.Adam(start.parameters(), lr=3e-3),
    objective=pt.ValidationRisk(),
    hypergradient=pt.Windowed(STEPS),
    restart=True,
)
risks = []
for _ in range(OUTER_STEPS):
    risks.append(tuner.hypergradient().risk)
    tuner.outer.step()
few = max(1, OUTER_STEPS // 5)
print(f"{images.name}: validation risk of new tasks after {STEPS} steps of training")
print(f"  the first {few} outer steps {sum(risks[:few]) / few:.3f}, the last {few} {sum(risks[-few:]) / few:.3f}")

# %%
# The risk on new tasks after five steps of training, as means over five outer steps.

figure, axes = plt.subplots()
means = torch.tensor(risks).unfold(0, 5, 5).mean(1)  # of five outer steps each
axes.plot(range(5, OUTER_STEPS + 1, 5), means, "o-")
axes.set(xlabel="outer step", ylabel="risk after training", title="Five new digits")
axes.locator_params(axis="x", integer=True)
plt.show()
