"""The rows of a search: one sample with folds, or a training and a validation sample as one."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, Dataset, IterableDataset

from pactune.errors import DataError, SettingError
from pactune.nested import flatten
from pactune.problem.data import Source, as_source
from pactune.problem.folds import FoldRows, make_folds
from pactune.problem.model_inputs import split_target

__all__ = ["Sample", "first_inputs", "needs_pull", "one_sample", "spread_of"]

MOST_INPUTS = 20_000  # wider inputs are not correlated with each other
MOST_NOISE = 10**5  # numbers in the inputs of all rows, of which a step draws as many for its noise
MOST_NUMBERS = 10**8  # in the inputs of all rows


class Sample(NamedTuple):
    """The rows of a search.

    Attributes:
        data: all rows, in a form that `Problem` takes.
        folds: the rows that train and those that validate.
        refit: True if the final model trains on all rows.
    """

    data: Any
    folds: tuple[FoldRows, ...]
    refit: bool


def one_sample(data: Any, valid: Any, folds: Any, groups: Any, device: torch.device) -> Sample:
    """Return the rows of a search and their folds.

    With `valid` every fold trains on `data`, and the folds validate by different rows of `valid`.

    Raises:
        DataError: the samples are not of one kind.
        SettingError: `folds` or `groups` are not what they must be.
    """
    for role, part in (("data", data), ("valid", valid)):
        if isinstance(part, IterableDataset):
            raise DataError(f"`{role}` is an IterableDataset, whose rows have no number; use a Dataset with a length")
    if valid is None:
        found = make_folds(as_source(data, role="data", device=device), folds, groups, refit=True, least=3)
        return Sample(data, found.folds, refit=True)
    if groups is not None:
        raise SettingError("`groups` belongs to folds of `data`; with `valid` leave it out")
    train, other = (as_source(part, role=role, device=device) for part, role in ((data, "data"), (valid, "valid")))
    parts = make_folds(other, min(5, other.rows) if folds is None else folds, None, refit=False).folds
    every = torch.arange(train.rows, device="cpu")
    return Sample(_joined(data, valid), tuple(FoldRows(every, part.valid + train.rows) for part in parts), refit=False)


def _joined(data: Any, valid: Any) -> Any:
    """Return two samples as one."""
    (rows, nesting), (others, other_nesting) = flatten(data), flatten(valid)
    if all(isinstance(leaf, Tensor) for leaf in (*rows, *others)) and nesting == other_nesting:
        try:
            return nesting.restore([torch.cat([one, other]) for one, other in zip(rows, others, strict=True)])
        except RuntimeError as error:
            raise DataError(f"`valid` must be made like `data`: {error}") from error
    if all(isinstance(one, Dataset) and not isinstance(one, IterableDataset) for one in (data, valid)):
        return ConcatDataset([data, valid])
    raise DataError("`data` and `valid` must both hold tensors and be made alike, or both be a Dataset with a length")


def first_inputs(source: Source) -> Tensor | None:
    """Return the inputs of all rows if each batch is a pair (inputs, target) with inputs of a moderate size."""
    found, numbers = list[Tensor](), 0
    for batch in source.evaluation():
        parts = split_target(batch.data)
        if parts is None or len(parts.arguments) != 1 or not isinstance(parts.arguments[0], Tensor):
            return None
        inputs = parts.arguments[0]
        numbers += inputs.numel()
        if numbers > MOST_NUMBERS or inputs[0].numel() > MOST_INPUTS:
            return None
        found.append(inputs)
    return torch.cat(found)


def spread_of(inputs: Tensor) -> float:
    """Return the standard deviation of the inputs around their means; 0 if they cannot have noise.

    All inputs have noise of one spread, as all weights have one decay.
    """
    dense = inputs.layout == torch.strided and inputs.is_floating_point()
    if not dense or inputs.numel() > MOST_NOISE or len(inputs) < 2:
        return 0.0
    return float(inputs.double().var(0).mean().sqrt())


def needs_pull(inputs: Tensor) -> bool:
    """Return True if there are more inputs than rows, so that the rows alone do not determine a weight per input."""
    return inputs[0].numel() > len(inputs)
