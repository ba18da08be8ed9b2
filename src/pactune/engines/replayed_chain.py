"""One chain with the tensors of the steps that a CUDA graph replays for it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from pactune.engines.layout import TensorList, TreeLayout, flatten
from pactune.engines.segment import Segment, SegmentReader
from pactune.rounds.chain import Carry
from pactune.rounds.engine import RoundChain
from pactune.trees import Params, copy_tensors_, norm, norms, sub

__all__ = ["ReplayedChain", "carries_agree", "norms_of_sound_runs", "static_copies"]

OUTER = ("λ", "outer slots")  # the parts that move in the online algorithm alone


class ReplayedChain:
    """One chain with the tensors of the steps that are replayed.

    Args:
        round_chain: the chain and its data.
        start: the first step.
        stop: the step after the last one.
        size: the number of steps per replay.
        memory_format: the memory format of the static tensors with four axes. The default keeps the one that a tensor
            has, so that the steps run the kernels of an eager step.
    """

    def __init__(
        self,
        round_chain: RoundChain,
        start: int,
        stop: int,
        size: int,
        memory_format: torch.memory_format = torch.preserve_format,
    ) -> None:
        chain = round_chain.chain
        self.round_chain, self.size, self._memory_format = round_chain, size, memory_format
        self.problem = chain.plan.trajectory.problem
        self.segment = Segment.of(round_chain, start, size)
        self.carry, self._carry_layout = flatten(round_chain.carry.at_start())
        self.hyper, self._hyper_layout = flatten(round_chain.hyper)
        self.reader = SegmentReader(round_chain, start, stop)
        self.data, self.data_layout = self.reader.read_flat(start, size)

    @property
    def layouts(self) -> tuple[TreeLayout, TreeLayout, TreeLayout]:
        """The layouts of carry, λ and data."""
        return self._carry_layout, self._hyper_layout, self.data_layout

    def with_copied_carry(self) -> ReplayedChain:
        """Copy the carry, because the chain's next step may overwrite its state; return this object."""
        self.carry = [tensor.clone() for tensor in self.carry]
        return self

    def agrees(self, replayed: TensorList) -> bool:
        """Return True if a replay of one step from the carry equals the chain's own step, up to rounding."""
        restore = self._carry_layout.restore
        return carries_agree(restore(replayed), self.round_chain.carry, restore(self.carry))

    def static_copies(self, tensors: TensorList) -> TensorList:
        """Return copies on the device. A graph reads and writes them at fixed addresses."""
        return static_copies(tensors, self.problem.device, self._memory_format, 4 + len(self.problem.runs))

    def continue_from(self, carry_tensors: TensorList, steps: int) -> None:
        """Let the chain continue from the carry of a graph, after `steps` replayed steps, in its own memory format."""
        copies = [torch.empty_like(own) for own in self.carry]
        copy_tensors_(copies, carry_tensors)
        carry: Carry = self._carry_layout.restore(copies)
        state = carry.state._replace(step=self.round_chain.chain.carry.state.step + steps)
        self.round_chain.continue_from(carry._replace(state=state), steps)


def static_copies(
    tensors: TensorList,
    device: torch.device,
    memory_format: torch.memory_format = torch.preserve_format,
    axes: int = 4,
) -> TensorList:
    """Return copies on the device; those of images and kernels have the given memory format.

    Args:
        tensors: the tensors to copy.
        device: the device of the copies.
        memory_format: the memory format of tensors with `axes` axes.
        axes: 4, and 5 for those of stacked runs.
    """
    return [_copy(tensor.to(device), memory_format, axes) for tensor in tensors]


def _copy(tensor: Tensor, memory_format: torch.memory_format, axes: int) -> Tensor:
    if tensor.ndim != axes or memory_format == torch.preserve_format:
        return tensor.detach().clone()
    copy = tensor.detach().flatten(0, axes - 4).clone(memory_format=memory_format)
    return copy.view(tensor.shape)


def carries_agree(found: Carry, wanted: Carry, before: Carry, again: Carry | None = None) -> bool:
    """Return True if two carries after one or a few steps are equal, compared with how far these moved each part.

    Kernels on a GPU may sum in another order at every call. In float32 the two ways of one step of a ResNet-34 on an
    H200 differed by up to 2e-3 of the move in Adam's first moment and 7e-3 in the parameters. In float64 the parameters
    have the larger tolerance, since Adam turns the rounding of a gradient near 0 into a whole step. So does RMSprop,
    which moves λ in the online algorithm, with the rounding of a product.

    A stacked run that diverges gives no finite number either way, so it says nothing about the others. The norms of
    single runs take a kernel per tensor. So they are taken only if those over all runs do not agree.

    Args:
        found: the carry to judge.
        wanted: the correct carry.
        before: the carry before the steps.
        again: another correct carry. Its gap to `wanted` is allowed ten times.
    """
    carries = (found, wanted, before, wanted if again is None else again)
    return _carries_agree(*carries, _norms_of_all_runs) or _carries_agree(*carries, norms_of_sound_runs)


def _carries_agree(
    found: Carry, wanted: Carry, before: Carry, again: Carry, measure: Callable[..., list[Tensor]]
) -> bool:
    double = found.total.dtype == torch.float64
    eps = torch.finfo(found.total.dtype).eps
    carries = (found, wanted, before, again)
    close = []
    for (name, a), (_, b), (_, start), (_, c) in zip(*(_float_parts(carry).items() for carry in carries), strict=True):
        tolerance = (5e-2 if name in OUTER else 1e-2) if not double else 1e-6 if name in ("params", *OUTER) else 1e-8
        gap, move, size, spread = measure(a, b, wanted.total.ndim, sub(b, start), b, sub(c, b))
        allowed = tolerance * move + 100 * eps * size + 10 * spread
        close.append((gap <= allowed) & allowed.isfinite())
    return bool(torch.stack(close).all())


def _norms_of_all_runs(found: Params, wanted: Params, axes: int, *others: Params) -> list[Tensor]:
    del axes
    return [norm(tree) for tree in (sub(found, wanted), *others)]


def norms_of_sound_runs(found: Params, wanted: Params, axes: int, *others: Params) -> list[Tensor]:
    """Return the norms of `found` − `wanted` and of other trees, without the runs in which neither is finite.

    Args:
        found: the tree to judge.
        wanted: the correct tree.
        axes: the number of leading axes along which runs are stacked.
        others: trees of the same shapes.
    """
    sound = norms(found, axes).isfinite() | norms(wanted, axes).isfinite()
    each = [norms(tree, axes) for tree in (sub(found, wanted), *others)]
    return [torch.where(sound, one, 0.0).square().sum().sqrt() for one in each]


def _float_parts(carry: Carry) -> dict[str, Params]:
    """Return the tensors of a carry by part, without integer buffers, which count batches."""
    buffers = {name: value for name, value in carry.state.buffers.items() if value.is_floating_point()}
    parts = {"params": carry.state.params, **carry.state.slots, "buffers": buffers}
    parts |= {"sums": carry.sums, "squares": carry.squares}
    if carry.online is not None:
        slots = {f"{slot} {name}": v for slot, values in carry.online.slots.items() for name, v in values.items()}
        parts |= dict(zip(OUTER, (carry.online.hyper, slots), strict=True))
    return {"total": {"": carry.total}, **{name: part for name, part in parts.items() if part}}
