"""The modules of a problem: which of their tensors are θ and λ, where the modules hold them, and the modules' mode."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from pactune.errors import SettingError, warn_user
from pactune.problem.tensor_slots import TensorSlots, owner, without_cast_cache
from pactune.streams import forked_rng, seed_forward
from pactune.trees import Params

__all__ = [
    "ModuleTensors",
    "as_module",
    "copied",
    "evaluating",
    "frozen_parts",
    "has_own_train",
    "mode",
    "refuse_complex",
    "refuse_torchscript",
    "rest",
    "restored_mode",
    "training",
    "uncompiled",
    "wake",
    "warn_if_compiled",
]

# Names of the parts that the user had put into `eval()` mode before `rest` put the whole model there.
_FROZEN: WeakKeyDictionary[nn.Module, frozenset[str]] = WeakKeyDictionary()


def as_module(name: str, given: object) -> nn.Module:
    """Return a module whose parameters can be replaced by other tensors during a call.

    For a module that `torch.compile` returned, this is the original module. Both share parameters and buffers.

    Raises:
        SettingError: `given` is no module, contains TorchScript, or has parameters that are complex or without a shape.
    """
    module = uncompiled(given)
    if not isinstance(module, nn.Module):
        raise SettingError(f"`{name}` must be an nn.Module, got {type(module).__name__}")
    refuse_torchscript(name, module)
    _refuse_exported(name, module)
    tensors = itertools.chain(module.named_parameters(), module.named_buffers())
    shapeless = [path for path, tensor in tensors if is_lazy(tensor)]
    if shapeless:
        raise SettingError(
            f"`{name}` must have parameters with a shape, got uninitialised {', '.join(shapeless)} of lazy modules; "
            "call the model on one batch first"
        )
    refuse_complex(name, module)
    return module


def _refuse_exported(name: str, module: nn.Module) -> None:
    """Raise for a module of `torch.export`: its `train` and `eval` raise when they are called."""
    if isinstance(module, torch.fx.GraphModule) and "train" in vars(module):
        raise SettingError(
            f"`{name}` must have a training and an evaluation mode, and a module of torch.export has none; pass the "
            "module that was exported"
        )


def refuse_torchscript(name: str, module: nn.Module) -> None:
    """Raise for a module with TorchScript inside: its parameters and buffers cannot be replaced."""
    if any(isinstance(part, torch.jit.ScriptModule) for part in module.modules()):
        raise SettingError(
            f"`{name}` must be an ordinary nn.Module, got {type(module).__name__} with TorchScript inside, whose "
            "parameters and buffers cannot be replaced; pass the module that was scripted or traced"
        )


def refuse_complex(name: str, module: nn.Module) -> None:
    """Raise for trainable parameters that are complex: norms and penalties are those of real numbers."""
    found = [path for path, value in module.named_parameters() if value.requires_grad and value.is_complex()]
    if found:
        raise SettingError(
            f"`{name}` must have real trainable parameters, got complex {', '.join(found)}; register two real "
            "parameters for each, and join them in the forward by torch.view_as_complex(torch.stack([real, imag], -1))"
        )


def uncompiled(function: Any) -> Any:
    """Return the original of what `torch.compile` returned; any other function or module unchanged."""
    original = getattr(function, "_orig_mod", None) or getattr(function, "_torchdynamo_orig_callable", None)
    return function if original is None else original


def warn_if_compiled(model: object) -> None:
    """Warn that tuning calls a compiled model without its compiled code."""
    if uncompiled(model) is not model or (isinstance(model, nn.Module) and any(True for _ in _compiled_parts(model))):
        warn_user(
            "the model is compiled by torch.compile; tuning calls the module without the compiled code, which has no "
            "second derivatives and would be compiled again for every tensor in the place of a parameter; "
            '`engine="compiled"` compiles the inner steps'
        )


def _compiled_parts(model: nn.Module) -> Iterator[tuple[dict[str, Any], str, Any]]:
    """Yield the attributes that `torch.compile` set to redirect a module's calls, with the values that undo it."""
    for part in model.modules():
        if "_orig_mod" in part._modules:  # torch.compile(module)
            yield vars(part), "forward", part._modules["_orig_mod"]
        if vars(part).get("_compiled_call_impl") is not None:  # module.compile()
            yield vars(part), "_compiled_call_impl", None


class ModuleTensors:
    """The names of θ and λ, and the slots in which the modules hold them; tied tensors have several slots."""

    def __init__(self, model: nn.Module, hyper: nn.Module) -> None:
        hyper_ids = {id(p): name for name, p in hyper.named_parameters() if p.requires_grad}
        theta = {name: p for name, p in model.named_parameters() if p.requires_grad and id(p) not in hyper_ids}
        if not theta:
            raise SettingError(f"{type(model).__name__} has no trainable parameter of its own")
        if not hyper_ids:
            raise SettingError(f"{type(hyper).__name__} has no parameter that requires a gradient: nothing to tune")
        self._theta_names, self._lambda_names = list(theta), list(hyper_ids.values())
        theta_ids = {id(p): name for name, p in theta.items()}
        self.params, self.hyper, self.buffers = TensorSlots(), TensorSlots(), TensorSlots()
        for name, p in model.named_parameters(remove_duplicate=False):
            if id(p) in theta_ids:
                self.params.add(theta_ids[id(p)], *owner(model, name))
            elif id(p) in hyper_ids:
                self.hyper.add(hyper_ids[id(p)], *owner(model, name))
        for name, p in hyper.named_parameters(remove_duplicate=False):
            if id(p) in hyper_ids:
                self.hyper.add(hyper_ids[id(p)], *owner(hyper, name))
        names: dict[int, list[str]] = {}
        for name, buffer in model.named_buffers(remove_duplicate=False):
            names.setdefault(id(buffer), []).append(name)
            self.buffers.add(names[id(buffer)][0], *owner(model, name))
        shared = [every for every in names.values() if len(every) > 1]
        self._shared_buffers = [[(name, *owner(model, name)) for name in every] for every in shared]
        parts = {id(part): part for module in (model, hyper) for part in module.modules()}.values()
        self._stores = [store for part in parts for store in (part._parameters, part._buffers) if store]
        self.hyper_inside_model = any(id(p) in hyper_ids for p in model.parameters())
        for part in (*_compiled_parts(model), *_compiled_parts(hyper)):
            self.params.fix(*part)
        _refuse_shared_memory({**theta, **{f"hyper {name}": p for name, p in self.hyper_leaves().items()}}, model)

    def check_shared_buffers(self) -> None:
        """Raise if a forward assigned another tensor in one of the places of a buffer that several modules share."""
        for places in self._shared_buffers:
            if len({id(getattr(module, attribute)) for _, module, attribute in places}) > 1:
                raise SettingError(
                    f"`model` has one tensor as the buffers {', '.join(name for name, *_ in places)}, and a forward "
                    "assigned another tensor to one of them; write into the buffer by `copy_`, or register a tensor "
                    "for each"
                )

    def every(self) -> list[torch.Tensor]:
        """Return all parameters and buffers of both modules."""
        found = [tensor for store in self._stores for tensor in store.values() if tensor is not None]
        return list({id(tensor): tensor for tensor in found}.values())

    def parameters(self) -> Params:
        """Return θ, sharing its memory with the model."""
        every = self.params.tensors()
        return {name: every[name].detach() for name in self._theta_names}

    def hyperparameters(self) -> Params:
        """Return λ, sharing its memory with the hyper module."""
        return {name: value.detach() for name, value in self.hyper_leaves().items()}

    def hyper_leaves(self) -> Params:
        """Return λ as the parameters of the hyper module, which have `.grad`."""
        every = self.hyper.tensors()
        return {name: every[name] for name in self._lambda_names}

    def device_and_dtype(self) -> tuple[torch.device, torch.dtype]:
        """Return the device and the type that all parameters share; raise if they differ."""
        tensors = self.parameters() | {f"hyper {k}": v for k, v in self.hyperparameters().items()}
        pairs = {(value.device, value.dtype) for value in tensors.values()}
        if len(pairs) > 1:
            found = ", ".join(sorted(f"{device}/{dtype}" for device, dtype in pairs))
            raise SettingError(f"model and hyper must be on one device and of one type, got {found}; use `.to(...)`")
        return pairs.pop()


def _refuse_shared_memory(changing: Params, model: nn.Module) -> None:
    """Raise if a parameter or buffer that runs change shares memory with another tensor of the model, or with itself.

    Tensors of their own stand in for both during a step, so that a change of one would not be seen in the other.
    """
    changing = changing | dict(model.named_buffers())
    known = {id(tensor) for tensor in changing.values()}
    every = changing | {name: p for name, p in model.named_parameters() if id(p) not in known}
    spans = sorted((*span, name) for name, tensor in every.items() if (span := _memory(tensor)))
    for (_, end, first), (begin, _, second) in itertools.pairwise(spans):
        if begin < end and not {first, second}.isdisjoint(changing):
            raise SettingError(
                f"{first} and {second} share memory; register one tensor in both places, or give each memory of its own"
            )
    if repeated := [name for name, tensor in changing.items() if tensor.numel() > 1 and 0 in _strides(tensor)]:
        raise SettingError(f"the elements of {repeated[0]} share memory, as after `expand`; register a `clone()` of it")


def _memory(tensor: torch.Tensor) -> tuple[int, int] | None:
    """Return the first and the last address of a tensor's elements; None if it has none."""
    if tensor.layout != torch.strided or tensor.is_meta or not tensor.numel():
        return None
    steps = sum(stride * (size - 1) for stride, size in zip(tensor.stride(), tensor.shape, strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + (steps + 1) * tensor.element_size()


def _strides(tensor: torch.Tensor) -> list[int]:
    """Return the strides of the axes with more than one element."""
    if tensor.layout != torch.strided:
        return []
    return [stride for stride, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1]


@contextmanager
def training(model: nn.Module) -> Iterator[None]:
    """Put a model into training mode, all but its frozen parts, and restore the flag of every part on exit."""
    with restored_mode(model):
        wake(model)
        yield


@contextmanager
def mode(model: nn.Module, *, training: bool) -> Iterator[None]:
    """Set all modules to training or `eval()` mode, and restore the flag of each on exit."""
    with restored_mode(model):
        model.train(training)
        yield


def frozen_parts(model: nn.Module) -> set[nn.Module]:
    """Return the parts of a model that stay in `eval()` mode while it is trained.

    In a model in training mode these are the parts that the user put into `eval()` mode. A model in `eval()` mode has
    none, unless `rest` put it there: then they are the parts that were frozen before.
    """
    if model.training:
        return {part for part in model.modules() if not part.training}
    names = _FROZEN.get(model, frozenset())
    return {part for name, part in model.named_modules() if name in names}


def wake(model: nn.Module) -> None:
    """Put a model into training mode, all but its frozen parts. A `train` of its own may freeze further parts."""
    if not model.training or has_own_train(model):
        frozen = frozen_parts(model)
        model.train()
        for part in frozen:
            part.training = False


def rest(model: nn.Module) -> None:
    """Put a model into `eval()` mode, and remember its frozen parts for `wake`."""
    frozen = frozen_parts(model)
    _FROZEN[model] = frozenset(name for name, part in model.named_modules() if part in frozen)
    model.eval()


def copied(model: nn.Module, *others: Any) -> tuple[Any, ...]:
    """Return a deep copy of a model, which remembers its frozen parts, and of other objects together with it."""
    twins: tuple[Any, ...] = copy.deepcopy((model, *others))
    if model in _FROZEN:
        _FROZEN[twins[0]] = _FROZEN[model]
    return twins


@contextmanager
def restored_mode(model: nn.Module) -> Iterator[None]:
    """Restore the training flag of every module on exit, and what a `train` of its own sets with it."""
    flags = [(module, module.training) for module in model.modules()]
    try:
        yield
    finally:
        if model.training is not flags[0][1] and has_own_train(model):
            model.train(flags[0][1])
        for module, flag in flags:
            if module.training is not flag:  # an assignment to an attribute of a module takes long
                module.training = flag


def has_own_train(model: nn.Module) -> bool:
    """Return True if a class inside a model overrides `train`."""
    return any(type(module).train is not nn.Module.train for module in model.modules())


@contextmanager
def evaluating(model: nn.Module, device: torch.device) -> Iterator[None]:
    """Evaluate in `eval()` mode, without gradients, with seeded random draws; restore everything on exit."""
    with (
        mode(model, training=False),
        _without_compiled_code(model),
        without_cast_cache(device),
        forked_rng(device),
        torch.no_grad(),
    ):
        seed_forward(device, 0)
        yield


@contextmanager
def _without_compiled_code(model: nn.Module) -> Iterator[None]:
    """Let calls of a compiled model run its original code."""
    before = [(store, attribute, store[attribute]) for store, attribute, _ in _compiled_parts(model)]
    for store, attribute, original in list(_compiled_parts(model)):
        store[attribute] = original
    try:
        yield
    finally:
        for store, attribute, value in before:
            store[attribute] = value
