"""The numbers of docs/evidence/gains.md: `pt.tune` against what a user would do instead."""

from __future__ import annotations

from typing import Any

from claims.text import n, read

__all__ = ["ALLOWED", "claims"]

SETTINGS = {
    "breast cancer, 80 rows, linear": "breast-cancer",
    "wine, 60 rows, linear": "wine",
    "digits, 100 rows, linear": "digits",
    "MNIST, 100 rows, linear": "mnist-linear",
    "MNIST, 100 rows, MLP 784-128-10": "mnist-mlp",
}
ALLOWED = ["the learning rate η is 0.018", "| ηλ = 0 | ηλ = 0.001 | ηλ = 0.0034 |"]  # settings
WORDS = {10: "ten", 25: "twenty-five", 50: "fifty"}
WAYS = ("tune", "plain", "one_decay", "logistic_regression_cv", "mlp_classifier")


def _summary(name: str) -> dict[str, Any]:
    found: dict[str, Any] = read("benchmarks/results/front_door.json")[f"{name}, draws from 0"]["summary"]
    return found


def claims() -> list[str]:
    """Return the rows of the table, and the sentence about wine."""
    rows = []
    for words, name in SETTINGS.items():
        found = _summary(name)
        cells = " | ".join(n(found[way], ".1f") for way in WAYS)
        rows.append(f"| {words} | {cells} | {n(found['seconds'], '.0f')} |")
    gap = _summary("wine")["tune − logistic_regression_cv"]
    wine = f"on wine by {n(-gap['mean'], '.1f')} ± {n(gap['half_width'], '.1f')} points"
    return [*rows, wine, *_input_noise(), *_networks(), *_mini_batches()]


def _input_noise() -> list[str]:
    """Return the rows about noise on the inputs."""
    stored = read("benchmarks/results/input_noise.json")
    names = {"digits, 100 rows": "digits", "breast cancer, 80 rows": "breast-cancer", "wine, 60 rows": "wine"}
    rows = []
    for words, name in names.items():
        found = stored[f"{name}, draws from 200"]
        own, draws = found["summary"], len(found["draws"])
        gain = f"{n(own['gain'], '+.2f', minus='−')} ± {n(own['error'], '.2f')}"
        rows.append(f"| {words} | {n(draws)} | {n(own['noise'], '.1f')} | {n(own['none'], '.1f')} | {gain} |")
    return rows


def _mini_batches() -> list[str]:
    """Return the rows about mini-batches, and the sentence about averages and steps."""
    runs = read("benchmarks/results/mini_batches.json")["runs"]
    decays = ((0.0, "weights"), (1e-3, "all"), (3.4e-3, "all"))

    def course(kind: str, *setting: Any) -> list[float]:
        own = [r[kind] for r in runs if (r["batch"], r["rate"], r["shrink"], r["of"]) == setting]
        return [sum(column) / len(own) for column in zip(*own, strict=True)]

    settings = {batch: [(batch, 0.018, *decay) for decay in decays] for batch in (10, 25, 50)}
    rows = [
        f"| {WORDS[batch]} images | " + " | ".join(n(course("average", *one)[-1], ".1f") for one in own) + " |"
        for batch, own in settings.items()
    ]
    small = settings[10] + settings[25]
    below = [course("average", *one)[-1] - course("iterate", *one)[-1] for one in small]
    late = [course("average", *one)[2:] for one in small]
    change = max(max(values) - min(values) for values in late)
    return [
        *rows,
        f"the last iterates are {n(min(below), '.1f')} to {n(max(below), '.1f')} points below their average",
        f"changes by at most {n(change, '.1f')} points",
    ]


def _networks() -> list[str]:
    """Return the rows about ResNet-18, and the sentences about them."""
    found, short = (read(f"benchmarks/results/front_door_resnet18{end}.json") for end in ("", "_short"))
    earlier, ways = {one["draw"]: one["tune"] for one in short["draws"]}, ("one decay", "plain")
    rows = []
    for one in found["draws"]:
        values = one["tune"], earlier[one["draw"]], *(one[way]["accuracy"] for way in ways)
        rows.append(f"| draw {one['draw']} | " + " | ".join(n(value, ".1f") for value in values) + " |")
    means = found["tune"], short["tune"], *(found[way] for way in ways)
    below = [one["one decay"]["accuracy"] - one["tune"] for one in found["draws"]]
    return [
        *rows,
        "| mean | " + " | ".join(n(value, ".1f") for value in means) + " |",
        f"it had {n(short['tune'], '.1f')} % in the mean, {n(short['one decay'] - short['tune'], '.2f')} points below "
        "one decay",
        f"it has {n(found['tune'], '.1f')} % in the mean, {n(found['one decay'] - found['tune'], '.2f')} points below "
        f"one decay: {n(-below[0], '.2f')} points above it on draw 0, {n(below[1], '.2f')} points below on draw 1 and "
        f"{n(below[2], '.2f')} below on draw 2",
    ]
