"""What a file or a message names is built from this project's components only; a user's own package takes an explicit
word, which no file can give."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sofed_flwr.config.compose import compose
from sofed_flwr.config.instantiate import KINDS, build, trust
from sofed_flwr.core.errors import ConfigError
from sofed_flwr.evaluation.knn import KNN
from sofed_flwr.policies.fifo import FIFO
from tests.support.packages import importable

FIFO_TARGET = {"_target_": "sofed_flwr.policies.fifo.FIFO"}


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    """A file that only a command of an attacker makes."""
    return tmp_path / "ran"


@pytest.fixture(autouse=True)
def _nothing_is_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOFED_TRUST", "")


@pytest.fixture
def own_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    with importable(tmp_path / "packages", monkeypatch) as name:
        yield name


def refusal(node: Any, kind: str) -> str:
    with pytest.raises(ConfigError) as refused:
        build(node, kind)
    assert str(refused.value).startswith(kind)
    assert "\n" not in str(refused.value)
    return str(refused.value)


@pytest.mark.parametrize("kind", KINDS)
def test_no_kind_of_component_runs_a_command(kind: str, marker: Path) -> None:
    refusal({"_target_": "os.system", "command": f"touch {marker}"}, kind)
    assert not marker.exists()


FOREIGN = [
    "os.system",
    "builtins.eval",
    "subprocess.Popen",
    "antigravity.webbrowser",
    "sofed_flwr.storage.generations.write_file",  # this project, but no component
    "sofed_flwr.policiesX.fifo.FIFO",
    "sofed_flwr.policies",
    "sofed_flwr.policies.base",  # a module
    "sofed_flwr.policies.base.torch",  # a module that it imports
    "sofed_flwr.policies.base.torch.hub.load",
    "sofed_flwr.policies.kcenter.greedy_centers",  # a function that makes no policy
    "sofed_flwr.policies.importance._ranked_lowest_if_not_finite",
    "sofed_flwr.policies.importance.Field",  # pydantic's
    "sofed_flwr.policies.base.ModelFree",  # cannot select
    "sofed_flwr.policies.base.Policy",  # a protocol
    "sofed_flwr.policies.fifo.FIFO.select",
    "sofed_flwr.policies.fifo.FIFO.__init__",
    "sofed_flwr.policies.fifo.nothing",
    "sofed_flwr.policies.nothing.FIFO",
    "sofed_flwr.policies..fifo.FIFO",
    ".policies.fifo.FIFO",
    "FIFO",
    "",
    "sofed_flwr.policies.fifo.FIFO\n",
    "sofed_flwr.policies.ｆifo.FIFO",  # which Python's own parser would normalise
    "sofed_flwr.models.encoders.resnet",  # another kind's
    "sofed_flwr.evaluation.knn.KNN",
]


@pytest.mark.parametrize("target", FOREIGN)
def test_a_policy_is_a_policy_of_this_project(target: str) -> None:
    refusal({"_target_": target}, "policy")


@pytest.mark.parametrize(
    ("kind", "target"),
    [
        ("encoder", "sofed_flwr.models.heads.mlp"),
        ("dataset", "sofed_flwr.datasets.cache.open_split"),
        ("dataset", "sofed_flwr.datasets.download.download"),
        ("dataset", "sofed_flwr.datasets.partition.IID"),
        ("partition", "sofed_flwr.datasets.npz.Npz"),
        ("strategy", "sofed_flwr.strategies.differential_privacy.entropy"),
        ("codec", "sofed_flwr.codecs.base.PayloadSize"),
        ("views", "sofed_flwr.views.training.network_input"),
        ("tracking", "sofed_flwr.tracking.tensorboard.SummaryWriter"),
    ],
)
def test_what_lies_beside_a_component_is_none(kind: str, target: str) -> None:
    refusal({"_target_": target}, kind)


@pytest.mark.parametrize("target", [None, 5, ["os.system"], {"_target_": "os.system"}, b"os.system"])
def test_a_target_is_a_name(target: object) -> None:
    assert "expected" in refusal({"_target_": target}, "policy")


@pytest.mark.parametrize("node", [None, 5, "sofed_flwr.policies.fifo.FIFO", [FIFO_TARGET], {}, {"lazy_interval": 5}])
def test_a_component_is_a_mapping_with_a_target(node: object) -> None:
    refusal(node, "policy")


def test_nothing_is_imported_to_find_out_that_it_is_refused(own_package: str) -> None:
    refusal({"_target_": f"{own_package}.first.First"}, "policy")
    assert own_package not in sys.modules


@pytest.mark.parametrize(
    "hidden",
    [
        {"_target_": "os.system"},
        FIFO_TARGET,
        [FIFO_TARGET],
        {"deep": {"deeper": [{"_target_": "os.system"}]}},
        (({"_target_": "os.system"},),),
    ],
)
def test_no_component_hides_in_the_arguments_of_a_policy(hidden: object) -> None:
    policy = compose(["policy=importance"]).policy | {"max_age": hidden}
    assert "policy.max_age" in refusal(policy, "policy")


def test_a_part_is_of_its_own_kind(marker: Path) -> None:
    evaluation = compose([]).evaluation
    assert isinstance(build(evaluation, "evaluation").evaluators["knn"], KNN)
    refusal(evaluation | {"knn": FIFO_TARGET}, "evaluation")
    refusal(evaluation | {"knn": {"_target_": "os.system", "command": f"touch {marker}"}}, "evaluation")
    refusal(evaluation | {"knn": [evaluation["knn"]]}, "evaluation")
    assert not marker.exists()


def test_a_complaint_about_a_foreign_value_is_short_and_printable() -> None:
    text = refusal(FIFO_TARGET | {"extra": "\x1b[2J\n" + "x" * 10**6}, "policy")
    assert text.isprintable()
    assert len(text) < 300


def test_arguments_that_are_no_names_are_refused() -> None:
    refusal({**FIFO_TARGET, 1: 2}, "policy")
    refusal({**compose([]).evaluation, 1: 2}, "evaluation")


def test_a_users_own_package_needs_an_explicit_word(own_package: str) -> None:
    node = {"_target_": f"{own_package}.first.First"}
    assert "--trust own_package" in refusal(node, "policy")
    trust([own_package])
    assert type(build(node, "policy")).__name__ == "First"
    assert type(build({"_target_": f"{own_package}.First"}, "policy")).__name__ == "First", "by its package's own name"
    assert type(build({"_target_": f"{own_package}.first.first"}, "policy")).__name__ == "First", "by a function"
    assert isinstance(build(FIFO_TARGET, "policy"), FIFO)


def test_a_trusted_package_stands_for_what_it_defines(own_package: str, marker: Path) -> None:
    trust([own_package])
    refusal({"_target_": f"{own_package}.first.system", "command": f"touch {marker}"}, "policy")
    refusal({"_target_": f"{own_package}_too.first.First"}, "policy")
    assert "select" in refusal({"_target_": f"{own_package}.first.Last"}, "policy")
    assert "what it returns" in refusal({"_target_": f"{own_package}.first.whatever"}, "policy")
    assert not marker.exists()


@pytest.mark.parametrize(
    ("package", "message"),
    [
        ("no_such_package_at_all", "trust=no_such_package_at_all: no package of this name can be imported"),
        ("own_package.nothing", "can be imported"),
        ("no_such.package", "can be imported"),
        ("my-package", "not the name of a package"),
        ("", "not the name of a package"),
        ("a..b", "not the name of a package"),
        ("../evil", "not the name of a package"),
        ("os", "Python's own"),
        ("os.path", "Python's own"),
        ("sofed_flwr", "this project"),
        ("sofed_flwr.storage.generations", "this project"),
    ],
)
def test_what_cannot_be_trusted_is_said_in_one_sentence(package: str, message: str, own_package: str) -> None:
    with pytest.raises(ConfigError, match=message):
        trust([package])


def test_trust_is_added_to_and_lives_in_one_environment_variable(
    own_package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOFED_TRUST", "other")
    trust([own_package, own_package])
    trust([])
    assert os.environ["SOFED_TRUST"] == "other,own_package"
