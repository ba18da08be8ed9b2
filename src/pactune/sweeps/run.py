"""`pt.sweep`: a grid of tuning runs as Ray tasks, each in a run folder of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pactune.errors import RunFolderError, SettingError
from pactune.extras import require
from pactune.sweeps.board import CellState
from pactune.sweeps.cluster import connected
from pactune.sweeps.grid import cells_of, lists_of
from pactune.sweeps.plan import CellFit, Resources
from pactune.sweeps.result import CellResult, SweepResult
from pactune.sweeps.show import Show, showing
from pactune.sweeps.worker import CellTask, Failure, run_cell
from pactune.tracking.files import make_folder
from pactune.tracking.journal import Journal, read_lines
from pactune.tracking.place import as_folder
from pactune.tracking.run_folder import versions_of
from pactune.tuning.fit_settings import Keep

if TYPE_CHECKING:
    from pactune.tuning.tuner import Tuner

__all__ = ["sweep"]

REFRESH_SECONDS = 0.5
SWEEP = "sweep"  # kind of the first line of a sweep's own journal


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
    address: str | None = None,
    cpus: float = 1,
    gpus: float = 0,
    retries: int = 3,
    progress: bool | None = None,
) -> SweepResult:
    """Fit every cell of a grid as a Ray task, on this machine or on a cluster.

    Each cell is a run folder that is resumed from its last checkpoint: by Ray when its worker or node dies, and by the
    next call after Ctrl-C. Cells that are done are not run again. A cell that fails does not stop the others.

    Args:
        build: `build(**cell)` returns a `Tuner`; it runs on the worker and must give the same tuner every time.
        grid: names of arguments of `build`, each with a list of numbers, texts or truth values.
        outer_steps: how often λ is to move in every cell.
        run_dir: the folder of the sweep; on a cluster it must be on a file system that all nodes share.
        test: a test set to report on, as in `Tuner.fit`.
        keep: as in `Tuner.fit`.
        tolerance: as in `Tuner.fit`.
        plain_steps: as in `Tuner.fit`.
        address: of a Ray cluster, or "auto" for the one on this machine; None starts Ray here and stops it again.
        cpus: that a cell may use, which is also its number of threads; a fraction packs more cells on a core.
        gpus: the same for GPUs; 0.25 puts four cells on each.
        retries: how often a cell is tried again when its worker or node dies.
        progress: show the cells on stderr; None does so on a terminal only.

    Returns:
        The result. After Ctrl-C it is the result so far, with status "interrupted".

    Raises:
        MissingPackageError: ray is not installed.
        SettingError: a setting breaks its rule, or no cluster answers at `address`.
        DataError: the test set cannot be used.
        RunFolderError: `run_dir` holds something else, is in use, or cannot be written.
    """
    cells, needs = cells_of(grid), Resources(cpus, gpus, retries)
    if not callable(build):
        raise SettingError(f"`build` must be a function that returns a Tuner, got {build!r}")
    name = getattr(build, "__qualname__", type(build).__name__)
    fit = CellFit(outer_steps, keep, tolerance, plain_steps, name, _fingerprint(test))
    payload = _pickled(build, test)
    with _opened(run_dir) as (root, journal), showing(progress, outer_steps) as show:
        states = [CellState(cell, root, fit) for cell in cells]
        journal.append(
            SWEEP,
            grid=lists_of(grid),
            fit=fit.arguments() | {"build": name, "test": fit.test},
            resources={"cpus": cpus, "gpus": gpus, "retries": retries, "address": address},
            versions=versions_of("torch", "numpy", "ray"),
        )
        try:
            if any(state.pending for state in states):
                with connected(address, needs) as ray:
                    _Driver(ray, states, show, journal).run(fit, needs, payload)
        except KeyboardInterrupt:
            for state in states:
                state.give_up()
        show(states)
        arguments = {**fit.arguments(), "test": test}
        result = SweepResult(root, [CellResult.of(state) for state in states], build, arguments)
        journal.append("end", status=result.status)
    return result


class _Driver:
    """Hands the cells to Ray and waits for them."""

    def __init__(self, ray: Any, states: list[CellState], show: Show, journal: Journal) -> None:
        self._ray, self._states, self._show, self._journal = ray, states, show, journal

    def run(self, fit: CellFit, needs: Resources, payload: bytes) -> None:
        """Run every cell that is not done; on Ctrl-C stop the others' work too."""
        ray = self._ray
        options = {"num_cpus": needs.cpus, "num_gpus": needs.gpus, "max_retries": needs.retries}
        task, shared = ray.remote(**options)(run_cell), ray.put(payload)
        jobs = [
            (state, CellTask(state.cell.values, state.folder, fit, needs.threads))
            for state in self._states
            if state.pending
        ]
        running = {task.remote(job, shared): state for state, job in jobs}
        try:
            while running:
                done, _ = ray.wait(list(running), timeout=REFRESH_SECONDS)
                for reference in done:
                    self._close(running.pop(reference), reference)
                for state in running.values():
                    state.watch.look()
                self._show(self._states)
        finally:
            for reference in running:
                ray.cancel(reference, force=True)

    def _close(self, state: CellState, reference: Any) -> None:
        try:
            failure = self._ray.get(reference)
        except self._ray.exceptions.RayError as error:
            failure = _lost(error)
        state.close(failure)
        words = {} if state.failure is None else {"error": state.failure.error}
        self._journal.append("cell", name=state.cell.name, status=state.status, attempts=state.watch.attempts, **words)


def _lost(error: Exception) -> Failure:
    """Return the first line of what Ray says when a task did not come back; the rest is for the traceback."""
    first = str(error).strip().split("\n")[0]
    return Failure(f"{type(error).__name__}: {first}", str(error))


def _fingerprint(test: Any) -> str | None:
    """Check a test set, and return words by which it can be told from another one."""
    if test is None:
        return None
    import torch

    from pactune.problem.data import as_source
    from pactune.problem.data.source import move

    cpu = torch.device("cpu")
    return as_source(move(test, cpu), role="test", device=cpu).fingerprint()


def _pickled(build: Any, test: Any) -> bytes:
    ray = require("ray")
    try:
        return bytes(ray.cloudpickle.dumps((build, test)))
    except Exception as error:  # whatever the __reduce__ of the user's objects raises
        raise SettingError(
            f"`build` and `test` are sent to other processes and must be picklable: {type(error).__name__}: {error}"
        ) from error


@contextmanager
def _opened(run_dir: str | Path) -> Iterator[tuple[Path, Journal]]:
    """Open the sweep's own journal, which keeps a second sweep out of the folder."""
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
