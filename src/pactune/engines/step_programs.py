"""The steps of a chain as a function of flat tensors, with or without fused kernels, ready to be captured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from pactune.engines.compiling import CompiledPrograms
from pactune.engines.graph_options import GraphOptions
from pactune.engines.joint_gradients import JointGradients
from pactune.engines.layout import Forms, TensorList, TreeLayout, flatten, tensor_forms, with_unit_strides
from pactune.engines.replayed_chain import ReplayedChain
from pactune.engines.segment import Segment, SegmentData, flat_function
from pactune.engines.tracing import Program, trace
from pactune.hypergradient.records import GradientPair, StepData
from pactune.rounds.chain import Carry
from pactune.trees import Params

__all__ = ["new_stream", "step_program"]


def step_program(chain: ReplayedChain, options: GraphOptions, compiled: CompiledPrograms) -> Program:
    """Return the steps of one chain as a function of flat tensors."""
    if options.fuse == "steps":
        return _fused_steps(chain, compiled)
    segment = chain.segment
    trajectory = replace(segment.trajectory, side=new_stream() if options.two_streams else None)
    update = _FusedUpdate(segment, compiled) if options.fuse == "updates" else None
    return flat_function(segment.like(trajectory=trajectory, step_from_pair=update), chain.layouts)


def new_stream() -> torch.cuda.Stream:
    """Return a new CUDA stream."""
    return torch.cuda.Stream()  # type: ignore[no-untyped-call]


class _FusedUpdate:
    """The elementwise part of a step, which follows its two gradients, compiled."""

    def __init__(self, segment: Segment, compiled: CompiledPrograms) -> None:
        self._step_from_pair, self._compiled = segment.step_from_pair, compiled
        self._known: dict[tuple[TreeLayout, Forms], tuple[Program, TreeLayout]] = {}

    def __call__(self, carry: Carry, hyper: Params, data: StepData, pair: GradientPair) -> Carry:
        bare = carry._replace(state=carry.state._replace(buffers={}))
        value = (bare, hyper, data.noise, data.numbers, pair._replace(buffers={}))
        tensors, layout = flatten(value)
        flat = with_unit_strides(tensors)
        key = layout, tensor_forms(flat)
        if key not in self._known:
            self._known[key] = self._compile(flat, layout, data)
        program, result_layout = self._known[key]
        found: Carry = result_layout.restore(list(program(*flat)))
        return found._replace(state=found.state._replace(buffers=pair.buffers))

    def _compile(self, example: TensorList, layout: TreeLayout, data: StepData) -> tuple[Program, TreeLayout]:
        result_layouts: list[TreeLayout] = []

        def function(*tensors: Tensor) -> TensorList:
            carry, hyper, noise, numbers, pair = layout.restore(tensors)
            after = self._step_from_pair(carry, hyper, data._replace(noise=noise, numbers=numbers), pair)
            flat, result_layout = flatten(after)
            result_layouts.append(result_layout)
            return flat

        return self._compiled.compile(trace(function, example), example), result_layouts[0]


def _fused_steps(chain: ReplayedChain, compiled: CompiledPrograms) -> Program:
    """Return a function that runs compiled steps one after the other. Steps of one kind share a compiled program."""
    segment, (carry_layout, hyper_layout, data_layout) = chain.segment, chain.layouts
    known: dict[tuple[Any, ...], Program] = {}
    stacked = bool(segment.trajectory.problem.runs)
    count = len(carry_layout.tensors)

    def program(*tensors: Tensor) -> Sequence[Tensor]:
        carry, hyper = list(tensors[:count]), list(tensors[count : count + len(hyper_layout.tensors)])
        segment_data: SegmentData = data_layout.restore(tensors[count + len(hyper) :])
        joint = JointGradients.of(segment.trajectory, segment_data.train, segment_data.valid)
        for t, measured in enumerate(segment.measured):
            data = segment_data.single(t)
            if joint is not None and measured:
                data = data._replace(train=[joint.batch], valid=[joint.batch._replace(data=())])
            inputs, layout = flatten(data)
            flat = with_unit_strides([*carry, *hyper, *inputs])
            key = (measured, layout, tensor_forms(flat))
            if key not in known:
                step = segment.like(measured=(measured,), gradient_pair=joint if measured else None)
                function = flat_function(step, (carry_layout, hyper_layout, layout))
                known[key] = compiled.compile(trace(function, flat, transpose=stacked), flat)
            carry = list(known[key](*flat))
        return carry

    return program
