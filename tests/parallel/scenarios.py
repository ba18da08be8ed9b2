"""Small runs that every rank of a group makes, and a single process too: the numbers must be the same.

Started by the tests as `python scenarios.py FOLDER RANKS NAME...`. Each rank is a process that runs the scenarios one
after the other in one process group and writes what it found to FOLDER/rank-R.pt.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import pactune as pt

Found = dict[str, Any]
SHARDED = pt.Parallel(shards=2, timeout=30.0)
SPREAD = pt.Parallel(timeout=30.0)


def data(rows: int, seed: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, 4, generator=generator, dtype=dtype), torch.randint(0, 3, (rows,), generator=generator)


def mlp(dtype: torch.dtype = torch.float64) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).to(dtype)


def tuner(
    parallel: pt.Parallel | None,
    *,
    hyper: Callable[[nn.Module], nn.Module] = lambda model: pt.WeightDecay(model, init=0.05),
    model: nn.Module | None = None,
    dtype: torch.dtype = torch.float64,
    outer: Callable[..., torch.optim.Optimizer] = torch.optim.Adam,
    **settings: Any,
) -> pt.Tuner:
    """Return a tuner of a small network with 13 training and 9 validation rows; every part can be replaced."""
    model = mlp(dtype) if model is None else model
    module = hyper(model).to(dtype)
    known = ("loss", "train_loss", "valid_loss", "batch_size", "valid_batch_size")
    about = {name: settings.pop(name) for name in known if name in settings}
    if not {"loss", "train_loss"} & set(about):
        about["loss"] = cross_entropy
    sets: Found = {"train": data(13, 1, dtype), "valid": data(9, 2, dtype)}
    if "folds" in settings:
        sets = {"data": data(13, 1, dtype), "folds": settings.pop("folds")}
    problem = pt.Problem(model, module, **sets, **about)
    defaults = {"inner": pt.SGD(0.2), "inner_steps": 4, "objective": pt.PACBayes(zeta=0.05)}
    return pt.Tuner(
        problem, outer=outer(module.parameters(), lr=0.05), parallel=parallel, seed=3, **(defaults | settings)
    )


def numbers(made: pt.Tuner, result: pt.Result) -> Found:
    """Return everything a run ends with."""
    values = [*made.problem.parameters().values(), *made.problem.hyperparameters().values()]
    rows = [{k: v for k, v in row.items() if k != "seconds"} for row in result.rows + result.plain_rows]
    return {"values": torch.cat([v.reshape(-1) for v in values]).clone(), "rows": rows, "status": result.status}


def fitted(parallel: pt.Parallel | None, **settings: Any) -> Found:
    made = tuner(parallel, **settings)
    return numbers(made, made.fit(3, test=data(6, 5, settings.get("dtype", torch.float64))))


def held_out(parallel: pt.Parallel | None) -> Found:
    made = tuner(parallel, folds=3, chains=2)
    result = made.fit(3, keep="held-out")
    return {**numbers(made, result), "trials": result.trials}


def chains(**settings: Any) -> Callable[[bool], Found]:
    defaults = {"inner": pt.Langevin(0.1, 50.0), "chains": 4, "restart": True}
    return lambda many: fitted(SPREAD if many else None, **(defaults | settings))


def shards(**settings: Any) -> Callable[[bool], Found]:
    return lambda many: fitted(SHARDED if many else None, **settings)


def example_weights(_: nn.Module) -> nn.Module:
    return pt.ExampleWeights(13)


def rates(model: nn.Module) -> nn.Module:
    return nn.ModuleDict({"rates": pt.LearningRates(model), "decay": pt.WeightDecay(model, per="global", init=0.1)})


class Temperature(nn.Module):
    """A hyperparameter of both losses."""

    def __init__(self) -> None:
        super().__init__()
        self.log = nn.Parameter(torch.zeros(()))


def warm_loss(model: nn.Module, batch: Any, hyper: nn.Module) -> Tensor:
    return cross_entropy(model(batch[0]) * hyper.log.exp(), batch[1])


def own_loop(many: bool) -> Found:
    made = tuner(SPREAD if many else None, inner=pt.Langevin(0.1, 50.0), chains=3)
    found = []
    for _ in range(3):
        found.append(made.hypergradient())
        made.outer.step()
    values = torch.cat([v.reshape(-1) for v in made.problem.hyperparameters().values()])
    return {"values": values.clone(), "rows": [value._asdict() for value in found], "status": "completed"}


W, T = pt.Windowed, pt.Truncated
PIDS: list[int] = [0, 0]
SAME: dict[str, Callable[[bool], Found]] = {
    "chains of folds": chains(folds=3),
    "shards of folds": shards(folds=3),
    "a held-out step": lambda many: held_out(SPREAD if many else None),
    "chains": chains(),
    "chains, float32": chains(dtype=torch.float32),
    "chains, mean outside": chains(objective=pt.PACBayes(zeta=0.05, chain_mean="outside"), path_hypergradient=T(1)),
    "chains, unevenly spread": chains(chains=3, restart=False, batch_size=5),
    "chains, online": chains(chains=3, online=True, restart=False),
    "chains, dropout": chains(model=nn.Sequential(mlp(), nn.Dropout(0.2)), chains=2),
    "chains, traced": chains(engine="traced", path_stride=2),
    "chains, stacked online": chains(engine="traced", chains=3, online=True, restart=False),
    "chains, auto": chains(objective=pt.PACBayes(zeta=pt.AutoZeta(folds=2, fractions=(1.0,))), chains=2, inner_steps=2),
    "chains, own loop": own_loop,
    "shards": shards(),
    "shards, float32": shards(dtype=torch.float32, batch_size=5),
    "shards, mini-batches": shards(batch_size=5, valid_batch_size=4, inner=pt.Adam(0.05)),
    "shards, fewer rows than ranks": shards(batch_size=1, valid_batch_size=1),
    "shards, K = 1": shards(path_hypergradient=T(1), batch_size=5),
    "shards, K = 3 and momentum": shards(
        path_hypergradient=T(3), hypergradient=T(3), inner=pt.SGD(0.1, momentum=0.5), batch_size=5
    ),
    "shards, windows": shards(path_hypergradient=W(3), hypergradient=W(3), inner=pt.Adam(0.05)),
    "shards, traced and stride": shards(engine="traced", path_stride=2, path_hypergradient=T(1)),
    "shards, online": shards(online=True, batch_size=5),
    "shards, example weights": shards(hyper=example_weights, batch_size=5),
    "shards, example weights, K = 1": shards(hyper=example_weights, path_hypergradient=T(1)),
    "shards, rates forward": shards(hyper=rates, path_hypergradient=pt.ForwardMode(), hypergradient=pt.ForwardMode()),
    "shards, rates windows": shards(hyper=rates, path_hypergradient=W(4), hypergradient=W(4)),
    "shards, implicit": shards(hyper=example_weights, hypergradient=pt.Implicit(pt.Neumann(3))),
    "shards, implicit with fresh rows": shards(
        hyper=example_weights, hypergradient=pt.Implicit(pt.Neumann(3), batches=2, warm_start=True), batch_size=5
    ),
    "chains, running implicit": chains(hypergradient=pt.RunningImplicit(), batch_size=5),
    "shards, first order": shards(hyper=rates, hypergradient=pt.FirstOrder(), batch_size=5),
    "shards, value gap": shards(
        hyper=example_weights, hypergradient=pt.ValueFunctionGap(10.0, 2, batches="all", warm_start=True), batch_size=5
    ),
    "chains, rolled back": chains(restart=False, roll_back=True, batch_size=5),
    "shards, both losses": shards(hyper=lambda _: Temperature(), train_loss=warm_loss, valid_loss=warm_loss),
    "shards, same distribution": shards(objective=pt.SameDistribution(zeta=0.05), batch_size=5),
    "shards, clipped": shards(objective=pt.PACBayes(zeta=0.05, clip_train=0.1, clip_valid=0.1)),
    "shards, two chains": shards(inner=pt.Langevin(0.1, 50.0), chains=2),
}


def resumed(parallel: pt.Parallel, folder: Path, **settings: Any) -> Found:
    """Stop after two outer steps, go on in a new tuner, and compare with a run that never stopped."""
    whole = tuner(parallel, **settings)
    uninterrupted = numbers(whole, whole.fit(4))
    tuner(parallel, **settings).fit(2, run_dir=folder)
    again = tuner(parallel, **settings)
    return {"whole": uninterrupted, "resumed": numbers(again, again.fit(4, run_dir=folder, resume=True))}


def resume_chains(folder: Path) -> Found:
    return resumed(SPREAD, folder / "chains", inner=pt.Langevin(0.1, 50.0), chains=3, batch_size=5)


def resume_shards(folder: Path) -> Found:
    return resumed(SHARDED, folder / "shards", inner=pt.Adam(0.05), batch_size=5)


def resume_both(folder: Path) -> Found:
    """Four ranks, of which two share a chain each."""
    return resumed(SHARDED, folder / "both", inner=pt.Langevin(0.1, 50.0), chains=3, path_hypergradient=T(1))


class Trouble(pt.Callback):
    """Makes trouble after an outer step, on one rank only."""

    def __init__(self, step: int, trouble: Callable[[], None]) -> None:
        self._step, self._trouble = step, trouble

    def on_outer_step(self, tuner: pt.Tuner, row: dict[str, Any]) -> None:
        if row["outer_step"] == self._step and dist.get_rank() == 1:
            self._trouble()


def fail() -> None:
    raise ValueError("only here")


def stop() -> None:
    raise StopIteration


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def interrupt_all() -> None:
    """Interrupt the first rank while it waits for this one, then this one."""
    time.sleep(0.3)
    os.kill(PIDS[0], signal.SIGINT)
    interrupt()


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def troubled(parallel: pt.Parallel, trouble: Callable[[], None], **settings: Any) -> Found:
    """Say how a run ends on this rank, and how a second one ends where there can be one."""
    settings |= {"chains": 2} if parallel is SPREAD else {}
    made = tuner(parallel, inner=pt.Langevin(0.1, 50.0), **settings)
    begun = time.monotonic()
    try:
        result = made.fit(4, callbacks=[Trouble(2, trouble)])
        said = f"{result.status} after {len(result.rows)}"
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
    seconds = time.monotonic() - begun
    return {
        "said": said,
        "seconds": seconds,
        "next": None if trouble is kill else tuner(SPREAD, chains=2).fit(1).status,
    }


def failing_loss(_: Path) -> Found:
    """One rank fails inside a round, while the others wait for its share of a mini-batch."""
    calls = iter(range(10**6))

    def loss(model: nn.Module, batch: Any, hyper: nn.Module) -> Tensor:
        if dist.get_rank() == 1 and next(calls) > 36:  # after the trials before the first round
            raise ValueError("only here")
        return warm_loss(model, batch, hyper)

    both = {"train_loss": loss, "valid_loss": loss, "hyper": lambda _: Temperature()}
    return troubled(SHARDED, lambda: None, **both)


def interrupted_everywhere(_: Path) -> Found:
    """Ctrl-C reaches every rank: all return what they have, and the same tuner can go on."""
    dist.all_gather_object(PIDS, os.getpid())
    made = tuner(SPREAD, inner=pt.Langevin(0.1, 50.0), chains=2)
    result = made.fit(4, callbacks=[Trouble(2, interrupt_all)])
    return {"said": f"{result.status} after {len(result.rows)}", "next": made.fit(1).rows[0]["outer_step"]}


def diverging(_: Path) -> Found:
    """A chain leaves the finite numbers; only the last rank has it."""
    settings = {"inner": pt.Langevin(0.1, 50.0), "chains": 2, "restart": True}

    def initial(generator: torch.Generator) -> dict[str, Tensor]:
        start = {name: value.detach().clone() for name, value in mlp().named_parameters()}
        start["2.bias"] *= torch.inf if dist.get_rank() == 1 else 1.0
        return start

    try:
        tuner(SPREAD, initial=initial, **settings).fit(2)
    except pt.DivergenceError as error:
        return {"said": f"DivergenceError after {len(error.result.rows)}"}
    return {"said": "nothing"}


def messages(parallel: pt.Parallel, **settings: Any) -> list[tuple[str, int]]:
    """Return the kind and the bytes of every message of the second outer step."""
    sent: list[tuple[str, int]] = []
    marks: list[int] = []
    real = {kind: getattr(dist, kind) for kind in ("all_reduce", "broadcast", "send", "recv")}

    def counted(kind: str) -> Callable[..., Any]:
        def call(tensor: Tensor, *args: Any, **options: Any) -> Any:
            sent.append((kind, tensor.numel() * tensor.element_size()))
            return real[kind](tensor, *args, **options)

        return call

    class Mark(pt.Callback):
        def on_outer_step(self, tuner: pt.Tuner, row: dict[str, Any]) -> None:
            marks.append(len(sent))

    for kind in real:
        setattr(dist, kind, counted(kind))
    try:
        tuner(parallel, **settings).fit(2, plain_steps=0, callbacks=[Mark()])
    finally:
        for kind, call in real.items():
            setattr(dist, kind, call)
    return sent[marks[0] : marks[1]]


def count_messages(_: Path) -> Found:
    return {
        "chains": messages(SPREAD, inner=pt.Langevin(0.1, 50.0), chains=4),
        "online": messages(SPREAD, inner=pt.Langevin(0.1, 50.0), chains=4, online=True),
        "shards": messages(SHARDED),
        "shards, K = 1": messages(SHARDED, path_hypergradient=T(1)),
    }


def refused(**settings: Any) -> Callable[[Path], Found]:
    def attempt(_: Path) -> Found:
        try:
            tuner(**({"parallel": SHARDED} | settings)).fit(1)
        except pt.PactuneError as error:
            return {"said": f"{type(error).__name__}: {error}"}
        return {"said": "nothing"}

    return attempt


def used_folder(folder: Path) -> Found:
    """The first rank alone sees that a folder holds a run already."""
    if dist.get_rank() == 0:
        tuner(None).fit(1, run_dir=folder / "used")
    dist.barrier()
    try:
        tuner(SPREAD, chains=2).fit(1, run_dir=folder / "used")
    except pt.PactuneError as error:
        return {"said": type(error).__name__}
    return {"said": "nothing"}


def summed(prediction: Tensor, target: Tensor) -> Tensor:
    return cross_entropy(prediction, target, reduction="sum")


def normalised(model: nn.Module, batch: Any, hyper: nn.Module) -> Tensor:
    """A loss that divides by the sum of its weights, which are all equal at the start."""
    weights = torch.sigmoid(hyper.slope * batch[0][:, 0])
    return (weights * cross_entropy(model(batch[0]), batch[1], reduction="none")).sum() / weights.sum()


class Slope(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.slope = nn.Parameter(torch.zeros(()))


def different(_: Path) -> Found:
    return refused(hyper=lambda model: pt.WeightDecay(model, init=0.1 * dist.get_rank()))(_)


OTHERS: dict[str, Callable[[Path], Found]] = {
    "resume chains": resume_chains,
    "resume shards": resume_shards,
    "resume both": resume_both,
    "messages": count_messages,
    "used folder": used_folder,
    "fail": lambda _: troubled(SPREAD, fail),
    "fail inside": failing_loss,
    "stop": lambda _: troubled(SPREAD, stop),
    "interrupt": lambda _: troubled(SPREAD, interrupt),
    "interrupt all": interrupted_everywhere,
    "diverge": diverging,
    "kill": lambda _: troubled(SHARDED, kill),
    "refuse BatchNorm": refused(model=nn.Sequential(mlp(), nn.BatchNorm1d(3, dtype=torch.float64))),
    "refuse dropout": refused(model=nn.Sequential(mlp(), nn.Dropout(0.1))),
    "refuse sum": refused(loss=summed),
    "refuse weighted": refused(train_loss=normalised, valid_loss=normalised, hyper=lambda _: Slope()),
    "refuse different": different,
    "refuse chains": refused(parallel=SPREAD, chains=1),
    "refuse shards": refused(parallel=pt.Parallel(shards=3)),
}


def run_rank(rank: int, ranks: int, folder: Path, names: list[str]) -> None:
    """Run the scenarios on one rank."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=ranks)
    found = {}
    for name in names:
        found[name] = SAME[name](True) if name in SAME else OTHERS[name](folder)
        torch.save(found, folder / f"rank-{rank}.pt")
    dist.destroy_process_group()


def main() -> None:
    """Start the ranks, and say with which status and how long after the first of them each ended."""
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever runs the tests in the background may ignore it
    folder, ranks, names = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    fork = multiprocessing.get_context("fork")  # importing torch once saves most of the time
    started = [fork.Process(target=run_rank, args=(rank, ranks, folder, names)) for rank in range(ranks)]
    for process in started:
        process.start()
    waiting, ended, first = {p.sentinel: p for p in started}, dict[int, tuple[int | None, float]](), 0.0
    while waiting:
        for sentinel in wait(list(waiting)):
            process = waiting.pop(sentinel)
            process.join()
            first = first or time.monotonic()
            ended[started.index(process)] = process.exitcode, time.monotonic() - first
    print(json.dumps([ended[rank] for rank in range(ranks)]))


if __name__ == "__main__":
    main()
