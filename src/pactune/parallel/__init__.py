"""Several processes that work on one run.

The ranks of `torch.distributed` run the chains between them, and may share the rows of every mini-batch. `Ranks` has
all messages between ranks, `shards` the derivatives of a risk whose rows are shared. A new message belongs in `Ranks`.
"""

from pactune.parallel.ranks import SINGLE_RANK, Ranks
from pactune.parallel.settings import Parallel, as_ranks
from pactune.parallel.shards import check_shards, copy_to_shards, shard_batch, sum_over_shards, sum_trees

__all__ = [
    "SINGLE_RANK",
    "Parallel",
    "Ranks",
    "as_ranks",
    "check_shards",
    "copy_to_shards",
    "shard_batch",
    "sum_over_shards",
    "sum_trees",
]
