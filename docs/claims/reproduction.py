"""The numbers in the prose of docs/evidence/reproduction.md; `docs/make_reproduction.py` writes its tables."""

from __future__ import annotations

import datetime
import statistics
from collections.abc import Iterable
from functools import cache

from claims.resnet_ways import Courses, other_ways
from claims.resnet_ways import method as resnet_method
from claims.text import ROOT, n, read
from pactune.paper.intervals import bootstrap_interval
from pactune.paper.weight_decay.records import RunRecord, StudyRecord, read_studies
from pactune.paper.weight_decay.rules import Comparison, Summary, compare, least_norm_row, summarise

__all__ = ["ALLOWED", "claims", "method"]

ALLOWED = [
    "section 4.2",
    "Adam 1e-4, 1000 steps",
    "RMSprop 1e-2, α 0.99, ε 1e-8, 100 steps",
    "(11.7 and 21.8 million)",
    "(7,850 and 30,730 parameters)",
    "where the paper has 56.8 → 64.0",  # the paper's own values
    "where the paper has 63.3 → 71.9",
    "where the paper has 17.2 → 19.3",
    "where the paper has 52.5 → 58.6",
    "where the paper has 14.4 → 16.1",
    "where 67.5 and 20.5 were the aim",
    "at ζ = 2.5e-5 (",
    "is flat from 1e-6 on",
    "from 1e-6 on).",
    "tuning 30,730 decays",
    "RMSprop at 1e-2 moves",
]


@cache
def _studies() -> dict[str, StudyRecord]:
    return {study.name: study for study in read_studies(ROOT / "results" / "weight-decay")}


@cache
def _summary(name: str) -> Summary:
    return summarise(_studies()[name])


def _mean(name: str, method: str) -> str:
    interval = _summary(name).interval(method)
    assert interval is not None
    return n(100 * interval["mean"], ".1f")


def _compared(name: str, own: str, other: str) -> Comparison:
    found = compare(_summary(name), own, other)
    assert found is not None
    return found


def _wins(name: str, own: str, other: str) -> str:
    found = _compared(name, own, other)
    return f"{n(found.wins)} of {n(found.of)}"


def claims() -> list[str]:
    """Return what the page says, rendered from the stored results."""
    resnets = [
        *_resnets(),
        *_resnet18_mnist(),
        *_resnet18_online(),
        *_resnet18_cifar(),
        *_resnet34_mnist(),
        *_resnet34_cifar(),
    ]
    plain = {run.cell["draw"]: [row["test_accuracy"] for row in run.plain] for run in _at("table-resnet18-mnist", 0.0)}
    resnets += [*other_ways(_courses(5.8e-6), plain), *_resnet_scan()]
    return [*_offline(), *_online_and_auto(), *resnets, *_correlation(), *_restart_and_truncation()]


def _offline() -> list[str]:
    mnist, cifar = "table-linear-mnist", "table-linear-cifar10"
    own, one = "weight-decay-linear-mnist", "weight-decay-linear-cifar10"
    tuned, bare = (_summary(cifar).values[method][0, 0] for method in ("regularized", "zero"))
    loss = _compared(mnist, "regularized", "min_norm")
    other = {key: run.rows[-1]["test_accuracy"] for run in _at(cifar, 2.5e-5) for key in [_key(run)]}
    wins = sum(value > _summary(cifar).values["min_norm"][key] for key, value in other.items())
    spread = {key: n(100 * value, ".1f") for key, value in bootstrap_interval(list(other.values())).items()}
    risks = [statistics.mean(run.rows[-1]["test_risk"] for run in _at(one, zeta)) for zeta in (0.0, 5e-6)]
    return [
        f"Better on {_wins(mnist, 'regularized', 'zero')} draws on MNIST and on "
        f"{_wins(cifar, 'regularized', 'zero')} on CIFAR-10 "
        f"(draw 0 is the exception, {n(100 * tuned, '.1f')} against {n(100 * bare, '.1f')}, at every ζ and "
        "online).",
        f"On MNIST the mean is better by {n(100 * loss.gain['mean'], '.1f')} and least norm wins "
        f"{n(loss.of - loss.wins)} of "
        f"{n(loss.of)} draws",
        f"On CIFAR-10 Eq. 5 wins {_wins(cifar, 'regularized', 'min_norm')} at the paper's ζ and {n(wins)} of "
        f"{n(len(other))} at "
        f"ζ = 2.5e-5 ({spread['mean']}, {spread['low']} to {spread['high']}; in the same file).",
        f"and five starts, least norm → Eq. 5 is {_mean(own, 'min_norm')} → {_mean(own, 'regularized')}, where",
        f"happens to be the exception: {_mean(one, 'min_norm')} → {_mean(one, 'regularized')} over two starts, "
        f"and ζ = 0 ends at "
        f"{_mean(one, 'zero')} with a test loss of {n(risks[0], ',.0f')} against {n(risks[1], '.1f')}.",
        f"the same start gave {n(100 * bare, '.1f')} in the table",
    ]


def _online_and_auto() -> list[str]:
    mnist, cifar = "table-linear-mnist", "table-linear-cifar10"
    auto = _studies()[cifar].where(zeta="auto")
    kept = sum((run.end["kept_run"], run.end["kept_step"]) == ("plain", 1) for run in auto)
    fresh = read("benchmarks/results/zeta_rules_fresh.json")
    rule = "joint5 saturating 0/r0.1 + plain [12]"
    judged = [n(100 * fresh[data][rule]["mean"], ".1f") for data in ("mnist", "cifar10-centred")]
    first = statistics.mean(run.plain[0]["test_accuracy"] for run in _at(cifar, 0.0))
    assert all(_compared(mnist, "auto", other).wins == 12 for other in ("zero", "plain", "regularized"))
    return [
        f"at the paper's ζ: {_mean(mnist, 'online')} against {_mean(mnist, 'regularized')} and "
        f"{_mean(cifar, 'online')} against "
        f"{_mean(cifar, 'regularized')}. It beats ζ = 0 on {_wins(mnist, 'online', 'zero')} and "
        f"{_wins(cifar, 'online', 'zero')} "
        f"draws, and least norm on {_wins(mnist, 'online', 'min_norm')} and {_wins(cifar, 'online', 'min_norm')}.",
        f"reaches {_mean(mnist, 'auto')} on MNIST, above ζ = 0, plain training and Eq. 5 at the paper's ζ on "
        f"{_wins(mnist, 'auto', 'zero')} draws each",
        f"On CIFAR-10 it reaches {_mean(cifar, 'auto')}, above all of these in the mean, by keeping plain "
        f"training after its first "
        f"outer step on {n(kept)} of {n(len(auto))} draws",
        f"on 30 fresh ones it reaches {judged[0]} and {judged[1]}, by",
        f"reaches {_mean(mnist, 'oracle')} and {_mean(cifar, 'oracle')}, above Eq. 5",
        f"with λ still 0 while training, reaches {n(100 * first, '.1f')}:",
    ]


def _resnets() -> list[str]:
    mnist, cifar = "table-resnet18-mnist", "table-resnet18-cifar10"
    deeper, deeper_cifar = "table-resnet34-mnist", "table-resnet34-cifar10"
    gains = {name: sorted(_gains(name, "regularized", "zero")) for name in (mnist, cifar, deeper, deeper_cifar)}
    return [
        f"On ResNet-18 it is better on {_wins(mnist, 'regularized', 'zero')} draws of MNIST, by "
        f"{n(gains[mnist][0], '.0f')} to {n(gains[mnist][-1], '.0f')} points, and on "
        f"{_wins(cifar, 'regularized', 'zero')} of CIFAR-10, by {n(gains[cifar][0], '.1f')} to "
        f"{n(gains[cifar][-1], '.1f')} points; "
        f"on ResNet-34 on {_wins(deeper, 'regularized', 'zero')} draws of MNIST, by {n(gains[deeper][0], '.1f')} to "
        f"{n(gains[deeper][-1], '.1f')} points, and on {_wins(deeper_cifar, 'regularized', 'zero')} of CIFAR-10, "
        f"by {n(gains[deeper_cifar][-1], '.2f')} points; on the other two it is {n(-gains[deeper_cifar][1], '.1f')} "
        f"and {n(-gains[deeper_cifar][0], '.1f')} points lower.",
        f"On ResNet-18 it wins {_wins(mnist, 'regularized', 'min_norm')} on MNIST and "
        f"{_wins(cifar, 'regularized', 'min_norm')} on CIFAR-10, on ResNet-34 "
        f"{_wins(deeper, 'regularized', 'min_norm')} on MNIST and {_wins(deeper_cifar, 'regularized', 'min_norm')} on "
        "CIFAR-10.",
    ]


def _resnet18_mnist() -> list[str]:
    name = "table-resnet18-mnist"
    zero = [run.column("test_accuracy") for run in _at(name, 0.0)]
    courses = [_course(values) for values in zero]
    lowest = [n(100 * values[low], ".0f") for values, (_, low, _) in zip(zero, courses, strict=True)]
    ends = [n(100 * values[-1], ".0f") for values in zero[1:]]
    peaks = [peak + 1 for peak, _, _ in courses]
    assert _mean(name, "regularized") == _mean(name, "oracle"), "Eq. 5 is no longer level with the oracle step"
    return [
        f"**ResNet-18, MNIST**, least norm → Eq. 5: {_mean(name, 'min_norm')} → {_mean(name, 'regularized')}, where",
        f"peak between step {n(min(peaks))} and {n(max(peaks))} and then fall, to {lowest[0]}, "
        f"{lowest[1]} and {lowest[2]} % "
        f"at their lowest. Two of the three recover in the last ten steps and end at {ends[0]} and {ends[1]} %:",
        f"Eq. 5 stays within {n(_late_spread(name), '.2f')} points from step 60 on, and at its last step",
        f"reaches {_mean(name, 'plain')}: less than Eq. 5 on {_wins(name, 'regularized', 'plain')} draws, and less "
        f"than ζ = 0 on {_wins(name, 'zero', 'plain')}.",
    ]


def _resnet18_online() -> list[str]:
    """Return what the page says about Algorithm C.2 on ResNet-18 and MNIST, and what the results' README says."""
    name = "table-resnet18-mnist"
    online = [run.column("test_accuracy") for run in _studies()[name].records if run.setting["online"]]
    peaks = [values.index(max(values)) for values in online]
    best = [values[peak] for values, peak in zip(online, peaks, strict=True)]
    last = [values[-1] for values in online]
    assert 100 * (best[1] - last[1]) < 0.5, "draw 1 no longer stays at its peak"
    return [
        f"**Online on ResNet-18 and MNIST** it is the other way round: {_mean(name, 'online')} against "
        f"{_mean(name, 'regularized')}. Online is above offline on {_wins(name, 'online', 'regularized')} draws, and "
        f"above ζ = 0 and plain training on {_wins(name, 'online', 'zero')} and {_wins(name, 'online', 'plain')}.",
        f"The best steps of the online runs have {_listed(best)} %, after {n(peaks[0] + 1)}, {n(peaks[1] + 1)} and "
        f"{n(peaks[2] + 1)} outer steps, and the last ones {_listed(last)} %.",
    ]


def _courses(zeta: float) -> Courses:
    return {run.cell["draw"]: run.column("test_accuracy") for run in _at("table-resnet18-mnist", zeta)}


def _resnet_scan() -> list[str]:
    """Return the sentences about a scan over ζ on ResNet-18 and MNIST."""
    study, whole = _studies()["scan-resnet18-mnist"], _studies()["correlation-resnet18-mnist"]
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
        f"On ResNet-18 and MNIST they go together less closely (Spearman {n(_spearman(whole.records, errors), '+.2f')} "
        f"over five ζ and two draws; {n(min(errors), '.1f')} to {n(max(errors), '.0f')})",
    ]


def _percents(courses: Courses, draws: Iterable[int]) -> list[str]:
    return [n(100 * courses[draw][-1], ".1f") for draw in draws]


def method() -> list[str]:
    """Return what docs/evidence/method.md says about ResNet-18."""
    return resnet_method(_courses(5.8e-6))


def _resnet18_cifar() -> list[str]:
    name = "table-resnet18-cifar10"
    values = _summary(name).values
    assert values["min_norm"][1, 0] == values["oracle"][1, 0], "least norm no longer stops at the oracle step"
    zero = [run.column("test_accuracy") for run in _at(name, 0.0)]
    courses = [_course(column) for column in zero]
    assert all(column[-1] < column[rise] for column, (_, _, rise) in zip(zero, courses, strict=True))
    lowest = [n(100 * column[low], ".1f") for column, (_, low, _) in zip(zero, courses, strict=True)]
    highest = [n(100 * column[rise], ".1f") for column, (_, _, rise) in zip(zero, courses, strict=True)]
    return [
        f"**ResNet-18, CIFAR-10**, least norm → Eq. 5: {_mean(name, 'min_norm')} → {_mean(name, 'regularized')}, where",
        f"wins on draw 1, {n(100 * values['min_norm'][1, 0], '.1f')} against "
        f"{n(100 * values['regularized'][1, 0], '.1f')}: it stops at the oracle step there.",
        f"ends at {_mean(name, 'plain')}, below Eq. 5 on {_wins(name, 'regularized', 'plain')} draws; "
        f"ζ = 0 is above it on {_wins(name, 'zero', 'plain')}.",
        f"fall to {lowest[0]}, {lowest[1]} and {lowest[2]} %, rise to {highest[0]}, {highest[1]} and {highest[2]} %, "
        "and end lower",
        f"Eq. 5 stays within {n(_late_spread(name), '.1f')} points from step 60 on. One H200 took "
        f"{n(_minutes(name))} minutes for the six tuned and three plain runs",
    ]


def _resnet34_mnist() -> list[str]:
    name = "table-resnet34-mnist"
    runs = _at(name, 0.0)
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
        f"**ResNet-34, MNIST**, least norm → Eq. 5: {_mean(name, 'min_norm')} → {_mean(name, 'regularized')}, where",
        f"Least norm stops at step {n(min(stops))} or {n(max(stops))}, while the test accuracy still rises; on draw 2 "
        f"it is {n(third, '.1f')} points below Eq. 5, on the others {n(second, '.0f')} and {n(first, '.0f')}.",
        f"At ζ = 0 the runs peak between step {n(min(peaks))} and {n(max(peaks))}, fall to {_listed(lowest)} %, "
        f"jump to {_listed(highest)} %, their oracle steps, and end at {_listed([values[-1] for values in zero])} %.",
        f"Eq. 5 stays within {n(_late_spread(name), '.1f')} points from step 60 on, and is above the oracle step of "
        f"ζ = 0 on {_wins(name, 'regularized', 'oracle')} draws.",
        f"Plain training over all outer steps ends at {_listed([run.plain[-1]['test_accuracy'] for run in runs])} %: "
        f"Eq. 5, ζ = 0 and least norm are above it on {_wins(name, 'regularized', 'plain')}, "
        f"{_wins(name, 'zero', 'plain')} and {_wins(name, 'min_norm', 'plain')} draws.",
    ]


def _resnet34_cifar() -> list[str]:
    name = "table-resnet34-cifar10"
    runs, tuned = _at(name, 0.0), _at(name, 5e-6)
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
        f"**ResNet-34, CIFAR-10**, least norm → Eq. 5: {_mean(name, 'min_norm')} → {_mean(name, 'regularized')}, where",
        f"Eq. 5 ends at {_listed([run.rows[-1]['test_accuracy'] for run in tuned])} %. Its best steps by test accuracy "
        f"reach {_listed([max(run.column('test_accuracy')) for run in tuned])} %. Least norm stops at step {n(stop)} "
        f"on all draws, with {_listed(least)} %.",
        f"At ζ = 0 the runs fall to {_listed(lowest)} %, jump to {_listed(highest)} %, their oracle steps, and end at "
        f"{_listed([values[-1] for values in zero])} %.",
        f"Plain training over all outer steps ends at {_listed([run.plain[-1]['test_accuracy'] for run in runs])} %: "
        f"Eq. 5 is above it on {_wins(name, 'regularized', 'plain')} draws, ζ = 0 and least norm on "
        f"{_wins(name, 'zero', 'plain')} and {_wins(name, 'min_norm', 'plain')}.",
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
    values = _summary(name).values
    return [100 * (values[own][key] - values[other][key]) for key in values[other]]


def _course(values: list[float]) -> tuple[int, int, int]:
    """Return three places: the peak before the fall, the least value of the second half, the peak after it."""
    steps = range(len(values))
    low = min(steps[len(values) // 2 :], key=values.__getitem__)
    return max(steps[:low], key=values.__getitem__), low, max(steps[low:], key=values.__getitem__)


def _late_spread(name: str) -> float:
    """Return by how many points the test accuracy of a run of Eq. 5 varies from outer step 60 on, at most."""
    offline = [run for run in _studies()[name].records if run.cell["zeta"] != 0 and not run.setting["online"]]
    tuned = [run.column("test_accuracy")[59:] for run in offline]
    return max(100 * (max(values) - min(values)) for values in tuned)


def _minutes(name: str) -> int:
    facts = _studies()[name].facts
    began, ended = (datetime.datetime.fromisoformat(facts[key]) for key in ("began", "ended"))
    return (ended - began).seconds // 60


def _correlation() -> list[str]:
    found = []
    for data in ("mnist", "cifar10"):
        runs = _studies()[f"correlation-linear-{data}"].records
        errors = [statistics.mean(row["test_risk"] - row["valid_risk"] for row in run.rows[-5:]) for run in runs]
        found.append((_spearman(runs, errors), min(errors), max(errors)))
    scans = {data: _studies()[f"scan-linear-{data}"] for data in ("mnist", "cifar10")}

    def accuracies(data: str, *, flat: bool) -> list[float]:
        zetas = sorted({run.cell["zeta"] for run in scans[data].records})
        chosen = [zeta for zeta in zetas if (zeta >= 1e-6 if flat else zeta == 0)]
        runs = [scans[data].where(zeta=zeta) for zeta in chosen]
        return [100 * statistics.mean(run.rows[-1]["test_accuracy"] for run in part) for part in runs]

    losses = [
        statistics.mean(run.rows[-1]["test_risk"] for run in scans["cifar10"].where(zeta=zeta)) for zeta in (0.0, 5e-3)
    ]
    (mnist, low, high), (cifar, least, most) = found
    flat, bare = accuracies("mnist", flat=True), accuracies("mnist", flat=False)
    other, start = accuracies("cifar10", flat=True), accuracies("cifar10", flat=False)
    return [
        f"(Spearman {n(mnist, '+.2f')}): over four decades of √ΣY the error grows from {n(low, '.1f')} to "
        f"{n(round(high, -2), '.0f')}.",
        f"at {n(min(flat), '.0f')} to {n(max(flat), '.0f')} %, and falls to {n(bare[0], '.0f')} % at 0.",
        f"(Spearman {n(cifar, '+.2f')}; {n(least, '.0f')} to {n(round(most, -2), ',.0f')})",
        f"loss falls with ζ from {n(round(losses[0], -2), ',.0f')} to {n(losses[1], '.1f')};",
        f"on this draw ({n(start[0], '.1f')} at 0, {n(min(other), '.1f')} to {n(max(other), '.1f')} from 1e-6 on)",
    ]


def _spearman(runs: list[RunRecord], errors: list[float]) -> float:
    totals = [sum(value**2 for value in run.column("regularizer")) for run in runs]
    ranks = [{value: place for place, value in enumerate(sorted(values))} for values in (totals, errors)]
    pairs = [(ranks[0][total], ranks[1][error]) for total, error in zip(totals, errors, strict=True)]
    return statistics.correlation([a for a, _ in pairs], [b for _, b in pairs])


def _restart_and_truncation() -> list[str]:
    def mean(data: str, column: str) -> str:
        runs = [run for run in _studies()[f"restart-linear-{data}"].records if run.setting["start"] == "same"]
        return n(100 * statistics.mean(run.rows[-1][column] for run in runs), ".0f")

    last, running = {}, {}
    for data in ("mnist", "cifar10"):
        runs = {run.setting["path"]: run for run in _studies()[f"truncation-linear-{data}"].records}
        last[data] = {path: run.rows[-1]["regularizer"] for path, run in runs.items()}
        totals = [sum(value**2 for value in run.column("regularizer")) ** 0.5 for run in runs.values()]
        assert max(totals) - min(totals) < 0.003 * totals[0], "the running values differ"
        running[data] = totals[0]
    full = "windowed-1000"
    return [
        f"reach {mean('mnist', 'valid_accuracy')} % of the validation images whatever ζ is, and "
        f"{mean('mnist', 'test_accuracy')} % "
        "of the test images",
        f"ζ makes no difference either: {mean('cifar10', 'valid_accuracy')} % and "
        f"{mean('cifar10', 'test_accuracy')} %.",
        f"a little better late, {n(last['mnist'][full], '.1f')} against {n(max(last['mnist'].values()), '.1f')} "
        f"in the last outer "
        f"step, and the running value is the same: {n(running['mnist'], '.0f')} for all of them",
        f"they agree as closely, {n(min(last['cifar10'].values()), '.2f')} to "
        f"{n(max(last['cifar10'].values()), '.2f')} and "
        f"{n(running['cifar10'], '.0f')},",
    ]


def _at(name: str, zeta: float) -> list[RunRecord]:
    return _studies()[name].where(zeta=zeta)


def _key(run: RunRecord) -> tuple[int, int]:
    return run.cell["draw"], run.cell["init"]
