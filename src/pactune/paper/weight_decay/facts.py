"""The facts about a study as a table: settings, versions, seeds and time."""

from __future__ import annotations

from pactune.paper.weight_decay.records import StudyRecord
from pactune.paper.weight_decay.setting import PAPER, StudySetting
from pactune.paper.weight_decay.studies import Scale
from pactune.report.page import Table

__all__ = ["MODELS", "fact_table", "has_papers_settings", "pair_name"]

MODELS = {"linear": "linear", "resnet18": "ResNet-18", "resnet34": "ResNet-34"}
DATA = {"mnist": "MNIST", "cifar10": "CIFAR-10", "digits": "digits (scikit-learn, enlarged to 28 × 28)"}
COMPARABLE = ("inner_steps", "lr", "outer_lr", "rows")
PROTOCOLS = {"eval": "in eval() mode", "paper": "with batch statistics, as the authors did"}


def pair_name(study: StudyRecord) -> str:
    """Return the title of a study: classifier, data set, and unusual settings."""
    setting = study.records[0].setting if study.records else {}
    if not setting:
        return study.name
    online = study.item == "weight-decay" and any(run.setting["online"] for run in study.records)
    extra = [", online"] if online else []
    extra += [", authors' evaluation"] if setting["protocol"] == "paper" else []
    return f"{MODELS[setting['model']]}, {DATA[setting['data']].partition(' ')[0]}{''.join(extra)}"


def has_papers_settings(study: StudyRecord) -> bool:
    """Return True if data, amounts and step sizes are the paper's, so that its numbers can stand beside ours."""
    paper = StudySetting().as_dict()
    same = [run.setting[name] == paper[name] for run in study.records for name in COMPARABLE]
    known = all((run.setting["model"], run.setting["data"]) in PAPER for run in study.records)
    return known and all(same) and bool(study.settings["outer_steps"] == Scale().outer_steps)


def fact_table(study: StudyRecord) -> Table:
    """Return settings, versions, seeds and time."""
    if not study.records:
        return Table(("settings", ""), [["runs", f"0 of {study.asked}"]])
    setting, facts = study.records[0].setting, study.records[0].facts
    zetas = list(dict.fromkeys(_zeta(run.cell["zeta"]) for run in study.records))
    draws, inits = (sorted({run.cell[key] for run in study.records}) for key in ("draw", "init"))
    versions = {**study.facts["versions"], **facts["versions"]}
    seconds = [run.facts["seconds"] for run in study.records]
    rows = [
        ["data", f"{DATA[setting['data']]}; {setting['rows']} training and {setting['rows']} validation images"],
        ["inner", f"Adam {setting['lr']:g}, {setting['inner_steps']} steps per outer step"],
        ["outer", f"RMSprop {setting['outer_lr']:g} (α 0.99, ε 1e-8), {study.settings['outer_steps']} steps"],
        ["evaluation", PROTOCOLS[setting["protocol"]]],
        ["ζ", ", ".join(zetas)],
        ["draws of the images", _numbers(draws)],
        ["initial weights", _numbers(inits)],
        ["runs", f"{study.finished} of {study.asked} finished"],
        [
            "seconds per run",
            f"{sum(seconds) / len(seconds):.1f} (mean; a grid's runs go side by side) on {_machine(study)}",
        ],
        ["began", study.facts["began"]],
        ["versions", ", ".join(f"{name} {version}" for name, version in versions.items())],
    ]
    return Table(("settings", ""), rows)


def _numbers(values: list[int]) -> str:
    """Return the count of some numbers, and the numbers.

    >>> _numbers([0, 1, 2]), _numbers([0, 4])
    ('3 (0–2)', '2 (0, 4)')
    """
    whole = len(values) > 1 and values == list(range(values[0], values[-1] + 1))
    return f"{len(values)} ({f'{values[0]}–{values[-1]}' if whole else ', '.join(map(str, values))})"


def _machine(study: StudyRecord) -> str:
    settings = study.settings
    return f"{settings['device']} ({settings['machine']}), engine {settings['engine']}"


def _zeta(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:g}"
