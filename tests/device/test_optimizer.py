"""The functional SGD is torch's class, bit for bit, and spares a device's process what the class imports."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from sofed_flwr.config.schema import RunConfig
from sofed_flwr.device.optimizer import SGD
from tests.support.frames import fill

SETTINGS = {"lr": 0.12, "weight_decay": 1e-2}


def trained(make: Callable[..., SGD | torch.optim.SGD], momentum: float) -> list[torch.Tensor]:
    """Four steps of two layers, the second of which has no gradient in the first two."""
    torch.manual_seed(0)
    first, second = nn.Linear(5, 5), nn.Linear(5, 3)
    optimizer = make([*first.parameters(), *second.parameters()], momentum=momentum, **SETTINGS)
    for number in range(4):
        hidden = first(torch.randn(8, 5))
        optimizer.zero_grad()
        (hidden if number < 2 else second(hidden)).square().sum().backward()
        optimizer.step()
    return [*first.parameters(), *second.parameters()]


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_it_is_torchs_own_to_the_last_bit(momentum: float) -> None:
    ours, theirs = trained(SGD, momentum), trained(torch.optim.SGD, momentum)
    assert all(torch.equal(mine, yours) for mine, yours in zip(ours, theirs, strict=True))


ROUND = """
import json, sys
from pathlib import Path
import client_app
from sofed_flwr.build import build_device, build_method
from sofed_flwr.device.node_config import Node
from sofed_flwr.config.schema import RunConfig

folder = Path(sys.argv[1])
config = RunConfig.from_yaml((folder / "config.yaml").read_text())
node = Node.read({"device-id": 0, "source": f"spool:{folder}/spool", "state-dir": str(folder / "state"), "threads": 1})
update = build_device(config, "run", 0, node).train_round(1, build_method(config).shared_state())
spared = ("torch._dynamo", "torchvision", "hydra")
print(json.dumps([update.metrics["steps"], *(name in sys.modules for name in spared)]))
"""


def test_a_device_trains_a_round_without_a_compiler_or_torchvision_or_hydra(
    smoke: Callable[..., RunConfig], tmp_path: Path
) -> None:
    """A third of what the process costs; on a small board, seconds of every round."""
    fill(tmp_path / "spool", *range(40))
    (tmp_path / "config.yaml").write_text(smoke("stream.segments=2").to_yaml())
    done = subprocess.run([sys.executable, "-c", ROUND, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [2, False, False, False]
