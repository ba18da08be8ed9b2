"""Meta-Weight-Net with ResNet-18 on a CUDA device: an outer step of pactune, of Betty and of a loop by hand.

    python benchmarks/peers/meta_weight_net_gpu.py [--engine auto] [--repeats 15]
    python benchmarks/peers/meta_weight_net_gpu.py --tiny --device cpu

A network of one hidden layer maps the loss of a training image to its weight; one inner step per outer step. ResNet-18
has the layout for CIFAR (a 3 × 3 stem, ten outputs). The images are noise of CIFAR's shape and 40 % of the labels are
wrong, since the time of a step depends on neither. Batches of 128 train and batches of 128 validate.

The gradients of the first outer step are compared in float64. pactune and the loops by hand differentiate the step
exactly, one of the loops in forward mode: a double backward through BatchNorm is some seventy small kernels. Betty's
"darts" takes a finite difference of ∂R_T/∂λ around θ_1 in place of the derivative at θ_0, and leaves out the step size.
Finite differences see through `detach` as well. So its gradient is compared after a very short step, with small
differences, and with a network whose input is not detached; it should then be 1/lr times the exact one.

Every way keeps PyTorch's default precision: cuDNN may use TF32. The ways are timed in turn, by the wall clock with the
device synchronized.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from comparing import Comparison, Way, mini_batches, peer
from images import noisy
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.func import functional_call
from torch.nn import functional as F

sys.path.insert(0, str(Path(__file__).parents[1]))

from measuring import device_clock, write

import pactune as pt
from pactune.paper.models import resnet18

NAME = "peers_meta_weight_net_gpu.json"
OUTER_LR = 1e-3
SHORT = 1e-8  # step size for the comparison with Betty's gradient
DIFFERENCE = 1e-7  # norm of a finite difference in it
ALIKE = 1e-2  # largest difference of Betty's gradient and pactune's in it
WARM_UP = 10  # outer steps before the first measurement


class WeightNet(nn.Module):
    """The weight of an example as a function of its loss."""

    def __init__(self, *, detached: bool = True) -> None:
        super().__init__()
        self.detached = detached
        self.layers = nn.Sequential(nn.Linear(1, 100), nn.ReLU(), nn.Linear(100, 1), nn.Sigmoid())

    def forward(self, losses: Tensor) -> Tensor:
        return self.layers((losses.detach() if self.detached else losses)[:, None]).squeeze(1)


def cifar_resnet18() -> nn.Module:
    """Return ResNet-18 for images of 32 × 32 pixels and ten classes."""
    model = resnet18(channels=3, outputs=10)
    model.conv1 = nn.Conv2d(3, 64, 3, padding=1, bias=False)
    model.maxpool = nn.Identity()  # type: ignore[assignment]
    return model


def tiny_network() -> nn.Module:
    """Return a small network with convolutions and BatchNorm."""
    layers = [nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(32, 10))


def train_loss(model: nn.Module, batch: Any, hyper: nn.Module) -> Tensor:
    losses = F.cross_entropy(model(batch[0]), batch[1], reduction="none")
    return (hyper(losses) * losses).mean()


def valid_loss(model: nn.Module, batch: Any, hyper: nn.Module) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


@dataclass(frozen=True)
class Setting:
    """What all ways train, and on what.

    Attributes:
        device: device of models and data.
        train: training images.
        meta: clean images.
        size: images per batch of either kind.
        make_model: makes the classifier.
        lr: step size of SGD.
        dtype: of models and images.
        detached: the weight of an image is a function of the value of its loss alone.
        difference: of Betty's finite differences; 0.01 is its default.
        layout: memory format of images and kernels, for all ways.
    """

    device: torch.device
    train: int
    meta: int
    size: int
    make_model: Callable[[], nn.Module] = cifar_resnet18
    lr: float = 0.01
    dtype: torch.dtype = torch.float32
    detached: bool = True
    difference: float = 0.01
    layout: torch.memory_format = torch.contiguous_format

    @cached_property
    def data(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Training images and labels, clean images and labels."""
        draw = torch.Generator().manual_seed(0)
        rows = self.train + self.meta
        x, y = torch.randn(rows, 3, 32, 32, generator=draw), torch.randint(0, 10, (rows,), generator=draw)
        x = x.to(self.device, self.dtype, memory_format=self.layout)
        wrong = noisy(y[: self.train], 0.4).to(self.device)
        return x[: self.train], wrong, x[self.train :], y[self.train :].to(self.device)

    def modules(self) -> tuple[nn.Module, WeightNet]:
        torch.manual_seed(0)
        model, hyper = self.make_model(), WeightNet(detached=self.detached)
        model.to(self.device, self.dtype, memory_format=self.layout)  # type: ignore[call-overload]
        return model, hyper.to(self.device, self.dtype)

    def batches(self, role: str) -> Iterator[Tensor]:
        """Yield the rows of the mini-batches, those that pactune reads in training."""
        rows = self.train if role == "train" else self.meta
        return (batch.to(self.device) for batch in mini_batches(rows, self.size, role))

    def tuner(self, engine: str) -> pt.Tuner:
        model, hyper = self.modules()
        x, y, meta_x, meta_y = self.data
        losses = {"train_loss": train_loss, "valid_loss": valid_loss}
        sizes = {"batch_size": self.size, "valid_batch_size": self.size if self.size < self.meta else None}
        given: dict[str, Any] = {**losses, **sizes}
        problem = pt.Problem(model, hyper, train=(x, y), valid=(meta_x, meta_y), **given)
        outer = torch.optim.Adam(hyper.parameters(), lr=OUTER_LR)
        settings: dict[str, Any] = {"objective": pt.ValidationRisk(), "hypergradient": pt.Truncated(1)}
        return pt.Tuner(problem, inner=pt.SGD(lr=self.lr), inner_steps=1, outer=outer, engine=engine, **settings)

    def by_hand(self) -> Way:
        model, hyper = self.modules()
        x, y, meta_x, meta_y = self.data
        params: dict[str, Tensor] = dict(model.named_parameters())
        weights = list(hyper.parameters())
        outer = torch.optim.Adam(weights, lr=OUTER_LR)
        rows, meta_rows = self.batches("train"), self.batches("valid")

        def outer_step() -> None:
            nonlocal params
            batch, clean = next(rows), next(meta_rows)
            losses = F.cross_entropy(functional_call(model, params, (x[batch],)), y[batch], reduction="none")
            found = torch.autograd.grad((hyper(losses) * losses).mean(), list(params.values()), create_graph=True)
            moved = {name: p - self.lr * g for (name, p), g in zip(params.items(), found, strict=True)}
            outer.zero_grad()
            risk = F.cross_entropy(functional_call(model, moved, (meta_x[clean],)), meta_y[clean])
            for p, g in zip(weights, torch.autograd.grad(risk, weights), strict=True):
                p.grad = g
            outer.step()
            params = {name: p.detach().requires_grad_() for name, p in moved.items()}

        return Way(outer_step, weights)

    def by_forward_mode(self) -> Way:
        """Return a loop by hand without a double backward: ∂⟨∇_θR_T, v⟩/∂λ is the λ-gradient of R_T's slope along v."""
        model, hyper = self.modules()
        x, y, meta_x, meta_y = self.data
        params, weights = {name: p.detach() for name, p in model.named_parameters()}, list(hyper.parameters())
        outer = torch.optim.Adam(weights, lr=OUTER_LR)
        rows, meta_rows = self.batches("train"), self.batches("valid")

        def risk(values: dict[str, Tensor], batch: Tensor) -> Tensor:
            losses = F.cross_entropy(functional_call(model, values, (x[batch],)), y[batch], reduction="none")
            return (hyper(losses) * losses).mean()

        def outer_step() -> None:
            nonlocal params
            batch, clean = next(rows), next(meta_rows)
            leaves = {name: p.requires_grad_() for name, p in params.items()}
            found = torch.autograd.grad(risk(leaves, batch), list(leaves.values()))
            moved = {
                n: (p.detach() - self.lr * g).requires_grad_() for (n, p), g in zip(params.items(), found, strict=True)
            }
            valid_risk = F.cross_entropy(functional_call(model, moved, (meta_x[clean],)), meta_y[clean])
            slopes = torch.autograd.grad(valid_risk, list(moved.values()))
            with forward_ad.dual_level():
                pairs = zip(params.items(), slopes, strict=True)
                dual = {name: forward_ad.make_dual(p.detach(), slope) for (name, p), slope in pairs}
                tangent = forward_ad.unpack_dual(risk(dual, batch)).tangent
                products = torch.autograd.grad(tangent, weights)
            for p, g in zip(weights, products, strict=True):
                p.grad = -self.lr * g
            outer.step()
            params = {name: p.detach() for name, p in moved.items()}

        return Way(outer_step, weights)

    def by_betty(self) -> Way:
        from betty.configs import Config, EngineConfig
        from betty.engine import Engine
        from betty.problems import ImplicitProblem

        model, hyper = self.modules()
        x, y, meta_x, meta_y = self.data
        epochs = zip(range(self.train // self.size), self.batches("train"), strict=False)
        meta_epochs = zip(range(self.meta // self.size), self.batches("valid"), strict=False)

        class Reweight(ImplicitProblem):  # type: ignore[misc]
            def training_step(self, batch: Any) -> Tensor:
                return F.cross_entropy(self.classifier(batch[0]), batch[1])

            def zero_grad(self) -> None:
                self.last_gradient = [p.grad for p in self.module.parameters()]
                super().zero_grad()

        class Classify(ImplicitProblem):  # type: ignore[misc]
            def training_step(self, batch: Any) -> Tensor:
                losses = F.cross_entropy(self.forward(batch[0]), batch[1], reduction="none")
                return (self.reweight(losses) * losses).mean()

        config = Config(type="darts", unroll_steps=1, darts_alpha=self.difference)
        common: dict[str, Any] = {"device": self.device, "config": config}
        reweight = Reweight(
            name="reweight",
            module=hyper,
            optimizer=torch.optim.Adam(hyper.parameters(), lr=OUTER_LR),
            train_data_loader=[(meta_x[batch], meta_y[batch]) for _, batch in meta_epochs],
            **common,
        )
        classify = Classify(
            name="classifier",
            module=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=self.lr),
            train_data_loader=[(x[batch], y[batch]) for _, batch in epochs],
            **common,
        )
        links = {"u2l": {reweight: [classify]}, "l2u": {classify: [reweight]}}
        engine = Engine([reweight, classify], EngineConfig(train_iters=1), links)
        engine.train()

        def outer_step() -> None:
            for p in hyper.parameters():
                p.grad = None
            engine.global_step += 1
            engine.train_step()
            for p, g in zip(hyper.parameters(), reweight.last_gradient, strict=True):
                p.grad = g  # Betty deletes it at the end of a step, and adds to what it finds

        return Way(outer_step, list(hyper.parameters()))


def comparison(setting: Setting, engine: str, outer_steps: int) -> Comparison:
    """Return the comparison of all ways in a setting."""
    never = float("inf")
    exact = 1e-7 if setting.dtype == torch.float64 else never
    peers = {
        "betty": peer(setting.by_betty, "betty", never),
        "by hand": peer(setting.by_hand, tolerance=exact),
        "by hand, forward mode": peer(setting.by_forward_mode, tolerance=exact),
    }
    return Comparison(
        "meta_weight_net_gpu",
        setting.tuner,
        peers,
        outer_steps=outer_steps,
        bars={"betty": 1.0},
        engines={"": engine, " eager": "eager"},
        warm_up=WARM_UP,
        clock=device_clock if setting.device.type == "cuda" else time.process_time,
        notes={
            "engine": engine,
            "batch": setting.size,
            "layout": str(setting.layout),
            "Betty": "finite differences, Config(type='darts')",
        },
    )


def agreement(setting: Setting) -> dict[str, float]:
    """Return how far the gradients of the first outer step are apart, in float64; raise if they differ.

    One batch validates, so that all ways read the same rows.
    """
    exact = replace(setting, dtype=torch.float64, train=4 * setting.size, meta=setting.size)
    found = comparison(exact, "eager", 1).gaps()
    short = comparison(replace(exact, lr=SHORT, difference=DIFFERENCE, detached=False), "eager", 1)
    if not short.missing():
        ours, theirs = short.first_gradients("betty")
        found["betty"] = float((ours / SHORT - theirs).abs().max() / theirs.abs().max())
        if not found["betty"] <= ALIKE:
            raise SystemExit(f"the gradients of pactune and Betty differ by {found['betty']:.2e}")
    return found


def main() -> None:
    """Compare the gradients, then the times; print and write the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--engine", default="auto", help="of pactune; it is timed beside the eager one")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--outer-steps", type=int, default=20, help="per measurement")
    parser.add_argument("--with-fit", action="store_true", help="time `fit` too")
    parser.add_argument("--size", type=int, default=128, help="images per batch")
    parser.add_argument("--channels-last", action="store_true", help="of all ways")
    parser.add_argument("--output", type=Path, help="JSON file; one under benchmarks/results by default")
    parser.add_argument(
        "--tiny", action="store_true", help="a small network, in seconds; nothing is written by default"
    )
    options = parser.parse_args()
    layout = torch.channels_last if options.channels_last else torch.contiguous_format
    sizes = {"train": 100 * options.size, "meta": 10 * options.size, "size": options.size}
    setting = Setting(torch.device(options.device), layout=layout, **sizes)
    if options.tiny:
        setting = replace(setting, make_model=tiny_network, train=64, meta=32, size=16)
    gaps = agreement(setting)
    print("gradients:", json.dumps(gaps), flush=True)
    found = comparison(setting, options.engine, options.outer_steps).compare(options.repeats, with_fit=options.with_fit)
    found["largest gap of gradients"] = gaps
    if setting.device.type == "cuda":
        found["machine"]["device"] = torch.cuda.get_device_name(setting.device)
    if options.output:
        options.output.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    elif not options.tiny:
        write(NAME, found)
    print(json.dumps(found, indent=1, ensure_ascii=False), flush=True)


if __name__ == "__main__":
    main()
