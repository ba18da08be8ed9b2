"""Folds with a refit against what a user would do instead, on draws of 100 images, without test data in any choice.

    python benchmarks/folds_accuracy.py --data mnist --model linear --hyper smoothness [--draws 12] [--first 0]

The tuned model is the refit at the step of `keep="held-out"`. Beside it stand plain training on all 100 rows at its
last step and at its best step by the same rule, and scikit-learn's LogisticRegressionCV. Differences are paired over
the draws, with a 95 % interval by Student's t.

"smoothness" has one hyperparameter, the decay of the Laplacian of the first layer's weights, seen as images. "decay"
has one decay per weight. Each has its own settings below. They were chosen on draws from 100 on, not on 0 to 11.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, cast, get_args

import torch
from measuring import RESULTS, machine, write
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

import pactune as pt
from pactune.paper.data import DataName, Images, load_images

NAME = "folds_accuracy.json"
Data = tuple[Tensor, Tensor]


class Smoothness(nn.Module):
    """The penalty ½ λ Σ ‖L w‖² on the weights w of one layer, as images, with the Laplacian L and λ = root²."""

    def __init__(self, name: str, shape: tuple[int, ...], root: float = 0.01) -> None:
        super().__init__()
        self.name, self.height, self.width = name, shape[-2], shape[-1]
        self.root = nn.Parameter(torch.tensor(root))

    def laplacian(self, weight: Tensor) -> Tensor:
        """Return L w, with the edges repeated outside."""
        image = weight.reshape(-1, 1, self.height, self.width)
        padded = F.pad(image, (1, 1, 1, 1), mode="replicate")
        around = padded[..., :-2, 1:-1] + padded[..., 2:, 1:-1] + padded[..., 1:-1, :-2] + padded[..., 1:-1, 2:]
        return (4 * image - around).reshape(weight.shape)

    def penalty(self, params: dict[str, Tensor]) -> Tensor:
        """Return ½ λ ‖L w‖²."""
        return 0.5 * self.root**2 * self.laplacian(params[self.name]).square().sum()

    def penalty_gradient(self, params: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return λ L L w, since L is symmetric."""
        return {self.name: self.root**2 * self.laplacian(self.laplacian(params[self.name]))}

    def penalty_vjp(self, params: dict[str, Tensor], cotangent: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the derivative of ⟨λ L L w, c⟩ by the root."""
        products = self.laplacian(params[self.name]) * self.laplacian(cotangent[self.name])
        return {"root": 2 * self.root * products.sum()}

    def penalty_product(self, params: dict[str, Tensor], vector: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return λ L L v."""
        return {self.name: self.root**2 * self.laplacian(self.laplacian(vector[self.name]))}


class Setting(NamedTuple):
    """The hyperparameters and how they are tuned."""

    smooth: bool
    outer: Callable[[Any], torch.optim.Optimizer]
    inner_steps: int
    outer_steps: int


SETTINGS = {
    "smoothness": Setting(
        True,
        lambda params: torch.optim.Adam(params, lr=0.1, betas=(0.9, 0.99), eps=1e-12),
        inner_steps=100,
        outer_steps=12,
    ),
    "decay": Setting(
        False,
        lambda params: torch.optim.RMSprop(params, lr=5e-3),
        inner_steps=50,
        outer_steps=16,
    ),
}


def build(kind: str, inputs: int) -> tuple[nn.Module, str]:
    """Return a model, and the name of its first layer's weights."""
    if kind == "linear":
        return nn.Linear(inputs, 10), "weight"
    return nn.Sequential(nn.Linear(inputs, 128), nn.ReLU(), nn.Linear(128, 10)), "0.weight"


def run_draw(images: Images, number: int, options: argparse.Namespace) -> dict[str, Any]:
    """Return the test accuracies of one draw, in percent."""
    first, second = images.draw(number, options.rows // 2)
    x, y = (torch.cat(pair) for pair in zip(first, second, strict=True))
    data, test = (x.flatten(1), y), (images.test[0].flatten(1), images.test[1])
    setting = SETTINGS[options.hyper]
    torch.manual_seed(number)
    model, name = build(options.model, data[0].shape[1])
    hyper = Smoothness(name, images.shape) if setting.smooth else pt.WeightDecay(model)
    problem = pt.Problem(model, hyper, data=data, folds=5, loss=F.cross_entropy)
    tuner = pt.Tuner(
        problem,
        inner=pt.SGD(lr=0.01, momentum=0.9, decoupled=True),
        inner_steps=setting.inner_steps,
        outer=setting.outer(hyper.parameters()),
        objective=pt.ValidationRisk(),
        seed=number,
        engine="traced",
    )
    result = tuner.fit(setting.outer_steps, test=test, keep="held-out", progress=False)
    plain = best_step(result.trials, "plain")
    return {
        "draw": number,
        "kept": percent(result.kept),
        "kept_run": result.kept_run,
        "kept_step": result.kept_step,
        "tuned_last": percent(result.rows[-1]),
        "plain_last": percent(result.plain_rows[-1]),
        "plain_best": percent(result.plain_rows[plain - 1]),
        "plain_step": plain,
        "logistic_regression_cv": logistic(data, test),
        "out_of_fold": round(100 * float((cast(Tensor, result.out_of_fold).argmax(1) == y).double().mean()), 2),
        "verdict": result.verdict,
    }


def percent(row: dict[str, Any]) -> float:
    """Return the test accuracy of a row in percent."""
    return round(100 * float(row["test_accuracy"]), 2)


def best_step(trials: list[dict[str, Any]], candidate: str, window: int = 3) -> int:
    """Return the step of a candidate that the rule prefers: the least score, averaged over three steps."""
    scores = [row["score"] for row in trials if row["candidate"] == candidate]
    reach = window // 2
    means = [statistics.fmean(scores[max(0, i - reach) : i + reach + 1]) for i in range(len(scores))]
    return 1 + means.index(min(means))


def logistic(data: Data, test: Data) -> float:
    """Return the test accuracy of scikit-learn's LogisticRegressionCV with its defaults."""
    from sklearn.linear_model import LogisticRegressionCV

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = LogisticRegressionCV(max_iter=2000).fit(data[0].numpy(), data[1].numpy())
    return round(100 * float(found.score(test[0].numpy(), test[1].numpy())), 2)


def paired(draws: list[dict[str, Any]], other: str) -> dict[str, float]:
    """Return the mean difference of the kept model to another, and half the width of its 95 % interval."""
    from scipy.stats import t

    gaps = [draw["kept"] - draw[other] for draw in draws]
    if len(gaps) < 2:
        return {"mean": round(gaps[0], 2), "half_width": math.nan}
    half = float(t.ppf(0.975, len(gaps) - 1)) * statistics.stdev(gaps) / math.sqrt(len(gaps))
    return {"mean": round(statistics.fmean(gaps), 2), "half_width": round(half, 2)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", choices=get_args(DataName), default="mnist")
    parser.add_argument("--model", choices=["linear", "mlp"], default="linear")
    parser.add_argument("--hyper", choices=list(SETTINGS), default="smoothness")
    parser.add_argument("--draws", type=int, default=12)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--rows", type=int, default=100)
    parser.add_argument("--folder", type=Path, help="the data folder")
    options = parser.parse_args()
    torch.set_num_threads(1)
    images = load_images(options.data, options.folder)
    assert images is not None
    draws = []
    for number in range(options.first, options.first + options.draws):
        draws.append(run_draw(images, number, options))
        print(json.dumps(draws[-1], ensure_ascii=False), flush=True)
    others = ("plain_last", "plain_best", "tuned_last", "logistic_regression_cv")
    summary: dict[str, Any] = {name: round(statistics.fmean(d[name] for d in draws), 2) for name in ("kept", *others)}
    summary |= {f"kept − {name}": paired(draws, name) for name in others}
    path = RESULTS / NAME
    found: dict[str, Any] = json.loads(path.read_text("utf-8")) if path.exists() else {}
    label = f"{options.data}, {options.model}, {options.hyper}, {options.rows} rows, draws from {options.first}"
    found |= {"machine": machine(), label: {"summary": summary, "draws": draws}}
    write(NAME, found)
    print(json.dumps(summary, indent=1, ensure_ascii=False))


if __name__ == "__main__":
    main()
