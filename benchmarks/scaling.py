"""How time grows with T, K, the chains C and the parameters m, beside the theory; and memory with the hyperparameters.

    python benchmarks/scaling.py [--repeats 7]

Every hyperparameter is the weight decay of one parameter, so n = m. Exponents are least-squares slopes on logarithms of
the median CPU time of one round, on one thread; the sizes of a row are measured in turn. Memory is what one round adds
at its peak to a fresh process, in copies of the parameters.
"""

from __future__ import annotations

import argparse
import statistics
from typing import Any, NamedTuple

import torch
from measuring import added_megabytes, exponent, in_a_process, interleave, machine, write
from torch import nn

import pactune as pt


class Size(NamedTuple):
    """One round: T steps of C chains on m parameters, with K steps differentiated for the risk and for the path."""

    steps: int = 100
    chains: int = 1
    parameters: int = 20_000
    risk_k: int = 1
    path_k: int | None = 0

    @property
    def megabytes_per_copy(self) -> float:
        """Return the size of one copy of the parameters."""
        return self.parameters * 4 / 2**20


class Axis(NamedTuple):
    """What grows, the exponent of the theory, and the rounds."""

    theory: float
    values: list[int]
    sizes: list[Size]


def axis(theory: float, values: list[int], **grown: Any) -> Axis:
    return Axis(theory, values, [Size(**{name: make(v) for name, make in grown.items()}) for v in values])


def same(value: int) -> int:
    return value


TIMES = {
    "T (K = 0 and T1–T2)": axis(1.0, [50, 100, 200, 400], steps=same),
    "T (K = 4 for the regularizer)": axis(1.0, [25, 50, 100, 200], steps=same, path_k=lambda _: 4),
    "K for the regularizer, T = 64": axis(1.0, [4, 8, 16, 32], path_k=same, steps=lambda _: 64),
    "T = K, risk alone": axis(1.0, [25, 50, 100, 200], steps=same, risk_k=same, path_k=lambda _: None),
    "C": axis(1.0, [1, 2, 4, 8], chains=same, steps=lambda _: 50),
    "m = n": axis(1.0, [250_000, 500_000, 1_000_000, 2_000_000], parameters=same, steps=lambda _: 10),
}
MEMORY = {
    "m = n (K = 0 and T1–T2)": axis(1.0, [2_000_000, 4_000_000, 8_000_000], parameters=same, steps=lambda _: 20),
    "T = K, risk alone": axis(
        0.5, [25, 100, 400], steps=same, risk_k=same, path_k=lambda _: None, parameters=lambda _: 500_000
    ),
}


def tuner(size: Size) -> pt.Tuner:
    torch.manual_seed(0)
    width = size.parameters // 10
    model = nn.Linear(width, 10, bias=False)
    hyper = pt.WeightDecay(model, per="element")
    x, y = torch.randn(16, width), torch.randint(0, 10, (16,))
    problem = pt.Problem(model, hyper, train=(x[:8], y[:8]), valid=(x[8:], y[8:]), loss=nn.functional.cross_entropy)
    return pt.Tuner(
        problem,
        inner=pt.SGD(1e-3),
        inner_steps=size.steps,
        outer=torch.optim.SGD(hyper.parameters(), lr=1e-2),
        objective=pt.ValidationRisk() if size.path_k is None else pt.PACBayes(zeta=1e-3),
        hypergradient=pt.Truncated(size.risk_k),
        path_hypergradient=pt.Truncated(size.path_k or 0),
        chains=size.chains,
    )


def time_axis(given: Axis, repeats: int) -> dict[str, Any]:
    rounds = {str(v): tuner(size).hypergradient for v, size in zip(given.values, given.sizes, strict=True)}
    seconds = [statistics.median(taken) for taken in interleave(rounds, repeats).values()]
    return {
        "values": given.values,
        "milliseconds": [round(1000 * s, 2) for s in seconds],
        "exponent": exponent(given.values, seconds),
        "theory": given.theory,
    }


def memory_axis(name: str, given: Axis) -> dict[str, Any]:
    found = [in_a_process(__file__, "--memory", name, "--index", str(i)) for i in range(len(given.values))]
    copies = [mb / size.megabytes_per_copy for mb, size in zip(found, given.sizes, strict=True)]
    return {
        "values": given.values,
        "megabytes": [round(mb, 1) for mb in found],
        "copies_of_the_parameters": [round(c, 1) for c in copies],
        "exponent": exponent(given.values, found),
        "theory": given.theory,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--memory")
    parser.add_argument("--index", type=int, default=0)
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.memory:
        size = MEMORY[given.memory].sizes[given.index]
        tuner(size._replace(steps=1, risk_k=1, parameters=1000)).hypergradient()
        print(added_megabytes(tuner(size).hypergradient))
        return
    results: dict[str, Any] = {"machine": machine(), "time": {}, "memory": {}}
    for name, grown in TIMES.items():
        results["time"][name] = time_axis(grown, given.repeats)
        print(name, results["time"][name], flush=True)
    for name, grown in MEMORY.items():
        results["memory"][name] = memory_axis(name, grown)
        print(name, results["memory"][name], flush=True)
    write("scaling.json", results)


if __name__ == "__main__":
    main()
