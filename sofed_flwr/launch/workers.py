"""How many simulated devices train at a time, and which part of a GPU each of them gets.

Ray gives a worker whole GPUs or less than one, never 1.5, and a device trains on one GPU only. So workers are spread
evenly over the cards, and each gets a share small enough for all workers of the fullest card.
"""

from dataclasses import dataclass

PER_GPU = 4
"""Workers per GPU by default: each has a CUDA context of 300 to 500 MB, and more of them mostly wait."""
FINEST = 10_000  # Ray divides a GPU into this many parts


@dataclass(frozen=True)
class Workers:
    """Client processes at a time, one core each."""

    number: int
    gpus: int = 0  # that they use, all together
    share: float = 0.0  # of a GPU, for each


def plan_workers(wanted: int | None, clients: int, cores: int, gpus: int) -> Workers:
    """`wanted` workers, by default one per core and at most four per GPU; never more than clients."""
    usual = min(cores, PER_GPU * gpus) if gpus else cores
    number = min(wanted or usual, clients)
    used = min(gpus, number)
    if not used:
        return Workers(number)
    crowd = -(-number // used)  # workers of the fullest card
    # a little less than 1/crowd: Flower keeps the share in 32 bits, which makes 0.2 too large for five to fit
    return Workers(number, used, 1.0 if crowd == 1 else (FINEST - 1) // crowd / FINEST)
