"""Tasks: several problems that share λ, fixed or drawn anew at every outer step, as in meta-learning."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pactune.checks import check_count, shown
from pactune.errors import DataError, SettingError
from pactune.nested import Nesting, flatten
from pactune.problem.data import Source, in_type
from pactune.problem.data.changing import ExchangedSource
from pactune.problem.data.indexed import TensorRows
from pactune.problem.loss_checks import layout
from pactune.streams import Streams

__all__ = ["TaskData", "Tasks"]

Draw = Callable[[torch.Generator], Any]
_Form = tuple[Nesting, list[Any]]


class TaskData(NamedTuple):
    """The training and the validation set of one task."""

    train: Source
    valid: Source


class Tasks:
    """The tasks of a problem. Each of `tasks_per_step` places holds one task at a time.

    Args:
        tasks: a function from a `torch.Generator` to a task, or a list of tasks. A task is a pair (train, valid).
        tasks_per_step: the number of tasks of an outer step; None for all tasks of a list.
        make: turns a task into sources.

    Attributes:
        drawn: True if every outer step draws its tasks.
        places: the present tasks.

    Raises:
        SettingError: the arguments are of another form.
        DataError: a task is of another form, or its data cannot be used.
    """

    def __init__(self, tasks: Any, tasks_per_step: int | None, make: Callable[[Any, Any], TaskData]) -> None:
        self._make, self._draw, self._list = make, tasks if callable(tasks) else None, list[TaskData]()
        self._first: TaskData | None = None
        self._known: tuple[_Form, TensorRows, TensorRows] | None = None
        if self._draw is None:
            self._list = [self._task(task) for task in _listed(tasks)]
        elif tasks_per_step is None:
            raise SettingError("`tasks` is a function, so `tasks_per_step` must say how many tasks an outer step has")
        count = len(self._list) if tasks_per_step is None else tasks_per_step
        check_count("tasks_per_step", count, words="≥ 1, a whole number")
        if self._list and count > len(self._list):
            raise SettingError(f"`tasks_per_step` is {count} and `tasks` has {len(self._list)}")
        self.drawn = self._draw is not None or count < len(self._list)
        self._loaded: tuple[int, int] | None = None
        first = self._list[:count] if self._draw is None else self._drawn_tasks(0, count, Streams(0))
        self.places = [TaskData(ExchangedSource(task.train), ExchangedSource(task.valid)) for task in first]

    @classmethod
    def fixed(cls, tasks: Sequence[TaskData]) -> Tasks:
        """Return a fixed list of tasks."""
        return cls(list(tasks), None, TaskData)

    def load(self, round_index: int, streams: Streams) -> None:
        """Put the tasks of an outer step into the places. They depend only on the seed and the step.

        Raises:
            DataError: a task has rows of another form than the first one.
        """
        key = round_index, streams.seed
        if not self.drawn or self._loaded == key:
            return
        tasks = self._drawn_tasks(round_index, len(self.places), streams)
        for place, task in zip(self.places, tasks, strict=True):
            for source, present in zip(place, task, strict=True):
                assert isinstance(source, ExchangedSource)
                source.exchange(present)
        self._loaded = key

    def in_type(self, dtype: torch.dtype) -> Tasks:
        """Return the present tasks in another floating-point type."""
        return Tasks.fixed([TaskData(*(in_type(source, dtype) for source in place)) for place in self.places])

    def fingerprint(self) -> str:
        """Return a text that differs between tasks, as far as that is cheap to compute."""
        if self._draw is not None:
            return f"{len(self.places)} tasks per step, drawn by a function"
        words = [f"{task.train.fingerprint()} / {task.valid.fingerprint()}" for task in self._list]
        return f"{len(self.places)} tasks per step of {'; '.join(words)}"

    def _drawn_tasks(self, round_index: int, count: int, streams: Streams) -> list[TaskData]:
        if self._draw is not None:
            generators = [streams.generator("task", round_index, place) for place in range(count)]
            return [self._task(self._called(self._draw, generator)) for generator in generators]
        generator = streams.generator("tasks", round_index)
        chosen = torch.randperm(len(self._list), generator=generator, device="cpu")[:count]
        return [self._list[number] for number in chosen.tolist()]

    @staticmethod
    def _called(draw: Draw, generator: torch.Generator) -> Any:
        try:
            return draw(generator)
        except TypeError as error:
            raise SettingError(f"`tasks` must be a function of a torch.Generator; it fails with: {error}") from error

    def _task(self, task: Any) -> TaskData:
        """Return a task as sources. A task of tensors that differs from another one in their values needs no checks."""
        form = _form(task)
        if form is not None and self._known is not None and form == self._known[0]:
            _, train, valid = self._known
            return TaskData(train.with_tensors(task[0]), valid.with_tensors(task[1]))
        if not isinstance(task, (tuple, list)) or len(task) != 2:
            raise DataError(f"a task must be a pair (train, valid), got {shown(task)}")
        made = self._make(*task)
        self._check_layout(made)
        if form is not None and isinstance(made.train, TensorRows) and isinstance(made.valid, TensorRows):
            self._known = form, made.train, made.valid
        return made

    def _check_layout(self, task: TaskData) -> None:
        """Raise if a task has rows of another form than the first one."""
        self._first = self._first or task
        if _layout(task) != _layout(self._first):
            first, other = (" / ".join(layout(source.first().data) for source in one) for one in (self._first, task))
            raise DataError(f"all tasks must have rows of one form, {first}, got {other}")


def _listed(tasks: Any) -> list[Any]:
    if not isinstance(tasks, (list, tuple)) or not tasks:
        raise SettingError(f"`tasks` must be a function of a torch.Generator or a list of tasks, got {shown(tasks)}")
    return list(tasks)


def _form(task: Any) -> _Form | None:
    """Return everything about a task of tensors but their values; None for other data."""
    if type(task) not in (tuple, list) or not {*map(type, task)} <= {tuple, list, dict}:
        return None
    leaves, nesting = flatten(task)
    if {*map(type, leaves)} != {Tensor}:
        return None
    return nesting, [(leaf.shape, leaf.dtype, leaf.layout, leaf.device) for leaf in leaves]


def _layout(task: TaskData) -> tuple[Nesting, list[Any]]:
    """Return how the rows of a task look: nesting, types and shapes, without the number of rows."""
    leaves, nesting = flatten((task.train.first().data, task.valid.first().data))
    return nesting, [(leaf.dtype, leaf.shape[1:]) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
