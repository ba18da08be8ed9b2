"""Run the library's own `zeta="auto"` on the study's draws of digits, from its starts and with its folds.

    python prepare_draws.py --datasets DATA --out draws --draws 100-129
    python library_auto.py draws/digits.npz --json ../results/zeta_auto_digits.json    # a minute per draw and core

The mean is to be that of `zeta_rules.py` on the simulated runs: both make the same choice wherever rounding allows.
"""

import argparse
import json
import multiprocessing
from pathlib import Path
from unittest import mock

import numpy as np
import torch
from torch.nn import functional

import pactune as pt
from pactune.objectives import AutoZeta
from pactune.tuning import auto_zeta as auto

PART = 50


def blocks(tuner: pt.Tuner, rule: AutoZeta) -> list[auto._Fold]:
    """The study's folds: consecutive fifths of both parts."""
    pieces = torch.arange(PART).tensor_split(rule.folds)
    folds = []
    for k, held in enumerate(pieces):
        rest = torch.cat([piece for i, piece in enumerate(pieces) if i != k])
        judges = [tuner.problem.train.subset(held), tuner.problem.valid.subset(held)]
        folds.append(auto._Fold(rest, rest, judges))
    return folds


def build(raw: dict[str, np.ndarray], k: int) -> tuple[pt.Tuner, tuple[torch.Tensor, torch.Tensor]]:
    """The tuner and the test set of one draw, from the study's initial weights."""
    x, y = torch.from_numpy(raw["x"][k]).float() / 16, torch.from_numpy(raw["y"][k].astype(np.int64))
    others = np.setdiff1d(np.arange(len(raw["yt"])), raw["index"][k])
    test = torch.from_numpy(raw["xt"][others]).float() / 16, torch.from_numpy(raw["yt"][others].astype(np.int64))
    features = x.shape[1]
    generator = torch.Generator().manual_seed(int(raw["draws"][k]))
    start = (2 * torch.rand(10, features + 1, generator=generator) - 1) / features**0.5
    model = torch.nn.Linear(features, 10)
    with torch.no_grad():
        model.weight.copy_(start[:, :features])
        model.bias.copy_(start[:, features])
    hyper = pt.WeightDecay(model)
    train, valid = (x[:PART], y[:PART]), (x[PART:], y[PART:])
    problem = pt.Problem(model, hyper, train=train, valid=valid, loss=functional.cross_entropy)
    outer = torch.optim.RMSprop(hyper.parameters(), lr=1e-2)
    objective = pt.PACBayes(zeta="auto")
    return pt.Tuner(problem, inner=pt.Adam(lr=1e-3), inner_steps=100, outer=outer, objective=objective), test


def one_draw(arguments: tuple[Path, int, int]) -> dict[str, object]:
    """What the rule keeps on one draw, and its test accuracy."""
    path, k, outer_steps = arguments
    torch.set_num_threads(1)
    raw = dict(np.load(path))
    tuner, test = build(raw, k)
    with mock.patch.object(auto, "_folds", blocks):
        result = tuner.fit(outer_steps, test=test, progress=False)
    accuracies = {
        "test": result.kept["test_accuracy"],
        "last": result.rows[-1]["test_accuracy"],
        "plain": result.plain_rows[-1]["test_accuracy"],
    }
    return {
        "draw": int(raw["draws"][k]),
        "run": result.kept_run,
        "step": result.kept_step,
        "zeta": float(f"{result.zeta:.4g}"),
        **{name: round(value, 4) for name, value in accuracies.items()},
        "pays": result.pays,
    }


def main() -> None:
    """Go through the draws and print the mean."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("draws", type=Path, help="digits.npz of prepare_draws.py")
    parser.add_argument("--json", type=Path, help="write the draws here")
    parser.add_argument("--outer-steps", type=int, default=100)
    parser.add_argument("--limit", type=int, help="only so many draws")
    parser.add_argument("--processes", type=int, default=2)
    args = parser.parse_args()
    count = len(np.load(args.draws)["draws"][: args.limit])
    with multiprocessing.get_context("spawn").Pool(args.processes) as pool:
        found = pool.map(one_draw, [(args.draws, k, args.outer_steps) for k in range(count)], chunksize=1)
    if args.json is not None:
        args.json.write_text(json.dumps({"draws": found}, indent=0) + "\n")
    print(f"{count} draws: mean test accuracy {np.mean([draw['test'] for draw in found]):.4f}")


if __name__ == "__main__":
    main()
