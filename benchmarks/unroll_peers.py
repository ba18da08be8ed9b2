"""Hypergradients through inner steps against `higher`, TorchOpt and a graph by hand; implicit ones against Betty.

    pip install 'pactune[bench]'
    python benchmarks/unroll_peers.py [--repeats 15]

The model is a 784-256-256-10 network on 50 + 50 rows with a weight decay of its own for every parameter; the gradient
is that of the validation risk at θ_T. All gradients are first compared in float64, then timed in float32, in turn. Time
is the CPU time of one thread. Memory is what one call adds at its peak to a fresh process that has already made a call
of one step. A peer that is not installed is left out with the reason; Betty's package has metadata that a recent pip
refuses, so it has to be installed from its repository.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NamedTuple

import torch
from measuring import RESULTS, added_megabytes, in_a_process, interleave, machine, ratio, write
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from unroll_peer_ways import PEERS, Case, adam_eps, data, implicit_peers, network

import pactune as pt

OURS: dict[str, Callable[[int], pt.Truncated]] = {
    "pactune": lambda k: pt.Truncated(k),
    "pactune, all graphs kept": lambda k: pt.Truncated(k, segment=k),
    "pactune, all states kept": lambda k: pt.Truncated(k, segment=1),
}
BEST_OF = ("higher", "torchopt")
SAME = 1e-4
CONVEX = 2.0  # a decay at which the Hessian is positive definite, as conjugate gradients need it
OTHER_UPDATE = {"adam": {"higher"}}  # it adds ε before the bias correction, torch after it


class Row(NamedTuple):
    """What is measured: T, K, the inner dynamics, and whether memory is too."""

    steps: int
    k: int
    inner: str
    memory: bool


ROWS = [Row(k, k, "sgd", memory=k > 1) for k in (1, 10, 30, 100)]
ROWS += [Row(100, 10, "sgd", memory=False), Row(100, 100, "adam", memory=True)]


def tuner(case: Case, estimator: Any) -> tuple[pt.Tuner, nn.Module]:
    model = network(case.dtype)
    hyper = pt.WeightDecay(model, init=case.decay)
    train, valid = data(case.dtype)
    problem = pt.Problem(model, hyper, train=train, valid=valid, loss=F.cross_entropy)
    inner = pt.SGD(case.lr) if case.inner == "sgd" else pt.Adam(case.lr, eps=adam_eps, decoupled=False)
    outer = torch.optim.SGD(hyper.parameters(), lr=0.1)
    objective = pt.ValidationRisk()
    made = pt.Tuner(
        problem, inner=inner, inner_steps=case.steps, outer=outer, objective=objective, hypergradient=estimator
    )
    return made, hyper


def ours(case: Case, estimator: Any) -> Callable[[], list[Tensor]]:
    """Return a round of the library; a further call goes on from where the last one ended, which costs the same."""
    made, hyper = tuner(case, estimator)

    def run() -> list[Tensor]:
        made.hypergradient()
        grads: dict[str, Any] = {
            name.removeprefix("values.").replace("/", "."): p.grad for name, p in hyper.named_parameters()
        }
        return [grads[name] for name, _ in made.problem.model.named_parameters()]

    return run


def way(name: str, case: Case) -> Callable[[], list[Tensor]]:
    return ours(case, OURS[name](case.k)) if name in OURS else PEERS[name][0](case)


def skipped(package: str | None) -> str | None:
    """Return why a peer is left out."""
    try:
        if package:
            version(package)
    except PackageNotFoundError:
        return f"{package} is not installed"
    return None


def relative(a: list[Tensor], b: list[Tensor]) -> float:
    x, y = (torch.cat([t.reshape(-1) for t in tensors]) for tensors in (a, b))
    return float((x - y).norm() / y.norm())


def memory(name: str, row: Row) -> float:
    """Return how many MB one call adds at its peak, the libraries being warm."""
    way(name, Case(1, 1, row.inner, torch.float32))()
    run = way(name, Case(row.steps, row.k, row.inner, torch.float32))
    return added_megabytes(run)


def measure(row: Row, names: list[str], repeats: int) -> dict[str, Any]:
    double = Case(row.steps, row.k, row.inner, torch.float64)
    first = way("one graph by hand", double)()
    apart = {name: relative(way(name, double)(), first) for name in names}
    wrong = {name: value for name, value in apart.items() if not value < SAME}
    assert not wrong.keys() - OTHER_UPDATE.get(row.inner, set()), f"not the same gradient: {wrong}"
    single = Case(row.steps, row.k, row.inner, torch.float32)
    taken = interleave({name: way(name, single) for name in names}, max(9, repeats * 10 // max(row.steps, 10)))
    peers = [name for name in names if name in BEST_OF]
    best = min(peers, key=lambda name: statistics.median(taken[name])) if peers else None
    found: dict[str, Any] = {"inner": row.inner, "steps": row.steps, "k": row.k, "best_peer": best, "ways": {}}
    for name in names:
        entry: dict[str, Any] = {"milliseconds": round(1000 * statistics.median(taken[name]), 2)}
        entry |= {"relative_difference_float64": apart[name], "same_gradient": name not in wrong}
        if best:
            entry["time_over_best_peer"] = ratio(taken[name], taken[best])
        found["ways"][name] = entry
    if row.memory:
        for name in names:
            arguments = ["--memory", name, "--row", str(ROWS.index(row))]
            found["ways"][name]["megabytes"] = round(in_a_process(__file__, *arguments), 1)
        least = min((found["ways"][name]["megabytes"] for name in peers), default=None)
        for name in names:
            if least:
                found["ways"][name]["memory_over_best_peer"] = round(found["ways"][name]["megabytes"] / least, 3)
    return found


def measure_implicit(repeats: int) -> dict[str, Any]:
    reason = skipped("betty-ml")
    if reason:
        return {"skipped": reason}
    rows = {}
    solvers = {"neumann": pt.Neumann, "cg": pt.ConjugateGradient}
    for (method, products), peer in implicit_peers().items():
        options: dict[str, Any] = {"alpha": 0.1} if method == "neumann" else {"damping": 0.0}
        estimator = pt.Implicit(solvers[method](products, **options))
        double, single = (Case(1, 1, "sgd", dtype, CONVEX) for dtype in (torch.float64, torch.float32))
        apart = relative(peer(double)(), ours(double, estimator)())
        same = apart < SAME
        assert same or method == "cg", f"not the same gradient: {apart}"
        taken = interleave({"pactune": ours(single, estimator), "betty": peer(single)}, repeats)
        rows[f"{method}, {products} products"] = {
            "milliseconds": {name: round(1000 * statistics.median(values), 2) for name, values in taken.items()},
            "time_over_betty": ratio(taken["pactune"], taken["betty"]),
            "relative_difference_float64": apart,
            "same_gradient": same,
        }
    return rows


def ceiling(repeats: int) -> dict[str, float]:
    """Return what one thread reaches: GFLOP/s of the first layer's products, GB/s of a sum of two trees."""
    x, w, d = torch.randn(50, 784), torch.randn(256, 784), torch.randn(50, 256)
    a, b, out = (torch.randn(269_322) for _ in range(3))
    many = {
        "forward": lambda: [x @ w.t() for _ in range(100)],
        "weight gradient": lambda: [d.t() @ x for _ in range(100)],
        "input gradient": lambda: [d @ w for _ in range(100)],
        "sum": lambda: [torch.add(a, b, out=out) for _ in range(100)],
    }
    taken = {name: statistics.median(values) / 100 for name, values in interleave(many, repeats).items()}
    flop, moved = 2 * 50 * 784 * 256, 3 * 4 * 269_322
    rates = {f"{name}_gigaflops": round(flop / taken[name] / 1e9, 1) for name in list(many)[:3]}
    return rates | {"sum_gigabytes_per_second": round(moved / taken["sum"] / 1e9, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--memory")
    parser.add_argument("--row", type=int, default=0)
    parser.add_argument(
        "--short", action="store_true", help="measure the ceiling and Betty alone, keep the other results"
    )
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.memory:
        print(memory(given.memory, ROWS[given.row]))
        return
    if given.short:
        kept = json.loads((RESULTS / "unroll_peers.json").read_text(encoding="utf-8"))
        found = {"ceiling": ceiling(given.repeats), "implicit": measure_implicit(given.repeats)}
        print(found)
        write("unroll_peers.json", kept | found)
        return
    reasons = {name: skipped(package) for name, (_, package) in PEERS.items()}
    names = [*OURS, *(name for name, reason in reasons.items() if reason is None)]
    results: dict[str, Any] = {"machine": machine(), "skipped": {n: r for n, r in reasons.items() if r}, "rows": []}
    results["ceiling"] = ceiling(given.repeats)
    for row in ROWS:
        results["rows"].append(measure(row, names, given.repeats))
        print(results["rows"][-1], flush=True)
        write("unroll_peers.json", results)
    results["implicit"] = measure_implicit(given.repeats)
    print(results["implicit"])
    write("unroll_peers.json", results)


if __name__ == "__main__":
    main()
