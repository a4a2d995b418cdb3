"""Strategies that survive lying devices: Flower's coordinate-wise and selecting ones.

BatchNorm's running statistics take part like weights: each result is one device's value, a median or a mean of chosen
ones, so a variance stays positive; and a device that lies in its statistics alone ruins the encoder as surely as one
that lies in its weights. Integer counters are no quantities to compare: they are the mean over the devices chosen.

Computed in float64: Flower's Krum takes |x - y|² = |x|² + |y|² - 2xy of whole models, which in float32 loses the short
way that devices travel in one round; and a float32 comes back from float64 as it was.

`malicious` devices count among those of `fewest`: a round in which so many stay away or are dropped by the gate that
the rest is too small is a failed round, so a federation needs as many devices more as may be missing at a time.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from math import ceil
from typing import Annotated

import torch
from flwr.serverapp import strategy as flower
from pydantic import Field
from pydantic.dataclasses import dataclass

from sofed_flwr.aggregators.base import Stateless, mean
from sofed_flwr.aggregators.flower_strategy import combine
from sofed_flwr.contracts import State, Update


class Robust(Stateless, ABC):
    """All floats through Flower's strategy."""

    @property
    def bounded(self) -> bool:
        """That is what they are for."""
        return True

    @abstractmethod
    def strategy(self) -> flower.FedAvg:
        """A new one for every round: it remembers nothing."""

    def aggregate(self, updates: Sequence[Update], current: State) -> State:
        """See the head of this file."""
        floats = [name for name, tensor in current.items() if tensor.is_floating_point()]
        result, chosen = combine(self.strategy(), 1, updates, floats, torch.float64)
        result |= mean(chosen, current.keys() - result.keys())
        return {name: result[name].to(tensor.dtype) for name, tensor in current.items()}


@dataclass(frozen=True)
class FedMedian(Robust):
    """The median of every coordinate (Yin et al. 2018), and if `screened`, only of updates that go with the others.

    However long a liar's update, it moves a median no further than to a neighbour's value; but that far it pulls every
    coordinate in every round (docs/reliability.md, fault 13: what it costs). So whom the gate can see is left out.
    """

    screened: bool

    @property
    def bounded(self) -> bool:
        """Not if lengths shall be looked at all the same."""
        return not self.screened

    @property
    def directed(self) -> bool:
        """See above."""
        return self.screened

    @property
    def fewest(self) -> int:
        """The median of two is their mean."""
        return 3

    def strategy(self) -> flower.FedAvg:
        """Flower's."""
        return flower.FedMedian()


@dataclass(frozen=True)
class FedTrimmedAvg(Robust):
    """The mean of every coordinate without the `trim` largest and smallest share of it (Yin et al. 2018)."""

    trim: Annotated[float, Field(gt=0, lt=0.5)]

    @property
    def fewest(self) -> int:
        """Flower trims int(trim * K) values at each end; with none it would be the plain mean, and nobody told."""
        return ceil(1 / self.trim)

    def strategy(self) -> flower.FedAvg:
        """Flower's."""
        return flower.FedTrimmedAvg(beta=self.trim)


@dataclass(frozen=True)
class Krum(Robust):
    """The one device that is closest to its K - f - 2 nearest, as a whole (Blanchard et al. 2017)."""

    malicious: Annotated[int, Field(ge=0)]

    @property
    def fewest(self) -> int:
        """2f + 3, the paper's condition; Flower would go on with fewer."""
        return 2 * self.malicious + 3

    def strategy(self) -> flower.FedAvg:
        """Flower's."""
        return flower.Krum(num_malicious_nodes=self.malicious)


@dataclass(frozen=True)
class MultiKrum(Robust):
    """The mean over the `select` devices that Krum likes best (Blanchard et al. 2017)."""

    malicious: Annotated[int, Field(ge=0)]
    select: Annotated[int, Field(ge=1)]

    @property
    def fewest(self) -> int:
        """2f + 3, and at most K - f - 2 selected, or the selection may have to reach for a liar."""
        return max(2 * self.malicious + 3, self.malicious + 2 + self.select)

    def strategy(self) -> flower.FedAvg:
        """Flower's."""
        return flower.MultiKrum(num_malicious_nodes=self.malicious, num_nodes_to_select=self.select)


@dataclass(frozen=True)
class Bulyan(Robust):
    """Of the K - 2f devices that Krum likes best, the mean of the K - 4f values closest to the median, coordinate by
    coordinate (El Mhamdi et al. 2018). With nobody malicious it would be the plain mean.
    """

    malicious: Annotated[int, Field(ge=1)]

    @property
    def fewest(self) -> int:
        """4f + 3, the paper's condition; with fewer Flower returns nothing."""
        return 4 * self.malicious + 3

    def strategy(self) -> flower.FedAvg:
        """Flower's."""
        return flower.Bulyan(num_malicious_nodes=self.malicious)
