"""Check the state in a checkpoint against the settings of the present run: names, shapes, types and counts."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from torch import Tensor

from pactune.columns import TUNED_COLUMNS
from pactune.storage.schema import (
    Check,
    SchemaError,
    anything,
    count,
    finite,
    flag,
    is_number,
    listed,
    mapping,
    named,
    need,
    number,
    optional,
    record,
    text,
)
from pactune.tracking.optimizers import fits_memory
from pactune.tracking.row_log import check_mark

__all__ = ["check_document", "check_rows", "check_state"]

check_document = record(
    {
        "settings": mapping,
        "versions": record({"pactune": text}),
        "step": count,
        "histories": record({"rows": check_mark, "plain_rows": check_mark}),
        "state": mapping,
    },
    {"moved": listed(text)},
)


class _TensorChecks:
    """Checks of tensors against the shapes and types of a problem, which `describe_run` gives as text."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings = settings
        self.params, self.buffers, self.hyper = (
            self.tree(settings.get(name)) for name in ("parameters", "buffers", "hyperparameters")
        )

    def tree(self, shapes: dict[str, str] | None, *, complete: bool = True) -> Check:
        """Return a check of a dict of tensors with these names, shapes and types."""

        def checked(value: Any, where: str) -> None:
            mapping(value, where)
            for name, part in value.items():
                need(isinstance(part, Tensor), f"{where}.{name}", "a tensor", part)
                if shapes is not None:
                    need(_words(part) == shapes.get(name), f"{where}.{name}", str(shapes.get(name)), _words(part))
            if shapes is not None and complete:
                need(set(shapes) <= set(value), where, f"tensors of the names {list(shapes)}", list(value))

        return checked

    def kept(self) -> Check:
        """Return a check of a kept outer step."""
        fold, expected = listed(_pair(self.params, self.buffers)), len(self.settings.get("folds", []))

        def folds(value: Any, where: str) -> None:
            fold(value, where)
            need(len(value) == expected, where, f"the models of {expected} folds", len(value))

        fields = {"step": count, "params": self.params, "buffers": self.buffers, "hyper": self.hyper}
        return optional(record({**fields, "folds": folds}))

    def all_chain_states(self, *, remembers: bool = False) -> Check:
        """Return a check of the states of a run's chains, by problem.

        Args:
            remembers: True if the chains of the first problem must have a memory of their estimator. A refit has none.
        """
        expected, one = self.settings.get("problems", 1), self.chain_states()

        def checked(value: Any, where: str) -> None:
            listed(one)(value, where)
            need(len(value) == expected, where, f"the chains of {expected} problems", len(value))
            rounds = {states["rounds"] for states in value}
            need(len(rounds) == 1, f"{where}.rounds", "equal for all problems", rounds)
            for chain in (value[0]["chains"] or []) if remembers else []:
                need("memory" in chain, f"{where}.chains", "with the memory of the estimator", list(chain))

        return checked

    def chain_states(self) -> Check:
        """Return a check of the states of one problem's chains."""
        fields = {"params": self.params, "slots": self._slots, "buffers": self.buffers, "step": count}
        chain = record(fields, {"memory": self.params})
        states = {"params": self.params, "buffers": self.buffers, "chains": optional(listed(chain)), "rounds": count}

        def checked(value: Any, where: str) -> None:
            record(states)(value, where)
            self._chains(value, where)

        return checked

    def _chains(self, states: dict[str, Any], where: str) -> None:
        chains, rounds, settings = states["chains"], states["rounds"], self.settings
        need((chains is None) == (rounds == 0), f"{where}.chains", "there once a round is done", chains)
        if chains is None or "chains" not in settings:
            return
        need(len(chains) == settings["chains"], f"{where}.chains", f"{settings['chains']} chains", len(chains))
        trained = rounds - 1 if settings.get("roll_back", False) else rounds  # the last round was rolled back
        steps = settings["inner_steps"] * (1 if settings["restart"] else trained)
        for chain in chains:
            need(chain["step"] == steps, f"{where}.step", f"{steps} after {rounds} rounds", chain["step"])

    def _slots(self, value: Any, where: str) -> None:
        """Check the slots of a dynamics: they have the shapes of θ, those of a torch.optim optimizer spread to them."""
        shapes, own = self.settings.get("parameters"), self.settings.get("memory", [])
        mapping(value, where)
        need(set(own) <= set(value), where, f"slots {own}", list(value))
        for slot, tree in value.items():
            named(anything)(tree, f"{where}.{slot}")
            if slot in own:
                self.params(tree, f"{where}.{slot}")
            for name, part in tree.items():
                need(shapes is None or _fits(part, shapes.get(name)), f"{where}.{slot}.{name}", "like θ", part)

    def outer(self) -> Check:
        """Return a check of the outer optimizer's state."""
        groups, expected = self.settings.get("outer_groups", []), self.settings.get("outer_memory")

        def checked(value: Any, where: str) -> None:
            record({"state": anything, "param_groups": listed(mapping)})(value, where)
            need(isinstance(value["state"], dict), f"{where}.state", "a dict", value["state"])
            found, first = value["param_groups"], 0
            need(len(found) == len(groups), f"{where}.param_groups", f"{len(groups)} groups", len(found))
            for given, group in zip(found, groups, strict=True):
                last = first + len(group["params"])
                same = repr(given.get("params")) == repr(list(range(first, last)))
                need(same, f"{where}.params", "as many as before", given)
                record(dict.fromkeys(group, anything))(given, f"{where}.param_groups")
                for name in [name for name in group if name != "params"]:
                    need(_is_like(given[name], group[name]), f"{where}.{name}", f"like {group[name]}", given[name])
                first = last
            shapes = [shape for group in groups for shape in group["params"]]
            for key, memory in value["state"].items():
                need(type(key) is int and 0 <= key < first, f"{where}.state", "by number of a parameter", key)
                named(anything)(memory, f"{where}.state")
                if expected is not None:
                    fits = fits_memory(memory, expected.get(str(key), {}), _sizes(shapes[key]))
                    need(fits, f"{where}.state.{key}", f"like {expected.get(str(key))}", memory)
                for name, part in memory.items():
                    need(_is_optimizer_state(part, shapes[key], shapes), f"{where}.state.{key}.{name}", "like λ", part)

        return checked


def _is_like(value: object, words: str) -> bool:
    """True if a setting of an optimizer is unchanged, or is a number that a scheduler may have set."""
    if repr(value) == words:
        return True
    if isinstance(value, tuple):
        parts = words.strip("()").split(", ")
        whole = words.startswith("(") and len(parts) == len(value) and all(map(_is_like, value, parts))
        return whole and all(part is None or 0 <= part <= 1 for part in value)  # decay rates, such as Adam's betas
    if isinstance(value, Tensor):
        return words.startswith("tensor") and value.numel() == 1
    if not is_number(value) or words[:1] not in "-.0123456789":
        return False
    return math.isfinite(value) and (value >= 0 or words.startswith("-"))  # type: ignore[arg-type, operator]


def _words(value: Tensor) -> str:
    return f"{tuple(value.shape)} {value.dtype}"


def _sizes(words: str) -> list[int]:
    return [int(size) for size in words[1 : words.index(")")].split(",") if size.strip()]


def _fits(value: object, words: str | None) -> bool:
    """True if a tensor has the shape of a parameter, or a shape that broadcasts to it."""
    if words is None or not isinstance(value, Tensor):
        return False
    sizes, axes = list(value.shape), _sizes(words)
    behind = axes[len(axes) - len(sizes) :]
    return len(sizes) <= len(axes) and all(a in (1, b) for a, b in zip(sizes, behind, strict=True))


def _is_optimizer_state(value: object, words: str, all_words: Iterable[str]) -> bool:
    """True for the values that optimizers store: numbers, tensors like λ, and flat tensors of all λ (LBFGS)."""
    if isinstance(value, (list, tuple)):
        return all(_is_optimizer_state(part, words, all_words) for part in value)
    if isinstance(value, Tensor):
        total = sum(math.prod(_sizes(other)) for other in all_words)
        return _fits(value, words) or value.shape == (total,) or value.numel() == 1
    return value is None or isinstance(value, bool) or is_number(value)


def check_state(saved: dict[str, Any], settings: dict[str, Any]) -> None:
    """Check the state of a run against its settings.

    Args:
        saved: the content of a checkpoint, which `check_document` has accepted.
        settings: the settings of the present run, from `describe_run`.

    Raises:
        SchemaError: a field breaks its rule.
    """
    checks, state = _TensorChecks(settings), saved["state"]
    if settings.get("part") == "start":
        start = {"params": checks.params, "buffers": checks.buffers, "hyper": checks.hyper, "outer": checks.outer()}
        record({"start": record(start)})(state, "state")
        return
    outer_run = {
        "hyper": checks.hyper,
        "start_hyper": checks.hyper,
        "outer": checks.outer(),
        "pending": optional(checks.tree(settings.get("hyperparameters"), complete=False)),
        "last": optional(_pair(checks.hyper, checks.hyper)),
        "chains": checks.all_chain_states(remembers=settings.get("remembers", False)),
        "plain_chains": checks.all_chain_states(),
        "unrecordable": flag,
    }
    run = {
        "outer_steps": count,
        "plain_steps": count,
        "seconds": finite,
        "hypergradient_norm": number,
        "least": number,
        "zeta": optional(finite),
        "kept": checks.kept(),
        "plain_kept": checks.kept(),
        "run": record(outer_run),
        "listeners": named(mapping),
    }
    record(run)(state, "state")
    need(state["outer_steps"] == saved["step"], "state.outer_steps", f"{saved['step']}, as the file", state)
    need(state["zeta"] is not None or not saved["step"], "state.zeta", "a number once there are rows", state["zeta"])
    for name, done, chains, kept in (
        ("rows", "outer_steps", "chains", "kept"),
        ("plain_rows", "plain_steps", "plain_chains", "plain_kept"),
    ):
        _check_steps(saved["histories"][name], state[done], state["run"][chains][0]["rounds"], state[kept], name)


def _check_steps(mark: dict[str, Any], done: int, rounds: int, kept: dict[str, Any] | None, where: str) -> None:
    """Check that a history, the steps done, the rounds and the kept step fit each other."""
    need(mark["rows"] <= done <= rounds, where, f"at most {done} of {rounds} outer steps", mark["rows"])
    need(not mark["rows"] or mark["last"] == rounds, where, f"rows up to round {rounds}", mark["last"])
    steps = range(rounds - done + 1, rounds + 1)
    need(kept is None or kept["step"] in steps, f"{where}: the kept step", f"one of {steps}", kept and kept["step"])


def check_rows(
    rows: dict[str, list[dict[str, Any]]], state: dict[str, Any], *, partly: bool = False
) -> dict[str, list[dict[str, Any]]]:
    """Check the rows of a run; return them.

    Args:
        rows: the tuned and the plain rows of a journal.
        state: the state of the checkpoint, which `check_state` has accepted.
        partly: leave rows out that break a rule.

    Raises:
        SchemaError: a row breaks its rule, unless `partly`.
    """
    found = {**rows, "rows": list[dict[str, Any]]()}
    for row in rows["rows"]:
        try:
            _check_tuned_row(row, state["zeta"])
        except SchemaError:
            if not partly:
                raise
        else:
            found["rows"].append(row)
    return found


def _check_tuned_row(row: dict[str, Any], zeta: float | None) -> None:
    """Check that a row has its columns, and J = risk + ζ √Y up to rounding."""
    record(dict.fromkeys(TUNED_COLUMNS, finite))(row, "row")
    parts = row["risk"], (zeta or 0.0) * row["regularizer"]
    slack = 1e-6 * (1 + sum(map(abs, parts)))
    need(abs(row["objective"] - sum(parts)) <= slack, "objective", "risk + ζ · regularizer", row["objective"])


def _pair(first: Check, second: Check) -> Check:
    def checked(value: Any, where: str) -> None:
        need(isinstance(value, tuple) and len(value) == 2, where, "a pair", value)
        first(value[0], where)
        second(value[1], where)

    return checked
