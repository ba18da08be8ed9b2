"""Several processes at work on one run: chains spread over ranks, mini-batches shared between them."""

from pactune.parallel.settings import Parallel, as_team
from pactune.parallel.shards import check_shards, collect, share, spread, sum_trees
from pactune.parallel.team import ALONE, Team

__all__ = ["ALONE", "Parallel", "Team", "as_team", "check_shards", "collect", "share", "spread", "sum_trees"]
