"""Training with PyTorch alone, which `front_door_gpu.py` compares `pt.tune` with: many runs at once on a CUDA device.

Ten steps of each run are one CUDA graph, on a stream of its own.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from pactune.paper.data import Images
from pactune.paper.models import ModelName, make_model
from pactune.streams import Streams

PER_GRAPH = 10  # steps of a run that are captured in one CUDA graph
TEST_ROWS = 5000  # test images per forward


class HandRun:
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


def train(runs: Sequence[HandRun], steps: int, interval: int, device: torch.device) -> Iterator[int]:
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
