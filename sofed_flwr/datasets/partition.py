"""Which images each simulated client owns: every image exactly once.

A partitioner is called with the labels, the number of clients and a generator, and returns one array of indices per
client; `stc_order` then orders each client's share as a temporally correlated stream: STC is the number of consecutive
images of one class (paper, sec. IV-A). Partitioners may use labels; clients never see them.
"""

from typing import Annotated

import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass

from sofed_flwr.core.records import Indices, Labels

ATTEMPTS = 1000


def stc_order(labels: Labels, stc: int, rng: np.random.Generator) -> Indices:
    """Positions 0 .. n-1 as same-class blocks of `stc` images, blocks in random order; each position exactly once.

    A class whose size is no multiple of `stc` ends in one shorter block. Two blocks of a class may meet by chance.
    """
    blocks: list[Indices] = []
    for label in np.unique(labels):
        members = rng.permutation(np.flatnonzero(labels == label))
        blocks += np.split(members, range(stc, len(members), stc))
    return np.concatenate([blocks[i] for i in rng.permutation(len(blocks))])


@dataclass(frozen=True)
class IID:
    """Shuffle, then equal shares."""

    def __call__(self, labels: Labels, clients: int, rng: np.random.Generator) -> list[Indices]:
        """Shares differ by at most one image."""
        return np.array_split(rng.permutation(len(labels)), clients)


@dataclass(frozen=True)
class Blocks:
    """The paper's: the temporally ordered dataset, dealt to clients in equal shares.

    Equal shares give every client the same velocity, as Algorithm 1 assumes; where the number of blocks is no multiple
    of the number of clients (STC 200 over 100 devices is 2.5 blocks each), a block is split between two clients.
    """

    stc: Annotated[int, Field(ge=1)]

    def __call__(self, labels: Labels, clients: int, rng: np.random.Generator) -> list[Indices]:
        """Shares differ by at most one image."""
        return np.array_split(stc_order(labels, self.stc, rng), clients)


@dataclass(frozen=True)
class ByClass:
    """`classes_per_client` classes per client; the clients that own a class share its images equally."""

    classes_per_client: Annotated[int, Field(ge=1)]

    def __call__(self, labels: Labels, clients: int, rng: np.random.Generator) -> list[Indices]:
        """Deal out one shuffled list of classes again and again, until every client has its number."""
        classes = np.unique(labels)
        wanted = self.classes_per_client
        if wanted > len(classes) or wanted * clients < len(classes):
            fewest = -(-len(classes) // clients)
            raise ValueError(
                f"classes_per_client={wanted} does not deal {len(classes)} classes to {clients} clients without loss; "
                f"allowed are {fewest} to {len(classes)}"
            )
        hands = np.resize(rng.permutation(classes), clients * wanted).reshape(clients, wanted)
        shares: list[list[Indices]] = [[] for _ in range(clients)]
        for label in classes:
            owners = np.flatnonzero((hands == label).any(axis=1))
            members = rng.permutation(np.flatnonzero(labels == label))
            for owner, part in zip(owners, np.array_split(members, len(owners)), strict=True):
                shares[owner].append(part)
        return [np.concatenate(share) for share in shares]


@dataclass(frozen=True)
class Dirichlet:
    """Each class is split over the clients in proportions drawn from Dirichlet(alpha): small alpha, few owners.

    Draws are repeated until every client has at least `minimum` images: one with none could not take part.
    """

    alpha: Annotated[float, Field(gt=0)]
    minimum: Annotated[int, Field(ge=1)]

    def __call__(self, labels: Labels, clients: int, rng: np.random.Generator) -> list[Indices]:
        """Cut each shuffled class at the cumulated proportions."""
        for _ in range(ATTEMPTS):
            shares = self._draw(labels, clients, rng)
            if min(map(len, shares)) >= self.minimum:
                return shares
        raise ValueError(
            f"alpha={self.alpha:g} left a client with fewer than {self.minimum} images in each of {ATTEMPTS} draws; "
            "use a larger alpha, fewer clients or a smaller buffer"
        )

    def _draw(self, labels: Labels, clients: int, rng: np.random.Generator) -> list[Indices]:
        shares: list[list[Indices]] = [[] for _ in range(clients)]
        for label in np.unique(labels):
            members = rng.permutation(np.flatnonzero(labels == label))
            cuts = (np.cumsum(rng.dirichlet(np.full(clients, self.alpha)))[:-1] * len(members)).astype(int)
            for share, part in zip(shares, np.split(members, cuts), strict=True):
                share.append(part)
        return [np.concatenate(share) for share in shares]
