"""Temporally correlated streams: STC, the number of consecutive images of one class (paper, sec. IV-A)."""

import numpy as np

from sofed_flwr.core.records import Indices, Labels


def stc_order(labels: Labels, stc: int, rng: np.random.Generator) -> Indices:
    """Positions 0 .. n-1 as same-class blocks of `stc` images, blocks in random order; each position exactly once.

    A class whose size is no multiple of `stc` ends in one shorter block. Two blocks of a class may meet by chance.
    """
    blocks: list[Indices] = []
    for label in np.unique(labels):
        members = rng.permutation(np.flatnonzero(labels == label))
        blocks += np.split(members, range(stc, len(members), stc))
    return np.concatenate([blocks[i] for i in rng.permutation(len(blocks))])
