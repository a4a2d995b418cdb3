"""What a dataset is: it loads, and has a fingerprint of its content."""

from typing import Protocol

from sofed_flwr.core.records import Split


class Dataset(Protocol):
    """Decoded once (`datasets/cache.py`), then shared as memory maps by all simulated clients."""

    def fingerprint(self) -> str:
        """Changes whenever `load` would give other images; cheap."""

    def load(self) -> Split:
        """Decode or generate everything."""
