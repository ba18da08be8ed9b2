"""The rows of docs/evidence/peers.md that compare pactune with its peers on their own examples."""

from __future__ import annotations

from claims.text import n, read

__all__ = ["claims"]

ROWS = {
    "Meta-Weight-Net, MNIST with label noise": ("meta_weight_net", ["betty", "higher", "by hand"]),
    "decay per feature, conjugate gradients": ("logistic_l2_cg", ["hypertorch"]),
    "decay per feature, unrolled": ("logistic_l2_unroll", ["hypertorch", "higher"]),
    "MAML, convolutions and BatchNorm": ("conv_maml", ["higher", "by hand"]),
    "iMAML": ("imaml", ["hypertorch"]),
    "DARTS, first order": ("darts_1", ["by hand"]),
    "DARTS, second order": ("darts_2", ["by hand"]),
    "dataset distillation, learned rate": ("dataset_distillation", ["higher", "by hand"]),
    "data cleaning with stocBiO": ("stocbio_cleaning", ["by hand"]),
    "regularization with stocBiO": ("stocbio_regularization", ["by hand"]),
    "GPT with a decay per element": ("gpt", ["by hand"]),
}
WAYS = ("own loop", "eager", "fit, evaluate_every=100")


def claims() -> list[str]:
    """Return the rows of the table."""
    rows = []
    for words, (name, peers) in ROWS.items():
        ratios = read(f"benchmarks/results/peers_{name}.json")["÷"]
        for peer in peers:
            cells = " | ".join(_ratio(ratios[peer][way]) for way in WAYS)
            rows.append(f"| {words} | {peer} | {cells} |")
    return [*rows, *_gpu(), *_bilevel()]


def _gpu() -> list[str]:
    ratios = read("benchmarks/results/peers_meta_weight_net_gpu.json")["÷"]
    names = {
        "betty": "Betty, finite differences",
        "by hand": "a loop by hand, double backward",
        "by hand, forward mode": "a loop by hand, forward mode",
    }
    return [
        f"| {words} | {_ratio(ratios[peer]['own loop'])} | {_ratio(ratios[peer]['eager'])} |"
        for peer, words in names.items()
    ]


def _bilevel() -> list[str]:
    found = {name: read(f"benchmarks/results/bilevel_{name}.json") for name in ("regularization", "cleaning")}
    solvers = [one["solvers"] for one in found.values()]
    soba = [solvers[0][words]["milliseconds per outer step"] for words in ("SOBA by hand", "pactune SOBA")]
    methods = ("stocBiO", "AmIGO", "SOBA")
    gaps = [abs(one[f"{m} by hand"]["last"] - one[f"pactune {m}"]["last"]) for one in solvers for m in methods]
    bar = read("benchmarks/results/peers_stocbio_regularization.json")["bars"]["by hand"]
    return [
        f"are within the bar of {n(bar, '.1f')}. With SOBA",
        f"one takes {n(soba[0], '.2f')} ms by hand and {n(soba[1], '.2f')} ms with pactune",
        f"After {n(found['cleaning']['iterations'], 'd')} outer steps of stocBiO, AmIGO and SOBA",
        f"end at objectives that differ by at most {n(max(gaps), '.4f')}",
    ]


def _ratio(found: dict[str, float]) -> str:
    low, middle, high = (n(found[name], ".2f") for name in ("lower_quartile", "median", "upper_quartile"))
    return f"{middle} ({low}–{high})"
