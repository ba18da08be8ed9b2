"""Check that a model computes with the tensors that stand in for its parameters, in the backward pass too."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from pactune.errors import SettingError
from pactune.problem import Problem
from pactune.problem.data import Batch
from pactune.problem.modules import has_own_train, mode
from pactune.streams import forked_rng, seed_forward
from pactune.trees import Params, clone, leaves, map_tree

__all__ = ["check_stand_ins"]

Risk = Callable[[Params, Params, Params, Batch], Tensor]
ROUNDING = 64  # units of rounding by which the kernels of a forward may differ inside and outside a graph


def check_stand_ins(problem: Problem) -> None:
    """Compute both risks with other tensors in place of θ and λ, and compare with the modules' own parameters.

    During a step the modules hold θ_t, and afterwards their own parameters again. A backward pass that runs parts of
    the forward once more would find the wrong tensors.

    Raises:
        SettingError: a risk reads a parameter in another place, treats the stand-ins in another way, runs code of the
            model in its backward pass, or writes into buffers that a step does not know.
    """
    _refuse_gradient_hooks(problem)
    _refuse_merged_weights(problem)
    sides = (("train", problem.train_risk, problem.train), ("valid", problem.valid_risk, problem.valid))
    known = {id(buffer) for buffer in problem.buffers().values()}
    others = {name: buffer for name, buffer in problem.hyper.named_buffers() if id(buffer) not in known}
    before = [clone(problem.buffers()), clone(others)]
    with forked_rng(problem.device), problem.training_mode():
        for role, risk, source in sides:
            _check_side(problem, role, risk, source.first())
            _check_unchanged(f"the {role} loss", before, [problem.buffers(), others])


def _own_parameters(problem: Problem) -> list[tuple[str, Tensor]]:
    """Return the modules' own θ and λ, with their names."""
    return [*problem.leaves().items(), *problem.hyper_leaves().items()]


def _refuse_gradient_hooks(problem: Problem) -> None:
    for name, p in _own_parameters(problem):
        if p._backward_hooks or getattr(p, "_post_accumulate_grad_hooks", None):
            raise SettingError(
                f"the parameter {name} has gradient hooks, which the tensors in its place do not have; remove "
                "them. To keep a part of a parameter fixed, mask it in the forward, as a parametrization of torch does"
            )


def _refuse_merged_weights(problem: Problem) -> None:
    """Raise if `eval()` changes tensors of the model, as adapters do that are merged into their layers."""
    if not has_own_train(problem.model):
        return

    def eval_changes_tensors() -> bool:
        before = [(tensor, tensor.detach().clone()) for tensor in problem.tensors()]
        with problem.training_mode(), mode(problem.model, training=False):
            changed = [tensor for tensor, old in before if not torch.equal(tensor, old)]
        for tensor, old in before:
            tensor.detach().copy_(old)
        return bool(changed)

    moved = map_tree(lambda p: p + 1, problem.parameters())  # adapters start at 0
    if problem.at(moved, problem.hyperparameters(), clone(problem.buffers()), eval_changes_tensors):
        raise SettingError(
            "`model.eval()` changes tensors of the model, and a run evaluates other tensors than those that were "
            "changed; switch merging off, such as merge_weights=False"
        )


def _check_side(problem: Problem, role: str, risk: Risk, batch: Batch) -> None:
    params, hyper = leaves(problem.parameters()), leaves(problem.hyperparameters())

    def value(params: Params, hyper: Params) -> Tensor:
        seed_forward(problem.device, 0)
        return risk(params, hyper, clone(problem.buffers()), batch)

    with torch.no_grad():
        wanted = value(problem.leaves(), problem.hyper_leaves())
        plain = value(problem.parameters(), problem.hyperparameters())
    with torch.enable_grad():
        found = value(map_tree(lambda p: p * 1, params), hyper)
    eps = torch.finfo(problem.dtype).eps
    close = partial(torch.allclose, wanted, rtol=ROUNDING * eps, atol=eps, equal_nan=True)
    if not all(close(one.detach()) for one in (plain, found)):
        raise SettingError(
            f"the {role} loss looks at `requires_grad`, `is_leaf` or the type of parameters, in which the tensors in "
            "their place differ; choose parameters by name"
        )
    if found.requires_grad:
        _check_gradient(problem, role, found, [*params.values(), *hyper.values()])


def _check_gradient(problem: Problem, role: str, found: Tensor, inputs: list[Tensor]) -> None:
    own, buffers = _own_parameters(problem), clone(problem.buffers())
    every = [*inputs, *(p for _, p in own)]

    def gradient(params: Params, hyper: Params) -> list[Tensor | None]:
        """Return the gradient by all tensors while the modules hold these θ and λ."""
        found_at = partial(torch.autograd.grad, found, every, retain_graph=True, allow_unused=True)
        return [*problem.at(params, hyper, buffers, found_at)]

    at = leaves(problem.parameters()), leaves(problem.hyperparameters())
    nothing = [leaves(map_tree(lambda p: torch.full_like(p, torch.nan), tree)) for tree in at]
    without = gradient(*nothing)
    around = [name for (name, _), g in zip(own, without[len(inputs) :], strict=True) if g is not None]
    if around:
        raise SettingError(
            f"the {role} loss reads {around[0]} from a list or a variable that keeps the parameter itself; read it "
            "from its module in every forward, as in `self.layer.weight`"
        )
    if any(g is not None and bool(g.isnan().any()) for g in without):
        pairs = zip(without, gradient(*at), strict=True)
        if any(a is not None and b is not None and bool((a.isnan() & ~b.isnan()).any()) for a, b in pairs):
            raise SettingError(
                f"the backward pass of the {role} loss runs code of the model again, as torch.utils.checkpoint does, "
                "and the model does not hold the parameters of the step then; switch checkpointing off"
            )


def _check_unchanged(what: str, before: list[Params], after: list[Params]) -> None:
    for owner, old, new in zip(("model", "hyper"), before, after, strict=True):
        changed = [name for name in old if not torch.equal(old[name], new[name])]
        if changed:
            raise SettingError(
                f"{what} writes into the buffer {changed[0]} of `{owner}`, where a step cannot follow it: a step runs "
                "a forward several times, on copies of the model's buffers. Read buffers of the model from their "
                "module in every forward, and put parts of `hyper` that keep statistics into eval() mode"
            )
