"""When the entries of a pool arrived, and fair shares between those that arrived at different times.

A device counts its iterations, but a policy sees ages only. An entry's arrival is noted as a column when it comes;
arrival and age together then tell the present iteration, also after a restart.
"""

import torch
from torch import Tensor

from sofed_flwr.core.records import Pool

ARRIVAL = "arrival"


def arrivals(pool: Pool) -> Tensor:
    """The iteration in which each entry arrived (n,), float64; an entry without a note is dated by its age."""
    noted = pool.column(ARRIVAL)
    known = noted.isfinite() & ~pool.is_new
    now = (noted + pool.ages)[known].max() if known.any() else pool.ages.max().double()
    return torch.where(known, noted, now - pool.ages)


def equal_shares(strata: Tensor, scores: Tensor, capacity: int, most: int) -> Tensor:
    """Indices (capacity,) of entries: the `most` newest strata take turns, and each gives its highest scores first.

    So strata share the buffer equally, a stratum with few entries leaves its places to the others, and what belongs to
    an older stratum stays only while there is nothing else.
    """
    newest_first = torch.unique(-strata, return_inverse=True)[1]
    by_score = torch.argsort(scores, descending=True, stable=True)
    grouped = by_score[torch.argsort(newest_first[by_score], stable=True)]
    stratum = newest_first[grouped]
    turn = torch.arange(len(grouped)) - torch.searchsorted(stratum, stratum)
    order = turn * len(grouped) + stratum + (stratum >= most) * len(grouped) ** 2
    return grouped[torch.argsort(order)[:capacity]].sort().values
