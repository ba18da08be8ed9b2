"""The outcome of a search, and its file in a run folder: a resumed call with equal settings does not search again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from pactune.errors import RunFolderError
from pactune.parallel.packing import digest
from pactune.results.verdict import Verdict
from pactune.search.comparison import Judgement
from pactune.search.scores import RoundChoice
from pactune.storage.documents import decode_floats, encode_floats, parse_json
from pactune.storage.files import has_content, make_folder, read_plain, write_atomically
from pactune.tracking.parts import describe_parts
from pactune.tracking.run_folder import versions_of
from pactune.tuning.description import describe_run, parts_of
from pactune.tuning.fit_settings import FitSettings
from pactune.tuning.outer_run import OuterRun

__all__ = ["FILE", "SearchOutcome", "read_outcome", "search_identity", "start_of", "write_outcome"]

FILE = "search.json"
FORMAT = "search 4"


class SearchOutcome(NamedTuple):
    """What a search has found: the comparison, and the choices by all rows.

    Attributes:
        learning_rate: of the inner dynamics, at the first step.
        comparison: the comparison of the procedures.
        plain: the round of plain training.
        one: the best single decay.
        start: the scalars from which the many hyperparameters start.
        rounds: the number of rounds of the search.
        step: the outer step of the tuned run, counted from 0.
        noise: the standard deviation of the noise on the inputs of the tuned run.
    """

    learning_rate: float
    comparison: Judgement
    plain: RoundChoice
    one: RoundChoice
    start: RoundChoice
    rounds: int
    step: int
    noise: float


def start_of(run: OuterRun) -> str:
    """Return a checksum of the parameters, the buffers and λ, at the start of a run."""
    problem = run.problem
    return str(digest([problem.parameters(), problem.buffers(), problem.hyperparameters()]))


def search_identity(run: OuterRun, metric: Any) -> str:
    """Return a checksum of everything that a search depends on: data, folds, modules, settings and versions.

    Args:
        run: a run of the problem, at its start.
        metric: the user's metric: a name, a function, whose code is compared, or None.
    """
    parts = {**parts_of(run), **describe_parts({"model": run.problem.model}, {"metric": metric})}
    words = {**describe_run(run, FitSettings(outer_steps=1), None), "parts": parts}
    return str(digest([words, versions_of("torch", "numpy"), start_of(run)]))


def write_outcome(folder: Path, identity: str, outcome: SearchOutcome) -> None:
    """Write an outcome into a run folder.

    Raises:
        RunFolderError: the file cannot be written.
    """
    document = {"format": FORMAT, "identity": identity, "outcome": _plain(outcome)}
    make_folder(folder)
    write_atomically(folder / FILE, json.dumps(encode_floats(document), indent=1).encode())


def read_outcome(folder: Path, identity: str) -> SearchOutcome | None:
    """Return the outcome in a run folder; None if there is none, or one of another search.

    Raises:
        RunFolderError: the file is damaged.
    """
    path = folder / FILE
    if not has_content(path):
        return None
    try:
        document = decode_floats(parse_json(read_plain(path)))
        if document["format"] != FORMAT or document["identity"] != identity:
            return None
        return _restored(document["outcome"])
    except (ValueError, KeyError, TypeError) as error:
        raise RunFolderError(
            f"{path} is damaged ({type(error).__name__}: {error}); delete it to search again"
        ) from error


def _plain(outcome: SearchOutcome) -> dict[str, Any]:
    found = outcome._asdict()
    found["comparison"] = {**outcome.comparison._asdict(), "verdict": outcome.comparison.verdict._asdict()}
    return found | {name: found[name]._asdict() for name in ("plain", "one", "start")}


def _restored(found: dict[str, Any]) -> SearchOutcome:
    comparison = found["comparison"]
    judged = Judgement(comparison["kept"], comparison["rows"], Verdict(**comparison["verdict"]))
    choices = {name: RoundChoice(**found[name]) for name in ("plain", "one", "start")}
    return SearchOutcome(**{**found, "comparison": judged, **choices})
