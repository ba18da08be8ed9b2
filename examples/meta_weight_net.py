"""Meta-Weight-Net: a small network maps the loss of a training example to its weight; 40 % of the labels are wrong.

    python examples/meta_weight_net.py [--outer-steps 300] [--plot weights.png]

A hundred clean rows tune the small network. Every outer step takes one step of SGD on a mini-batch and differentiates
it, so `inner_steps=1` and `Truncated(1)`. The weights of wrong labels fall, although nobody says which they are.
"""

import argparse
from pathlib import Path
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F

import pactune as pt
from pactune.drawing import BLUE, Line, Panel, draw_panels, encode_figure


class WeightNet(nn.Module):
    """The weight of an example as a function of its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(1, 50), nn.ReLU(), nn.Linear(50, 1), nn.Sigmoid())

    def forward(self, losses: Tensor) -> Tensor:
        """Return a weight per loss."""
        return self.layers(losses.detach()[:, None]).squeeze(1)


def train_loss(model: nn.Module, batch: Any, hyper: nn.Module) -> Tensor:
    losses = F.cross_entropy(model(batch[0]), batch[1], reduction="none")
    return (hyper(losses) * losses).mean()


def valid_loss(model: nn.Module, batch: Any, hyper: nn.Module) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--outer-steps", type=int, default=300)
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the weight as a function of the loss")
    options = parser.parse_args()
    x, y = load_digits(return_X_y=True)
    draw = torch.Generator().manual_seed(0)
    order = torch.randperm(len(y), generator=draw)
    x, y = torch.tensor(x, dtype=torch.float32)[order] / 16, torch.tensor(y)[order]
    wrong = torch.rand(1000, generator=draw) < 0.4
    noisy = torch.where(wrong, torch.randint(0, 10, (1000,), generator=draw), y[:1000])

    torch.manual_seed(0)
    model, hyper = nn.Sequential(nn.Linear(64, 50), nn.ReLU(), nn.Linear(50, 10)), WeightNet()
    problem = pt.Problem(
        model,
        hyper,
        train=(x[:1000], noisy),
        valid=(x[1000:1100], y[1000:1100]),
        train_loss=train_loss,
        valid_loss=valid_loss,
        batch_size=100,
    )
    outer = torch.optim.Adam(hyper.parameters(), lr=3e-3)
    tuner = pt.Tuner(problem, inner=pt.SGD(lr=0.5), inner_steps=1, outer=outer, objective=pt.ValidationRisk())
    for _ in range(options.outer_steps):
        tuner.hypergradient()
        outer.step()

    with torch.no_grad():
        weights = hyper(F.cross_entropy(model(x[:1000]), noisy, reduction="none"))
        accuracy = (model(x[1100:]).argmax(1) == y[1100:]).float().mean()
        losses = torch.linspace(0, 6, 61)
        curve = hyper(losses)
    print(f"mean weight of right labels {weights[~wrong].mean():.3f}, of wrong ones {weights[wrong].mean():.3f}")
    print(f"test accuracy {accuracy:.3f}")
    if options.plot:
        line = Line("tuned", losses.tolist(), curve.tolist(), color=BLUE)
        figure = draw_panels([Panel("Meta-Weight-Net", "loss of an example", "its weight", [line])])
        options.plot.write_bytes(encode_figure(figure, options.plot.suffix))


if __name__ == "__main__":
    main()
