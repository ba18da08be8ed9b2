"""Single-point changes of a Python file, found in its syntax tree and made in its text."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["Mutant", "find_mutants"]

COMPARED: dict[type[ast.cmpop], list[type[ast.cmpop]]] = {
    ast.Lt: [ast.LtE, ast.GtE],
    ast.LtE: [ast.Lt, ast.Gt],
    ast.Gt: [ast.GtE, ast.LtE],
    ast.GtE: [ast.Gt, ast.Lt],
    ast.Eq: [ast.NotEq],
    ast.NotEq: [ast.Eq],
    ast.Is: [ast.IsNot],
    ast.IsNot: [ast.Is],
    ast.In: [ast.NotIn],
    ast.NotIn: [ast.In],
}
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


class Mutant(NamedTuple):
    """One change.

    Attributes:
        file: the changed file, relative to the package.
        line: where the change is.
        column: where in the line, counted in bytes from 0.
        change: the old and the new text.
        source: the whole text of the changed file.
        function: first lines under which Python knows the enclosing function, None outside of functions.
    """

    file: str
    line: int
    column: int
    change: str
    source: str
    function: frozenset[int] | None


def find_mutants(path: Path, name: str) -> list[Mutant]:
    """Return all mutants of a file: comparisons, arithmetic, constants, conditions, calls and returned values.

    Messages, docstrings, annotations, decorators, assertions and `raise` statements are left alone.
    """
    text = path.read_text(encoding="utf-8")
    found = []
    for node, function in _sites(ast.parse(text), None):
        for changed in _changes(node):
            found.append(_mutant(text, name, node, changed, function))
    return found


def _sites(node: ast.AST, function: frozenset[int] | None) -> Iterator[tuple[ast.AST, frozenset[int] | None]]:
    if isinstance(node, FUNCTIONS):
        decorators = getattr(node, "decorator_list", [])
        function = frozenset({node.lineno, *(d.lineno for d in decorators)})
        outside = node.args.defaults + [d for d in node.args.kw_defaults if d is not None]
        for default in outside:
            yield from _sites_below(default, None)
        for child in node.body if isinstance(node.body, list) else [node.body]:
            yield from _sites_below(child, function)
        return
    for field, value in ast.iter_fields(node):
        if field not in ("annotation", "returns", "decorator_list", "msg", "bases", "keywords_of_class"):
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from _sites_below(child, function)


def _sites_below(node: ast.AST, function: frozenset[int] | None) -> Iterator[tuple[ast.AST, frozenset[int] | None]]:
    silent = (ast.Raise, ast.Assert, ast.JoinedStr, ast.Import, ast.ImportFrom)
    if isinstance(node, silent) or _is_type_checking(node) or _is_warning(node):
        return
    if isinstance(node, ast.AnnAssign):
        if node.value is not None:
            yield from _sites_below(node.value, function)
        return
    yield node, function
    yield from _sites(node, function)


def _is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def _is_warning(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in ("warn_user", "cast", "TypeVar")


def _changes(node: ast.AST) -> Iterator[ast.AST]:
    """Yield changed copies of one node."""
    if isinstance(node, ast.Compare):
        for place, operation in enumerate(node.ops):
            for other in COMPARED[type(operation)]:
                changed = copy.deepcopy(node)
                changed.ops[place] = other()
                yield changed
    elif isinstance(node, (ast.BinOp, ast.AugAssign)) and type(node.op) in ARITHMETIC:
        yield _with_operator(node, ARITHMETIC[type(node.op)]())
    elif isinstance(node, ast.BoolOp):
        yield _with_operator(node, ast.And() if isinstance(node.op, ast.Or) else ast.Or())
    elif isinstance(node, ast.UnaryOp):
        yield node.operand
    elif isinstance(node, ast.Constant):
        yield from _other_constants(node.value)
    elif isinstance(node, ast.IfExp):
        yield ast.IfExp(ast.UnaryOp(ast.Not(), node.test), node.body, node.orelse)
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        yield ast.Pass()
    elif isinstance(node, ast.Return) and isinstance(node.value, ast.Call) and node.value.args:
        yield ast.Return(node.value.args[0])
    if isinstance(node, (ast.If, ast.While)) and not isinstance(node.test, (ast.Compare, ast.UnaryOp)):
        yield ast.UnaryOp(ast.Not(), node.test)


def _with_operator(node: Any, operator: ast.AST) -> ast.AST:
    changed: Any = copy.deepcopy(node)
    changed.op = operator
    return changed  # type: ignore[no-any-return]


def _other_constants(value: object) -> Iterator[ast.AST]:
    if isinstance(value, bool):
        yield ast.Constant(not value)
    elif isinstance(value, (int, float)):
        yield ast.Constant(value + 1)
        yield ast.Constant(value - 1)


def _mutant(text: str, name: str, node: ast.AST, changed: ast.AST, function: frozenset[int] | None) -> Mutant:
    where: Any = node.test if isinstance(node, (ast.If, ast.While)) else node  # a statement or an expression
    lines = text.encode().splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    raw = text.encode()
    first = starts[where.lineno - 1] + where.col_offset
    last = starts[where.end_lineno - 1] + where.end_col_offset
    new = ast.unparse(ast.fix_missing_locations(changed))
    if isinstance(changed, ast.expr) and not isinstance(changed, ast.Constant):
        new = f"({new})"
    old = raw[first:last].decode()
    source = (raw[:first] + new.encode() + raw[last:]).decode()
    return Mutant(name, where.lineno, where.col_offset, f"{' '.join(old.split())} -> {new}", source, function)
