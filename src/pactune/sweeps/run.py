"""`pt.sweep`: a grid of tuning runs as Ray tasks, each in its own run folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pactune.errors import RunFolderError, SettingError
from pactune.extras import require
from pactune.storage.files import as_folder, make_folder
from pactune.sweeps.cell_settings import CellFit, Resources
from pactune.sweeps.cell_state import CellState
from pactune.sweeps.cluster import connected
from pactune.sweeps.display import Display, open_display
from pactune.sweeps.result import SweepResult, cell_result
from pactune.sweeps.worker import CellTask, Failure, run_cell
from pactune.tracking.journal import Journal, read_lines
from pactune.tracking.run_folder import versions_of
from pactune.tuning.cells import Scalar, scalar_cells, scalar_grid
from pactune.tuning.fit_settings import Keep

if TYPE_CHECKING:
    from pactune.tuning.tuner import Tuner

__all__ = ["sweep"]

REFRESH_SECONDS = 0.5
SWEEP = "sweep"  # the kind of the first line in the sweep's own journal


def sweep(
    build: Callable[..., Tuner],
    grid: Mapping[str, Sequence[Any]],
    *,
    outer_steps: int,
    run_dir: str | Path,
    test: Any = None,
    keep: Keep = "last",
    tolerance: float = 0.0,
    plain_steps: int | None = None,
    evaluate_every: int = 1,
    address: str | None = None,
    cpus: float = 1,
    gpus: float = 0,
    retries: int = 3,
    progress: bool | None = None,
) -> SweepResult:
    """Fit every cell of a grid as a Ray task, on this machine or on a cluster.

    Each cell has a run folder and resumes from its last checkpoint: Ray resumes it after its worker or node died, the
    next call resumes it after Ctrl-C. Cells that are done are not run again. A cell that fails does not stop the
    others.

    Args:
        build: `build(**cell)` returns a `Tuner`. It runs on the worker and must return the same tuner every time.
        grid: arguments of `build` by name, each with a list of numbers, texts or truth values.
        outer_steps: how often λ moves in every cell.
        run_dir: the folder of the sweep. On a cluster it must be on a file system that all nodes share.
        test: a test set to report on, as in `Tuner.fit`.
        keep: as in `Tuner.fit`.
        tolerance: as in `Tuner.fit`.
        plain_steps: as in `Tuner.fit`.
        evaluate_every: as in `Tuner.fit`.
        address: of a Ray cluster, or "auto" for the one on this machine; None starts Ray here and stops it again.
        cpus: CPU cores of a cell, and its number of threads; a fraction runs several cells on one core.
        gpus: GPUs of a cell; 0.25 runs four cells on each GPU.
        retries: how often Ray runs a cell again after its worker or node died.
        progress: display the cells on stderr; None does so on a terminal only.

    Returns:
        The result. After Ctrl-C it is the result so far, with status "interrupted".

    Raises:
        MissingPackageError: ray is not installed.
        SettingError: a setting breaks its rule, or no cluster answers at `address`.
        DataError: the test set cannot be used.
        RunFolderError: `run_dir` holds something else, is in use, or cannot be written.
    """
    cells, needs = scalar_cells(grid), Resources(cpus, gpus, retries)
    if not callable(build):
        raise SettingError(f"`build` must be a function that returns a Tuner, got {build!r}")
    name = getattr(build, "__qualname__", type(build).__name__)
    fit = CellFit(outer_steps, keep, tolerance, plain_steps, name, _fingerprint(test), evaluate_every)
    payload = _pickle(build, test)
    with _open_folder(run_dir) as (root, journal), open_display(progress, outer_steps) as display:
        states = [CellState(cell, root, fit) for cell in cells]
        _append_start(journal, scalar_grid(grid), fit, needs, address)
        try:
            if any(state.pending for state in states):
                with connected(address, needs) as ray:
                    _RayTasks(ray, states, display, journal).run(fit, needs, payload)
        except KeyboardInterrupt:
            for state in states:
                state.interrupt()
        display(states)
        arguments = {**fit.arguments(), "test": test}
        result = SweepResult(root, [cell_result(state) for state in states], build, arguments)
        journal.append("end", status=result.status)
    return result


def _append_start(
    journal: Journal, grid: dict[str, list[Scalar]], fit: CellFit, needs: Resources, address: str | None
) -> None:
    """Append the line with the settings of the sweep."""
    journal.append(
        SWEEP,
        grid=grid,
        fit=fit.arguments() | {"build": fit.build, "test": fit.test},
        resources={**asdict(needs), "address": address},
        versions=versions_of("torch", "numpy", "ray"),
    )


class _RayTasks:
    """Runs the pending cells as Ray tasks, and displays and records how they end.

    Args:
        ray: the package, connected.
        states: all cells of the sweep.
        display: shows the cells.
        journal: of the sweep.
    """

    def __init__(self, ray: Any, states: list[CellState], display: Display, journal: Journal) -> None:
        self._ray, self._states, self._display, self._journal = ray, states, display, journal

    def run(self, fit: CellFit, needs: Resources, payload: bytes) -> None:
        """Run every pending cell and wait for all; an exception such as Ctrl-C cancels the tasks still running."""
        ray = self._ray
        options = {"num_cpus": needs.cpus, "num_gpus": needs.gpus, "max_retries": needs.retries}
        function, shared = ray.remote(**options)(run_cell), ray.put(payload)
        tasks = [
            (state, CellTask(state.cell, state.folder, fit, needs.threads)) for state in self._states if state.pending
        ]
        running = {function.remote(task, shared): state for state, task in tasks}
        try:
            while running:
                done, _ = ray.wait(list(running), timeout=REFRESH_SECONDS)
                for reference in done:
                    self._end(running.pop(reference), reference)
                for state in running.values():
                    state.progress.refresh()
                self._display(self._states)
        finally:
            for reference in running:
                ray.cancel(reference, force=True)

    def _end(self, state: CellState, reference: Any) -> None:
        """Record the end of a cell in its state and in the journal of the sweep."""
        try:
            failure = self._ray.get(reference)
        except self._ray.exceptions.RayError as error:
            failure = _ray_failure(error)
        state.end(failure)
        reason = {} if state.failure is None else {"error": state.failure.error}
        self._journal.append("cell", name=state.name, status=state.status, attempts=state.progress.attempts, **reason)


def _ray_failure(error: Exception) -> Failure:
    """Return the failure of a task that did not return; Ray's message has many lines, of which the first says why."""
    first = str(error).strip().split("\n")[0]
    return Failure(f"{type(error).__name__}: {first}", str(error))


def _fingerprint(test: Any) -> str | None:
    """Check a test set and return its fingerprint, by which a journal recognises it; None without a test set."""
    if test is None:
        return None
    import torch

    from pactune.problem.data import as_source, move

    cpu = torch.device("cpu")
    return as_source(move(test, cpu), role="test", device=cpu).fingerprint()


def _pickle(build: Any, test: Any) -> bytes:
    ray = require("ray")
    try:
        return bytes(ray.cloudpickle.dumps((build, test)))
    except Exception as error:  # the __reduce__ of the user's objects may raise anything
        raise SettingError(
            f"`build` and `test` are sent to other processes and must be picklable: {type(error).__name__}: {error}"
        ) from error


@contextmanager
def _open_folder(run_dir: str | Path) -> Iterator[tuple[Path, Journal]]:
    """Yield the folder of the sweep and its journal; while it is open, no other sweep can use the folder."""
    given = as_folder("run_dir", run_dir)
    try:
        root = given.resolve()
    except (OSError, RuntimeError) as error:  # a loop of links
        raise RunFolderError(f"`run_dir` {run_dir} cannot be used: {error}") from error
    make_folder(root)
    kinds = {line["kind"] for line in read_lines(root)}
    if kinds & {"start", "row"} and SWEEP not in kinds:
        raise RunFolderError(f"{root} holds a single run, not a sweep; choose another `run_dir`")
    with Journal(root) as journal:
        yield root, journal
