"""A wrong configuration ends in one sentence with the key, the value and what is allowed, before anything starts."""

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from sofed_flwr.build import check
from sofed_flwr.config.compose import compose, sweep
from sofed_flwr.config.schema import RunConfig
from sofed_flwr.core.errors import ConfigError
from sofed_flwr.models.accelerator import torch_device
from tests.support.federation import SMOKE, federate

WRONG = {
    "rounds=0": "rounds=0: input should be greater than or equal to 1",
    "rounds=many": "rounds=many: input should be a valid integer",
    "seed=-1": "seed=-1: input should be greater than or equal to 0",
    "buffer=1": "buffer=1: input should be greater than or equal to 2",
    "optimizer.lr=0": "optimizer.lr=0: input should be greater than 0",
    "optimizer.momentum=1": "optimizer.momentum=1: input should be less than 1",
    "stream.stc=0": "stream.stc=0: input should be greater than or equal to 1",
    "policy=importance policy.lazy_interval=0": "policy.lazy_interval=0: input should be greater than or equal to 1",
    "policy.weak_view=blur": "policy.weak_view=blur: input should be 'flip', 'crop', 'gray' or 'jitter'",
    "policy=importance policy.on_global=forget": "policy.on_global=forget: input should be 'keep' or 'rescore'",
    "method.ema=1.5": "method.ema=1.5: input should be less than or equal to 1",
    "method.views.gray=2": "method.views.gray=2: input should be less than or equal to 1",
    "encoder.stem=vit": "encoder.stem=vit: input should be 'cifar', 'half' or 'imagenet'",
    "evaluation.every=0": "evaluation.every=0: input should be greater than or equal to 1",
    "evaluation.knn.k=0": "evaluation.knn.k=0: input should be greater than or equal to 1",
    "device.threads=0": "device.threads=0: input should be greater than or equal to 1",
    "policy=lru": "policy=lru: there is no such policy; choose one of decayed_reservoir, fading_strata, fifo",
    "polcy=fifo": "polcy=fifo: there is no such key; the top level has buffer, clients",
    "policy.lazy=4": "policy.lazy=4: there is no such key; policy has doubling, segments, strata, weak_view",
    "+policy.extra=4": "policy.extra=4: there is no such key",
    "+extra=4": "extra=4: there is no such key",
    "policy.segments.x=4": "policy.segments.x=4: there is no such key; policy has doubling, segments",
    "rounds": "rounds: not an override; expected KEY=VALUE",
    "dataset=npz": "dataset.path is missing",
    "dataset=folder": "dataset.path is missing",
    "dataset.seed=-1": "dataset.seed=-1: input should be greater than or equal to 0",
    "clients=300": "clients=300: more than the 240 training images",
    "buffer=121": "buffer=121: larger than the smallest client's stream of 120 images",
    "federation.quorum=3": "federation.quorum=3: more than clients=2",
    "federation.sample=3": "federation.sample=3: more than clients=2",
    "federation.sample=1 federation.stop_at_replies=2": "federation.stop_at_replies=2: more than federation.sample=1",
    "resume=nowhere": "resume=nowhere: there is no run to continue",
}


@pytest.mark.parametrize("override", WRONG)
def test_what_cannot_run_is_refused_in_one_sentence(override: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refusal:
        check(compose([*SMOKE, f"out={tmp_path}", *override.split()]))
    assert WRONG[override] in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["dataset=npz", "dataset.path=/no/such.npz"], "dataset.path='/no/such.npz' is not a file"),
        (["dataset=folder", "dataset.path=/no/such"], "dataset.path='/no/such' is not a folder"),
        (
            ["dataset=folder", "dataset.path=/", "dataset.size=4"],
            "dataset.size=4: input should be greater than or equal",
        ),
        (["dataset=cifar10", "dataset.download=maybe"], "dataset.download=maybe: input should be a valid boolean"),
        (["dataset=cifar10", "dataset.stream_classes=fine"], "dataset has download, root"),
        (["dataset=cifar100", "dataset.stream_classes=coarse"], "input should be 'fine' or 'superclass'"),
        (["partition=by_class", "partition.classes_per_client=1"], "partition.classes_per_client=1 does not deal"),
        (["method.predictor=[32,8]"], "method.predictor ends in 8, but has to predict a projection of 128"),
    ],
)
def test_impossible_combinations_name_the_key(overrides: list[str], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message.replace("(", r"\(")):
        check(compose([f"out={tmp_path}", *overrides]))


def test_the_resolved_yaml_is_the_whole_configuration(smoke: Callable[..., RunConfig]) -> None:
    config = smoke("policy=fifo", "stream.stc=30")
    text = config.to_yaml()
    assert RunConfig.from_yaml(text) == config
    resolved = yaml.safe_load(text)
    assert resolved["partition"]["stc"] == 30
    assert resolved["choices"]["policy"] == "fifo"


def test_a_directory_with_a_run_is_not_overwritten(smoke: Callable[..., RunConfig]) -> None:
    federate(smoke(), upto=1)
    with pytest.raises(ConfigError, match="holds a run already; continue it with resume=DIR"):
        check(smoke())


def test_a_resumed_run_has_the_configuration_it_was_started_with(smoke: Callable[..., RunConfig]) -> None:
    config = smoke("policy=fifo", "seed=7")
    federate(config, upto=1)
    again = compose([f"resume={config.out}", "rounds=9", "workers=1"])
    assert (again.seed, again.choices["policy"], again.rounds, again.out) == (7, "fifo", 9, config.out)


def test_resuming_with_another_configuration_names_what_differs(smoke: Callable[..., RunConfig]) -> None:
    config = smoke("policy=fifo")
    federate(config, upto=1)
    with pytest.raises(ConfigError) as refusal:
        compose([f"resume={config.out}", "policy=reservoir", "seed=8"])
    assert "seed (was 0, is 8)" in str(refusal.value)
    assert "policy._target_" in str(refusal.value)
    assert compose([f"resume={config.out}", "policy=reservoir", "force=true"]).choices["policy"] == "reservoir"


def test_a_falling_learning_rate_is_per_round_and_fixes_the_number_of_rounds(smoke: Callable[..., RunConfig]) -> None:
    constant, falling = (smoke(f"optimizer.schedule={name}", "optimizer.lr=1") for name in ("constant", "cosine"))
    assert [constant.optimizer.learning_rate(r, rounds=4) for r in (1, 4)] == [1, 1]
    rates = [falling.optimizer.learning_rate(r, rounds=4) for r in (1, 2, 3, 4)]
    assert rates == pytest.approx([1, 0.853553, 0.5, 0.146447], abs=1e-6)
    federate(falling, upto=1)
    with pytest.raises(ConfigError, match=r"rounds \(was 2, is 9\)"):
        compose([f"resume={falling.out}", "rounds=9"])


def test_the_accelerator_is_cuda_where_there_is_one_unless_told_otherwise(
    smoke: Callable[..., RunConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    auto, cpu, cuda = (smoke(f"device.accelerator={name}") for name in ("auto", "cpu", "cuda"))
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    assert [torch_device(config).type for config in (auto, cpu, cuda)] == ["cuda", "cpu", "cuda"]
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert torch_device(auto).type == "cpu"
    with pytest.raises(ConfigError, match=r"device\.accelerator=cuda: torch finds no CUDA device here"):
        check(cuda)


def test_a_sweep_is_every_combination() -> None:
    assert sweep(["policy=fifo,kcenter", "seed=0,1", "rounds=3"]) == [
        ["policy=fifo", "seed=0", "rounds=3"],
        ["policy=fifo", "seed=1", "rounds=3"],
        ["policy=kcenter", "seed=0", "rounds=3"],
        ["policy=kcenter", "seed=1", "rounds=3"],
    ]
