"""The paper's classifiers: linear, ResNet-18 and ResNet-34.

The residual networks have the ImageNet layout (He et al. 2016) and the state-dict names of torchvision, so that its
weights load. As in the authors' code, they keep 1000 outputs and the 7 × 7 stem for images of any size.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from pactune.streams import Streams, forked_rng

__all__ = ["MODEL_NAMES", "GroupedBatchNorm2d", "ModelName", "ResNet", "make_model", "resnet18", "resnet34"]

ModelName = Literal["linear", "resnet18", "resnet34"]
MODEL_NAMES: tuple[ModelName, ...] = ("linear", "resnet18", "resnet34")
_WIDTHS = (64, 128, 256, 512)


def make_model(name: ModelName, shape: tuple[int, ...], *, seed: int, norm_rows: int | None = None) -> nn.Module:
    """Build a classifier whose initial weights are a function of the seed.

    Args:
        name: "linear", which takes flat images and has ten outputs, "resnet18" or "resnet34".
        shape: channels, height and width of an image.
        seed: seed of the initial weights; global generators do not change.
        norm_rows: evaluate with the statistics of this many rows instead of the running ones, see `ResNet`.
    """
    with forked_rng(torch.device("cpu")):
        torch.default_generator.manual_seed(Streams(seed).key("model"))
        if name == "linear":
            return nn.Linear(math.prod(shape), 10)
        make = resnet18 if name == "resnet18" else resnet34
        return make(channels=shape[0], norm_rows=norm_rows)


def resnet18(*, channels: int = 3, outputs: int = 1000, norm_rows: int | None = None) -> ResNet:
    """Build ResNet-18: 11.7 million parameters."""
    return ResNet((2, 2, 2, 2), channels=channels, outputs=outputs, norm_rows=norm_rows)


def resnet34(*, channels: int = 3, outputs: int = 1000, norm_rows: int | None = None) -> ResNet:
    """Build ResNet-34: 21.8 million parameters."""
    return ResNet((3, 4, 6, 3), channels=channels, outputs=outputs, norm_rows=norm_rows)


class GroupedBatchNorm2d(nn.BatchNorm2d):
    """BatchNorm that, in `eval()`, normalises every group of `rows` consecutive images by the statistics of the group.

    The outputs are those of a model that stays in training mode and sees batches of `rows` images. One call replaces,
    for example, 2,500 batches of four. A smaller last group is a group as well; a single last image joins the group
    before it.
    """

    def __init__(self, channels: int, rows: int) -> None:
        super().__init__(channels)
        self.rows = rows

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        """Normalise. Shape (n, channels, height, width)."""
        if self.training or len(input) <= self.rows:
            return super().forward(input) if self.training else self._groups(input, 1)
        count = len(input) // self.rows
        if len(input) % self.rows == 1:
            count -= 1
        whole = count * self.rows
        parts = [self._groups(input[:whole], count)] if count else []
        parts += [self._groups(input[whole:], 1)] if whole < len(input) else []
        return torch.cat(parts)

    def _groups(self, x: Tensor, count: int) -> Tensor:
        """Normalise `count` equal groups at once: the groups become channels of a smaller batch."""
        n, c, h, w = x.shape
        folded = x.reshape(count, n // count, c, h, w).transpose(0, 1).reshape(n // count, count * c, h, w)
        weight, bias = self.weight.repeat(count), self.bias.repeat(count)
        found = functional.batch_norm(folded, None, None, weight, bias, training=True, eps=self.eps)
        return found.reshape(n // count, count, c, h, w).transpose(0, 1).reshape(n, c, h, w)


class ResNet(nn.Module):
    """A residual network of basic blocks.

    Args:
        blocks: number of blocks in each of the four stages.
        channels: channels of an image.
        outputs: outputs of the last layer.
        norm_rows: None uses running statistics in `eval()`; a number uses the statistics of groups of so many images.
            The authors never call `eval()` and test in batches of 50 (MNIST) and 4 (CIFAR-10).
    """

    def __init__(self, blocks: tuple[int, ...], *, channels: int, outputs: int, norm_rows: int | None) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, 64, 7, stride=2, padding=3, bias=False)
        self.bn1 = _norm(64, norm_rows)
        self.relu = nn.ReLU()
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        before = 64
        for stage, (width, count) in enumerate(zip(_WIDTHS, blocks, strict=True), start=1):
            strides = [1 if stage == 1 else 2, *[1] * (count - 1)]
            layers = [_Block(before if i == 0 else width, width, s, norm_rows) for i, s in enumerate(strides)]
            self.add_module(f"layer{stage}", nn.Sequential(*layers))
            before = width
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(512, outputs)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        """Return the scores. Shapes (n, channels, height, width) and (n, outputs)."""
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        for stage in range(1, 5):
            x = self.get_submodule(f"layer{stage}")(x)
        scores: Tensor = self.fc(self.avgpool(x).flatten(1))
        return scores


class _Block(nn.Module):
    """Two 3 × 3 convolutions beside a shortcut."""

    def __init__(self, before: int, width: int, stride: int, norm_rows: int | None) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, width, 3, stride=stride, padding=1, bias=False)
        self.bn1 = _norm(width, norm_rows)
        self.relu = nn.ReLU()
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = _norm(width, norm_rows)
        self.downsample: nn.Module | None = None
        if stride != 1 or before != width:
            shortcut = nn.Conv2d(before, width, 1, stride=stride, bias=False)
            self.downsample = nn.Sequential(shortcut, _norm(width, norm_rows))

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x if self.downsample is None else self.downsample(x)
        y = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        joined: Tensor = self.relu(y + shortcut)
        return joined


def _norm(channels: int, rows: int | None) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(channels) if rows is None else GroupedBatchNorm2d(channels, rows)
