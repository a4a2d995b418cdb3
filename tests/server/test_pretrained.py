"""`pretrained=`: a federation begins with given weights; what does not agree is said, and what cannot be is refused."""

import json
import logging
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
import torchvision
from torch import nn
from typer.testing import CliRunner

from sofed_flwr.build import build_device, build_method, build_server, build_suite, check
from sofed_flwr.classifier.model import Classifier
from sofed_flwr.classifier.model_directory import write_model
from sofed_flwr.cli.main import app
from sofed_flwr.config.compose import compose
from sofed_flwr.config.instantiate import Component, build
from sofed_flwr.config.schema import RunConfig
from sofed_flwr.core.errors import ConfigError
from sofed_flwr.core.state_dicts import under
from sofed_flwr.encoder import load_encoder, save_encoder
from sofed_flwr.launch.progress import result_table
from sofed_flwr.launch.run import _overrides
from sofed_flwr.server.pretrained import load_pretrained, match
from sofed_flwr.storage.metrics_log import read_rows
from sofed_flwr.storage.run_directory import RunDirectory
from tests.support.federation import federate, rounds, same

Smoke = Callable[..., RunConfig]
ARCHITECTURE = {"_target_": "sofed_flwr.models.encoders.resnet", "blocks": [1], "width": 4, "stem": "half"}


def network(**changes: Any) -> nn.Module:
    backbone: nn.Module = build(ARCHITECTURE | changes, "encoder")
    return backbone


@pytest.fixture
def given(tmp_path: Path, smoke: Smoke) -> Path:
    """An encoder file that is nobody's initial one."""
    config, file = smoke("seed=5"), tmp_path / "given.safetensors"
    save_encoder(file, build_method(config).backbone(), config.encoder, {})
    return file


def test_round_0_is_the_given_encoder_and_a_resumed_run_does_without_its_file(smoke: Smoke, given: Path) -> None:
    config = smoke(f"pretrained={given}", out="run")
    check(config)
    server = federate(config, upto=1)
    encoder = load_encoder(given)
    expected = build_suite(config).run(encoder, encoder.features, server.split())
    first = {row["name"]: row["value"] for row in read_rows(server.directory.log.path) if row["round"] == 0}
    assert {name: first[name] for name in expected} == expected
    assert "knn" in expected
    whole = federate(smoke(f"pretrained={given}", out="whole"))

    given.unlink()
    again = compose([f"resume={config.out}"])
    check(again)
    resumed = build_server(again)
    rounds(resumed, again, upto=2)
    assert same(resumed.shared, whole.shared)
    resumed.finish(config.encoder, config.facts)
    summary = json.loads(resumed.directory.summary.read_text())
    assert summary["pretrained"] == load_encoder(resumed.directory.encoder).facts["pretrained"] == server.pretrained
    assert summary["pretrained"]["name"] == "given.safetensors"
    assert "pretrained" in result_table(summary).columns[0]._cells
    with pytest.raises(ConfigError, match="there is no such file or directory on the server's machine"):
        check(compose([f"resume={config.out}", "restart=true"]))


def test_only_the_backbone_is_given_and_the_target_is_its_copy(smoke: Smoke, given: Path) -> None:
    config = smoke(f"pretrained={given}", "strategy=dp_fixed", "evaluation=none")
    server = build_server(config)
    server.close_round(0)
    assert not server.directory.ledger.releases
    backbone = load_encoder(given).backbone.state_dict()
    assert same(under("online.backbone.", server.shared), backbone)
    random = build_method(config).shared_state()
    heads = [name for name in random if not name.startswith("online.backbone.")]
    assert heads
    assert all(torch.equal(server.shared[name], random[name]) for name in heads)
    device = build_device(config, server.run, 0)
    device._restore(None, server.shared)
    assert same(under("target.backbone.", device.trainer.method.local_state()), backbone)


def test_torchvisions_resnet18_is_taken_whole_but_for_its_classifier(
    tmp_path: Path, smoke: Smoke, caplog: pytest.LogCaptureFixture
) -> None:
    theirs = torchvision.models.resnet18().eval()
    safetensors.torch.save_file(theirs.state_dict(), tmp_path / "model.safetensors")
    with caplog.at_level(logging.INFO):
        config = smoke("encoder=resnet18", "encoder.stem=imagenet", f"pretrained={tmp_path}")
        ours = build(config.encoder, "encoder").eval()
        load_pretrained(str(tmp_path), ours, config.encoder)
    assert caplog.messages == [
        "pretrained: 120 of the encoder's 120 tensors are from model.safetensors",
        "pretrained: 2 tensors of the file are not used: fc.bias, fc.weight",
    ]
    theirs.fc = nn.Identity()
    images = torch.rand(2, 3, 64, 64)
    with torch.inference_mode():
        torch.testing.assert_close(ours(images), theirs(images))


def test_an_encoder_is_found_in_its_file_a_runs_directory_and_a_model_directory(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    own(tmp_path / "run" / "encoder.safetensors")
    encoder = load_encoder(tmp_path / "run" / "encoder.safetensors")
    write_model(tmp_path / "model", Classifier(encoder, nn.Linear(4, 2), ["ant", "bee"], {}))
    for place in ("run", "run/encoder.safetensors", "model"):
        backbone = network()
        named = load_pretrained(str(tmp_path / place), backbone, ARCHITECTURE)
        assert same(backbone.state_dict(), encoder.backbone.state_dict())
        assert named["name"] == Path(place).name
    with pytest.raises(ConfigError, match=r"its encoder is resnet\(.*stem=half.*that of this run resnet\(.*stem=cifar"):
        load_pretrained(str(tmp_path / "model"), network(), ARCHITECTURE | {"stem": "cifar"})


def test_a_layer_is_taken_whole_or_not_at_all() -> None:
    def norm(width: int, **more: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"weight": torch.ones(width), "running_var": torch.ones(width), **more}

    count = torch.tensor(7)
    expected = {f"{layer}.{name}": t for layer in "abcd" for name, t in norm(2, num_batches_tracked=count).items()}
    weights = {
        **{f"a.{name}": t.half() for name, t in norm(2).items()},  # without its counter, as old files are
        **{f"b.{name}": t for name, t in norm(3, num_batches_tracked=count).items()},
        **{f"c.{name}": t for name, t in norm(2, running_var=torch.ones(1)).items()},
        "d.weight": torch.ones(2, dtype=torch.int64),
        "fc.weight": torch.ones(2),
    }
    taken, kept, unused = match(weights, expected)
    assert {name: tensor.dtype for name, tensor in taken.items()} == dict.fromkeys(
        ["a.weight", "a.running_var"], torch.float32
    )
    assert kept == sorted(expected.keys() - taken.keys())
    assert unused == [
        *("b.num_batches_tracked", "b.running_var", "b.weight", "c.running_var", "c.weight", "d.weight", "fc.weight")
    ]


def test_names_of_a_file_are_shown_short_and_harmless(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    weights = network().state_dict() | {"\x1b[2J/home/ada": torch.ones(1), **{f"w{n}": torch.ones(1) for n in range(9)}}
    del weights["conv1.weight"]
    safetensors.torch.save_file(weights, tmp_path / "w")
    load_pretrained(str(tmp_path / "w"), network(), ARCHITECTURE)
    assert caplog.messages == [
        "pretrained: 1 keep their initial values: conv1.weight",
        "pretrained: 10 tensors of the file are not used: <path>, w0, w1, w2, and 6 more",
    ]


def plain(path: Path, **changes: torch.Tensor) -> None:
    safetensors.torch.save_file(network().state_dict() | changes, path)


def own(path: Path, architecture: Component = ARCHITECTURE) -> None:
    save_encoder(path, build(architecture, "encoder"), architecture, {})


def torn(path: Path) -> None:
    plain(path)
    path.write_bytes(path.read_bytes()[:-1])


def damaged(path: Path) -> None:
    own(path)
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda path: None, "there is no such file or directory on the server's machine"),
        (lambda path: path.mkdir(), "a directory without model.safetensors or encoder.safetensors"),
        (lambda path: torch.save({"a": torch.ones(1)}, path), "is not a safetensors file; pickled weights"),
        (lambda path: path.write_bytes(pickle.dumps({})), "is not a safetensors file; pickled weights"),
        (lambda path: path.write_bytes(b""), "is not a safetensors file"),
        (torn, "is a damaged safetensors file"),
        (damaged, "is damaged (its checksum does not match)"),
        (lambda path: path.symlink_to("/dev/zero"), "is not a plain file of at most 2147483648 bytes"),
        (
            lambda path: safetensors.torch.save_file({"conv1.weight": torch.ones(4, 3, 7, 7)}, path),
            "none of its 1 tensors (conv1.weight) has the name and shape of one of this encoder's 18 (bn1.bias, ",
        ),
        (lambda path: plain(path, **{"bn1.bias": torch.full((4,), torch.nan)}), "bn1.bias holds a value that is not"),
        (lambda path: plain(path, **{"bn1.running_var": -torch.ones(4)}), "bn1.running_var holds a negative variance"),
        (
            lambda path: plain(path, **{"bn1.num_batches_tracked": torch.tensor(2**62)}),
            "bn1.num_batches_tracked reaches",
        ),
        (
            lambda path: own(path, ARCHITECTURE | {"stem": "cifar"}),
            "its encoder is resnet(blocks=[1], stem=cifar, width=4), that of this run resnet(blocks=[1], stem=half, "
            "width=4)",
        ),
    ],
)
def test_what_cannot_be_begun_with_is_one_sentence(make: Callable[[Path], None], sentence: str, tmp_path: Path) -> None:
    place = tmp_path / "weights.pt"
    make(place)
    backbone = network()
    before = {name: tensor.clone() for name, tensor in backbone.state_dict().items()}
    with pytest.raises(ConfigError) as refused:
        load_pretrained(str(place), backbone, ARCHITECTURE)
    assert str(refused.value).startswith(f"pretrained={place}: ")
    assert sentence in str(refused.value)
    assert same(backbone.state_dict(), before)


def test_a_run_is_refused_before_it_leaves_a_trace(tmp_path: Path) -> None:
    torch.save({}, tmp_path / "weights.pt")
    words = ["scale=smoke", f"pretrained={tmp_path / 'weights.pt'}", f"out={tmp_path / 'run'}"]
    done = CliRunner().invoke(app, ["run", *words])
    assert done.exit_code == 2
    assert "safetensors" in done.output
    assert not (tmp_path / "run").exists()
    with pytest.raises(ConfigError, match="safetensors"):
        build_server(compose(words))
    assert not (tmp_path / "run").exists()


def test_the_servers_process_gets_an_absolute_path(
    tmp_path: Path, smoke: Smoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "blob").touch()
    (tmp_path / "my weights").symlink_to("blob")
    monkeypatch.chdir(tmp_path)
    config = smoke("pretrained='my weights'")
    monkeypatch.chdir("/")
    assert compose(_overrides(config, RunDirectory(config.directory))).pretrained == str(tmp_path / "my weights")
