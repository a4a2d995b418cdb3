"""What a device's owner decides: Flower's node config, which is all that differs between simulation and devices.

`device-id`, `source` (a spool directory), `state-dir` and `threads`. Nothing of it is a simulated device: its images
are a share of the dataset, and its state lies below the run directory. Flower sends the text of an exception to the
server, so no text here holds a path: where something lies on a device is for the device's own log.
"""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sofed_flwr.component import ConfigError

SIMULATED = {"partition-id", "num-partitions"}
"""What Flower's simulation says of a node."""

log = logging.getLogger(__name__)


class Node(BaseModel):
    """The node config, validated; None is left to the run."""

    model_config = ConfigDict(frozen=True, alias_generator=lambda name: name.replace("_", "-"), populate_by_name=True)

    device_id: Annotated[int, Field(ge=0)] | None = None
    source: Path | None = None
    state_dir: Path | None = None
    threads: Annotated[int, Field(ge=1)] | None = None

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> "Node":
        """The node config of a SuperNode or a simulation, or a sentence about the first wrong key."""
        known = {field.alias or name for name, field in cls.model_fields.items()}
        for key in sorted(config.keys() - known - SIMULATED):
            raise ConfigError(f"node config {key}: there is no such key; there are {', '.join(sorted(known))}")
        try:
            node = cls.model_validate(dict(config))
        except ValidationError as error:
            first = error.errors()[0]
            raise ConfigError(f"node config {first['loc'][0]}: {first['msg'][0].lower()}{first['msg'][1:]}") from None
        node._check(simulated="partition-id" in config)
        return node

    def home(self, device: int, simulated: Path) -> Path:
        """Where a device keeps its state; `simulated` if its owner has not said."""
        return self.state_dir.expanduser() / str(device) if self.state_dir else simulated

    def spool(self) -> Path | None:
        """The directory its images arrive in; None for a share of the dataset."""
        return self.source.expanduser() if self.source else None

    def _check(self, simulated: bool) -> None:
        if self.device_id is None and not simulated:
            raise ConfigError("node config device-id is missing; every device of a run has its own, counted from 0")
        spool = self.spool()
        if spool is None:
            return
        if self.state_dir is None:
            raise ConfigError("node config state-dir is missing; a device with a source keeps its state there")
        if not spool.is_dir():
            log.error("node config source=%s is not a directory", spool)
            raise ConfigError("node config source is not a directory on this device; its log says which")
