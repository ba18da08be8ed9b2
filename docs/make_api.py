"""Write docs/api.md from the docstrings: `python docs/make_api.py`. A test fails when the page is out of date."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from types import ModuleType

import pactune as pt
from pactune import sklearn, tracking

PAGE = Path(__file__).parent / "api.md"

HEAD = """# API

Every public name, as `import pactune as pt` offers it. This page is written from the docstrings by `docs/make_api.py`;
`help(pt.Tuner)` says the same and more.
"""

GROUPS = {
    "One call": ["tune"],
    "Problem and tuner": [
        "Problem",
        "Tuner",
        "ObjectiveValue",
        "Result",
        "load_result",
        "Callback",
        "check_hypergradient",
    ],
    "Many runs at once": ["fit_grid", "GridResult"],
    "Several processes": ["Parallel"],
    "Sweeps": ["sweep", "SweepResult"],
    "Monitor": ["CoherenceMonitor"],
    "Hyperparameters": ["WeightDecay", "CorrelatedInputs", "ExampleWeights", "LearningRates", "Initialization"],
    "Inner dynamics": ["SGD", "Adam", "Langevin", "TorchOptim"],
    "Objectives": [
        "PACBayes",
        "AutoZeta",
        "ValidationRisk",
        "Flatness",
        "SameDistribution",
        "UnequalSteps",
        "HyperDrift",
    ],
    "Hypergradients": [
        "Truncated",
        "Windowed",
        "ForwardMode",
        "Implicit",
        "RunningImplicit",
        "FirstOrder",
        "ValueFunctionGap",
    ],
    "Solvers of `Implicit`": ["Identity", "Neumann", "ConjugateGradient", "Nystrom"],
    "Certificates": ["certify", "Certificate", "Provenance"],
    "Errors": [
        "PactuneError",
        "SettingError",
        "DataError",
        "GradientError",
        "DivergenceError",
        "CertificateError",
        "RunFolderError",
        "RankError",
    ],
}
SKLEARN = ["TunedClassifier", "TunedRegressor"]
TRACKING = ["TensorBoardLogger", "MLflowLogger", "WandbLogger", "Logger", "read_journal"]
WITH_METHODS = {"GridResult", "Tuner", "Result", "SweepResult", "Callback", "CoherenceMonitor", "ExampleWeights"}
METHODS = {"Tuner": ["fit", "hypergradient", "suggest"], "ExampleWeights": ["weights"]}


def page() -> str:
    """Return the text of the page."""
    named = {name for names in GROUPS.values() for name in names}
    groups = GROUPS | {"Others": [name for name in pt.__all__ if name not in named]}
    parts = [HEAD]
    for title, names in groups.items():
        if names:
            parts += [f"## {title}\n", *(_entry(name) for name in names)]
    parts += ["## `pactune.tracking`\n", *(_part_entry(tracking, name) for name in TRACKING)]
    parts += ["## `pactune.sklearn`\n", *(_part_entry(sklearn, name) for name in SKLEARN)]
    return "\n".join(parts)


def _entry(name: str) -> str:
    thing = getattr(pt, name)
    parts = [f"### `{name}`\n", _block(f"pt.{name}{_signature(thing)}"), _text(thing)]
    if name in WITH_METHODS:
        methods = METHODS.get(name) or [m for m in vars(thing) if not m.startswith("_") and _documented(thing, m)]
        parts += [_method(name, method, getattr(thing, method)) for method in methods]
    return "\n".join(parts)


def _part_entry(part: ModuleType, name: str) -> str:
    thing, home = getattr(part, name), part.__name__.removeprefix("pactune.")
    return "\n".join([f"### `{home}.{name}`\n", _block(f"{name}{_signature(thing)}"), _text(thing)])


def _documented(owner: type, member: str) -> bool:
    found = vars(owner)[member]
    return isinstance(found, property) or inspect.isfunction(found)


def _method(owner: str, name: str, thing: object) -> str:
    if isinstance(thing, property):
        return f"`{owner}.{name}`: {_summary(thing)}\n"
    return f"`{owner}.{name}{_signature(thing)}`\n\n{_text(thing)}"


def _signature(thing: object) -> str:
    if isinstance(thing, type) and issubclass(thing, BaseException):
        return f"({', '.join(base.__name__ for base in thing.__bases__)})"
    try:
        found = inspect.signature(thing)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return ""
    kept = [p.replace(annotation=inspect.Parameter.empty) for n, p in found.parameters.items() if n != "self"]
    return str(found.replace(parameters=kept, return_annotation=inspect.Signature.empty))


def _block(code: str) -> str:
    return f"```text\n{code}\n```\n"


def _summary(thing: object) -> str:
    return (inspect.getdoc(thing) or "").split("\n\n")[0].replace("\n", " ")


def _text(thing: object) -> str:
    """Return the docstring in Markdown: arguments as a list, the example left to `help`."""
    lines: list[str] = []
    for paragraph in (inspect.getdoc(thing) or "").split("\n\n"):
        head, _, rest = paragraph.partition("\n")
        if head == "Example:":
            continue
        if re.fullmatch(r"(Args|Attributes|Raises|Returns):", head):
            lines.append(f"{head}\n\n{_items(rest, listed=head != 'Returns:')}")
        elif head.startswith("    "):
            lines.append(_block(inspect.cleandoc(paragraph)).rstrip())
        else:
            lines.append(paragraph)
    return "\n\n".join(lines) + "\n"


def _items(text: str, *, listed: bool) -> str:
    flat = re.sub(r"\n {8,}", " ", text)
    items = [line.strip() for line in flat.split("\n") if line.strip()]
    return "\n".join(re.sub(r"^(\w+):", r"- `\1`:", item) for item in items) if listed else " ".join(items)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
