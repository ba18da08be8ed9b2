"""Ctrl-C at any moment: no outer step is lost, none is made twice, and `fit` goes on from there."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import pactune as pt
from pactune.interrupts import check_interrupt, deferred_interrupts, immediate_interrupts

pytestmark = pytest.mark.slow

STEPS = 6


def tuner(**settings: Any) -> pt.Tuner:
    torch.manual_seed(0)
    model = nn.Linear(4, 3).double()
    hyper = pt.WeightDecay(model)
    x, y = torch.randn(40, 4, dtype=torch.float64), torch.randint(0, 3, (40,))
    problem = pt.Problem(model, hyper, train=(x[:20], y[:20]), valid=(x[20:], y[20:]), loss=cross_entropy)
    outer = torch.optim.Adam(hyper.parameters(), lr=0.1)
    settings = {"inner_steps": 3, "objective": pt.PACBayes(0.1), "engine": "eager", **settings}
    return pt.Tuner(problem, inner=pt.Adam(0.05), outer=outer, **settings)


def timeless(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name != "seconds"} for row in rows]


def finish(run: pt.Tuner, rows: list[Any], plain: list[Any], **arguments: Any) -> None:
    """Fit until all outer steps are made, whatever interrupts it."""
    while len(rows) < STEPS:
        result = run.fit(STEPS - len(rows), progress=False, plain_steps=STEPS - len(plain), **arguments)
        rows += result.rows
        plain += result.plain_rows


class Press:
    """Sends Ctrl-C at the n-th function call or line of code in this process."""

    def __init__(self, event: int) -> None:
        self._left = event

    def __call__(self, frame: Any, event: str, argument: Any) -> Any:
        if "pactune" not in frame.f_code.co_filename:
            return None
        self._left -= 1
        if self._left == 0:
            signal.raise_signal(signal.SIGINT)
        return self


@pytest.mark.parametrize("online", [False, True])
def test_ctrl_c_at_any_line_leaves_whole_outer_steps(online: bool) -> None:
    whole = tuner(online=online).fit(STEPS, progress=False)
    generator = torch.Generator().manual_seed(0)
    for _ in range(25):
        run, rows, plain = tuner(online=online), list[Any](), list[Any]()
        run.outer_run.chains  # noqa: B018  # so that preparations are not what is interrupted
        before = sys.gettrace()
        sys.settrace(Press(int(torch.randint(500, 30_000, (), generator=generator))))
        try:
            result = run.fit(STEPS, progress=False)
        finally:
            sys.settrace(before)
        rows, plain = list(result.rows), list(result.plain_rows)
        finish(run, rows, plain)
        assert timeless(rows) == timeless(whole.rows)
        assert timeless(plain) == timeless(whole.plain_rows)


HOOKS = ["on_fit_begin", "on_outer_step", "on_hyper_step", "on_plain_step"]


@pytest.mark.parametrize("hook", HOOKS)
@pytest.mark.parametrize("call", [1, 3])
def test_a_listener_that_is_interrupted(hook: str, call: int) -> None:
    whole = tuner().fit(STEPS, progress=False)

    class Impatient(pt.Callback):
        calls = 0

    def interrupt(self: Impatient, *_: Any) -> None:
        self.calls += 1
        if self.calls == call:
            raise KeyboardInterrupt

    setattr(Impatient, hook, interrupt)
    run, rows, plain = tuner(), list[Any](), list[Any]()
    listener = Impatient()
    finish(run, rows, plain, callbacks=[listener])
    assert listener.calls >= call or hook == "on_fit_begin"
    assert timeless(rows) == timeless(whole.rows)
    assert timeless(plain) == timeless(whole.plain_rows)


def test_an_interrupted_first_step_leaves_the_model_alone() -> None:
    run = tuner()
    before = {name: value.clone() for name, value in run.problem.model.state_dict().items()}

    class Impatient(pt.Callback):
        def on_plain_step(self, tuner: pt.Tuner, row: Any) -> None:
            raise KeyboardInterrupt

    result = run.fit(2, callbacks=[Impatient()], progress=False)
    assert (result.status, result.rows, result.plain_rows) == ("interrupted", [], [])
    assert all(torch.equal(before[name], value) for name, value in run.problem.model.state_dict().items())


def test_an_online_round_that_is_interrupted_puts_the_outer_optimizer_back() -> None:
    whole = tuner(online=True).fit(2, progress=False)
    run, calls = tuner(online=True), []
    step = run.outer.step

    def interrupted(*arguments: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return step(*arguments)

    run.outer.step = interrupted  # type: ignore[method-assign]
    assert run.fit(2, progress=False).status == "interrupted"
    assert timeless(run.fit(2, progress=False).rows) == timeless(whole.rows)


def test_the_first_ctrl_c_waits_and_the_second_does_not() -> None:
    with deferred_interrupts():
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            check_interrupt()
        check_interrupt()  # raised once
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        with immediate_interrupts(), pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_handler_of_the_user_is_left_alone() -> None:
    heard: list[int] = []

    def own(number: int, frame: Any) -> None:
        heard.append(number)

    before = signal.signal(signal.SIGINT, own)
    try:
        with deferred_interrupts():
            signal.raise_signal(signal.SIGINT)
            check_interrupt()
    finally:
        signal.signal(signal.SIGINT, before)
    assert heard == [signal.SIGINT]


def in_thread(work: Callable[[], Any]) -> Any:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(work()))
    thread.start()
    thread.join()
    return found[0]


def test_a_run_in_another_thread_is_not_interrupted_by_ctrl_c() -> None:
    assert in_thread(lambda: tuner().fit(2, progress=False).status) == "completed"


def test_a_plain_run_that_diverges_is_reported() -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    hyper = pt.WeightDecay(model, per="global", init=-40.0)  # plain training triples the weights in every step
    x, y = torch.randn(20, 4), torch.randn(20, 1)

    class Mend(pt.Callback):
        def on_hyper_step(self, tuner: pt.Tuner) -> None:
            with torch.no_grad():
                hyper.values["all"].fill_(1.0)

    problem = pt.Problem(model, hyper, train=(x[:10], y[:10]), valid=(x[10:], y[10:]), loss=nn.functional.mse_loss)
    outer = torch.optim.SGD(hyper.parameters(), lr=0.0)
    run = pt.Tuner(problem, inner=pt.SGD(0.05), inner_steps=10, outer=outer, objective=pt.ValidationRisk())
    with pytest.warns(UserWarning, match="plain training.*diverged in outer step 5"):
        result = run.fit(12, callbacks=[Mend()], progress=False)
    assert (result.status, result.pays, len(result.rows), len(result.plain_rows)) == ("completed", None, 12, 5)
    assert "plain training diverged in outer step 5" in result.verdict


def test_ctrl_c_in_a_loop_of_ones_own_leaves_whole_rounds() -> None:
    def rounds(run: pt.Tuner, count: int) -> list[float]:
        values = []
        for _ in range(count):
            values.append(run.hypergradient().total)
            run.outer.step()
        return values

    whole = rounds(tuner(), 3)
    generator = torch.Generator().manual_seed(1)
    for _ in range(10):
        run, values = tuner(), list[float]()
        run.outer_run.chains  # noqa: B018
        before = sys.gettrace()
        sys.settrace(Press(int(torch.randint(500, 6_000, (), generator=generator))))
        try:
            while len(values) < 3:
                try:
                    values += rounds(run, 1)
                except KeyboardInterrupt:
                    sys.settrace(before)
        finally:
            sys.settrace(before)
        assert values == whole


@pytest.mark.parametrize("hook", HOOKS)
def test_ctrl_c_ends_every_run_of_a_grid(hook: str) -> None:
    class Press(pt.Callback):
        calls = 0

    def press(self: Press, *_: Any) -> None:
        self.calls += 1
        if self.calls == 2:
            signal.raise_signal(signal.SIGINT)

    setattr(Press, hook, press)
    found = pt.fit_grid(
        lambda seed: tuner(seed=seed), {"seed": [0, 1, 2]}, outer_steps=STEPS, callbacks=[Press()], progress=False
    )
    assert [result.status for result in found.results] == ["interrupted"] * 3
    assert all(len(result.rows) <= 1 for result in found.results)
