"""Strategies that tolerate malicious clients: Flower's coordinate-wise and selecting ones.

BatchNorm's statistics take part like weights where a coordinate is a median or trimmed: a variance stays positive, and
false statistics harm an encoder like false weights. Krum compares whole models, and variances are so much larger than
what a round learns that they would decide alone: with them Multi-Krum chose one of five devices of the demo that sent
its update with the sign turned in 5 of 12 rounds, without them in none. So Krum sees parameters only, and statistics
are the mean over the devices it chose, within the gate's limits (`server/batch_norm.py`).

`malicious` devices are included in `min_replies`; a federation needs spare devices for those that may be missing.
Computed in float64, from which float32 values come back unchanged.
"""

from functools import partial
from math import ceil
from typing import Annotated

import torch
from flwr.serverapp import strategy as flower
from pydantic import Field, validate_call

from sofed_flwr.strategies.inner import InnerStrategy

Count = Annotated[int, Field(ge=0)]
_robust = partial(InnerStrategy, bounded=True, dtype=torch.float64)
_krum = partial(_robust, parameters_only=True)


@validate_call
def fedmedian(screened: bool) -> InnerStrategy:
    """The median of every coordinate (Yin et al. 2018), and if `screened`, only of updates that agree with the others.

    The bound of the median: while malicious clients are fewer than half of those it is taken of, every coordinate lies
    between two honest ones, however long their updates are and however many agree. But they pull every coordinate to
    the edge of that range in every round (cost: docs/reliability.md), so the gate drops updates that point against more
    than half of all devices; `server/outliers.py` says when no honest one is among them. None is dropped if that would
    be more than half of a round, or if the rest would still disagree: then it is the plain median. So malicious clients
    that are fewer than half win a round only where an honest device disagrees with another one and they agree with all
    that are left; screened=false keeps the median's bound in every case. The median of two is their mean.
    """
    return _robust(flower.FedMedian(), min_replies=3, bounded=not screened, compares_directions=screened)


@validate_call
def fedtrimmedavg(trim: Annotated[float, Field(gt=0, lt=0.5)]) -> InnerStrategy:
    """The mean of every coordinate without the `trim` largest and smallest share of it (Yin et al. 2018).

    Flower trims int(trim * K) values at each end; with none it would silently be the plain mean.
    """
    return _robust(flower.FedTrimmedAvg(beta=trim), min_replies=ceil(1 / trim))


@validate_call
def krum(malicious: Count) -> InnerStrategy:
    """The one device whose parameters are closest to its K - f - 2 nearest (Blanchard et al. 2017, who need 2f + 3)."""
    return _krum(flower.Krum(num_malicious_nodes=malicious), min_replies=2 * malicious + 3)


@validate_call
def multikrum(malicious: Count, select: Annotated[int, Field(ge=1)]) -> InnerStrategy:
    """The mean over the `select` devices with the best Krum scores; more than K - f - 2 could reach a malicious one."""
    strategy = flower.MultiKrum(num_malicious_nodes=malicious, num_nodes_to_select=select)
    return _krum(strategy, min_replies=max(2 * malicious + 3, malicious + 2 + select))


@validate_call
def bulyan(malicious: Annotated[int, Field(ge=1)]) -> InnerStrategy:
    """Of the K - 2f devices with the best Krum scores, the mean of the K - 4f values closest to the median.

    Coordinate by coordinate (El Mhamdi et al. 2018, who need 4f + 3). With f = 0 it would be the plain mean. Statistics
    take part: they say who is among the K - 2f, and the values closest to the median bear a malicious device there.
    """
    return _robust(flower.Bulyan(num_malicious_nodes=malicious), min_replies=4 * malicious + 3)
