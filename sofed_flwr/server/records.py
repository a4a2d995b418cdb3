"""Writes a run's values to the metrics log and to the tracker; a faulty disk does not stop the run."""

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from sofed_flwr.core.records import Release, Update
from sofed_flwr.server.summary import round_values
from sofed_flwr.storage.metrics_log import RunLog
from sofed_flwr.storage.privacy_ledger import broken_guarantee
from sofed_flwr.strategies.inner import InnerStrategy
from sofed_flwr.tracking.base import Tracker

log = logging.getLogger(__name__)


class Records:
    """Metrics log and tracker as one."""

    def __init__(self, metrics_log: RunLog, tracker: Tracker) -> None:
        self._log = metrics_log
        self._tracker = tracker
        self._warned = -1

    def write(
        self, round_number: int, values: Mapping[str, float], device: int | None = None, reason: str | None = None
    ) -> None:
        """A tracker has no place for reasons."""
        with self.despite_the_disk(round_number):
            self._log.write(round_number, values, device, reason)
            self._tracker.write(round_number, values, device)

    def warn(
        self, round_number: int, what: str, values: Mapping[str, float], reason: str, device: int | None = None
    ) -> None:
        """Write values with their reason, and say both."""
        log.warning("round %d: %s: %s", round_number, what, reason)
        self.write(round_number, values, device, reason)

    def write_replies(self, round_number: int, updates: Sequence[Update]) -> dict[str, float]:
        """Write each device's counts and the values of the round, which are returned."""
        for update in updates:
            self.write(round_number, update.metrics, update.device)
        values = round_values(updates)
        self.write(round_number, values)
        return values

    def write_privacy(self, round_number: int, releases: Sequence[Release], strategy: InnerStrategy) -> None:
        """Write what the strategy reports of all releases, or an infinite epsilon with the reason."""
        broken = broken_guarantee(releases)
        if broken is not None:
            log.warning("round %d: %s", round_number, broken)
        values = strategy.report(releases) if broken is None else {"epsilon": math.inf}
        self.write(round_number, values, reason=broken)

    @contextmanager
    def despite_the_disk(self, round_number: int) -> Iterator[None]:
        """What cannot be written is a warning, one per round."""
        try:
            yield
        except OSError as error:
            if self._warned != round_number:
                log.warning("round %d cannot be saved (%s); going on from memory", round_number, error)
            self._warned = round_number

    def close(self) -> None:
        """The run is over."""
        self._tracker.close()
