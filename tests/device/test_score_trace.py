"""What the score-trend figure is drawn from: who stays, and what the model says of it at every iteration."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from sofed_flwr.build import check
from sofed_flwr.config.schema import RunConfig
from sofed_flwr.core.errors import ConfigError
from sofed_flwr.core.records import Selection
from sofed_flwr.device.buffer import Buffer
from sofed_flwr.device.score_trace import ScoreTrace
from tests.support.federation import federate, same


class Brightness:
    """A model whose score is the image's brightness plus one for every time it was asked."""

    asked = 0

    def score(self, images: Tensor, weak_view: str) -> Tensor:
        self.asked += 1
        return images.flatten(1).float().mean(dim=1) + self.asked

    def features(self, images: Tensor) -> Tensor:
        raise NotImplementedError


def segment(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.uint8)[:, None, None, None].expand(-1, 3, 2, 2).contiguous()


def test_entries_are_followed_from_iteration_to_iteration_by_hand(tmp_path: Path) -> None:
    trace = ScoreTrace(tmp_path / "trace.json", {"device": 0}, "flip", iterations=3)
    buffer, scorer = Buffer(2), Brightness()
    buffer.images, buffer.scores, buffer.ages = segment(50, 60), torch.zeros(2), torch.ones(2, dtype=torch.int64)
    for new, keep in [((10, 90), (1, 3)), ((20, 30), (0, 1)), ((80, 70), (2, 1)), ((1, 2), (0, 1))]:
        pool = buffer.pool(segment(*new))
        selection = Selection(torch.tensor(keep), torch.zeros(4))
        trace.selected(pool, selection, scorer)
        buffer.keep(pool, selection)
    trace.save()
    assert json.loads((tmp_path / "trace.json").read_text()) == {
        "device": 0,
        "seen": [2, 4, 6],
        "min": [11.0, 22.0, 63.0],
        "mean": [53.5, 52.0, 78.0],
        "max": [91.0, 92.0, 93.0],
        "samples": {"1": [61.0, 62.0, 63.0], "3": [91.0, 92.0, 93.0]},
    }


@pytest.mark.parametrize("policy", ["importance", "strata", "fading_strata"])
def test_watching_changes_nothing_and_stays_with_the_device(smoke: Callable[..., RunConfig], policy: str) -> None:
    plain = federate(smoke(f"policy={policy}", out="plain"))
    watched = federate(smoke(f"policy={policy}", "trace={device:1,round:2,iterations:2}", out="watched"))
    assert same(plain.shared, watched.shared)
    file = watched.directory.device_home(1) / "scores_round_2.json"
    content = json.loads(file.read_text())
    assert (content["device"], content["round"], content["interval"]) == (1, 2, None)
    assert content["seen"] == [16, 32]
    assert not (watched.directory.device_home(0) / "scores_round_2.json").exists()


def test_a_policy_without_scores_cannot_be_watched(smoke: Callable[..., RunConfig]) -> None:
    with pytest.raises(ConfigError, match="policy=fifo has no scores to watch"):
        check(smoke("policy=fifo", "trace={device:0,round:1,iterations:2}"))
