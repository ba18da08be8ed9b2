"""The old address of `pactune.paper.weight_decay.rules`; to be removed with its last import."""

from pactune.paper.weight_decay.rules import Comparison, Summary, compare, least_norm_row, summarise

__all__ = ["Comparison", "Summary", "compare", "least_norm_row", "summarise"]
