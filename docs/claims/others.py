"""The numbers of the pages that have few of them."""

from __future__ import annotations

from typing import Any

from claims.text import n, read
from pactune import privacy

__all__ = [
    "CERTIFICATES_ALLOWED",
    "DISTRIBUTED_ALLOWED",
    "METHOD_ALLOWED",
    "MONITOR_ALLOWED",
    "PRIVACY_ALLOWED",
    "certificates",
    "contributing",
    "data_page",
    "folds_and_tasks",
    "monitor",
    "privacy_page",
    "runs",
    "tasks",
]

FOLD_ROWS = [
    ("MNIST", "linear", "smoothness"),
    ("MNIST", "MLP", "smoothness"),
    ("MNIST", "linear", "decay"),
    ("digits", "linear", "smoothness"),
    ("digits", "MLP", "smoothness"),
    ("CIFAR-10", "linear", "smoothness"),
    ("CIFAR-10", "MLP", "smoothness"),
]
CERTIFICATES_ALLOWED = [
    "with probability at least 95 %",
    "The 95 % is over",
    '"Below 0.9"',
    "they add at least 0.935",  # proved: √(1 − ε²/2) at ε = 1/2
]
DISTRIBUTED_ALLOWED = [
    "| 8 GPUs of one machine |",
    "| 2 machines with 4 GPUs each |",
    "| 1 + m + n numbers |",
    "11.7 million",
    "2 · 47 MB of sums and 47 MB of",  # 11.7 million numbers of four bytes
    "sends 2 · 47 MB at",
    "less than 1e-10, in float32 by less than 1e-6",  # the tolerances of the tests
    "with one process to 1e-9",
]
METHOD_ALLOWED = ["RMSprop, 1e-2 |"]
PRIVACY_ALLOWED = ["the budget (0.5, 10⁻⁶)", ", not 0.5 |"]
MONITOR_ALLOWED = [
    "to 1e-12",  # the tolerance of the tests
    "(±20 %;",
    "out of 0, 3e-4, …, 0.1 that",
    "0.1 on cancer",
    "no ζ up to 0.03",
    "ζ transferred (0.1)",
    "ζ transferred (0, so",
    "| linear 64-10 |",
]


def contributing() -> list[str]:
    """Return what CONTRIBUTING.md says of the last sample of mutants."""
    counts = read("benchmarks/results/mutants.json")["samples"][-1]["counts"]
    shares = (100 * counts[key] / counts["real"] for key in ("noticed at first", "noticed with the tests added since"))
    first, now = (n(share, ".0f") for share in shares)
    return [
        f"Of the {n(counts['real'])} changes of the last sample that matter, the tests noticed {first} % when it was "
        f"drawn and {now} % with the tests written since"
    ]


def certificates() -> list[str]:
    """Return what docs/evidence/certificates.md says in its prose."""
    digits = _errors("digits", "digits 60/1000, 650 decays")
    mnist = _errors("mnist-small", "MNIST 1000/30000, 7850 decays")
    pairs = [f"from {n(found['λ0'], '.3f')} to {n(found['hyper-drift'], '.3f')}" for found in (digits, mnist)]
    return [f"(digits: {pairs[0]}; MNIST: {pairs[1]})"]


def _errors(file: str, study: str) -> dict[str, float]:
    rows = read(f"results/certificate/{file}.json")["studies"][study]["rows"]
    return {row["objective"]: row["test_error"] for row in rows}


def privacy_page() -> list[str]:
    """Return what docs/guides/privacy.md says; the formulas are evaluated, the audit is stored."""
    found = privacy.largest_step(0.5, 1e-6, rows=30_000, batch_size=300, clip=1.0)
    audit = read("benchmarks/results/privacy_audit.json")
    return [
        f"Theorem A.5 | {n(found.paper, '.4f')} — but at this step ε is **{n(found.paper_epsilon, '.3f')}**",
        f"| the same with the sensitivity put right (2, not 1) | {n(found.corrected, '.4f')} |",
        f"| exact | {n(found.exact, '.4f')} |",
        f"really costs ε = {n(audit['epsilon claimed'], '.2f')}, the attack proves "
        f"{n(audit['epsilon proved by the attack'], '.2f')}",
    ]


def data_page() -> list[str]:
    """Return what docs/guides/data.md says about memory."""
    found = read("benchmarks/results/shared_data.json")
    folds, views = (found["megabytes"][way] for way in ("folds", "views of one tensor"))
    return [
        f"{n(found['cells'], 'd')} cells over five folds of one sample add {n(folds['now'], '.0f')} MB at their peak, "
        f"and {n(folds['before'], '.0f')} MB where each run has a copy; on views of one tensor they add "
        f"{n(views['now'], '.0f')} and {n(views['before'], '.0f')} MB",
    ]


def tasks() -> list[str]:
    """Return what docs/evidence/gains.md and docs/evidence/performance.md says about time."""
    found = read("benchmarks/results/maml.json")["T"]

    def shares(steps: str) -> list[str]:
        return [n(found[steps]["÷"][other]["median"], ".2f") for other in ("vmap by hand", "higher")]

    (long, long_higher), (short, short_higher) = shares("5"), shares("1")
    spread = "–".join(n(found["1"]["÷"]["vmap by hand"][f"{side}_quartile"], ".2f") for side in ("lower", "upper"))
    return [
        f"takes {long} of the time of a loop written by hand with `torch.func.vmap` and {long_higher} of that of",
        f"With T = 1 it takes {short} and {short_higher} of it",
        f"the quartiles of the first number are {spread}",
    ]


def folds_and_tasks() -> list[str]:
    """Return what docs/evidence/gains.md and docs/evidence/performance.md says."""
    return [*_fold_accuracies(), *_fold_times(), *tasks()]


def _fold_accuracies() -> list[str]:
    measured = read("benchmarks/results/folds_accuracy.json")
    rows = []
    for data, model, hyper in FOLD_ROWS:
        label = f"{data.lower().replace('-', '')}, {model.lower()}, {hyper}, 100 rows, draws from 0"
        found = measured[label]["summary"]
        assert len(measured[label]["draws"]) == 12
        means = [n(found[name], ".1f") for name in ("kept", "plain_last", "plain_best", "logistic_regression_cv")]
        gaps = [found[f"kept − {name}"] for name in ("plain_last", "plain_best")]
        shown = [f"{n(gap['mean'], '.1f', minus='−')} ± {n(gap['half_width'], '.1f')}" for gap in gaps]
        rows.append(f"| {data}, {model}, {hyper} | {' | '.join([*means, *shown])} |")
    return rows


def _fold_times() -> list[str]:
    measured = read("benchmarks/results/folds_time.json")
    linear, mlp = measured["linear 784-10"], measured["MLP 784-128-10"]

    def share(found: Any, unit: str, name: str) -> str:
        return n(found[f"÷ {unit}"][name]["median"], ".1f")

    both, split, plain = (
        [share(found, unit, name) for found in (linear, mlp)]
        for unit, name in (
            ("all rows", "five folds + refit"),
            ("50 + 50 rows", "five folds + refit"),
            ("five folds + refit, with plain", 'keep="held-out"'),
        )
    )
    return [
        f"five folds with the refit take {both[0]} times as long as one tuned run",
        f"with a linear model, and {both[1]} times with an MLP",
        f"Against a run on 50 + 50 rows it is {split[0]} and {split[1]} times",
        f"takes {plain[0]} and {plain[1]} times as long as the folds",
    ]


def runs() -> list[str]:
    """Return what benchmarks/README.md says."""
    found = read("benchmarks/results/faults.json")
    assert found["passed"]
    words = {
        "kills": "kills by SIGKILL",
        "kills_while_a_checkpoint_was_written": "of these while a checkpoint was being written",
        "kills_before_the_first_new_step": "of these before the attempt finished a step of its own",
        "outer_steps": "outer steps of a run",
        "steps_lost": "finished outer steps lost",
        "steps_made_again": "finished outer steps made again, with the same numbers",
    }
    kinds = found["kinds"]
    assert list(kinds) == ["loader", "chains", "grid"]
    return [f"| {text} | {' | '.join(n(kinds[kind][name]) for kind in kinds)} |" for name, text in words.items()]


def monitor() -> list[str]:
    """Return what docs/guides/monitor.md and docs/evidence/gains.md says."""
    cost = read("benchmarks/results/monitor_cost.json")
    table = [
        f"| {name} | {n(row['milliseconds_alone'], '.3f')} | "
        + " | ".join(n(row["ratio"][way], ".2f") for way in (".grad", "train batch", ".grad, every=10"))
        + " |"
        for name, row in cost.items()
    ]
    small = cost["linear 64-10"]
    more = small["milliseconds_alone"] * (small["ratio"][".grad"] - 1)
    study = read("benchmarks/results/optuna_coherence.json")
    design, why = study["design"], study["why"]["digits"]["rank_correlation"]
    errors = {data: design[data]["mean_test_error"] for data in ("cancer", "digits")}
    apart = [abs(errors[d][z] - errors[d]["0.0"]) for d in errors for z in errors[d] if 0 < float(z) <= 0.03]
    assert max(apart) < 0.005, "some ζ up to 0.03 changed the mean by more than half a point"
    return [
        *table,
        f"a measured step takes {n(more, '.1f')} ms more on the first model",
        *_searches(study["measured"]),
        f"on cancer, {n(100 * errors['cancer']['0.1'], '.1f')} % against {n(100 * errors['cancer']['0.0'], '.1f')} %)",
        f"rank correlation {n(why['regularizer, steps']['mean'], '.2f')} with the number of steps and "
        f"{n(why['regularizer, test_error']['mean'], '.2f', minus='−')} with the test error",
        f"the validation loss has {n(why['valid_risk, test_error']['mean'], '.2f')} with",
    ]


def _searches(measured: Any) -> list[str]:
    names = {
        "validation loss": "validation loss",
        "theory": 'Eq. 5, ζ = √(lr/4) ("theory")',
        "transferred": "Eq. 5, ζ transferred",
        "theory, same trials": "Eq. 5, theory, among the trials of the first row",
        "oracle": "oracle among the trials of the first row",
    }
    rows = []
    for data in ("digits", "cancer"):
        for key, words in names.items():
            found = measured[data]["summary"][key]
            if key == "transferred":
                words += " (0.1)" if data == "digits" else " (0, so the first row again)"
            difference = f"{_percent(found['difference'])} | {n(found['better'])} · {n(found['worse'])}"
            if key == "validation loss":
                difference = " | "
            elif found["difference"]["low"] == found["difference"]["high"]:
                difference = f"{n(0.0, '.1f')} | {n(found['better'])} · {n(found['worse'])}"
            rows.append(
                f"| {data} | {words} | {_percent(found['test_error'])} | {difference} | "
                f"{n(found['median_steps'], '.0f')} |"
            )
    return rows


def _percent(found: dict[str, float]) -> str:
    mean, low, high = (n(100 * found[key], ".1f", minus="−") for key in ("mean", "low", "high"))
    return f"{mean} ({low} to {high})"
