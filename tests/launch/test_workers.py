"""Workers and their GPUs, without a GPU: the numbers that Flower and Ray are given."""

import pytest
from flwr.proto.federation_config_pb2 import SimulationConfig

from sofed_flwr.launch.workers import Workers, plan_workers


@pytest.mark.parametrize(
    ("wanted", "clients", "cores", "gpus", "expected"),
    [
        (None, 4, 2, 0, Workers(2)),
        (None, 1, 8, 0, Workers(1)),
        (5, 100, 2, 0, Workers(5)),
        (None, 100, 64, 1, Workers(4, 1, 0.2499)),  # not 64 CUDA contexts on one card
        (None, 100, 64, 2, Workers(8, 2, 0.2499)),
        (None, 2, 64, 3, Workers(2, 2, 1.0)),  # not 1.5, which Ray refuses
        (3, 100, 64, 3, Workers(3, 3, 1.0)),
        (4, 100, 64, 3, Workers(4, 3, 0.4999)),
        (5, 100, 64, 2, Workers(5, 2, 0.3333)),
        (3, 100, 64, 1, Workers(3, 1, 0.3333)),
        (6, 100, 64, 1, Workers(6, 1, 0.1666)),  # not 0.167, of which five fit
        (16, 100, 64, 1, Workers(16, 1, 0.0624)),  # as wanted: a large card may hold them
        (None, 100, 2, 4, Workers(2, 2, 1.0)),
    ],
)
def test_gpus_are_given_whole_or_in_equal_parts(
    wanted: int | None, clients: int, cores: int, gpus: int, expected: Workers
) -> None:
    assert plan_workers(wanted, clients, cores, gpus) == expected


@pytest.mark.parametrize("gpus", [1, 2, 3, 4, 8])
def test_every_worker_finds_its_share(gpus: int) -> None:
    """Flower counts workers as int(gpus / share), with the share in 32 bits; Ray puts each on one card."""
    for wanted in range(1, 129):
        plan = plan_workers(wanted, 1000, 64, gpus)
        kept = SimulationConfig(client_resources_num_gpus=plan.share).client_resources_num_gpus
        assert plan.number == wanted
        assert int(plan.gpus / kept) >= wanted
        assert int(1 / kept) * plan.gpus >= wanted
        assert kept <= 1
