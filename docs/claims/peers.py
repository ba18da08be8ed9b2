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
    "dataset distillation, learned rate": ("dataset_distillation", ["higher", "by hand"]),
}


def claims() -> list[str]:
    """Return the rows of the table."""
    rows = []
    for words, (name, peers) in ROWS.items():
        ratios = read(f"benchmarks/results/peers_{name}.json")["÷"]
        for peer in peers:
            recorded, eager = (n(ratios[peer][way]["median"], ".2f") for way in ("own loop", "eager"))
            rows.append(f"| {words} | {peer} | {recorded} | {eager} |")
    return rows
