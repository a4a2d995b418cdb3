"""Event files for TensorBoard: `tensorboard --logdir RUN_DIR`, also while the run goes on."""

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path

try:
    from torch.utils.tensorboard import SummaryWriter
except ImportError as error:
    raise ImportError("TensorBoard is not installed; pip install 'sofed-flwr[tracking]'") from error


class TensorBoard:
    """One scalar per name, a device's under `device_<k>/`, the round as its step."""

    def __init__(self, directory: Path, committed: int) -> None:
        self._path = directory / "tensorboard"
        self._committed = committed

    @cached_property
    def _writer(self) -> SummaryWriter:
        """Opened by the first value, because a run is also built to be checked, and a check leaves no file behind.

        Purging hides the rounds that a crash left uncommitted and that are about to be repeated.
        """
        return SummaryWriter(str(self._path), purge_step=self._committed + 1)

    def write(self, round_number: int, values: Mapping[str, float], device: int | None = None) -> None:
        """Flushed at once: the viewer keeps up with the run, and a kill loses nothing."""
        prefix = "" if device is None else f"device_{device}/"
        for name, value in values.items():
            self._writer.add_scalar(prefix + name, value, round_number)
        self._writer.flush()

    def close(self) -> None:
        """Ends the writer's thread."""
        self._writer.close()
