"""The options under which inner steps are captured in a CUDA graph."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Literal

import torch

__all__ = ["GraphOptions"]


@dataclass(frozen=True)
class GraphOptions:
    """The options of `Captured` that change the kernels of a graph. See `Captured` for their meaning.

    The defaults are the kernels of an eager step.
    """

    two_streams: bool = True
    fuse: Literal["updates", "steps"] | None = None
    autotune: bool = False
    tf32: bool | None = None
    autocast: Literal["bfloat16", "float16"] | None = None
    channels_last: bool = False

    @property
    def memory_format(self) -> torch.memory_format:
        """The memory format of tensors with four axes; by default they keep theirs."""
        return torch.channels_last if self.channels_last else torch.preserve_format

    @contextmanager
    def precision(self) -> Iterator[None]:
        """Set the flags by which torch chooses kernels, and restore them on exit."""
        cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
        before = cudnn.benchmark, cudnn.allow_tf32, matmul.allow_tf32
        cudnn.benchmark = self.autotune or before[0]
        if self.tf32 is not None:
            cudnn.allow_tf32 = matmul.allow_tf32 = self.tf32
        try:
            with ExitStack() as stack:
                if self.autocast is not None:
                    kind = getattr(torch, self.autocast)
                    stack.enter_context(torch.autocast("cuda", dtype=kind, cache_enabled=False))
                yield
        finally:
            cudnn.benchmark, cudnn.allow_tf32, matmul.allow_tf32 = before
