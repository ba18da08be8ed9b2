"""The numbers of docs/evidence/performance.md."""

from __future__ import annotations

import math
import statistics
from typing import Any

from claims.text import n, read
from pactune.rounds.forwards import PASSES
from pactune.threads import SHORT

__all__ = ["ALLOWED", "claims"]

LAYERS = 784 * 256 + 256 * 256 + 256 * 10
ALLOWED = [
    "| 50 × 100 |",
    "| 100 × 200 |",
    "| 500 × 1000 |",
    "torch 2.11,",  # a version
    "up to 200,000 parameters",
    "in float64 to 1e-9",  # the tolerance of a test
    "four products of 0.8 MFLOP",  # arithmetic from here on
    "a dozen arrays of 31 kB",
    "14 MB of images",
    "arrays of 1.4 MB",
    "the 4 TB/s",
    "is 12 µs",
    "over 47 MB",
    "arrays of 47 MB",
    "is 0.13 ms",
    "parameters, 1.03 MB a copy",
    "268,800 = 26.9 MFLOP",
    "F + F + 0.25 F",
    "costs 5.25 F a step, 14.1 GFLOP",
    "costs 7.28 F, 19.6 GFLOP",
    "trees of 1 MB",
    "a step (0.3 MB): 24 MB",
    "(2.25 F of 7.28 F)",
    "copies of 8 MB",
    "`higher` 0.2.1",
    "TorchOpt 0.7.3",
    "Betty 0.1.1",
    "(ε = 1e-4,",
    "within 1.3 of the plain step",  # aims
    "the bar was 2.1",
    "| ≤ 1.9 ms |",
    "| ≤ 0.27 |",
    "| ≤ 1.1 |",
    "| ≤ 15 s |",
    "| ≤ 1.15 ms |",
    "| ≤ 12 s |",
    "The aims of 1.0 ms for one run and 6 s for the linear grid",
    "add 375.",
    "| 1, O((m + n)T) |",
    "| 1, O(mKT) |",
    "| 1 |",
    "| s | 1 | 2 | 5 | 10 |",
]


def claims() -> list[str]:
    """Return what the page says, rendered from the stored results."""
    return [
        *_options(),
        *_check(),
        *_steps(),
        *_threads(),
        *_stride_and_grid(),
        *_gpu(),
        *_mlp(),
        *_unroll(),
        *_unroll_prose(),
        *_lasso(),
        *_growth(),
    ]


def _quartiles(found: dict[str, float]) -> str:
    return f"{n(found['median'], '.2f')} ({n(found['lower_quartile'], '.2f')}–{n(found['upper_quartile'], '.2f')})"


PROTECTED = ("updates fused, ζ = 0", "updates fused, HyperDrift")


def _gpu_file() -> tuple[Any, Any]:
    found = read("benchmarks/results/gpu.json")
    parts = found["ResNet-18, 50 + 50 images of 28 × 28"], found["linear 784 × 10, 9 ζ × 5 seeds"]
    slow = [name for rows in parts for name, row in rows.items() if row.get("what the engine said")]
    assert not slow, f"the engine took its slow way in {slow}"
    return parts


def _options() -> list[str]:
    resnet, linear = _gpu_file()
    compile_cpu = read("benchmarks/results/steps.json")["linear"]["seconds of the first round"]["compiled"]
    compile_gpu = linear["fused"]["seconds of one outer step in a new process, compiling included"]
    own, fused, steps = (resnet[f"one run, {name}"] for name in ("captured", "updates fused", "steps fused"))
    return [
        f"and {n(compile_cpu, '.0f')} s to compile a linear classifier",
        f'`"compiled"`, {n(compile_cpu, ".0f")} s to compile',
        f"{n(compile_gpu, '.0f')} s until the first outer step ends",
        f"the risk is {n(own['risk'], '.2f')} and √Y {n(own['√Y'], '.0f')} with PyTorch's own flags, "
        f"{n(fused['risk'], '.2f')} and {n(fused['√Y'], '.0f')} with channels last, TF32 and fused updates, "
        f"{n(steps['risk'], '.2f')} and {n(steps['√Y'], '.0f')} with fused steps",
    ]


def _check() -> list[str]:
    found = read("benchmarks/results/recording_check.json")
    ten, fifty, thousand = (_quartiles(found[f"T = {length}"]["checked ÷ unchecked"]) for length in (10, 50, 1000))
    return [f"take {ten} times as long, with T = 50 {fifty} and with T = 1000 {thousand}"]


def _steps() -> list[str]:
    found = read("benchmarks/results/steps.json")["linear"]
    times, plain, literal = found["microseconds per step"], found["÷ plain"], found["÷ literal"]
    rows = {
        "by hand": "the step by hand, everything in place",
        "eager": '`"eager"`',
        "traced (auto)": '`"traced"`, the default after 1000 steps',
    }
    table = [
        f"| {words} | {n(times[name], '.0f')} | {_quartiles(plain[name])} | {n(literal[name]['median'], '.2f')} |"
        for name, words in rows.items()
    ]
    return [
        *table,
        f"to compile | {n(times['compiled'], '.0f')} | {_quartiles(plain['compiled'])} | "
        f"{n(literal['compiled']['median'], '.2f')} |",
        f"`torch.optim.Adam` | {n(times['plain'], '.0f')} | 1 | {n(literal['plain']['median'], '.2f')} |",
        f"three passes per step | {n(times['literal'], '.0f')} | {n(plain['literal']['median'], '.2f')} | 1 |",
        f"of the plain step and is at {n(plain['eager']['median'], '.1f')}.",
        f"nothing around it, is at {n(plain['by hand']['median'], '.2f')}:",
    ]


def _mlp() -> list[str]:
    found = read("benchmarks/results/steps.json")["mlp"]["÷ plain"]
    zero, drift, eq5 = (_quartiles(found[f"{name}, traced"]) for name in ("ζ = 0", "HyperDrift", "Eq. 5"))
    return [f"an inner step takes {zero} plain ones at ζ = 0, {drift} with `HyperDrift` and {eq5} with Eq. 5"]


def _threads() -> list[str]:
    found = read("benchmarks/results/threads.json")
    assert (found["short"], found["machine"]["threads"]) == (SHORT, 2)

    def between(load: str, form: str, *, short: bool) -> str:
        own = [case[load]["median"] for case in found["cases"] if (case["work"] <= SHORT) == short]
        return f"{n(min(own), form)} to {n(max(own), form)} times"

    most = n(SHORT, ".0e").replace("+0", "")
    return [
        f"the operations of its forwards and {n(PASSES, 'd')} per parameter, {most} at most",
        f"such a step takes {between('idle', '.2f', short=True)} as long in two threads as in one on an idle machine, "
        f"and {between('busy', '.1f', short=True)} as long beside a busy process. Steps of more work take "
        f"{between('idle', '.2f', short=False)} as long, and {between('busy', '.1f', short=False)} beside the busy",
    ]


def _stride_and_grid() -> list[str]:
    found = read("benchmarks/results/steps.json")
    grid, resnet = found["grid"], found["resnet18"]
    times, eager, traced = (
        grid[key] for key in ("milliseconds per step of all", "÷ one by one, eager", "÷ one by one, traced")
    )
    time, digits = found["stride"]["time ÷ stride 1"], found["stride"]["digits, 10 draws"]
    strides = ("1", "2", "5", "10")
    return [
        f"{n(times['at once, traced'], '.1f')} ms per step for all 45, against "
        f"{n(times['one by one, eager'], '.1f')} ms "
        f"one by one eagerly ({n(eager['at once, traced']['median'], '.2f')}) and "
        f"{n(times['one by one, traced'], '.1f')} ms one by one traced "
        f"({n(traced['at once, traced']['median'], '.2f')}); "
        f"compiled {n(eager['at once, compiled']['median'], '.2f')} and "
        f"{n(traced['at once, compiled']['median'], '.2f')}.",
        f"a regularized step is {_quartiles(resnet['regularized step alone ÷ plain'])} plain ones",
        f"The literal loop takes {n(resnet['÷ plain, T = 4 with its end']['literal']['median'], '.1f')}.",
        "| time ÷ stride 1, traced | 1 | " + " | ".join(n(time[s]["median"], ".2f") for s in strides[1:]) + " |",
        "ζ = 1e-4: test accuracy | " + " | ".join(n(digits[s]["test accuracy"], ".4f") for s in strides) + " |",
        "| mean √Y | " + " | ".join(n(digits[s]["regularizer"], ".3f") for s in strides) + " |",
        f"Deviations between draws are {n(digits['1']['standard deviation over draws'], '.3f')}.",
    ]


def _gpu() -> list[str]:
    resnet, linear = _gpu_file()
    one, alone_half, zero, drift = (
        resnet[f"one run, {name}"] for name in ("steps fused", "steps fused, bfloat16", *PROTECTED)
    )
    stacked, half, unfused = (
        resnet[f"ten runs, {name}"] for name in ("steps fused", "steps fused, bfloat16", "captured")
    )
    compiling = linear["fused"]["seconds of one outer step in a new process, compiling included"]
    each, unit, capture = "ms per run and step", "plain eager step, ms", "seconds to capture, kernels on disk"
    units = [row[unit] for row in resnet.values() if unit in row]
    return [
        f"| **{n(one[each], '.2f')} ms** (channels last, TF32, steps fused); "
        f"{n(resnet['one run, updates fused'][each], '.2f')} ms with updates fused, "
        f"{n(resnet['one run, captured'][each], '.2f')} ms with the defaults, "
        f"{n(resnet['eager'][each], '.1f')} ms eagerly |",
        f"| the same in bfloat16 | | {n(alone_half[each], '.2f')} ms |",
        f"is captured in {n(one[capture], '.0f')} s with the kernels on disk, and in "
        f"{n(one['seconds to capture'], '.0f')} s without",
        f"| {n(one['÷ plain'], '.3f')} in TF32, with a plain step of {n(one[unit], '.2f')} ms",
        f"took {n(min(units), '.1f')} to {n(max(units), '.1f')} ms in these processes",
        f"| {n(drift[each] / zero[each], '.2f')}: {n(drift[each], '.2f')} against {n(zero[each], '.2f')} ms |",
        f"| {n(stacked[each], '.2f')} ms, all at once |",
        f"| the ten runs in bfloat16 | ≤ {n(0.95)} ms | {n(half[each], '.2f')} ms |",
        f"| {n(stacked[capture], '.0f')} s, and {n(half[capture], '.0f')} s in bfloat16, with the kernels on disk |",
        f"| {n(unfused[each], '.2f')} ms, captured in {n(unfused['seconds to capture'], '.1f')} s |",
        f"take {n(half[each], '.2f')} ms per run and step with it, and {n(stacked[each], '.2f')} ms without",
        f'| {n(linear["fused"]["seconds"], ".1f")} s with `engine="fused"`; compiling takes '
        f"{n(compiling, '.0f')} s more the first time on a machine |",
        f"Without fusing, {n(linear['captured']['outer steps'])} outer steps take "
        f"{n(linear['captured']['seconds'], '.1f')} s.",
    ]


def _unroll() -> list[str]:
    rows = read("benchmarks/results/unroll_peers.json")["rows"]
    sgd = {(row["steps"], row["k"]): row["ways"] for row in rows if row["inner"] == "sgd"}
    words = {
        "pactune": "every 10th state kept",
        "pactune, all graphs kept": "`Truncated(100, segment=100)`: all graphs kept",
        "pactune, all states kept": "`Truncated(100, segment=1)`: all states kept",
        "one graph by hand": "one autograd graph by hand",
        "higher": "`higher` 0.2.1",
    }
    full = sgd[100, 100]
    table = [
        f"{said} | {n(full[way]['milliseconds'], '.0f')} ms | {_quartiles(full[way]['time_over_best_peer'])} | "
        f"{n(full[way]['megabytes'], '.0f')} MB | {n(full[way]['memory_over_best_peer'], '.2f')} |"
        for way, said in words.items()
    ]
    other = full["torchopt"]
    table.append(
        f"TorchOpt 0.7.3 | {n(other['milliseconds'], '.0f')} ms | 1 | {n(other['megabytes'], '.0f')} MB | "
        f"{n(other['memory_over_best_peer'], '.2f')} |"
    )
    return [*table, *_unroll_lengths(sgd)]


def _lasso() -> list[str]:
    found = read("benchmarks/results/lasso-peers.json")
    rows = {(row["rows"], row["way"], row["model"]): row for row in found["rows"]}
    ways = [(rows_, "implicit") for rows_ in (50, 100, 500)] + [(100, "unrolled"), (100, "forward")]
    words = {"implicit": "Implicit", "unrolled": "Windowed(steps)", "forward": "ForwardMode()"}

    def cell(size: int, way: str, model: str) -> str:
        row = rows.get((size, way, model))
        return "–" if row is None else n(row["ratio"]["median"], ".1f" if row["ratio"]["median"] < 100 else ".0f")

    models = ("lasso", "weighted lasso", "elastic net")
    steps = [row["steps"] for row in found["rows"] if row["way"] == "implicit"]
    taken = f"`Implicit` takes {n(min(steps), 'd')} to {n(max(steps), 'd')} steps."
    return [f"with a relative error below {n(found['accuracy'], '.0e')}.", taken] + [
        f"| {size} × {2 * size} | `{words[way]}` | {' | '.join(cell(size, way, model) for model in models)} |"
        for size, way in ways
    ]


def _unroll_lengths(sgd: dict[tuple[int, int], Any]) -> list[str]:
    cases = [(1, 1), (10, 10), (30, 30), (100, 100), (100, 10)]

    def ratios(way: str) -> str:
        return " | ".join(n(sgd[case][way]["time_over_best_peer"]["median"], ".2f") for case in cases)

    def memory(*ways: str) -> str:
        return " | ".join(n(min(sgd[case][way]["megabytes"] for way in ways), ".0f") for case in cases[1:4])

    return [
        f"| default: time ÷ best peer | {ratios('pactune')} |",
        f"| all graphs kept: time ÷ best peer | {ratios('pactune, all graphs kept')} |",
        f"| default: memory, MB | – | {memory('pactune')} | – |",
        f"| all graphs kept: memory, MB | – | {memory('pactune, all graphs kept')} | – |",
        f"| best peer: memory, MB | – | {memory('higher', 'torchopt')} | – |",
    ]


def _unroll_prose() -> list[str]:
    found = read("benchmarks/results/unroll_peers.json")
    sgd = [row["ways"] for row in found["rows"] if row["inner"] == "sgd"]
    worst = max(way["relative_difference_float64"] for ways in sgd for way in ways.values())
    full = next(row["ways"] for row in found["rows"] if (row["inner"], row["steps"], row["k"]) == ("sgd", 100, 100))
    adam = next(row["ways"] for row in found["rows"] if row["inner"] == "adam")
    rates = [value for name, value in found["ceiling"].items() if name.endswith("gigaflops")]
    product = 2 * 50 * LAYERS / 1e9
    floors = [100 * cost * product / statistics.mean(rates) for cost in (5.25, 7.28)]
    ways = (full["pactune, all graphs kept"], full["pactune"])
    over = {f"{way['milliseconds'] / 1000 / floor:.1f}" for way, floor in zip(ways, floors, strict=True)}
    assert len(over) == 1, "the two rows no longer take the same multiple of their floors"
    default, graphs = adam["pactune"], adam["pactune, all graphs kept"]
    implicit = found["implicit"]
    names = {"neumann, 5": "Neumann(5)", "neumann, 20": "Neumann(20)", "cg, 1": "ConjugateGradient(1)"}
    table = [
        f"| `{said}` | {_quartiles(row['time_over_betty'])} | {n(row['relative_difference_float64'], '.0e')} |"
        for key, said in names.items()
        for row in [implicit[f"{key} products"]]
    ]
    last = implicit["cg, 5 products"]
    return [
        f"compared in float64 and agree to {n(worst, '.0e')}.",
        f"At the {n(min(rates), '.0f')}–{n(max(rates), '.0f')} GFLOP/s that one thread",
        f"that is {n(floors[0], '.2f')} and {n(floors[1], '.2f')} s: both rows take {n(float(*over))} times "
        f"their floors.",
        f"six in a step back; {n(found['ceiling']['sum_gigabytes_per_second'], '.0f')} GB/s while",
        f"24 MB, against {n(full['pactune']['megabytes'], '.0f')} MB measured",
        f"The default takes {_quartiles(default['time_over_best_peer'])} times TorchOpt's time and "
        f"{n(default['memory_over_best_peer'], '.2f')} of its memory ({n(default['megabytes'], '.0f')} MB against "
        f"{n(adam['torchopt']['megabytes'], '.0f')} MB), all graphs kept "
        f"{_quartiles(graphs['time_over_best_peer'])} and "
        f"{n(graphs['memory_over_best_peer'], '.2f')}.",
        f"gradient agrees to {n(adam['torchopt']['relative_difference_float64'], '.0e')};",
        f"({n(adam['higher']['relative_difference_float64'], '.2f')} apart)",
        *table,
        f"| `ConjugateGradient(5)` | {_quartiles(last['time_over_betty'])} | "
        f"{n(last['relative_difference_float64'], '.2f')} |",
    ]


def _growth() -> list[str]:
    found = read("benchmarks/results/scaling.json")
    words = {
        "T (K = 0 and T1–T2)": "T, with K = 0 and T1–T2",
        "T (K = 4 for the regularizer)": "T, with K = 4 for the regularizer",
        "K for the regularizer, T = 64": "K for the regularizer, T = 64",
        "T = K, risk alone": "T = K, risk alone",
        "C": "chains C",
        "m = n": "m = n",
    }
    table = [
        f"| {said} | {n(row['values'][0], ',')} … {n(row['values'][-1], ',')} | {n(row['exponent'], '.2f')} |"
        for key, said in words.items()
        for row in [found["time"][key]]
    ]
    sizes, times = (found["time"]["m = n"][key][:3] for key in ("values", "milliseconds"))
    slope = statistics.linear_regression([math.log(s) for s in sizes], [math.log(t) for t in times]).slope
    wide, long = (found["memory"][key] for key in ("m = n (K = 0 and T1–T2)", "T = K, risk alone"))
    copies = [n(value, ".0f") for value in wide["copies_of_the_parameters"]]
    more = long["copies_of_the_parameters"]
    counts = [n(value, ".0f") for value in more]
    return [
        *table,
        f"({n(slope, '.2f')} up to a million)",
        f"at the peak: {copies[0]}, {copies[1]} and {copies[2]} at m = n",
        f"exponent {n(wide['exponent'], '.2f')}).",
        f"with m = 500,000: {counts[0]}, {counts[1]} and {counts[2]} copies at",
        f"the steps add {n(more[-1] - more[0], '.0f')} copies",
    ]
