"""What simulated buffers hold is measured beside the federation, by labels that no device has seen."""

from collections.abc import Callable

import numpy as np
import torch

from sofed_flwr.build import build_dataset
from sofed_flwr.config.schema import RunConfig
from sofed_flwr.server.buffer_diagnostics import BufferDiagnostics
from sofed_flwr.storage.buffer_state import read_buffer
from sofed_flwr.storage.metrics_log import read_rows
from sofed_flwr.storage.run_directory import RunDirectory
from tests.support.federation import federate

Smoke = Callable[..., RunConfig]


def test_every_round_of_a_simulation_says_what_the_buffers_hold(smoke: Smoke) -> None:
    config = smoke("policy=fifo")
    federate(config)
    directory = RunDirectory(config.directory)
    rows = {(row["round"], row["name"]): row["value"] for row in read_rows(directory.log.path) if "device" not in row}
    names = {name for _, name in rows if name.startswith("buffer_")}
    assert names == {"buffer_age_median", "buffer_age_90", "buffer_vendi", "buffer_classes", "buffer_classes_present"}
    assert all((number, name) in rows for number in (1, 2) for name in names)
    assert not any((0, name) in rows for name in names)

    train = build_dataset(config).train
    counted = []
    for device in range(config.clients):
        held = read_buffer(directory.device_home(device))
        assert held is not None
        own = [np.flatnonzero((train.images == image.numpy()).all(axis=(1, 2, 3)))[0] for image in held.images]
        counted.append(len(set(train.labels[own])))
    assert rows[2, "buffer_classes_present"] == sum(counted) / len(counted)
    assert rows[2, "buffer_age_median"] == 0, "FIFO holds the newest segment"


def test_a_fleet_and_an_empty_buffer_have_nothing_to_measure(smoke: Smoke) -> None:
    homes = [RunDirectory(smoke().directory).device_home(0)]
    assert BufferDiagnostics(homes, known=None).measure(lambda images: torch.zeros(len(images), 2)) == {}
