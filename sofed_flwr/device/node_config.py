"""What a device's owner sets: Flower's node config, the only difference between simulation and devices.

`device-id`, `source` (`spool:/path`, `camera:0` or `dataset`: the modules of `sources/`), `state-dir`, `threads`,
`max-pixels` (of one image) and `trust` (packages, separated by commas, from which a task may name components beside
this project's own). A node without any of these is a simulated device: its images are a share of the dataset, and its
state is below the run directory. Flower sends the text of an exception to the server, so an error here is a
`DeviceError` without a path; paths are written to the device's own log only.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sofed_flwr.core.errors import DeviceError
from sofed_flwr.images.decoding import MAX_PIXELS
from sofed_flwr.sources.schemes import check_source

SIMULATED = {"partition-id", "num-partitions"}
"""Keys that Flower's simulation sets."""
DATASET = "dataset"


class Node(BaseModel):
    """The node config, validated; None: the run decides."""

    model_config = ConfigDict(frozen=True, alias_generator=lambda name: name.replace("_", "-"), populate_by_name=True)

    device_id: Annotated[int, Field(ge=0)] | None = None
    source: str = DATASET
    state_dir: Path | None = None
    threads: Annotated[int, Field(ge=1)] | None = None
    max_pixels: Annotated[int, Field(ge=1)] = MAX_PIXELS
    trust: str = ""

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> "Node":
        """The node config of a SuperNode or a simulation, or a sentence about the first wrong key."""
        known = {field.alias or name for name, field in cls.model_fields.items()}
        for key in sorted(config.keys() - known - SIMULATED):
            raise DeviceError(f"node config {key}: there is no such key; there are {', '.join(sorted(known))}")
        try:
            node = cls.model_validate(dict(config))
        except ValidationError as error:
            first = error.errors()[0]
            raise DeviceError(f"node config {first['loc'][0]}: {first['msg'][0].lower()}{first['msg'][1:]}") from None
        node._check(simulated="partition-id" in config)
        return node

    def home(self, device: int, simulated: Path) -> Path:
        """Where a device keeps its state; `simulated` if its owner has not set it."""
        return self.state_dir.expanduser() / str(device) if self.state_dir else simulated

    def trusted(self) -> list[str]:
        """The packages of `trust`."""
        return [name for name in map(str.strip, self.trust.split(",")) if name]

    def _check(self, simulated: bool) -> None:
        if self.device_id is None and not simulated:
            raise DeviceError("node config device-id is missing; every device of a run has its own, counted from 0")
        if self.state_dir is None and self.source != DATASET:
            raise DeviceError("node config state-dir is missing; a device with a source keeps its state there")
        check_source(self.source)
