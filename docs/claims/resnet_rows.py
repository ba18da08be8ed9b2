"""The sentences of docs/evidence/reproduction.md and results/weight-decay/README.md about ResNets."""

from __future__ import annotations

import datetime
import statistics
from collections.abc import Iterable

from claims.resnet_ways import Courses, other_ways
from claims.resnet_ways import method as method_of_ways
from claims.studies import mean, runs_at, spearman, studies, summary, wins
from claims.text import n
from pactune.paper.weight_decay.rules import least_norm_row

__all__ = ["method", "resnets"]


def resnets() -> list[str]:
    """Return what the pages say about ResNets."""
    plain = {r.cell["draw"]: [row["test_accuracy"] for row in r.plain] for r in runs_at("table-resnet18-mnist", 0.0)}
    return [
        *_comparisons(),
        *_resnet18_mnist(),
        *_resnet18_online(),
        *_resnet18_cifar(),
        *_resnet34_mnist(),
        *_resnet34_cifar(),
        *other_ways(_courses(5.8e-6), plain),
        *_resnet_scan(),
    ]


def _comparisons() -> list[str]:
    """Return how Eq. 5 compares with ζ = 0 and with least norm on all four rows."""
    mnist, cifar = "table-resnet18-mnist", "table-resnet18-cifar10"
    deeper, deeper_cifar = "table-resnet34-mnist", "table-resnet34-cifar10"
    gains = {name: sorted(_gains(name, "regularized", "zero")) for name in (mnist, cifar, deeper, deeper_cifar)}
    return [
        f"On ResNet-18 it is better on {wins(mnist, 'regularized', 'zero')} draws of MNIST, by "
        f"{n(gains[mnist][0], '.0f')} to {n(gains[mnist][-1], '.0f')} points, and on "
        f"{wins(cifar, 'regularized', 'zero')} of CIFAR-10, by {n(gains[cifar][0], '.1f')} to "
        f"{n(gains[cifar][-1], '.1f')} points; "
        f"on ResNet-34 on {wins(deeper, 'regularized', 'zero')} draws of MNIST, by {n(gains[deeper][0], '.1f')} to "
        f"{n(gains[deeper][-1], '.1f')} points, and on {wins(deeper_cifar, 'regularized', 'zero')} of CIFAR-10, "
        f"by {n(gains[deeper_cifar][-1], '.2f')} points; on the other two it is {n(-gains[deeper_cifar][1], '.1f')} "
        f"and {n(-gains[deeper_cifar][0], '.1f')} points lower.",
        f"On ResNet-18 it wins {wins(mnist, 'regularized', 'min_norm')} on MNIST and "
        f"{wins(cifar, 'regularized', 'min_norm')} on CIFAR-10, on ResNet-34 "
        f"{wins(deeper, 'regularized', 'min_norm')} on MNIST and {wins(deeper_cifar, 'regularized', 'min_norm')} on "
        "CIFAR-10.",
    ]


def _resnet18_mnist() -> list[str]:
    name = "table-resnet18-mnist"
    zero = [run.column("test_accuracy") for run in runs_at(name, 0.0)]
    courses = [_course(values) for values in zero]
    lowest = [n(100 * values[low], ".0f") for values, (_, low, _) in zip(zero, courses, strict=True)]
    ends = [n(100 * values[-1], ".0f") for values in zero[1:]]
    peaks = [peak + 1 for peak, _, _ in courses]
    assert mean(name, "regularized") == mean(name, "oracle"), "Eq. 5 is no longer level with the oracle step"
    return [
        f"**ResNet-18, MNIST**, least norm → Eq. 5: {mean(name, 'min_norm')} → {mean(name, 'regularized')}, where",
        f"peak between step {n(min(peaks))} and {n(max(peaks))} and then fall, to {lowest[0]}, "
        f"{lowest[1]} and {lowest[2]} % "
        f"at their lowest. Two of the three recover in the last ten steps and end at {ends[0]} and {ends[1]} %:",
        f"Eq. 5 stays within {n(_late_spread(name), '.2f')} points from step 60 on, and at its last step",
        f"reaches {mean(name, 'plain')}: less than Eq. 5 on {wins(name, 'regularized', 'plain')} draws, and less "
        f"than ζ = 0 on {wins(name, 'zero', 'plain')}.",
    ]


def _resnet18_online() -> list[str]:
    """Return what the page says about Algorithm C.2 on ResNet-18 and MNIST, and what the results' README says."""
    name = "table-resnet18-mnist"
    online = [run.column("test_accuracy") for run in studies()[name].records if run.setting["online"]]
    peaks = [values.index(max(values)) for values in online]
    best = [values[peak] for values, peak in zip(online, peaks, strict=True)]
    last = [values[-1] for values in online]
    assert 100 * (best[1] - last[1]) < 0.5, "draw 1 no longer stays at its peak"
    return [
        f"**Online on ResNet-18 and MNIST** it is the other way round: {mean(name, 'online')} against "
        f"{mean(name, 'regularized')}. Online is above offline on {wins(name, 'online', 'regularized')} draws, and "
        f"above ζ = 0 and plain training on {wins(name, 'online', 'zero')} and {wins(name, 'online', 'plain')}.",
        f"The best steps of the online runs have {_listed(best)} %, after {n(peaks[0] + 1)}, {n(peaks[1] + 1)} and "
        f"{n(peaks[2] + 1)} outer steps, and the last ones {_listed(last)} %.",
    ]


def _courses(zeta: float) -> Courses:
    return {run.cell["draw"]: run.column("test_accuracy") for run in runs_at("table-resnet18-mnist", zeta)}


def _resnet_scan() -> list[str]:
    """Return the sentences about a scan over ζ on ResNet-18 and MNIST."""
    study, whole = studies()["scan-resnet18-mnist"], studies()["correlation-resnet18-mnist"]
    (steps,) = {len(run.rows) for run in study.records}
    zetas = sorted({run.cell["zeta"] for run in study.records})
    by_zeta = {zeta: [run.column("test_accuracy") for run in study.where(zeta=zeta)] for zeta in zetas}
    last = [n(100 * statistics.mean(course[-1] for course in by_zeta[zeta]), ".1f") for zeta in zetas]
    early = [statistics.mean(course[9] for course in by_zeta[zeta]) for zeta in zetas]
    errors = [statistics.mean(row["test_risk"] - row["valid_risk"] for row in run.rows[-5:]) for run in whole.records]
    ends = [[n(100 * course[-1], ".1f") for course in by_zeta[0.0]], _percents(_courses(0.0), range(2))]
    words = f"{n(1e-7)}, {n(1e-6)}, {n(5.8e-6)} and {n(1e-4, '.0e')}"
    return [
        f"on draws 0 and 1 the means after {n(steps)} outer steps are {last[0]}, {last[1]}, {last[2]}, {last[3]} and "
        f"{last[4]} % at ζ = {n(0)}, {words}. After step {n(10)} all of them lie between "
        f"{n(100 * min(early), '.1f')} and {n(100 * max(early), '.1f')} %",
        f"The runs at ζ = 0 end at {ends[0][0]} and {ends[0][1]} %, where those of the table, from the same starts and "
        f"with other kernels, end at {ends[1][0]} and {ends[1][1]} %",
        f"On ResNet-18 and MNIST they go together less closely (Spearman {n(spearman(whole.records, errors), '+.2f')} "
        f"over five ζ and two draws; {n(min(errors), '.1f')} to {n(max(errors), '.0f')})",
    ]


def _percents(courses: Courses, draws: Iterable[int]) -> list[str]:
    return [n(100 * courses[draw][-1], ".1f") for draw in draws]


def method() -> list[str]:
    """Return what docs/evidence/method.md says about ResNet-18."""
    return method_of_ways(_courses(5.8e-6))


def _resnet18_cifar() -> list[str]:
    name = "table-resnet18-cifar10"
    values = summary(name).values
    assert values["min_norm"][1, 0] == values["oracle"][1, 0], "least norm no longer stops at the oracle step"
    zero = [run.column("test_accuracy") for run in runs_at(name, 0.0)]
    courses = [_course(column) for column in zero]
    assert all(column[-1] < column[rise] for column, (_, _, rise) in zip(zero, courses, strict=True))
    lowest = [n(100 * column[low], ".1f") for column, (_, low, _) in zip(zero, courses, strict=True)]
    highest = [n(100 * column[rise], ".1f") for column, (_, _, rise) in zip(zero, courses, strict=True)]
    return [
        f"**ResNet-18, CIFAR-10**, least norm → Eq. 5: {mean(name, 'min_norm')} → {mean(name, 'regularized')}, where",
        f"wins on draw 1, {n(100 * values['min_norm'][1, 0], '.1f')} against "
        f"{n(100 * values['regularized'][1, 0], '.1f')}: it stops at the oracle step there.",
        f"ends at {mean(name, 'plain')}, below Eq. 5 on {wins(name, 'regularized', 'plain')} draws; "
        f"ζ = 0 is above it on {wins(name, 'zero', 'plain')}.",
        f"fall to {lowest[0]}, {lowest[1]} and {lowest[2]} %, rise to {highest[0]}, {highest[1]} and {highest[2]} %, "
        "and end lower",
        f"Eq. 5 stays within {n(_late_spread(name), '.1f')} points from step 60 on. One H200 took "
        f"{n(_minutes(name))} minutes for the six tuned and three plain runs",
    ]


def _resnet34_mnist() -> list[str]:
    name = "table-resnet34-mnist"
    runs = runs_at(name, 0.0)
    zero = [run.column("test_accuracy") for run in runs]
    courses = [_course(values) for values in zero]
    assert all(values[rise] == max(values) for values, (_, _, rise) in zip(zero, courses, strict=True))
    stops = [least_norm_row(run.rows)["outer_step"] for run in runs]
    assert all(values[stop] > values[stop - 1] for values, stop in zip(zero, stops, strict=True))
    first, second, third = _gains(name, "regularized", "min_norm")
    peaks = [peak + 1 for peak, _, _ in courses]
    lowest = [values[low] for values, (_, low, _) in zip(zero, courses, strict=True)]
    highest = [values[rise] for values, (_, _, rise) in zip(zero, courses, strict=True)]
    return [
        f"**ResNet-34, MNIST**, least norm → Eq. 5: {mean(name, 'min_norm')} → {mean(name, 'regularized')}, where",
        f"Least norm stops at step {n(min(stops))} or {n(max(stops))}, while the test accuracy still rises; on draw 2 "
        f"it is {n(third, '.1f')} points below Eq. 5, on the others {n(second, '.0f')} and {n(first, '.0f')}.",
        f"At ζ = 0 the runs peak between step {n(min(peaks))} and {n(max(peaks))}, fall to {_listed(lowest)} %, "
        f"jump to {_listed(highest)} %, their oracle steps, and end at {_listed([values[-1] for values in zero])} %.",
        f"Eq. 5 stays within {n(_late_spread(name), '.1f')} points from step 60 on, and is above the oracle step of "
        f"ζ = 0 on {wins(name, 'regularized', 'oracle')} draws.",
        f"Plain training over all outer steps ends at {_listed([run.plain[-1]['test_accuracy'] for run in runs])} %: "
        f"Eq. 5, ζ = 0 and least norm are above it on {wins(name, 'regularized', 'plain')}, "
        f"{wins(name, 'zero', 'plain')} and {wins(name, 'min_norm', 'plain')} draws.",
    ]


def _resnet34_cifar() -> list[str]:
    name = "table-resnet34-cifar10"
    runs, tuned = runs_at(name, 0.0), runs_at(name, 5e-6)
    zero = [run.column("test_accuracy") for run in runs]
    courses = [_course(values) for values in zero]
    assert all(values[rise] == max(values) for values, (_, _, rise) in zip(zero, courses, strict=True))
    (stop,) = {least_norm_row(run.rows)["outer_step"] for run in runs}
    lowest, highest = ([values[place[i]] for values, place in zip(zero, courses, strict=True)] for i in (1, 2))
    risks = [[n(run.rows[-1]["test_risk"], ".0f") for run in part] for part in (tuned, runs)]
    least = [least_norm_row(run.rows)["test_accuracy"] for run in runs]
    four = [run.facts["seconds"] for run in (*runs, *tuned) if run.cell["draw"] < 2]
    assert all(len(run.plain) == 100 for run in runs)
    return [
        f"**ResNet-34, CIFAR-10**, least norm → Eq. 5: {mean(name, 'min_norm')} → {mean(name, 'regularized')}, where",
        f"Eq. 5 ends at {_listed([run.rows[-1]['test_accuracy'] for run in tuned])} %. Its best steps by test accuracy "
        f"reach {_listed([max(run.column('test_accuracy')) for run in tuned])} %. Least norm stops at step {n(stop)} "
        f"on all draws, with {_listed(least)} %.",
        f"At ζ = 0 the runs fall to {_listed(lowest)} %, jump to {_listed(highest)} %, their oracle steps, and end at "
        f"{_listed([values[-1] for values in zero])} %.",
        f"Plain training over all outer steps ends at {_listed([run.plain[-1]['test_accuracy'] for run in runs])} %: "
        f"Eq. 5 is above it on {wins(name, 'regularized', 'plain')} draws, ζ = 0 and least norm on "
        f"{wins(name, 'zero', 'plain')} and {wins(name, 'min_norm', 'plain')}.",
        f"the test loss of the last step is {risks[0][0]}, {risks[0][1]} and {risks[0][2]}, against {risks[1][0]}, "
        f"{risks[1][1]} and {risks[1][2]} at ζ = 0, and the accuracy stays within {n(_late_spread(name), '.1f')} "
        "points from step 60 on.",
        f"One H200 took {n(max(four) // 60, '.0f')} minutes for the four runs of draws 0 and 1 at once.",
    ]


def _listed(values: list[float]) -> str:
    """Return the accuracies of all draws in per cent."""
    *others, last = (n(100 * value, ".1f") for value in values)
    return f"{', '.join(others)} and {last}"


def _gains(name: str, own: str, other: str) -> list[float]:
    values = summary(name).values
    return [100 * (values[own][key] - values[other][key]) for key in values[other]]


def _course(values: list[float]) -> tuple[int, int, int]:
    """Return three places: the peak before the fall, the least value of the second half, the peak after it."""
    steps = range(len(values))
    low = min(steps[len(values) // 2 :], key=values.__getitem__)
    return max(steps[:low], key=values.__getitem__), low, max(steps[low:], key=values.__getitem__)


def _late_spread(name: str) -> float:
    """Return by how many points the test accuracy of a run of Eq. 5 varies from outer step 60 on, at most."""
    offline = [run for run in studies()[name].records if run.cell["zeta"] != 0 and not run.setting["online"]]
    tuned = [run.column("test_accuracy")[59:] for run in offline]
    return max(100 * (max(values) - min(values)) for values in tuned)


def _minutes(name: str) -> int:
    facts = studies()[name].facts
    began, ended = (datetime.datetime.fromisoformat(facts[key]) for key in ("began", "ended"))
    return (ended - began).seconds // 60
