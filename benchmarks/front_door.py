"""`pt.tune` against what a user would do instead: five settings, ten draws each, test accuracy in percent.

    python benchmarks/front_door.py [--settings breast-cancer wine ...] [--draws 10] [--first 0] [--folder DIR]

The others see the same rows in the same form. "plain" trains the same model with SGD at the learning rate of `pt.tune`
and stops at the step with the best accuracy over five folds. "one decay" chooses the decay and the step so. Both then
train on all rows. LogisticRegressionCV and MLPClassifier (a grid over alpha, five folds) are scikit-learn's.

Tables are standardized by their training rows; pixels are in [0, 1]. The constants of `pt.tune` were chosen on draws
from 100 on.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import torch
from measuring import RESULTS, machine, write
from sklearn.datasets import load_breast_cancer, load_digits, load_wine
from sklearn.linear_model import LogisticRegressionCV
from sklearn.model_selection import GridSearchCV, StratifiedKFold, train_test_split
from sklearn.neural_network import MLPClassifier
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F  # noqa: N812

import pactune as pt
from pactune.paper.data import Images, load_images

NAME = "front_door.json"
TABLES = {"breast-cancer": (load_breast_cancer, 80), "wine": (load_wine, 60), "digits": (load_digits, 100)}
SETTINGS = (*TABLES, "mnist-linear", "mnist-mlp")
DECAYS = (0.0, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
STEPS, LOOK = 1000, 20  # of plain training, and the steps between two looks at the held-out fold
ALPHAS = [10.0**exponent for exponent in range(-5, 2)]


class Draw(NamedTuple):
    """The rows of one draw."""

    x: Tensor
    y: Tensor
    test_x: Tensor
    test_y: Tensor


def draw_rows(setting: str, number: int, images: Images | None) -> Draw:
    """Return the training and test rows of a draw."""
    if setting in TABLES:
        load, rows = TABLES[setting]
        x, y = load(return_X_y=True)
        train, test, y, test_y = train_test_split(x, y, train_size=rows, stratify=y, random_state=number)
        middle, spread = (0.0, 16.0) if setting == "digits" else (train.mean(0), train.std(0))
        pair = ((train - middle) / spread, y), ((test - middle) / spread, test_y)
    else:
        assert images is not None
        first, second = images.draw(number, 50)
        both = [torch.cat(parts) for parts in zip(first, second, strict=True)]
        pair = (both[0].flatten(1), both[1]), (images.test[0].flatten(1), images.test[1])
    (a, b), (c, d) = pair
    kinds = 2 * (torch.float32, torch.int64)
    return Draw(*(torch.as_tensor(part).to(kind) for part, kind in zip((a, b, c, d), kinds, strict=True)))


def make_model(setting: str, rows: Draw, number: int) -> nn.Module:
    """Return the model of a setting."""
    torch.manual_seed(number)
    inputs, classes = rows.x.shape[1], int(torch.cat([rows.y, rows.test_y]).max()) + 1
    if setting == "mnist-mlp":
        return nn.Sequential(nn.Linear(inputs, 128), nn.ReLU(), nn.Linear(128, classes))
    return nn.Linear(inputs, classes)


def percent(model: nn.Module, rows: Draw) -> float:
    """Return the test accuracy of a model."""
    with torch.no_grad():
        return round(100 * float((model(rows.test_x).argmax(1) == rows.test_y).double().mean()), 2)


class Paths(NamedTuple):
    """Accuracies and losses by decay and look, as means over the folds; and the parameters on all rows."""

    hits: Tensor
    losses: Tensor
    params: list[dict[str, Tensor]]


def train_paths(model: nn.Module, rows: Draw, rate: float, number: int) -> Paths:
    """Train at every decay on every fold and on all rows, with SGD of momentum 0.9 and decoupled decay."""
    splits = StratifiedKFold(5, shuffle=True, random_state=number).split(rows.x, rows.y)
    masks = torch.ones(6, len(rows.y))
    for k, (_, held) in enumerate(splits):
        masks[k, held] = 0.0
    count = len(DECAYS) * len(masks)
    mask = masks.repeat(len(DECAYS), 1)
    decay = torch.tensor(DECAYS).repeat_interleave(len(masks))
    params = {name: p.detach().expand(count, *p.shape).clone() for name, p in model.named_parameters()}
    speed = {name: torch.zeros_like(p) for name, p in params.items()}

    def risk(own: dict[str, Tensor], weight: Tensor) -> tuple[Tensor, Tensor]:
        scores = functional_call(model, own, (rows.x,))
        losses = F.cross_entropy(scores, rows.y, reduction="none")
        return (losses * weight).sum() / weight.sum(), scores

    step = vmap(grad(risk, has_aux=True))
    hits, losses, kept = [], [], []
    for number_of_step in range(1, STEPS + 1):
        gradient, _ = step(params, mask)
        for name, p in params.items():
            speed[name] = 0.9 * speed[name] + gradient[name]
            p = p - rate * speed[name]
            params[name] = p - rate * decay.reshape(-1, *[1] * (p.ndim - 1)) * p
        if number_of_step % LOOK == 0:
            _, scores = step(params, mask)
            wide = scores.reshape(len(DECAYS), 6, *scores.shape[1:])[:, :5]
            out = 1 - masks[:5]
            right = (wide.argmax(-1) == rows.y).double()
            loss = F.cross_entropy(wide.flatten(0, 2), rows.y.repeat(len(DECAYS) * 5), reduction="none")
            hits.append((right * out).sum((1, 2)) / out.sum())
            losses.append((loss.reshape(right.shape).nan_to_num(nan=1e3) * out).sum((1, 2)) / out.sum())
            kept.append({name: p.reshape(len(DECAYS), 6, *p.shape[1:])[:, 5].clone() for name, p in params.items()})
    return Paths(torch.stack(hits, 1), torch.stack(losses, 1), kept)


def best_by_folds(paths: Paths, model: nn.Module, rows: Draw, decays: int) -> float:
    """Return the test accuracy at the best accuracy over folds among the first decays; the loss decides ties."""
    score = paths.hits[:decays] - 1e-6 * paths.losses[:decays].clamp(max=1e3)
    which, look = divmod(int(score.argmax()), score.shape[1])
    own = {name: p[which] for name, p in paths.params[look].items()}
    with torch.no_grad():
        found = functional_call(model, own, (rows.test_x,)).argmax(1)
    return round(100 * float((found == rows.test_y).double().mean()), 2)


def scikit_learn(rows: Draw, number: int) -> dict[str, float]:
    """Return the test accuracies of LogisticRegressionCV and of MLPClassifier with a grid over alpha."""
    x, y, test_x, test_y = (part.numpy() for part in rows)
    net = GridSearchCV(MLPClassifier(max_iter=1000, random_state=number), {"alpha": ALPHAS}, cv=5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = {
            "logistic_regression_cv": LogisticRegressionCV(max_iter=2000).fit(x, y).score(test_x, test_y),
            "mlp_classifier": net.fit(x, y).score(test_x, test_y),
        }
    return {name: round(100 * float(value), 2) for name, value in found.items()}


def run_draw(setting: str, number: int, images: Images | None, options: argparse.Namespace) -> dict[str, Any]:
    """Return the test accuracies of one draw."""
    rows = draw_rows(setting, number, images)
    model = make_model(setting, rows, number)
    start = {name: p.detach().clone() for name, p in model.named_parameters()}
    begun = time.process_time()
    result = pt.tune(model, (rows.x, rows.y), loss=F.cross_entropy, seed=number, progress=False)
    seconds = time.process_time() - begun
    found: dict[str, Any] = {"draw": number, "tune": percent(model, rows), "seconds": round(seconds, 1)}
    found |= {"kept": next(row["model"] for row in result.comparison if row["kept"])}
    found |= {f"held_out {row['model']}": round(100 * row["accuracy"], 2) for row in result.comparison}
    if not options.only_tune:
        model.load_state_dict(start)
        rate = float(result.settings["learning_rate"])
        paths = train_paths(model, rows, rate, number)
        found |= {
            "plain": best_by_folds(paths, model, rows, 1),
            "one_decay": best_by_folds(paths, model, rows, len(DECAYS)),
        }
        found |= scikit_learn(rows, number)
    return found


OTHERS = ("plain", "one_decay", "logistic_regression_cv", "mlp_classifier")


def paired(draws: list[dict[str, Any]], other: str) -> dict[str, float]:
    """Return the mean difference of `pt.tune` to another way, and half the width of its 95 % interval."""
    from scipy.stats import t

    gaps = [draw["tune"] - draw[other] for draw in draws]
    half = math.nan
    if len(gaps) > 1:
        half = float(t.ppf(0.975, len(gaps) - 1)) * statistics.stdev(gaps) / math.sqrt(len(gaps))
    return {"mean": round(statistics.fmean(gaps), 2), "half_width": round(half, 2)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--settings", nargs="+", choices=SETTINGS, default=list(SETTINGS))
    parser.add_argument("--draws", type=int, default=10)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--only-tune", action="store_true", help="leave the others out and write nothing")
    parser.add_argument("--folder", type=Path, help="the folder of the MNIST files")
    options = parser.parse_args()
    torch.set_num_threads(1)
    images = load_images("mnist", options.folder) if any(one.startswith("mnist") for one in options.settings) else None
    for setting in options.settings:
        draws = []
        for number in range(options.first, options.first + options.draws):
            draws.append(run_draw(setting, number, images, options))
            print(setting, json.dumps(draws[-1], ensure_ascii=False), flush=True)
        names = ("tune", "seconds", *([] if options.only_tune else OTHERS))
        summary: dict[str, Any] = {name: round(statistics.fmean(draw[name] for draw in draws), 2) for name in names}
        if not options.only_tune:
            summary |= {f"tune − {name}": paired(draws, name) for name in OTHERS}
            path = RESULTS / NAME
            found: dict[str, Any] = json.loads(path.read_text("utf-8")) if path.exists() else {}
            found |= {
                "machine": machine(),
                f"{setting}, draws from {options.first}": {"summary": summary, "draws": draws},
            }
            write(NAME, found)
        print(setting, json.dumps(summary, indent=1, ensure_ascii=False), flush=True)


if __name__ == "__main__":
    main()
