"""The callbacks of one `fit`, called together."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pactune.columns import Row
from pactune.errors import SettingError
from pactune.interrupts import immediate_interrupts
from pactune.results.callbacks import Callback, report_error
from pactune.results.result import Result

__all__ = ["Listeners"]


class Listeners:
    """Tells every callback what happens. Ctrl-C interrupts a callback at once.

    Args:
        tuner: the tuner that callbacks are given.
        callbacks: the callbacks, in the order in which they are called.
    """

    def __init__(self, tuner: Any, callbacks: Iterable[Callback]) -> None:
        self._tuner, self._callbacks = tuner, tuple(callbacks)

    def only(self, *callbacks: Callback) -> Listeners:
        """Return listeners of the same tuner with other callbacks."""
        return Listeners(self._tuner, callbacks)

    def with_another(self, callback: Callback) -> Listeners:
        """Return the listeners with one more callback."""
        return Listeners(self._tuner, (*self._callbacks, callback))

    def begin(self, outer_steps: int, resumed: list[Row] | None) -> None:
        """Call `on_fit_begin`, and `on_resume` with the history of a resumed run."""
        with immediate_interrupts():
            for callback in self._callbacks:
                callback.on_fit_begin(self._tuner, outer_steps)
                if resumed is not None:
                    callback.on_resume(self._tuner, resumed)

    def outer_step(self, row: Row) -> bool:
        """Call `on_outer_step`; return True if a callback raised `StopIteration` to end the run."""
        try:
            with immediate_interrupts():
                for callback in self._callbacks:
                    callback.on_outer_step(self._tuner, row)
        except StopIteration:
            return True
        return False

    def hyper_step(self) -> None:
        """Call `on_hyper_step`."""
        with immediate_interrupts():
            for callback in self._callbacks:
                callback.on_hyper_step(self._tuner)

    def plain_step(self, row: Row) -> None:
        """Call `on_plain_step`."""
        with immediate_interrupts():
            for callback in self._callbacks:
                callback.on_plain_step(self._tuner, row)

    def end(self, result: Result) -> None:
        """Call `on_fit_end`."""
        with immediate_interrupts():
            for callback in self._callbacks:
                callback.on_fit_end(self._tuner, result)

    def error(self, error: BaseException) -> None:
        """Call `on_fit_error`."""
        report_error(self._callbacks, self._tuner, error)

    def state(self) -> dict[str, Any]:
        """Return the states of the callbacks that have one."""
        return {name: state for name, one in self._named().items() if (state := one.state_dict())}

    def load_state(self, states: dict[str, Any], *, strict: bool) -> None:
        """Give every callback its state.

        Raises:
            SettingError: with `strict`, a state has no callback.
        """
        named = self._named()
        missing = [name for name in states if name not in named]
        if missing and strict:
            raise SettingError(f"the run to resume had a listener that `callbacks` lacks: {', '.join(missing)}")
        for name, callback in named.items():
            if name in states:
                callback.load_state_dict(states[name])

    def _named(self) -> dict[str, Callback]:
        """Return the callbacks by their class and their number in it, which the next process finds again."""
        named: dict[str, Callback] = {}
        for callback in self._callbacks:
            kind = type(callback).__name__
            named[f"{kind} {sum(name.startswith(f'{kind} ') for name in named)}"] = callback
        return named
