"""The status of a run: which runs succeeded, and which are finished.

"completed" means that all outer steps are made, or that a callback stopped the run. "converged" means that the
hypergradient fell below `tolerance`. "diverged", "interrupted" and "failed" are the other ends of a run.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pactune.columns import Row

__all__ = ["count_outer_steps", "ended_early", "is_finished", "journal_is_finished", "succeeded"]


def succeeded(status: str) -> bool:
    """Return True if the run ended without an error, an interrupt or a divergence."""
    return status in ("completed", "converged")


def ended_early(status: str) -> bool:
    """Return True if a resumed run would make no further outer step, however few it has made."""
    return status in ("converged", "diverged")


def is_finished(status: str, done: int, outer_steps: int) -> bool:
    """Return True if a run of `outer_steps` outer steps has nothing left to do.

    Args:
        status: how the run ended.
        done: how many outer steps it made.
        outer_steps: how many outer steps it is asked to make. A run that completed fewer can be resumed for the rest.
    """
    return ended_early(status) or (status == "completed" and done >= outer_steps)


def journal_is_finished(lines: Sequence[Row], outer_steps: int) -> bool:
    """Return True if the last end in a journal is that of a finished run."""
    ends = [line["status"] for line in lines if line["kind"] == "end"]
    return bool(ends) and is_finished(ends[-1], count_outer_steps(lines), outer_steps)


def count_outer_steps(lines: Iterable[Row]) -> int:
    """Return how many outer steps the run of a journal has made.

    A resumed run may have written the same step twice. The end of a run counts rows too whose lines were damaged later.
    """
    steps, ended = set[int](), 0
    for line in lines:
        if line["kind"] == "row":
            steps.add(line["outer_step"])
        elif line["kind"] == "end":
            ended = max(ended, line.get("outer_steps_done", 0))
    return max(len(steps), ended)
