"""A small GPT with a decay per tensor
===================================

A small GPT: one weight decay per tensor, tuned while the model trains.

The model calls `scaled_dot_product_attention` and has dropout; nothing has to be changed for tuning. Few sequences
train, so that the decay matters.
"""

import matplotlib.pyplot as plt
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import pactune as pt

OUTER_STEPS = 20
TOKENS, LENGTH, WIDTH, HEADS = 30, 16, 32, 4


class Block(nn.Module):
    """Attention and an MLP, each behind a LayerNorm."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.heads, self.joined = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH), nn.Dropout(0.1))

    def forward(self, x: Tensor) -> Tensor:
        """Return the sequence after this block."""
        rows = len(x)
        parts = self.heads(self.first(x)).reshape(rows, LENGTH, 3, HEADS, WIDTH // HEADS)
        seen = F.scaled_dot_product_attention(*parts.permute(2, 0, 3, 1, 4), is_causal=True)
        x = x + self.joined(seen.transpose(1, 2).reshape(rows, LENGTH, WIDTH))
        return x + self.mlp(self.second(x))


class GPT(nn.Module):
    """Tokens and positions, two blocks, and scores of the next token."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(TOKENS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks, self.scores = nn.Sequential(Block(), Block()), nn.Linear(WIDTH, TOKENS)

    def forward(self, x: Tensor) -> Tensor:
        """Return the scores of every next token."""
        return self.scores(self.blocks(self.tokens(x) + self.positions.weight))


def loss(scores: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(scores.flatten(0, 1), target.flatten())


def sequences(rows: int) -> tuple[Tensor, Tensor]:
    """Return sequences that count up in steps of 1, 2 or 3, with every tenth token wrong."""
    text = torch.randint(0, TOKENS, (rows, 1)) + torch.arange(LENGTH + 1) * torch.randint(1, 4, (rows, 1))
    text = torch.where(torch.rand(text.shape) < 0.1, torch.randint(0, TOKENS, text.shape), text) % TOKENS
    return text[:, :-1], text[:, 1:]


torch.manual_seed(0)
model = GPT()
hyper = pt.WeightDecay(model, per="tensor", init=1e-2)
problem = pt.Problem(model, hyper, train=sequences(100), valid=sequences(100), loss=loss, batch_size=50)
outer = torch.optim.RMSprop(hyper.parameters(), lr=3e-2)
settings = {"objective": pt.PACBayes(zeta=1e-4), "hypergradient": pt.Truncated(1)}
tuner = pt.Tuner(problem, inner=pt.Adam(lr=3e-3), inner_steps=10, outer=outer, **settings)
result = tuner.fit(OUTER_STEPS, test=sequences(200))
first, last = result.rows[0], result.rows[-1]
print(f"test risk {first['test_risk']:.3f} after {tuner.inner_steps} steps, {last['test_risk']:.3f} at the end")

# %%
# Training and test risk after each outer step.

figure, axes = plt.subplots()
for column, label in (("train_risk", "training"), ("test_risk", "test")):
    axes.plot(result.history["outer_step"], result.history[column], label=label)
axes.set(xlabel="outer step", ylabel="risk", title="GPT with a decay per tensor")
axes.locator_params(axis="x", integer=True)
axes.legend()
plt.show()
