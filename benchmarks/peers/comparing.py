"""The comparisons of `benchmarks/peers`: outer steps of pactune and of its peers, timed in turn in one process.

A problem gives a function that makes a tuner, and a function per peer that makes a `Way`. The gradients of the first
outer steps are compared first; a peer that disagrees is an error, since its time would mean nothing.
"""

from __future__ import annotations

import argparse
import importlib.util
import inspect
import json
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[1]))

from measuring import interleave, machine, ratio, write

import pactune as pt
from pactune.streams import Streams

__all__ = ["Comparison", "Way", "mini_batches", "peer", "risk_is_stochastic", "tuned_start"]

SELDOM = "pactune fit, evaluate_every=100"
WARM_UP = 1000  # inner steps before the library records
LONG_WARM_UP = 100  # rounds before it records rounds of many steps
EVERY = 100  # outer steps from one evaluation of `fit` to the next


class Way(NamedTuple):
    """An outer step, and the tensors that it tunes; their `.grad` is the gradient of the last outer step."""

    outer_step: Callable[[], object]
    hyper: Sequence[Tensor]


class Peer(NamedTuple):
    """A way of somebody else: how it is made, what it imports, and how far its gradient may be from pactune's."""

    make: Callable[[], Way]
    package: str | None = None
    tolerance: float = 1e-4


def peer(make: Callable[[], Way], package: str | None = None, tolerance: float = 1e-4) -> Peer:
    """Return a peer. A tolerance of infinity is for a peer that estimates another gradient, which is not compared."""
    return Peer(make, package, tolerance)


def mini_batches(rows: int, size: int, role: str) -> Iterator[Tensor]:
    """Yield the row numbers of the mini-batches that pactune reads with seed 0, so that all ways read the same rows."""
    streams = Streams(0)
    for epoch in count():
        order = torch.randperm(rows, generator=torch.Generator().manual_seed(streams.key("order", role, epoch)))
        yield from order.split(size)


def risk_is_stochastic() -> bool:
    """Return True if the validation risk of an outer step is read on a mini-batch of `valid_batch_size` rows."""
    return "risk_batch_size" in inspect.signature(pt.Problem).parameters


def tuned(tuner: pt.Tuner) -> list[Tensor]:
    """Return what a tuner tunes, in the order of its optimizer."""
    return [p for group in tuner.outer.param_groups for p in group["params"]]


def tuned_start(tuner: pt.Tuner) -> list[Tensor]:
    """Return a tuned initialization in the order of the model's parameters."""
    values = {name.rpartition("values.")[2].replace("/", "."): p for name, p in tuner.problem.hyper.named_parameters()}
    return [values[name] for name, _ in tuner.problem.model.named_parameters()]


@dataclass
class Comparison:
    """One problem: what pactune runs, what the peers run, and the ratios that are wanted.

    Args:
        name: the name of the result, `peers_<name>.json`.
        tuner: makes a tuner with an engine.
        peers: the other ways, by name.
        outer_steps: outer steps per measurement.
        bars: the largest ratio wanted, by the name of the peer, and "fit" for `fit` with few evaluations.
        hyper: returns what the tuner tunes in the order of the peers' `Way.hyper`.
        notes: further words for the result.
        engines: the engines of a loop of one's own, by the words after "pactune". The first one is that of `fit` too.
        warm_up: outer steps before the first measurement; None for as many as the library needs to record on a CPU.
        clock: the clock of all ways.
    """

    name: str
    tuner: Callable[[str], pt.Tuner]
    peers: Mapping[str, Peer]
    outer_steps: int = 20
    bars: Mapping[str, float] = field(default_factory=dict)
    hyper: Callable[[pt.Tuner], list[Tensor]] = tuned
    notes: Mapping[str, Any] = field(default_factory=dict)
    engines: Mapping[str, str] = field(default_factory=lambda: {"": "auto", " eager": "eager"})
    warm_up: int | None = None
    clock: Callable[[], float] = time.process_time

    def main(self) -> None:
        """Compare, print the result and write it."""
        parser = argparse.ArgumentParser(description=f"pactune and its peers: {self.name}")
        parser.add_argument("--repeats", type=int, default=7)
        parser.add_argument("--without-fit", action="store_true", help="do not time `fit`")
        options = parser.parse_args()
        torch.set_num_threads(1)
        found = self.compare(options.repeats, with_fit=not options.without_fit)
        write(f"peers_{self.name}.json", found)
        print(json.dumps(found, indent=1, ensure_ascii=False))

    def compare(self, repeats: int, *, with_fit: bool) -> dict[str, Any]:
        """Return the ratios and the agreement of the gradients."""
        missing = self.missing()
        peers = {name: one for name, one in self.peers.items() if name not in missing}
        gaps = self.gaps()
        ways = {f"pactune{label}": self._own_loop(engine) for label, engine in self.engines.items()}
        ways |= {name: _repeated(one.make(), self.outer_steps) for name, one in peers.items()}
        if with_fit:
            ways |= self._fits()
        taken = interleave(ways, repeats, self.clock)
        taken[SELDOM] = [seconds * self.outer_steps / EVERY for seconds in taken.get(SELDOM, [])]
        taken = {name: seconds for name, seconds in taken.items() if seconds}
        return {
            "machine": machine(),
            "bars": {"fit": 1.6, **self.bars},
            "÷": {name: self._ratios(taken, name) for name in peers},
            "milliseconds per outer step": {n: round(min(t) / self.outer_steps * 1e3, 3) for n, t in taken.items()},
            "largest gap of gradients": gaps,
            "left out": missing,
            "notes": dict(self.notes),
        }

    def _ratios(self, taken: Mapping[str, list[float]], name: str) -> dict[str, Any]:
        ours = [key for key in taken if key.startswith("pactune")]
        return {key.removeprefix("pactune").strip() or "own loop": ratio(taken[key], taken[name]) for key in ours}

    def missing(self) -> dict[str, str]:
        """Return the peers that are not installed, with the reason."""
        return {name: f"{one.package} is not installed" for name, one in self.peers.items() if not _installed(one)}

    def gaps(self) -> dict[str, float]:
        """Return the largest difference of the gradients of the first outer step, relative to the largest gradient.

        Raises:
            SystemExit: a difference is larger than the peer's tolerance.
        """
        known = {name: one for name, one in self.peers.items() if name not in self.missing()}
        return {name: self._gap(name, one.tolerance) for name, one in known.items() if one.tolerance < math.inf}

    def first_gradients(self, name: str) -> tuple[Tensor, Tensor]:
        """Return the gradients of pactune and of a peer in the first outer step."""
        tuner, other = self.tuner("eager"), self.peers[name].make()
        tuner.hypergradient()
        other.outer_step()
        return _gradient(self.hyper(tuner)), _gradient(other.hyper)

    def _gap(self, name: str, tolerance: float) -> float:
        ours, theirs = self.first_gradients(name)
        gap = float((ours - theirs).abs().max() / theirs.abs().max())
        if not gap <= tolerance:
            raise SystemExit(f"{self.name}: the gradients of pactune and {name} differ by {gap:.2e}")
        return gap

    def _own_loop(self, engine: str) -> Callable[[], None]:
        tuner = self.tuner(engine)

        def outer_step() -> None:
            tuner.hypergradient()
            tuner.outer.step()

        for _ in range(2 if engine == "eager" else self._warm_up(tuner)):
            outer_step()
        return _repeated(Way(outer_step, []), self.outer_steps)

    def _fits(self) -> dict[str, Callable[[], None]]:
        """Return `fit` with its defaults, with an evaluation now and then, and without any evaluation.

        Peers train no plain model beside the tuned one, so the last two do not either.
        """
        return {
            "pactune fit": self._fit(self.outer_steps),
            SELDOM: self._fit(EVERY, plain_steps=0, evaluate_every=EVERY),
            "pactune fit, bare": self._fit(self.outer_steps, plain_steps=0, evaluate_every=0),
        }

    def _fit(self, steps: int, **settings: Any) -> Callable[[], None]:
        tuner = self.tuner(next(iter(self.engines.values())))
        tuner.fit(self._warm_up(tuner), progress=False, plain_steps=0, evaluate_every=0)

        def run() -> None:
            tuner.fit(steps, progress=False, **settings)

        return run

    def _warm_up(self, tuner: pt.Tuner) -> int:
        """Return the number of rounds after which the library has recorded what it records."""
        return max(WARM_UP // tuner.inner_steps, LONG_WARM_UP) + 2 if self.warm_up is None else self.warm_up


def _gradient(hyper: Sequence[Tensor]) -> Tensor:
    return torch.cat([p.grad.detach().flatten() for p in hyper if p.grad is not None])


def _installed(one: Peer) -> bool:
    return one.package is None or importlib.util.find_spec(one.package) is not None


def _repeated(way: Way, times: int) -> Callable[[], None]:
    def run() -> None:
        for _ in range(times):
            way.outer_step()

    return run
