"""Attack DP-SGLD on two neighbouring data sets and store the ε that the attack proves.

    python benchmarks/privacy_audit.py

At (ε, δ) = (1, 1e-3) the sampler takes the step size that the paper's Theorem A.5 allows, for one batch of eight rows.
The two data sets differ in one row, which pulls as far as clipping lets it. The attack sees the released parameter.
"""

from __future__ import annotations

import argparse
import math

import torch
from measuring import write
from torch import Tensor, nn

from pactune.privacy import DPSGLD, membership_audit

DELTA, ROWS, CLIP = 1e-3, 8, 1.0


class Mean(nn.Module):
    """One parameter θ; the loss of a row x is θx, so that its gradient is x."""

    def __init__(self) -> None:
        super().__init__()
        self.theta = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        """Return θx."""
        return x * self.theta


def outputs(sampler: DPSGLD, sign: float, trials: int) -> Tensor:
    """Return the released parameter of many runs on rows of which the first one pulls in one direction."""
    x = torch.zeros(ROWS, 1)
    x[0] = 100 * sign
    generator = torch.Generator().manual_seed(1 if sign > 0 else 2)
    run = sampler.run(Mean(), (x, torch.zeros(ROWS)), loss=lambda p, _: p.mean(), generator=generator, chains=trials)
    return run.params["theta"][:, 0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=150_000)
    options = parser.parse_args()
    sampler = DPSGLD(lr=ROWS * CLIP / math.log(1.25 / DELTA), clip=CLIP, batch_size=ROWS)
    pair = [outputs(sampler, sign, options.trials) for sign in (-1.0, 1.0)]
    found = {
        "epsilon of the paper": 1.0,
        "delta": DELTA,
        "epsilon claimed": sampler.privacy(ROWS).epsilon(DELTA),
        "epsilon proved by the attack": membership_audit(pair[0], pair[1], DELTA),
        "trials": options.trials,
    }
    print(found)
    write("privacy_audit.json", found)


if __name__ == "__main__":
    main()
