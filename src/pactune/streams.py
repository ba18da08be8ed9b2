"""Randomness as a function of a seed and a path: no global seed is touched and any draw can be repeated.

A draw belongs to a path such as `("noise", chain, step)`. Its generator is seeded from a hash of the seed and the path,
so a step can be replayed, two chains never share noise, and a resumed run needs no generator state.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

__all__ = ["GLOBAL_STATE", "Streams", "forked_rng", "seed_forward"]


@dataclass(frozen=True)
class Streams:
    """All random draws of one run.

    >>> Streams(0).key("noise", 3) == Streams(0).key("noise", 3)
    True
    >>> Streams(0).key("noise", 3) == Streams(1).key("noise", 3)
    False
    """

    seed: int

    def key(self, *path: int | str) -> int:
        """Return the 63-bit seed of a path."""
        digest = hashlib.blake2b(repr((self.seed, path)).encode(), digest_size=8).digest()
        return int.from_bytes(digest, "little") >> 1

    def generator(self, *path: int | str, device: torch.device | str = "cpu") -> torch.Generator:
        """Return a generator that is a function of the seed and the path."""
        return torch.Generator(device=device).manual_seed(self.key(*path))


GLOBAL_STATE = threading.RLock()
"""A lock to hold while torch's global generators or backend flags are changed, since all threads share them."""


@contextmanager
def forked_rng(device: torch.device) -> Iterator[None]:
    """Restore the global generators on exit, so that a stochastic forward does not change them.

    Only one thread at a time enters, since all threads share the generator that dropout draws from.
    """
    devices = [device] if device.type == "cuda" else []
    with GLOBAL_STATE, torch.random.fork_rng(devices=devices):
        yield


def seed_forward(device: torch.device, key: int) -> None:
    """Seed the global generators, from which dropout draws; call it inside `forked_rng` only."""
    torch.default_generator.manual_seed(key)
    if device.type == "cuda":
        torch.cuda.default_generators[device.index or 0].manual_seed(key)
