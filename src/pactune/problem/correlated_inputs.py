"""A penalty that draws the weights of correlated inputs to each other."""

from __future__ import annotations

import copy
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding_bag, softplus

from pactune.checks import POSITIVE, check_count, check_number, check_type
from pactune.errors import DataError, SettingError
from pactune.problem.hyper import inverse_softplus
from pactune.problem.modules import as_module
from pactune.trees import Params

__all__ = ["CorrelatedInputs", "takes_inputs"]

BLOCK = 512  # inputs whose correlations with all others are in memory at once


class CorrelatedInputs(nn.Module):
    """The penalty ½ s Σ a_ij (w_i − σ_ij w_j)² on the first layer's weights w, over pairs of correlated inputs.

    Each input is joined to the inputs that it is most correlated with. The weight of a pair is a_ij = r_ij², where r_ij
    is their correlation, and σ_ij is its sign. The sum is scaled so that its largest curvature is 1. The strength s is
    the hyperparameter: one positive number for all outputs, the softplus of `raw`.

    Few rows with many inputs of one kind gain most: pixels, spectra, sensors, expression levels. The penalty needs no
    knowledge of how the inputs are arranged.

    Args:
        model: its first `nn.Linear` must take the inputs.
        inputs: the training inputs, without the targets. Shape (rows, ...); what follows is flattened.
        neighbours: the number of inputs to which each is joined.
        init: the initial strength.

    Raises:
        SettingError: the model has no linear layer that takes the inputs.
        DataError: `inputs` has fewer than two rows or is not finite.

    Example:
        >>> _ = torch.manual_seed(0)
        >>> one = torch.randn(50, 1)
        >>> inputs = torch.cat([one, one + 0.1 * torch.randn(50, 1), torch.randn(50, 1)], dim=1)
        >>> penalty = CorrelatedInputs(nn.Linear(3, 1), inputs, neighbours=1, init=1.0)
        >>> near, far = torch.tensor([[1.0, 1.0, 0.0]]), torch.tensor([[1.0, -1.0, 0.0]])
        >>> bool(penalty.penalty({"weight": near}) < penalty.penalty({"weight": far}))
        True
    """

    places: Tensor
    pulls: Tensor
    degrees: Tensor

    def __init__(self, model: nn.Module, inputs: Tensor, *, neighbours: int = 4, init: float = 0.01) -> None:
        super().__init__()
        check_count("neighbours", neighbours)
        check_number("init", init, POSITIVE)
        check_type("inputs", inputs, Tensor, "a tensor with a row per example")
        self.layer, weight = _first_layer(model, inputs)
        places, pulls = _graph(_standardized(inputs), min(neighbours, weight.shape[1] - 1))
        degrees = pulls.abs().sum(1)
        largest = _largest_curvature(places, pulls, degrees)
        self.raw = nn.Parameter(weight.new_tensor(inverse_softplus(init)))
        self.register_buffer("places", places.to(weight.device))
        self.register_buffer("pulls", (pulls / largest).to(weight))
        self.register_buffer("degrees", (degrees / largest).to(weight))

    def at_strength(self, strength: float) -> CorrelatedInputs:
        """Return a copy with another strength. The graph of the inputs, which takes time, is copied too."""
        twin = copy.deepcopy(self)
        with torch.no_grad():
            twin.raw.fill_(inverse_softplus(strength))
        return twin

    @property
    def strength(self) -> Tensor:
        """The strength s."""
        return softplus(self.raw)

    def penalty(self, params: Params) -> Tensor:
        """Return the penalty."""
        weight = params[self.layer]
        return 0.5 * self.strength * (weight * self._difference(weight)).sum()

    def penalty_gradient(self, params: Params) -> Params:
        """Return s L w, where L is the Laplacian of the graph of inputs."""
        return {self.layer: self.strength * self._difference(params[self.layer])}

    def penalty_vjp(self, params: Params, cotangent: Params) -> Params:
        """Return the derivative of ⟨s L w, c⟩ by `raw`."""
        products = self._difference(params[self.layer]) * cotangent[self.layer]
        return {"raw": self.raw.sigmoid() * products.sum()}

    def penalty_product(self, params: Params, vector: Params) -> Params:
        """Return s L v."""
        return {self.layer: self.strength * self._difference(vector[self.layer])}

    def _difference(self, weight: Tensor) -> Tensor:
        """Return L w: every weight times its degree, minus the pull of its neighbours."""
        return self.degrees * weight - _pulled(weight, self.places, self.pulls)

    def extra_repr(self) -> str:
        """Return the layer and the number of inputs, for `repr`."""
        return f"layer={self.layer!r}, inputs={len(self.degrees)}"


class _Pulled(torch.autograd.Function):
    """A w, where A is the symmetric matrix of pulls: so A is its own derivative, backward and forward.

    A sum over the neighbours in plain tensor operations takes ten times as long.
    """

    @staticmethod
    def forward(weight: Tensor, places: Tensor, pulls: Tensor) -> Tensor:
        """Return A w. Shapes (outputs, inputs), (inputs, most), (inputs, most)."""
        columns = weight.t().contiguous()
        return embedding_bag(places, columns, per_sample_weights=pulls, mode="sum").t().contiguous()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:  # noqa: ARG004
        """Keep the graph."""
        _, places, pulls = inputs
        ctx.save_for_backward(places, pulls)
        ctx.save_for_forward(places, pulls)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        """Return A g."""
        return _pulled(gradient, *ctx.saved_tensors), None, None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *_: None) -> Tensor:
        """Return A v."""
        return _pulled(tangent, *ctx.saved_tensors)

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], weight: Tensor, places: Tensor, pulls: Tensor
    ) -> tuple[Tensor, int]:
        """Return A w for a batch of weights; with one graph, all outputs of the batch are one."""
        of_weight, *of_graph = in_dims
        if of_graph == [None, None] and of_weight is not None:
            batch = weight.movedim(of_weight, 0)
            return _pulled(batch.flatten(0, 1), places, pulls).reshape(batch.shape), 0
        parts = [
            value.expand(info.batch_size, *value.shape) if at is None else value.movedim(at, 0)
            for value, at in zip((weight, places, pulls), in_dims, strict=True)
        ]
        return torch.stack([_pulled(*one) for one in zip(*parts, strict=True)]), 0


def _pulled(weight: Tensor, places: Tensor, pulls: Tensor) -> Tensor:
    """Return A w."""
    return cast(Tensor, _Pulled.apply(weight, places, pulls))  # type: ignore[no-untyped-call]


def takes_inputs(model: nn.Module, inputs: Tensor) -> bool:
    """Return True if `CorrelatedInputs` can be used with a model and its inputs."""
    try:
        _first_layer(model, inputs)
    except SettingError:
        return False
    return inputs.is_floating_point() and len(inputs) > 1 and bool(torch.isfinite(inputs).all())


def _first_layer(model: nn.Module, inputs: Tensor) -> tuple[str, Tensor]:
    """Return the name of the weights of the first linear layer, and the weights."""
    width = inputs[0].numel() if inputs.ndim and len(inputs) else 0
    for path, module in as_module("model", model).named_modules():
        if isinstance(module, nn.Linear) and module.in_features == width and width > 1 and module.weight.requires_grad:
            return f"{path}.weight" if path else "weight", module.weight
        if isinstance(module, (nn.Linear, nn.modules.conv._ConvNd)):
            break
    raise SettingError(
        f"CorrelatedInputs needs a model whose first layer is a trainable nn.Linear of the {width} inputs, got "
        f"{type(model).__name__}"
    )


def _standardized(inputs: Tensor) -> Tensor:
    """Return the inputs with mean 0 and variance 1, on the CPU in float64; constant inputs are 0."""
    rows = inputs.detach().reshape(len(inputs), -1).double().cpu()
    if len(rows) < 2 or not bool(torch.isfinite(rows).all()):
        raise DataError("`inputs` must have two rows or more, all finite, so that inputs have correlations")
    centred = rows - rows.mean(0)
    lengths = centred.norm(dim=0)
    constant = lengths <= 1e-9 * rows.norm(dim=0).clamp(min=1e-300)
    return torch.where(constant, 0.0, centred / lengths.masked_fill(constant, 1.0))


def _graph(rows: Tensor, neighbours: int) -> tuple[Tensor, Tensor]:
    """Return the neighbours of every input, and the pull r|r| of each. Shapes (inputs, most), padded with pulls of 0.

    A pair is joined if one of the two is among the nearest of the other. Correlations within the noise of uncorrelated
    inputs, two standard errors, join nothing.
    """
    width, noise = rows.shape[1], 2 / len(rows) ** 0.5
    found: dict[tuple[int, int], float] = {}
    for begin in range(0, width, BLOCK):
        block = rows[:, begin : begin + BLOCK].T @ rows
        block[torch.arange(len(block), device="cpu"), torch.arange(begin, begin + len(block), device="cpu")] = 0.0
        nearest = block.abs().topk(neighbours, dim=1).indices
        near = block.gather(1, nearest)
        for i, (others, values) in enumerate(zip(nearest.tolist(), near.tolist(), strict=True), start=begin):
            found |= {(min(i, j), max(i, j)): r for j, r in zip(others, values, strict=True) if abs(r) > noise}
    joined: list[list[tuple[int, float]]] = [[] for _ in range(width)]
    for (i, j), r in found.items():
        joined[i].append((j, r * abs(r)))
        joined[j].append((i, r * abs(r)))
    most = max(1, *map(len, joined))
    padded = [one + [(0, 0.0)] * (most - len(one)) for one in joined]
    places = torch.tensor([[j for j, _ in one] for one in padded], device="cpu")
    return places, torch.tensor([[pull for _, pull in one] for one in padded], dtype=torch.float64, device="cpu")


def _largest_curvature(places: Tensor, pulls: Tensor, degrees: Tensor) -> float:
    """Return the largest eigenvalue of the Laplacian, by power iterations; 1 if no pair is joined."""
    vector = torch.cos(torch.arange(len(degrees), dtype=torch.float64, device="cpu"))  # no eigenvector by accident
    largest = 0.0
    for _ in range(100):
        vector = degrees * vector - (vector[places] * pulls).sum(-1)
        largest = float(vector.norm())
        if largest == 0:
            return 1.0
        vector = vector / largest
    return largest
