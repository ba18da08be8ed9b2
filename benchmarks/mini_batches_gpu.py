"""What mini-batches, learning rate and decay do to ResNet-18 on 100 MNIST images: the design of `pt.tune` on a GPU.

    python benchmarks/mini_batches_gpu.py --output benchmarks/results/mini_batches.json
    python benchmarks/mini_batches_gpu.py --tiny --device cpu

SGD with momentum trains on all images of a draw, in random mini-batches. After each step θ shrinks by a factor of
1 − ηλ; a decay "of weights" leaves out biases and the parameters of BatchNorm. The test accuracy, on the first 2000
test images, is that of the last iterate and of a moving average with β = 0.995, whose statistics of BatchNorm are
computed anew. The draws are design draws, from 100 on. All runs of a batch size are stacked in one CUDA graph.
"""

from __future__ import annotations

import argparse
import itertools
import json
from pathlib import Path
from typing import Any, NamedTuple

import torch
from measuring import machine
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from pactune.paper.data import DataName, Images, load_images
from pactune.paper.models import ModelName, make_model
from pactune.stacking.layers import layers_for
from pactune.streams import Streams
from pactune.trees import Params, clone, stack

MOMENTUM, BETA = 0.9, 0.995
RATES = (1.8e-2, 6e-2)
DECAYS = ((0.0, "weights"), (1e-3, "weights"), (1e-3, "all"), (3.4e-3, "all"))  # ηλ, and what shrinks
PER_GRAPH = 10  # steps that are captured in one CUDA graph
TEST_ROWS = 250  # test images per forward


class Scale(NamedTuple):
    """What is trained, for how long, and on how many images at a time."""

    model: ModelName = "resnet18"
    data: DataName = "mnist"
    half: int = 50
    steps: int = 1500
    interval: int = 250
    batches: tuple[int, ...] = (10, 25, 50)
    draws: tuple[int, ...] = (100, 101, 102, 103)
    test_rows: int = 2000


TINY = Scale("linear", "digits", 10, 20, 10, (5,), (100, 101), 40)


class StackedRuns:
    """Runs of one batch size, with their tensors stacked."""

    def __init__(self, cells: list[dict[str, Any]], scale: Scale, images: Images, device: torch.device) -> None:
        self._cells, self._scale, self._flat = cells, scale, scale.model == "linear"
        models = {d: make_model(scale.model, images.shape, seed=Streams(0).key("start", d)) for d in scale.draws}
        rows = {d: [torch.cat(part) for part in zip(*images.draw(d, scale.half), strict=True)] for d in scale.draws}
        self._model = models[scale.draws[0]].to(device).train()
        own = [models[cell["draw"]].to(device) for cell in cells]
        self._params = stack([{name: p.detach() for name, p in model.named_parameters()} for model in own])
        self._buffers = stack([dict(model.named_buffers()) for model in own])
        self._moments = {name: torch.zeros_like(p) for name, p in self._params.items()}
        self._average = clone(self._params)
        self._x, self._y = (torch.stack([rows[cell["draw"]][i] for cell in cells]).to(device) for i in (0, 1))
        self._x = self._x.flatten(2) if self._flat else self._x
        self._rate = torch.tensor([cell["rate"] for cell in cells], device=device)
        shrink = torch.tensor([cell["shrink"] for cell in cells], device=device)
        everything = torch.tensor([float(cell["of"] == "all") for cell in cells], device=device)
        self._factors = {name: 1 - shrink * (1 if p.ndim > 2 else everything) for name, p in self._params.items()}
        self.records: list[dict[str, Any]] = [{**cell, "step": [], "iterate": [], "average": []} for cell in cells]

    def _scores(self, params: Params, buffers: Params, x: Tensor) -> tuple[Tensor, Params]:
        def one(params: Params, buffers: Params, x: Tensor) -> tuple[Tensor, Params]:
            with layers_for(self._model, self._y.device):
                return functional_call(self._model, {**params, **buffers}, (x,)), buffers

        found: tuple[Tensor, Params] = torch.vmap(one)(params, buffers, x)
        return found

    def step(self) -> None:
        """Take one step of every run."""
        runs = torch.arange(len(self._cells), device=self._y.device)[:, None]
        chosen = torch.rand(self._y.shape, device=self._y.device).argsort(1)[:, : self._cells[0]["batch"]]
        leaves = {name: p.detach().requires_grad_() for name, p in self._params.items()}
        with torch.enable_grad():
            scores, after = self._scores(leaves, clone(self._buffers), self._x[runs, chosen])
            losses = torch.vmap(cross_entropy)(scores, self._y[runs, chosen])
            gradients = torch.autograd.grad(losses.sum(), list(leaves.values()))
        for name, value in after.items():
            self._buffers[name].copy_(value)
        for (name, p), gradient in zip(self._params.items(), gradients, strict=True):
            shape = (-1, *[1] * (p.ndim - 1))
            self._moments[name].mul_(MOMENTUM).add_(gradient)
            p.sub_(self._rate.view(shape) * self._moments[name]).mul_(self._factors[name].view(shape))
            self._average[name].lerp_(p, 1 - BETA)

    @torch.no_grad()
    def look(self, step: int, test: tuple[Tensor, Tensor]) -> None:
        """Add the test accuracies after a step to the records."""
        norms = [module for module in self._model.modules() if isinstance(module, nn.BatchNorm2d)]
        before = [norm.momentum for norm in norms]
        for norm in norms:
            norm.momentum = 1.0
        fresh = self._scores(self._average, clone(self._buffers), self._x)[1]
        for norm, momentum in zip(norms, before, strict=True):
            norm.momentum = momentum
        found = {
            "iterate": self._accuracies(self._params, self._buffers, test),
            "average": self._accuracies(self._average, fresh, test),
        }
        for i, record in enumerate(self.records):
            record["step"].append(step)
            for name, accuracies in found.items():
                record[name].append(round(100 * float(accuracies[i]), 1))

    def _accuracies(self, params: Params, buffers: Params, test: tuple[Tensor, Tensor]) -> Tensor:
        self._model.eval()
        right = torch.zeros(len(self._cells), device=self._y.device)
        for x, y in zip(test[0].split(TEST_ROWS), test[1].split(TEST_ROWS), strict=True):
            x = x.flatten(1) if self._flat else x
            scores = self._scores(params, clone(buffers), x.expand(len(self._cells), *x.shape))[0]
            right += (scores.argmax(-1) == y).sum(1)
        self._model.train()
        return right / len(test[1])

    def run(self, test: tuple[Tensor, Tensor]) -> None:
        """Run all steps."""
        device, many = self._y.device, PER_GRAPH
        with torch.no_grad():
            advance = self._captured() if device.type == "cuda" else self.step
            many = PER_GRAPH if device.type == "cuda" else 1
            for step in range(self._scale.interval, self._scale.steps + 1, self._scale.interval):
                for _ in range(self._scale.interval // many):
                    advance()
                self.look(step, test)

    def _captured(self) -> Any:
        """Return a function that replays PER_GRAPH steps; the runs stay at their start."""
        trees = (self._params, self._buffers, self._moments, self._average)
        starts, side, graph = [clone(tree) for tree in trees], torch.cuda.Stream(), torch.cuda.CUDAGraph()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            self.step()
            self.step()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            for _ in range(PER_GRAPH):
                self.step()
        for tree, start in zip(trees, starts, strict=True):
            for name, value in tree.items():
                value.copy_(start[name])
        return graph.replay


def main() -> None:
    """Train all runs, those of one batch size at once, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--data-dir", type=Path, help="of the image files")
    parser.add_argument("--output", type=Path, help="JSON file; stdout by default")
    parser.add_argument("--tiny", action="store_true", help="a linear classifier of digits, in seconds")
    options = parser.parse_args()
    scale, device = TINY if options.tiny else Scale(), torch.device(options.device)
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = True
    images = load_images(scale.data, options.data_dir)
    assert images is not None  # it was to be downloaded, so that it is there
    test = tuple(part[: scale.test_rows].to(device) for part in images.test)
    records = list[dict[str, Any]]()
    for batch in scale.batches:
        product = itertools.product(RATES, DECAYS, scale.draws)
        cells = [
            {"batch": batch, "rate": rate, "shrink": shrink, "of": of, "draw": draw}
            for rate, (shrink, of), draw in product
        ]
        runs = StackedRuns(cells, scale, images, device)
        runs.run((test[0], test[1]))
        records += runs.records
    found = {"command": "python benchmarks/mini_batches_gpu.py", "machine": machine(), "runs": records}
    text = json.dumps(found, separators=(",", ":")).replace('{"batch"', '\n{"batch"') + "\n"
    if options.output:
        options.output.write_text(text, encoding="utf-8")
    else:
        print(text)


if __name__ == "__main__":
    main()
