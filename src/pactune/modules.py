"""What a problem needs to know of its modules: who is θ, who is λ, where they live, and in which mode they are."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from pactune.errors import SettingError
from pactune.streams import forked_rng, seed_forward
from pactune.swap import Places, owner
from pactune.trees import Params

__all__ = ["Names", "evaluating", "mode"]


class Names:
    """Who is θ, who is λ, and where the modules keep them (ties included)."""

    def __init__(self, model: nn.Module, hyper: nn.Module) -> None:
        hyper_ids = {id(p): name for name, p in hyper.named_parameters() if p.requires_grad}
        own = {name: p for name, p in model.named_parameters() if p.requires_grad and id(p) not in hyper_ids}
        if not own:
            raise SettingError(f"{type(model).__name__} has no trainable parameter of its own")
        if not hyper_ids:
            raise SettingError(f"{type(hyper).__name__} has no parameter that requires a gradient: nothing to tune")
        self._own, self._lambda = list(own), list(hyper_ids.values())
        own_ids = {id(p): name for name, p in own.items()}
        self.params, self.hyper, self.buffers = Places(), Places(), Places()
        for name, p in model.named_parameters(remove_duplicate=False):
            if id(p) in own_ids:
                self.params.add(own_ids[id(p)], *owner(model, name))
            elif id(p) in hyper_ids:
                self.hyper.add(hyper_ids[id(p)], *owner(model, name))
        for name, p in hyper.named_parameters(remove_duplicate=False):
            if id(p) in hyper_ids:
                self.hyper.add(hyper_ids[id(p)], *owner(hyper, name))
        for name, _ in model.named_buffers():
            self.buffers.add(name, *owner(model, name))
        self.hyper_inside_model = any(id(p) in hyper_ids for p in model.parameters())

    def parameters(self) -> Params:
        """Return θ, sharing its memory with the model."""
        every = self.params.tensors()
        return {name: every[name].detach() for name in self._own}

    def hyperparameters(self) -> Params:
        """Return λ, sharing its memory with the hyper module."""
        return {name: value.detach() for name, value in self.hyper_leaves().items()}

    def hyper_leaves(self) -> Params:
        """Return λ as the hyper module itself holds it, with `.grad`."""
        every = self.hyper.tensors()
        return {name: every[name] for name in self._lambda}

    def place(self) -> tuple[torch.device, torch.dtype]:
        """Return the one device and the one type of all parameters."""
        tensors = self.parameters() | {f"hyper {k}": v for k, v in self.hyperparameters().items()}
        places = {(value.device, value.dtype) for value in tensors.values()}
        if len(places) > 1:
            found = ", ".join(sorted(f"{device}/{dtype}" for device, dtype in places))
            raise SettingError(f"model and hyper must be on one device and of one type, got {found}; use `.to(...)`")
        return places.pop()


@contextmanager
def mode(model: nn.Module, *, training: bool) -> Iterator[None]:
    """Set the mode of all modules, and put their own flags back on exit."""
    flags = {module: module.training for module in model.modules()}
    model.train(training)
    try:
        yield
    finally:
        for module, flag in flags.items():
            module.training = flag


@contextmanager
def evaluating(model: nn.Module, device: torch.device) -> Iterator[None]:
    """Put the model into `eval()` mode without gradients and with fixed draws, and all back as it was afterwards."""
    with mode(model, training=False), forked_rng(device), torch.no_grad():
        seed_forward(device, 0)
        yield
