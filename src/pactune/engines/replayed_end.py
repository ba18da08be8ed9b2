"""The end of a round of one chain with the tensors of its replay, and how closely two ends must agree."""

from __future__ import annotations

import torch
from torch import Tensor

from pactune.engines.layout import TensorList, TreeLayout, flatten
from pactune.engines.replayed_chain import carries_agree, norms_of_sound_runs
from pactune.engines.round_end import RoundEnd, read_round
from pactune.rounds.chain import Carry, ChainEnd
from pactune.rounds.engine import RoundChain
from pactune.trees import Params, sub

__all__ = ["ReplayedEnd", "ends_agree", "probes_agree"]

RISKS = 2  # the first values of a probe


class ReplayedEnd:
    """The end of a round of one chain, with its tensors.

    Args:
        round_chain: a chain that stands at step `first` of its round, and its data.
        first: the first step of the end.

    Attributes:
        start: the tensors of the start: those of the carry, then the others.
        carry: the tensors of the carry.
        others: the other tensors of the start.
        hyper: the tensors of λ.
        data: the tensors of the data.
    """

    def __init__(self, round_chain: RoundChain, first: int) -> None:
        chain = round_chain.chain
        self.function = RoundEnd.of(chain, first)
        self.problem, self._path_sums = chain.plan.trajectory.problem, chain.path_sums
        self._start, self._data = read_round(round_chain, first)
        self._hyper, self._steps = chain.hyper, chain.carry.state.step + chain.plan.inner_steps - first
        self.start, self._start_layout = flatten(self._start)
        self.carry = flatten(self._start.carry)[0]
        self.others = self.start[len(self.carry) :]
        self.hyper, self._hyper_layout = flatten(chain.hyper)
        self.data, self._data_layout = flatten(self._data)

    @property
    def layouts(self) -> tuple[TreeLayout, TreeLayout, TreeLayout]:
        """The layouts of start, λ and data."""
        return self._start_layout, self._hyper_layout, self._data_layout

    def probe(self) -> TensorList:
        """Return the values of `probe` that the present functions give; `function` keeps the graph."""
        return self.function.ask(self._start, self._hyper, self._data)

    def with_count(self, end: ChainEnd) -> ChainEnd:
        """Return the end of the chain with its step count."""
        return end._replace(state=end.state._replace(step=self._steps))

    def agrees(self, found: ChainEnd) -> bool:
        """Return True if a replayed end equals the end that the chain gives eagerly, up to rounding.

        A derivative may be a small difference of large parts, and its rounding is then large. So if the first
        comparison fails, a second eager run shows how far two correct results are apart.
        """
        wanted, start = self.run(), Carry(self._start.carry.state, *self._path_sums(), {})
        return ends_agree(found, wanted, start) or ends_agree(found, wanted, start, again=self.run())

    def run(self) -> ChainEnd:
        """Return the end that the chain gives eagerly."""
        return self.function.run(self._start, self._hyper, self._data)


def ends_agree(found: ChainEnd, wanted: ChainEnd, start: Carry, *, again: ChainEnd | None = None) -> bool:
    """Return True if two ends of a chain are equal up to rounding.

    The state and the sums are compared as by `carries_agree`, other parts relative to their norms.

    Args:
        found: the end to judge.
        wanted: the correct end.
        start: the state at the start of both, with the sums so far.
        again: another correct end. Its gap to `wanted` is allowed ten times.
    """
    if not carries_agree(_carry(found), _carry(wanted), start, None if again is None else _carry(again)):
        return False
    tolerance = 1e-6 if wanted.risk.dtype == torch.float64 else 1e-2
    others = _other_parts(wanted if again is None else again)
    close = []
    for a, b, c in zip(_other_parts(found), _other_parts(wanted), others, strict=True):
        gap, size, spread = norms_of_sound_runs(a, b, wanted.risk.ndim, b, sub(c, b))
        close.append(gap <= tolerance * size + 10 * spread)
    return bool(torch.stack(close).all())


def _carry(end: ChainEnd) -> Carry:
    return Carry(end.state, end.total, end.path_gradient, {})


def _other_parts(end: ChainEnd) -> list[Params]:
    """Return the parts of an end that are not in its carry: the risk, its gradient, every note, and the memory."""
    parts = [{"": end.risk}, end.risk_gradient, *({"": note} for note in end.notes.values()), dict(end.memory)]
    return [part for part in parts if part]


def probes_agree(found: list[TensorList], wanted: list[TensorList]) -> list[bool]:
    """Return True for every chain whose probed values are equal up to the rounding of a forward.

    Each value is compared relative to its largest element. A risk near 0 is a difference of logits near 1, so a few
    roundings of 1 are allowed.
    """
    agree = []
    for own, others in zip(found, wanted, strict=True):
        close = [_close(a, b, is_risk=i < RISKS) for i, (a, b) in enumerate(zip(own, others, strict=True))]
        agree.append(torch.stack(close).all())
    flags: list[bool] = torch.stack(agree).tolist()  # one transfer for all chains
    return flags


def _close(found: Tensor, wanted: Tensor, *, is_risk: bool) -> Tensor:
    """Return whether two tensors are close, on their device. Values that are not finite must be the same."""
    loose = 1e-8 if wanted.dtype == torch.float64 else 1e-3
    least = 8 * torch.finfo(wanted.dtype).eps if is_risk else 0.0
    same = (found == wanted) | (found.isnan() & wanted.isnan())
    scale = torch.where(wanted.isfinite(), wanted, 0.0).abs().amax() if wanted.numel() else wanted.new_zeros(())
    return (same | ((found - wanted).abs() <= loose * scale + least)).all()
