"""Several processes at work on one run: chains spread over ranks, mini-batches shared between them."""

from pactune.parallel.ranks import SINGLE_RANK, Ranks
from pactune.parallel.settings import Parallel, as_ranks
from pactune.parallel.shards import check_shards, collect, share, spread, sum_trees

__all__ = ["SINGLE_RANK", "Parallel", "Ranks", "as_ranks", "check_shards", "collect", "share", "spread", "sum_trees"]
