"""What a dataset is: something that loads, and a fingerprint that tells its content from any other."""

from typing import Protocol

from sofed_flwr.contracts import Split


class Dataset(Protocol):
    """Decoded once (`datasets/cache.py`), then shared as memory maps by all simulated clients."""

    def fingerprint(self) -> str:
        """Changes whenever `load` would give other images; cheap."""

    def load(self) -> Split:
        """Decode or generate everything."""
