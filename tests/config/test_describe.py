"""What is said of a key is read where it is written once: below the schema's field, or beside the value in its yaml."""

from collections.abc import Callable
from pathlib import Path
from types import TracebackType

import pytest

from sofed_flwr.config.describe import explain
from sofed_flwr.config.describe.annotated_yaml import read
from sofed_flwr.config.describe.explain import Explained, arguments, meaning_of, sections
from sofed_flwr.config.describe.keys import Group, choices, groups
from sofed_flwr.config.describe.text import about, overview, paragraphs
from sofed_flwr.config.describe.types_in_words import Schema, in_words
from sofed_flwr.config.own_yamls import own_yamls
from sofed_flwr.config.schema import RunConfig
from sofed_flwr.core.errors import ConfigError
from tests.support.federation import conf_names

ANNOTATED = """\
# What it is for,
# in two lines.

_target_: package.Thing   # the component
text: "a # b"      # a comment; paper: 5
list: [1, 2]       # of two lines,
                   # the second
  # of another column
plain: ${other.key}
inner:             # no value of its own
  _target_: package.Part
  rate: 1.0e-3     # deeper
empty:             # null by leaving out
defaults:
  - parent         # a yaml beside it
  - /views@views: strong
"""


def test_a_yaml_is_read_with_the_comments_beside_its_values(tmp_path: Path) -> None:
    (tmp_path / "group").mkdir()
    (tmp_path / "group" / "name.yaml").write_text(ANNOTATED)
    found = read(tmp_path, "group/name.yaml")
    assert found.header == ["What it is for,", "in two lines."]
    assert [(entry.key, entry.value, entry.comment, entry.target) for entry in found.entries] == [
        ("group.text", '"a # b"', "a comment; paper: 5", "package.Thing"),
        ("group.list", "[1, 2]", "of two lines, the second", "package.Thing"),
        ("group.plain", "${other.key}", "", "package.Thing"),
        ("group.inner.rate", "1.0e-3", "deeper", "package.Part"),
        ("group.empty", "", "null by leaving out", "package.Thing"),
    ]
    assert [(entry.key, entry.value) for entry in found.defaults] == [("", "parent"), ("/views@views", "strong")]


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"type": "integer", "minimum": 1}, "whole number, at least 1"),
        ({"type": "number", "minimum": 0, "exclusiveMaximum": 1}, "number, at least 0 and less than 1"),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "text, or null"),
        ({"enum": ["flip", "crop", "gray"], "type": "string"}, "flip, crop or gray"),
        ({"const": "flip", "type": "string"}, "flip"),
        ({"type": "boolean"}, "true or false"),
        ({"type": "array"}, "list"),
        ({"type": "array", "items": {"type": "integer"}, "minItems": 2}, "list of 2 or more, each a whole number"),
        ({"type": "array", "items": {"type": "integer"}, "maxItems": 5}, "list of at most 5, each a whole number"),
        (
            {"type": "array", "prefixItems": 2 * [{"type": "number"}], "minItems": 2, "maxItems": 2},
            "list of 2, each a number",
        ),
        ({"type": "object", "properties": {"a": {}, "b": {}}}, "the keys a, b"),
        ({"type": "object"}, "keys and values"),
        ({}, "any value"),
    ],
)
def test_a_type_in_words(schema: Schema, words: str) -> None:
    assert in_words(schema) == words


def assert_explained(key: Explained) -> None:
    assert key.meaning, f"{key.key} of conf/{key.file} has no description: write it beside the value"
    assert key.type, f"{key.key} of conf/{key.file} has no type"


@pytest.mark.parametrize("group", list(groups()))
def test_every_group_choice_and_argument_is_described(group: str) -> None:
    """A component that is added without comments beside its values is found here."""
    known = groups()[group]
    assert known.choices == conf_names(group)
    assert meaning_of(known)
    assert all(paragraphs(known, choice) for choice in known.choices)
    for key in arguments(known):
        assert_explained(key)


def test_every_key_of_the_schema_is_described() -> None:
    found = [key for keys in sections().values() for key in keys]
    for key in found:
        assert_explained(key)
    names = {key.key.partition(".")[0] for key in found} | groups().keys()
    assert RunConfig.model_fields.keys() - names == {"choices", "overrides", "version"}, "which nobody sets"


ABOUT = {
    "workers": """\
workers
  Client processes at a time in simulation; null: one per core, at most four per GPU.
  type: whole number, at least 1, or null
  default: null (conf/config.yaml)
  resume: a resumed run may change it""",
    "optimizer.momentum": """\
optimizer.momentum
  Momentum of SGD.
  type: number, at least 0 and less than 1
  default: 0.9 (conf/config.yaml)
  paper: none (0)
  remark: with momentum the same lr learns faster""",
    "trace.round": """\
trace.round
  Round in which its scores are recorded.
  type: whole number, at least 1
  also set: 2 (conf/experiment/figure7_score_trend.yaml)""",
    "method.tau": """\
method.tau, with method=fedema
  share of its own model a device keeps the first time (the authors' auto-scaler)
  type: number, at least 0 and at most 1
  default: 0.7 (conf/method/fedema.yaml)""",
    "device": """\
device: What differs from machine to machine.
  device=sim (the default): A simulated device: one thread, so that the result does not depend on the number of workers.
device.threads
  Threads of a simulated device's training.
  type: whole number, at least 1
  default: 1 (conf/device/sim.yaml)
device.accelerator
  Where devices train; auto: cuda where torch finds it, else cpu.
  type: auto, cpu or cuda
  default: auto (conf/device/sim.yaml)
  remark: cuda is fast but not the same bit for bit""",
    "partition=iid": """\
partition=iid (conf/partition/iid.yaml)
  Every client gets the same mixture of classes; its stream is still ordered by STC.""",
}


@pytest.mark.parametrize("name", ABOUT)
def test_what_is_said_of_a_name(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    assert about(name) == ABOUT[name]


def test_what_a_yaml_takes_from_another_is_said_once_with_both_names() -> None:
    keys = [key for key in arguments(groups()["method"]) if key.key == "method.ema"]
    assert [(key.file, "fedema" in key.choices) for key in keys] == [
        ("method/sofed.yaml", True),
        ("method/fedmoco.yaml", False),
    ]


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("optimiser.lr", "optimizer.lr"),
        ("lr", "optimizer.lr"),
        ("round", "rounds"),
        ("polcy", "policy"),
        ("policy=fif", "policy=fifo"),
        ("policy.lazy_intervall", "policy.lazy_interval"),
    ],
)
def test_a_name_that_is_not_there_gets_a_suggestion(name: str, meant: str) -> None:
    with pytest.raises(ConfigError, match=rf"^{name}: there is no such key, group or choice; did you mean {meant}\?$"):
        about(name)


def unannotated(size) -> None: ...  # type: ignore[no-untyped-def]


def impossible(size: TracebackType) -> None: ...


def undefined(size: "Nowhere") -> None: ...  # type: ignore[name-defined] # noqa: F821


@pytest.mark.parametrize("component", [unannotated, impossible, undefined])
def test_a_component_whose_signature_says_nothing_has_no_type(
    component: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "policy").mkdir()
    (tmp_path / "policy" / "mine.yaml").write_text("_target_: own_package.mine\nsize: 3   # how large\n")
    monkeypatch.setattr(explain, "locate", lambda *_: component)
    with own_yamls(tmp_path):
        assert [key.type for key in arguments(Group("policy", "mine", ["mine"], ""))] == [""]


def test_the_users_own_yamls_are_described_beside_ours(tmp_path: Path) -> None:
    """Without trust nothing of theirs is imported: their types stay unknown."""
    (tmp_path / "policy").mkdir()
    (tmp_path / "policy" / "mine.yaml").write_text("# Mine.\n_target_: own_package.Mine\nsize: 3   # how large\n")
    with own_yamls(tmp_path):
        assert "mine" in choices("policy")
        assert "policy=mine: Mine." in about("policy")
        assert about("policy.size").splitlines()[:2] == ["policy.size, with policy=mine", "  how large"]
    assert "mine" not in overview()
