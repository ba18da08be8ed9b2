"""The weights of modules as tensors by name: reading them, fitting them into a module, and modules without code."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from pactune.errors import SettingError
from pactune.problem.modules import as_module
from pactune.trees import Params

__all__ = ["SavedModule", "copy_with", "fit_into", "weights_of"]


class SavedModule(nn.Module):
    """The weights of a module whose code is not there: a result that was loaded without its modules holds it.

    Args:
        kind: the name of the class that the weights belong to.
        weights: its tensors.
    """

    def __init__(self, kind: str, weights: Params) -> None:
        super().__init__()
        self.kind, self._weights = kind, weights

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Return the weights by name."""
        return dict(self._weights)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Raise, since no code is known.

        Raises:
            SettingError: always.
        """
        raise SettingError(self.remedy)

    @property
    def remedy(self) -> str:
        """The sentence that says what to do."""
        return (
            f"this result was loaded without its modules, so {self.kind} has weights and no code; "
            "use `pt.load_result(folder, model=..., hyper=...)`"
        )

    def extra_repr(self) -> str:
        """Return the class and the number of tensors."""
        return f"{self.kind}, {len(self._weights)} tensors"


def weights_of(role: str, module: nn.Module) -> Params:
    """Return copies of the entries of a module's `state_dict()`, on the CPU.

    Raises:
        SettingError: an entry is no tensor, or no ordinary one.
    """
    found = {}
    for name, value in module.state_dict().items():
        if not isinstance(value, Tensor) or value.layout != torch.strided or value.is_meta or value.is_quantized:
            kind = type(value).__name__ if not isinstance(value, Tensor) else f"{value.layout} on {value.device.type}"
            raise SettingError(
                f"the state of `{role}` must be ordinary tensors to be saved, and {name} is a {kind}; "
                "save this module with torch.save"
            )
        found[name] = value.detach().cpu().clone(memory_format=torch.contiguous_format)
    return found


def fit_into(role: str, given: object, weights: Params, kind: str) -> nn.Module:
    """Load weights into a module and return it in `eval()` mode. The module is unchanged if they do not fit.

    Raises:
        SettingError: `given` is no module, or has other names, shapes or types.
    """
    module = as_module(role, given)
    present = {name: _shape(value) for name, value in module.state_dict().items()}
    saved = {name: _shape(value) for name, value in weights.items()}
    for name in sorted(present.keys() | saved.keys()):
        if present.get(name) != saved.get(name):
            raise SettingError(
                f"`{role}` must be made like the {kind} that was saved; {name} is {present.get(name, 'not there')} in "
                f"`{role}` and {saved.get(name, 'not there')} in the folder"
            )
    module.load_state_dict(weights)
    return module.eval()


@torch.no_grad()
def copy_with(model: nn.Module, state: Params) -> nn.Module:
    """Return a copy of a model in `eval()` mode, with other parameters and buffers.

    Raises:
        SettingError: the model has no code, or a tensor does not fit it.
    """
    if isinstance(model, SavedModule):
        raise SettingError(model.remedy)
    twin = copy.deepcopy(model).eval()
    tensors = {**dict(twin.named_parameters()), **dict(twin.named_buffers())}
    for name, value in state.items():
        if name not in tensors or tensors[name].shape != value.shape:
            raise SettingError(f"the model of a fold has {name} of shape {tuple(value.shape)}, and the model has not")
        tensors[name].copy_(value)
    return twin


def _shape(value: object) -> str:
    if not isinstance(value, Tensor):
        return f"a {type(value).__name__}"
    return f"{tuple(value.shape)} {str(value.dtype).removeprefix('torch.')}"
