"""Compile recordings into fused kernels, and share what is compiled between recordings that are equal."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx
from torch._guards import TracingContext, tracing
from torch._subclasses.fake_tensor import FakeTensorMode

from pactune.engines.compiled_rewrites import add_up_windows, split_long_sums
from pactune.engines.layout import Forms, TensorList, tensor_forms
from pactune.engines.tracing import Program

__all__ = ["CompiledPrograms", "compile_graph"]


def compile_graph(graph: fx.GraphModule, example: TensorList) -> Program:
    """Return a recording as fused kernels, for tensors with the shapes and strides of the example.

    This is the compiler behind `torch.compile` without its front end for Python code, since a recording has none.
    PyTorch looks for compiled kernels on disk only if a `ShapeEnv` describes the shapes, though these are fixed.
    """
    from torch._inductor import compile as compile_with_inductor  # both take long to import
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    if any(tensor.is_cuda for tensor in example):
        add_up_windows(graph)
        split_long_sums(graph)
    mode = FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)
    inputs: list[Any] = [mode.from_tensor(tensor.detach(), static_shapes=True) for tensor in example]
    with torch.no_grad(), tracing(TracingContext(mode)):
        program: Program = compile_with_inductor(graph, inputs)
    return program


class CompiledPrograms:
    """Compiled recordings. Recordings of the same operations share a compiled program, since compiling takes seconds.

    The chains of a grid differ in their modules, so each of them is recorded; but mostly the recordings are equal.
    """

    def __init__(self) -> None:
        self._known: list[tuple[str, dict[str, Any], Forms, Program]] = []

    def compile(self, graph: fx.GraphModule, example: TensorList) -> Program:
        """Return a recording as a compiled program for tensors like those of the example."""
        code, forms, constants = graph.code, tensor_forms(example), _constants(graph)
        for known_code, known_constants, known_forms, program in self._known:
            if (code, forms) == (known_code, known_forms) and _all_equal(constants, known_constants):
                return program
        program = compile_graph(graph, example)
        self._known.append((code, constants, forms, program))
        return program


def _constants(graph: fx.GraphModule) -> dict[str, Any]:
    """Return what a recording reads beside its arguments, by name."""
    names = {str(node.target) for node in graph.graph.find_nodes(op="get_attr")}
    return {name: getattr(graph, name) for name in names}


def _all_equal(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return one.keys() == other.keys() and all(_equal(value, other[name]) for name, value in one.items())


def _equal(one: Any, other: Any) -> bool:
    if not (isinstance(one, Tensor) and isinstance(other, Tensor)):
        return one is other
    alike = (one.shape, one.dtype, one.device) == (other.shape, other.dtype, other.device)
    return one is other or (alike and torch.equal(one, other))
