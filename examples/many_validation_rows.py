"""A penalty per feature with very many validation rows: an outer step reads a mini-batch of them.

    python examples/many_validation_rows.py [--rows 20000] [--outer-steps 200] [--plot risks.png]

The shapes are those of benchmark_bilevel's logistic regression, made smaller by `--rows`. Reading all validation rows
at every outer step would cost more than the training steps; `valid_batch_size` says how many are read.
"""

import argparse
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import pactune as pt
from pactune.drawing import BLUE, Line, Panel, draw_panels, encode_figure

FEATURES = 22


class Ridge(nn.Module):
    """The penalty ½ Σ exp(λ_j) θ_j², with its gradient, so that no graph is built for it."""

    def __init__(self) -> None:
        super().__init__()
        self.log_strength = nn.Parameter(torch.full((FEATURES,), -1.0))

    def penalty(self, params: dict[str, Tensor]) -> Tensor:
        """Return the penalty."""
        return 0.5 * (self.log_strength.exp() * params["weight"] ** 2).sum()

    def penalty_gradient(self, params: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return its θ-gradient."""
        return {"weight": self.log_strength.exp() * params["weight"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--outer-steps", type=int, default=200)
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the risk of every tenth outer step")
    options = parser.parse_args()
    torch.manual_seed(0)
    x = torch.randn(2 * options.rows, FEATURES)
    y = (x[:, : FEATURES // 2].sum(1) + torch.randn(len(x)) > 0).float()[:, None]
    train, valid = (x[: options.rows], y[: options.rows]), (x[options.rows :], y[options.rows :])
    model, hyper, loss = nn.Linear(FEATURES, 1, bias=False), Ridge(), F.binary_cross_entropy_with_logits
    tuner = pt.Tuner(
        pt.Problem(model, hyper, train=train, valid=valid, loss=loss, batch_size=64, valid_batch_size=1024),
        inner=pt.SGD(lr=0.3),
        inner_steps=10,
        outer=torch.optim.Adam(hyper.parameters(), lr=0.1),
        objective=pt.ValidationRisk(),
        hypergradient=pt.Truncated(10),
    )
    risks = []
    for step in range(options.outer_steps):
        tuner.hypergradient()
        if step % 10 == 0:
            with torch.no_grad():
                risks.append(float(loss(model(valid[0]), valid[1])))
        tuner.outer.step()
    print(f"risk of all validation rows {risks[0]:.3f} at first, {risks[-1]:.3f} at last")
    if options.plot:
        line = Line("all validation rows", [10 * i for i in range(len(risks))], risks, color=BLUE)
        figure = draw_panels([Panel("A penalty per feature", "outer step", "risk", [line])])
        options.plot.write_bytes(encode_figure(figure, options.plot.suffix))


if __name__ == "__main__":
    main()
