"""Results in folders: weights as safetensors, everything else as JSON. No code is ever read from a folder.

A folder holds `result.json` and one file of tensors, `weights-<checksum>.safetensors`, which `result.json` names. The
tensors are named `model.…`, `hyper.…`, `fold.0.…` and `out_of_fold`. A new file of tensors is written before
`result.json` replaces the old one, so a folder holds the old or the new result at every moment.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import safetensors.torch
from safetensors import SafetensorError
from torch import nn

from pactune.errors import RunFolderError, SettingError
from pactune.problem.provenance import Provenance, UnknownSample
from pactune.results.result import Result
from pactune.results.weights import SavedModule, fit_into, weights_of
from pactune.storage.documents import decode_floats, encode_floats, parse_json
from pactune.storage.files import (
    PARTIAL,
    as_folder,
    as_path,
    has_content,
    make_folder,
    read_plain,
    remove_partial,
    write_atomically,
)
from pactune.storage.schema import (
    Check,
    SchemaError,
    check_row,
    count,
    flag,
    listed,
    mapping,
    named,
    need,
    number,
    optional,
    record,
    text,
)
from pactune.trees import Params

__all__ = ["DOCUMENT", "FORMAT", "load_result", "read_document", "save_result"]

FORMAT = 1
KIND = "pactune result"
DOCUMENT = "result.json"
WEIGHTS = re.compile(r"weights-[0-9a-f]{32}\.safetensors")


def _one_of(*choices: str) -> Check:
    def checked(value: Any, where: str) -> None:
        need(value in choices, where, f"one of {', '.join(choices)}", value)

    return checked


# The fields of `Result` that JSON holds, with their rules. A new field needs one line here; `fit` must give it plain
# numbers, texts, lists and dicts. A file without the field loads with the field's default.
FIELDS: dict[str, Check] = {
    "status": _one_of("completed", "converged", "interrupted", "diverged"),
    "zeta": number,
    "kept_run": _one_of("tuned", "plain"),
    "kept_step": count,
    "rows": listed(check_row),
    "plain_rows": listed(check_row),
    "trials": listed(mapping),
    "verdict": text,
    "pays": optional(flag),
    "settings": mapping,
    "comparison": listed(mapping),
}
REQUIRED = ("status", "zeta", "kept_run", "kept_step", "rows", "plain_rows")
_check_body = record(
    {
        **{name: FIELDS[name] for name in REQUIRED},
        "modules": record({"model": text, "hyper": text}),
        "folds": count,
        "provenance": record({"touched": named(listed(text)), "stated": listed(text)}),
        "weights": text,
    },
    FIELDS,
)


# Saving


def save_result(result: Result, folder: str | Path) -> Path:
    """Write a result; see `Result.save`."""
    place = as_folder("folder", folder)
    _check_free(place)
    tensors = _tensors(result)
    try:
        data = safetensors.torch.save(tensors)
    except (SafetensorError, RuntimeError, ValueError, KeyError) as error:
        raise SettingError(f"the weights cannot be saved as safetensors: {error}") from error
    make_folder(place, "`folder`")
    name = f"weights-{_digest(data)}.safetensors"
    document = _document(result, name)
    write_atomically(place / name, data)
    write_atomically(place / DOCUMENT, document)
    for path in place.iterdir():
        if path.name != name and _is_ours(path.name) and path.name != DOCUMENT:
            remove_partial(path)
    return place


def _check_free(folder: Path) -> None:
    """Raise if a folder holds files and no earlier result."""
    if not folder.is_dir():
        return
    if has_content(folder / DOCUMENT):
        try:
            read_document(folder)
        except RunFolderError as error:
            raise RunFolderError(f"`folder` {folder} cannot be replaced: {error}; or choose another folder") from error
        return
    others = sorted(path.name for path in folder.iterdir() if not _is_ours(path.name))
    if others:
        raise RunFolderError(
            f"`folder` {folder} holds other files, such as {others[0]}; choose a new folder, an empty one, or that of "
            "an earlier result, which is replaced"
        )


def _is_ours(name: str) -> bool:
    """True for a file that `save_result` writes, also if it is left half written."""
    whole = re.sub(rf"\.[0-9a-f]{{8}}{re.escape(PARTIAL)}$", "", name)
    return whole == DOCUMENT or WEIGHTS.fullmatch(whole) is not None


def _tensors(result: Result) -> Params:
    modules = {"model": result.model, "hyper": result.hyper}
    found = {f"{role}.{name}": value for role, one in modules.items() for name, value in weights_of(role, one).items()}
    for index, state in enumerate(result.fold_states):
        found |= {f"fold.{index}.{name}": value.detach().cpu().clone() for name, value in state.items()}
    if result.out_of_fold is not None:
        found["out_of_fold"] = result.out_of_fold.detach().cpu().clone()
    return {name: value.contiguous() for name, value in found.items()}


def _document(result: Result, weights: str) -> bytes:
    from pactune import __version__

    body = {name: getattr(result, name) for name in FIELDS}
    body |= {"rows": list(result.rows), "plain_rows": list(result.plain_rows)}
    body |= {"modules": {"model": _kind(result.model), "hyper": _kind(result.hyper)}}
    body |= {"folds": len(result.fold_states), "provenance": result.provenance.describe(), "weights": weights}
    try:
        plain = json.loads(json.dumps(encode_floats(body), allow_nan=False))
    except (TypeError, ValueError) as error:
        raise SettingError(f"a result with a value that JSON does not hold cannot be saved: {error}") from error
    head = {"kind": KIND, "format": FORMAT, "pactune": __version__, "checksum": _digest(_canonical(plain))}
    return (json.dumps({**head, "result": plain}, indent=1, allow_nan=False) + "\n").encode()


# Loading


def load_result(folder: str | Path, model: nn.Module | None = None, hyper: nn.Module | None = None) -> Result:
    """Return a result that `Result.save` wrote.

    The weights are loaded into the modules given, on whatever device these are. No code is read from the folder: a
    module that is not given has its weights in `result.state_dict()`, and cannot be called. Other tensors are on the
    CPU. The rows of the samples are not saved, so a certificate of a loaded model treats every sample as seen.

    Args:
        folder: the folder.
        model: a model made like the one that was saved; it is put into `eval()` mode.
        hyper: a hyper module made like the one that was saved.

    Raises:
        RunFolderError: the folder holds no result, is damaged, or is of another format.
        SettingError: a module has other names, shapes or types than the one that was saved.
    """
    place = as_path("folder", folder)
    body, tensors = _read(place)
    kinds, weights = body["modules"], {role: _part(tensors, f"{role}.") for role in ("model", "hyper")}
    given = {"model": model, "hyper": hyper}
    modules = {role: _module(role, given[role], weights[role], kinds[role]) for role in given}
    marks = body["provenance"]["touched"]
    seen = {thing: tuple(UnknownSample(name) for name in names) for thing, names in marks.items()}
    return Result(
        model=modules["model"],
        hyper=modules["hyper"],
        **{name: body[name] for name in FIELDS if name in body},
        provenance=Provenance(seen, tuple(body["provenance"]["stated"])),
        out_of_fold=tensors.get("out_of_fold"),
        fold_states=[_part(tensors, f"fold.{index}.") for index in range(body["folds"])],
    )


def _module(role: str, given: nn.Module | None, weights: Params, kind: str) -> nn.Module:
    return SavedModule(kind, weights) if given is None else fit_into(role, given, weights, kind)


def _read(folder: Path) -> tuple[dict[str, Any], Params]:
    """Return the checked content of both files."""
    body = read_document(folder)
    data = read_plain(folder / body["weights"])
    if body["weights"] != f"weights-{_digest(data)}.safetensors":
        raise RunFolderError(f"{folder / body['weights']} is damaged: its checksum is wrong")
    try:
        tensors = safetensors.torch.load(data)
    except (SafetensorError, RuntimeError, ValueError, KeyError, OverflowError) as error:
        raise RunFolderError(f"{folder / body['weights']} is damaged: {error}") from error
    if body["folds"] > len(tensors):
        raise RunFolderError(f"{folder / DOCUMENT} is damaged: it has more folds than tensors")
    return body, tensors


def read_document(folder: Path) -> dict[str, Any]:
    """Return the checked content of `result.json`: the fields of `FIELDS`, and what is said about the weights.

    Raises:
        RunFolderError: the folder holds no result, is damaged, or is of another format.
    """
    path = folder / DOCUMENT
    if not has_content(path):
        raise RunFolderError(f"`folder` {folder} holds no result: there is no {DOCUMENT}{_hint(folder)}")
    found = _parsed(path, parse_json, read_plain(path))
    if not isinstance(found, dict) or found.get("kind") != KIND:
        raise RunFolderError(f"{path} is not a result of pactune")
    if found.get("format") != FORMAT:
        version = str(found.get("pactune", "unknown"))[:40]
        raise RunFolderError(
            f"{path} is of format {str(found.get('format'))[:40]}, which pactune {version} wrote, and this version "
            f"reads {FORMAT}; load it with that version"
        )
    if found.get("checksum") != _digest(_canonical(found.get("result"))):
        raise RunFolderError(f"{path} is damaged: its checksum is wrong")
    body: dict[str, Any] = _parsed(path, decode_floats, found["result"])
    _parsed(path, lambda value: _check_body(value, "result"), body)
    if not WEIGHTS.fullmatch(body["weights"]):
        raise RunFolderError(f"{path} is damaged: it names no file of weights")
    return body


def _parsed(path: Path, read: Callable[[Any], Any], value: Any) -> Any:
    try:
        return read(value)
    except (SchemaError, ValueError, RecursionError) as error:
        raise RunFolderError(f"{path} is damaged: {error}") from error


def _hint(folder: Path) -> str:
    if not folder.is_dir():
        return ", and no such folder"
    if has_content(folder / "journal.jsonl"):
        return "; it is the folder of a run: use `fit(run_dir=..., resume=True)`"
    return "; name the folder that `result.save` wrote"


def _part(tensors: Params, prefix: str) -> Params:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def _kind(module: nn.Module) -> str:
    return module.kind if isinstance(module, SavedModule) else type(module).__name__


def _canonical(document: Any) -> bytes:
    return json.dumps(document, sort_keys=True).encode()


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()
