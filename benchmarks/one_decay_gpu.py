"""Train ResNet-18 on MNIST with one weight decay for all parameters: what the paper's table leaves out.

    python benchmarks/one_decay_gpu.py --output results/weight-decay/one-decay-resnet18-mnist.json
    python benchmarks/one_decay_gpu.py --tiny --device cpu

A run trains on the 50 training images of a draw, or on these and the 50 validation images together. Its start is that
of the table's runs. The optimizer is `torch.optim.AdamW`, which shrinks θ by (1 − lr·λ) before each step of Adam; no
decay is tuned. The test accuracy is measured in `eval()` mode every 1000 steps, and nothing is chosen by it.

On a CUDA device the runs of one number of images go at once: ten steps of each are one CUDA graph, on a stream of its
own. The file is written at every evaluation, so that a stopped command leaves what it has measured.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from measuring import machine
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from pactune.paper.data import DataName, Images, load_images
from pactune.paper.models import ModelName, make_model
from pactune.streams import Streams

CONNECTIONS = "CUDA_DEVICE_MAX_CONNECTIONS"  # hardware queues: with more of them, more runs are side by side
FORMAT = "one decay 1"
LR = 1e-4
PER_GRAPH = 10  # steps of a run that are captured in one CUDA graph
TEST_ROWS = 5000  # test images per forward


class Scale(NamedTuple):
    """What is trained, and for how long. An evaluation follows every `interval` steps."""

    model: ModelName = "resnet18"
    data: DataName = "mnist"
    steps: int = 30_000
    interval: int = 1000
    half: int = 50


TINY = Scale("linear", "digits", 40, 20, 6)


class OneDecayRun:
    """One model in training, on the device of its data.

    Args:
        model: the model at its start.
        train: the training images, in the memory format of the training, and their labels.
        test: the images that evaluations are about, and their labels.
        make_optimizer: returns the optimizer of a list of parameters. On a CUDA device it must be capturable.
        about: what the record says about the run.
    """

    def __init__(
        self,
        model: nn.Module,
        train: tuple[Tensor, Tensor],
        test: tuple[Tensor, Tensor],
        make_optimizer: Callable[[list[nn.Parameter]], torch.optim.Optimizer],
        about: dict[str, Any],
    ) -> None:
        (self._x, self._y), self._test = train, test
        self._model = model.to(self._x.device)
        if self._x.is_cuda:
            self._model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self._params = list(self._model.parameters())
        self._optimizer = make_optimizer(self._params)
        names = ("step", "train_accuracy", "test_accuracy", "test_risk", "weight_norm")
        self.record: dict[str, Any] = {**about, **{name: [] for name in names}}

    def rows(self) -> tuple[Tensor, Tensor]:
        """Return the images and labels of a step: all of them."""
        return self._x, self._y

    def step(self) -> None:
        """Take one step."""
        x, y = self.rows()
        loss = cross_entropy(self._model(x), y)
        for parameter, gradient in zip(self._params, torch.autograd.grad(loss, self._params), strict=True):
            same = gradient.stride() == parameter.stride()  # the fused optimizer asks for it
            parameter.grad = gradient if same else torch.empty_like(parameter).copy_(gradient)
        self._optimizer.step()

    def captured(self) -> Callable[[], None]:
        """Return a function that replays PER_GRAPH steps on a stream of its own; the run stays at its start.

        The steps are captured on that stream too. cuBLAS has one workspace per stream, so graphs that are captured on
        one stream and replayed on several write into the same workspace and spoil each other's products.
        """
        start = {name: value.clone() for name, value in self._model.state_dict().items()}
        stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self.step()
            self.step()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph, stream=stream):
            for _ in range(PER_GRAPH):
                self.step()
        self._model.load_state_dict(start)
        for value in (value for state in self._optimizer.state.values() for value in state.values()):
            value.zero_()
        self.restart()
        torch.cuda.synchronize()

        def replay() -> None:
            with torch.cuda.stream(stream):
                graph.replay()

        return replay

    def restart(self) -> None:
        """Put what a subclass adds to the run back to its start."""

    @torch.no_grad()
    def evaluate(self, step: int) -> None:
        """Add the numbers after a step to the record."""
        self._model.eval()
        x, y = self._test
        scores = torch.cat([self._model(part) for part in x.split(TEST_ROWS)])
        right = (self._model(self._x).argmax(1) == self._y).float().mean()
        self._model.train()
        found = {
            "step": step,
            "train_accuracy": float(right),
            "test_accuracy": float((scores.argmax(1) == y).double().mean()),
            "test_risk": float(cross_entropy(scores, y)),
            "weight_norm": float(torch.stack([p.norm() for p in self._params]).norm()),
        }
        for name, value in found.items():
            self.record[name].append(value if name == "step" else float(f"{value:.5g}"))


def train(runs: Sequence[OneDecayRun], steps: int, interval: int, device: torch.device) -> Iterator[int]:
    """Train all runs at once, and evaluate them after every interval; yield the number of steps so far."""
    cuda = device.type == "cuda"
    advance = [run.captured() if cuda else run.step for run in runs]
    for step in range(interval, steps + 1, interval):
        for _, go_on in itertools.product(range(interval // (PER_GRAPH if cuda else 1)), advance):
            go_on()
        if cuda:
            torch.cuda.synchronize()
        for run in runs:
            run.evaluate(step)
        yield step


def on_device(pair: tuple[Tensor, Tensor], model: ModelName, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return images and labels on a device, in the form that a model takes."""
    x, y = pair
    layout = torch.channels_last if device.type == "cuda" else torch.contiguous_format
    return x.flatten(1).to(device) if model == "linear" else x.to(device, memory_format=layout), y.to(device)


def start_model(model: ModelName, images: Images, draw: int) -> nn.Module:
    """Return a model at the start of the table's runs."""
    return make_model(model, images.shape, seed=Streams(0).key("start", draw))


def adam(decay: float, device: torch.device) -> Callable[[list[nn.Parameter]], torch.optim.Optimizer]:
    """Return a function that makes AdamW with one decay."""
    fast = {"fused": True, "capturable": True} if device.type == "cuda" else {}
    return lambda params: torch.optim.AdamW(params, lr=LR, weight_decay=decay, **fast)


def main() -> None:
    """Train all runs, those of one number of images at once, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, nargs="+", default=[0, 1, 2], help="draws of the images")
    parser.add_argument("--decays", type=float, nargs="+", default=[0.0, 0.1, 0.3, 1.0, 3.0, 10.0])
    parser.add_argument("--halves", type=int, nargs="+", choices=(1, 2), default=[2, 1], help="of a draw to train on")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--data-dir", type=Path, help="of the image files")
    parser.add_argument("--output", type=Path, help="JSON file; stdout by default")
    parser.add_argument("--tiny", action="store_true", help="a linear classifier of digits, in seconds")
    options = parser.parse_args()
    os.environ.setdefault(CONNECTIONS, "32")
    scale, device = TINY if options.tiny else Scale(), torch.device(options.device)
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = True  # as in the table's runs
    images = load_images(scale.data, options.data_dir)
    assert images is not None  # it was to be downloaded, so that it is there
    test = on_device(images.test, scale.model, device)
    found: dict[str, Any] = {"format": FORMAT, "command": "python benchmarks/one_decay_gpu.py"}
    found |= {**scale._asdict(), "lr": LR, "optimizer": "torch.optim.AdamW", "machine": machine()}
    if device.type == "cuda":
        found["machine"]["device"] = torch.cuda.get_device_name(device)
    found |= {"seconds": {}, "runs": []}
    for halves in options.halves:
        begun, rows, runs = time.perf_counter(), halves * scale.half, list[OneDecayRun]()
        for draw, decay in itertools.product(options.draws, options.decays):
            parts = images.draw(draw, scale.half)[:halves]
            x, y = (torch.cat(part) for part in zip(*parts, strict=True))
            own, model = on_device((x, y), scale.model, device), start_model(scale.model, images, draw)
            about = {"images": rows, "draw": draw, "decay": decay}
            runs.append(OneDecayRun(model, own, test, adam(decay, device), about))
        found["runs"] += [run.record for run in runs]
        for _ in train(runs, scale.steps, scale.interval, device):
            found["seconds"][str(rows)] = round(time.perf_counter() - begun, 1)
            text = json.dumps(found, separators=(",", ":")).replace('{"images"', '\n{"images"') + "\n"
            if options.output:
                options.output.write_text(text, encoding="utf-8")
        last = [f"{run.record['draw']}/{run.record['decay']:g} {run.record['test_accuracy'][-1]:.4f}" for run in runs]
        print(f"{rows} images, {found['seconds'][str(rows)]} s:", ", ".join(last), flush=True)


if __name__ == "__main__":
    main()
