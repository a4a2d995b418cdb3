"""The replay buffer B_k of one device: a fixed number of images with their scores, ages and the policy's own columns.

It moves pixels and counts ages; which images stay is a policy's decision (`policies/`).
"""

import logging

import torch
from torch import Tensor

from sofed_flwr.core.records import Pool, Selection, State
from sofed_flwr.core.state_dicts import over, under
from sofed_flwr.storage.buffer_state import COLUMN, refuse_malformed

log = logging.getLogger(__name__)


class Buffer:
    """At most `capacity` images (n, 3, H, W) uint8; a score is NaN until a policy computes one."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.images = torch.empty((0, 3, 0, 0), dtype=torch.uint8)
        self.scores = torch.empty(0)
        self.ages = torch.empty(0, dtype=torch.int64)
        self.columns: State = {}

    def __len__(self) -> int:
        return len(self.ages)

    def pool(self, segment: Tensor) -> Pool:
        """B ∪ X for one iteration: entries that stayed are one iteration older, new ones have age 0 and no score."""
        new = len(segment)
        if len(self) and self.images.shape[1:] != segment.shape[1:]:
            self._forget(tuple(segment.shape[1:]))
        return Pool(
            images=torch.cat([self.images, segment]) if len(self) else segment,
            scores=torch.cat([self.scores, torch.full((new,), torch.nan)]),
            ages=torch.cat([self.ages + 1, torch.zeros(new, dtype=torch.int64)]),
            columns={name: _extended(column, new) for name, column in self.columns.items()},
        )

    def _forget(self, shape: tuple[int, ...]) -> None:
        """A device keeps its images between runs, but the next run may need another size."""
        held = tuple(self.images.shape[1:])
        log.warning("the buffer's images of shape %s are dropped: the stream gives images of shape %s", held, shape)
        self.load_state_dict(Buffer(self.capacity).state_dict())

    def keep(self, pool: Pool, selection: Selection) -> None:
        """Become what the policy selected from the pool."""
        assert len(selection.keep) <= self.capacity, "a policy selected more than the buffer holds"
        self.images = pool.images[selection.keep]
        self.scores = selection.scores[selection.keep]
        self.ages = pool.ages[selection.keep]
        self.columns = {name: column[selection.keep] for name, column in selection.columns.items()}

    def state_dict(self) -> State:
        """What has to survive a restart."""
        return {"images": self.images, "scores": self.scores, "ages": self.ages} | over(COLUMN, self.columns)

    def load_state_dict(self, state: State) -> None:
        """Continue from an earlier process; a buffer smaller than before keeps the youngest entries.

        Raises `ValueError` and stays unchanged if the state is not a buffer's.
        """
        refuse_malformed(state)
        youngest = torch.argsort(state["ages"], stable=True)[: self.capacity].sort().values
        self.images, self.scores, self.ages = (state[name][youngest] for name in ("images", "scores", "ages"))
        self.columns = {name: column[youngest] for name, column in under(COLUMN, state).items()}


def _extended(column: Tensor, new: int) -> Tensor:
    return torch.cat([column, column.new_full((new, *column.shape[1:]), torch.nan)])
