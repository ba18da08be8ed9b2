"""The numbers of docs/evidence/selection.md."""

from __future__ import annotations

from typing import Any

from claims.text import n, read

__all__ = ["ALLOWED", "claims"]

ALLOWED = [
    "2p + n_V · R_V",
    "moves T = 50 steps of η = 0.1",
    *(f"| {beta} |" for beta in (0.03, 0.1, 0.3, 1.0, 3.0, 10.0)),
    "shuffles the target 200 times",
    "chose 0.2 (",
    "and 0.3 (",
    "(of nine from 0.01 to 1)",
    "more than 5 % of the shuffles",
    "The ablation that the paper lacks: features selected (mean over 20 seeds) and, in brackets, seeds exactly "
    "right. ζ² = 0.025",
    "about 1/τ = 0.04",  # arithmetic: 1/(0.1 · 250)
    "| 10 of 50 columns, 200 rows | 3 of 200 columns, 60 rows |",
    "| 6 of 40 columns, 300 rows |",
    "better than 0.1 on all three tables",
    "did as well as 0.1.",
    "knockoffs (knockpy), FDR 0.1",
    "knockoffs (knockpy), FDR 0.5",
    "cv=5, tol=0.02",
]
# Tasks and the model that predicts with the chosen features.
TASKS = {"regression": "RidgeCV", "classification": "LogisticRegression"}
METRICS = {"regression": "R²", "classification": "accuracy"}
CRITERIA = {
    "`pac-bayes` (β = 0.1)": "pac-bayes",
    "`pac-bayes`, β = 1": "pac-bayes, beta 1",
    "`pac-bayes`, β auto": "pac-bayes, beta auto",
    "`pac-bayes`, ζ = 0": "pac-bayes, zeta 0",
    "`validation` (Eq. 1)": "validation",
    "`aic`": "aic",
    "`ebic`": "ebic",
}


def claims() -> list[str]:
    """Return what the page says, rendered from the stored results."""
    two, null = (read(f"results/freedman/{name}/results.json") for name in ("freedman", "freedman-null"))
    study = [*_table(two, null), *_prose(two, null), *_ablation(two, null)]
    return [*study, *_ordinary_tables(), *_peers(), *_real_tables(), *_cost()]


def _interval(found: dict[str, float], form: str = ".3f", between: str = "–", minus: str = "-") -> str:
    mean, low, high = (n(found[key], form, minus=minus) for key in ("mean", "low", "high"))
    return f"{mean} ({low}{between}{high})"


def _table(two: Any, null: Any) -> list[str]:
    rows = []
    for words, key in CRITERIA.items():
        cells = [
            f"{n(found['exact'])} of {n(found['of'])} | {n(found['mean_selected']['mean'], '.2f')} | "
            f"{_interval(found['mean_test_mse'])}"
            for found in (two["selection"][key], null["selection"][key])
        ]
        rows.append(f"| {words} | {cells[0]} | {cells[1]} |")
    return rows


def _prose(two: Any, null: Any) -> list[str]:
    rate, chosen = two["rate"], two["selection"]
    assert all(set(wrong["features"]) <= {0, 1} for wrong in rate["wrong"]), "a false column was selected"
    assert not null["rate"]["wrong"], "a column was selected in the null problem"
    per_block = [sum(20 * b <= wrong["seed"] < 20 * (b + 1) for wrong in rate["wrong"]) for b in range(25)]
    share = rate["share_exact"]
    early = [seed for seed, found in enumerate(chosen["pac-bayes"]["true_found"]) if found < 2]
    exact, below = chosen["pac-bayes"]["exact"], two["test_mse_below_validation"]["pac-bayes"]
    betas = chosen["pac-bayes, beta auto"]["betas"]
    correlation = {key: null["correlation"][key]["test_mse"] for key in ("pac-bayes", "validation", "aic")}
    signed = {key: _interval(found, "+.2f", " to ", "−") for key, found in correlation.items()}
    return [
        f"a validation R² of {n(null['paths']['validation']['validation_r2'][-1]['mean'], '.2f')}",
        f"in none of the {n(two['settings']['seeds'])} seeds of either problem, and in none of the "
        f"{n(rate['seeds'])} + {n(null['rate']['seeds'])} seeds",
        f"On {n(exact)} of {n(20)} seeds it is exactly right; in seeds {n(early[0])} and {n(early[1])} it misses",
        f"the better one on {n(below)} of {n(20)}. Over {n(rate['seeds'])} seeds it is exactly right on "
        f"{n(rate['exact'])}: "
        f"{n(100 * share['mean'], '.1f')} % (95 % interval "
        f"{n(100 * share['low'], '.1f')}–{n(100 * share['high'], '.1f')} %), "
        f"and better than Eq. 1 on {n(rate['test_mse_below_validation'])}; "
        f"{n(sum(wrong <= 1 for wrong in per_block))} of the {n(25)} blocks",
        f"**What reaches {n(chosen['ebic']['exact'])} of {n(20)}**: EBIC",
        f"on all {n(chosen['pac-bayes, zeta 0']['exact'])} seeds with two true columns and on "
        f"{n(null['selection']['pac-bayes, zeta 0']['exact'])} null seeds",
        f"Eq. 5 {signed['pac-bayes']}, Eq. 1 {signed['validation']}, AIC {signed['aic']}",
        f"chose 0.2 ({n(betas.count(0.2))} seeds) and 0.3 ({n(betas.count(0.3))} seeds)",
        f"{n(chosen['aic']['mean_selected']['mean'], '.1f')} columns on average with two true ones, "
        f"{n(null['selection']['aic']['mean_selected']['mean'], '.1f')} with none",
    ]


def _ablation(two: Any, null: Any) -> list[str]:
    found = [{(str(row["beta"]), row["zeta"]): row for row in part["ablation"]} for part in (two, null)]
    rows = []
    for beta in ("0.03", "0.1", "0.3", "1.0", "3.0", "10.0", "inf"):
        cells = [
            f"{n(part[beta, zeta]['mean_selected']['mean'], '.2f')} ({n(part[beta, zeta]['exact'])})"
            if (beta, zeta) in part
            else "–"
            for part in found
            for zeta in ("0", "theory", "fixed")
        ]
        rows.append(f"| {'∞' if beta == 'inf' else beta} | {' | '.join(cells)} |")
    return rows


def _ordinary_tables() -> list[str]:
    found = read("benchmarks/results/selection_tables.json")
    tables, summary = found["tables"], found["summary"]
    best = min(summary, key=lambda name: summary[name]["mean_shortfall"])
    assert best == "ebic", f"{best} has the smallest mean shortfall, so it should be the default"
    rows = [_ordinary_row(tables, task, name) for task in TASKS for name in tables["diabetes"]["methods"]]
    rows += [_all_features_row(tables, task) for task in TASKS]
    everything = [n(tables[name]["all_features_logistic_cv"], ".3f") for name in _names(tables, "classification")]
    rows.append(f"| all features, LogisticRegressionCV | accuracy | {' | '.join(everything)} |")
    for name, row in summary.items():
        mean, largest = (n(row[f"{key}_shortfall"], ".3f") for key in ("mean", "largest"))
        overlap, columns = n(row["mean_jaccard"], ".2f"), n(row["mean_features"], ".1f")
        rows.append(f"| {name} | {mean} / {largest} | {overlap} | {columns} |")
    shipped, folds = found["summary_shipped"], "forward, 5 × 5 folds"
    short = {name: n(row["mean_shortfall"], ".3f") for name, row in shipped.items()}
    size = {name: n(row["mean_features"], ".0f") for name, row in shipped.items()}
    rows.append(
        f"mean shortfall of {short[folds]} there with {size[folds]} columns on average, "
        f'`"validation"` {short["validation"]} with {size["validation"]}, and EBIC {short["ebic"]} with {size["ebic"]}'
    )
    wide = tables["3 of 200 columns, 60 rows"]["methods"]
    rows.append(f"R² {n(wide[folds]['score'], '.2f')} where EBIC has {n(wide['ebic']['score'], '.2f')}")
    return rows


def _names(tables: Any, task: str) -> list[str]:
    return [name for name, table in tables.items() if table["task"] == task]


def _ordinary_row(tables: Any, task: str, name: str) -> str:
    methods = [tables[table]["methods"].get(name) for table in _names(tables, task)]
    cells = [f"{n(cell['score'], '.3f')} · {n(cell['features'], '.1f')}" if cell else "–" for cell in methods]
    return f"| {name} | {METRICS[task]} | {' | '.join(cells)} |"


def _all_features_row(tables: Any, task: str) -> str:
    cells = [
        f"{n(tables[table]['all_features'], '.3f')} · {n(tables[table]['columns'])}" for table in _names(tables, task)
    ]
    return f"| all features, {TASKS[task]} | {METRICS[task]} | {' | '.join(cells)} |"


def _peers() -> list[str]:
    peers = read("benchmarks/results/selection-peers.json")["peers"]
    rows = []
    for name, row in peers.items():
        true, null = row["two true"], row["null"]
        rows.append(
            f"| {name} | {n(row['seeds'])} | {n(true['selected'], '.1f')} | {n(true['true_found'], '.1f')} | "
            f"{n(true['test_mse'], '.3f')} | {n(true['seconds'], '.2f')} | {n(null['selected'], '.1f')} | "
            f"{n(null['test_mse'], '.3f')} |"
        )
    return [*rows, f"ours or abess in {n(peers['abess, EBIC']['two true']['seconds'], '.2f')} s, ties"]


def _real_tables() -> list[str]:
    found = read("benchmarks/results/selection-peers.json")
    rows = [f"{n(found['splits'])} random halves: columns chosen"]
    for name, row in found["peers"].items():
        if "real" in row:
            cells = [
                f"{n(t['selected'], '.1f')} · {n(t['test_r2'], '.3f')} ± {n(t['standard_error'], '.3f')}"
                for t in (row["real"][table] for table in ("diabetes", "breast cancer", "wine: alcohol"))
            ]
            rows.append(f"| {name} | {' | '.join(cells)} |")
    return rows


def _cost() -> list[str]:
    found = read("benchmarks/results/selection.json")
    rows = []
    for name, row in found["timed"].items():
        words = f"{name} (extrapolated from {row['extrapolated_from']})" if "extrapolated_from" in row else name
        words = words.replace("(4.4 s)", f"({n(4.4)} s)").replace("from 5 candidates", f"from {n(5)} candidates")
        rows.append(f"| {words} | {n(row['seconds'], '.3f')} | {n(row['ratio_to_exact'], '.1f')} |")
    growth = {
        "columns": ("features", "features"),
        "rows (half train, half validate)": ("rows", "rows"),
        "selected columns": ("selected", "selected"),
        "steps T": ("steps", "steps"),
    }
    for words, (key, size) in growth.items():
        pairs = ", ".join(f"{n(row[size])}: {n(row['seconds'], '.2f')}" for row in found["growth"][key])
        rows.append(f"| {words} | {pairs} |")
    return rows
