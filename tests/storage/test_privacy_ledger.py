"""Privacy that was spent stays spent: crashes, full disks, damaged files, other settings, rounds without noise."""

import itertools
import json
import multiprocessing
import os
import random
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from flwr.supercore.privacy_accounting import GaussianPrivacyEvent, NeighboringRelation, PrivacyConfig, SamplingMethod
from flwr.supercore.privacy_accounting.rdp_accountant import RdpAccountant

from sofed_flwr.build import build_server
from sofed_flwr.config.compose import compose
from sofed_flwr.config.schema import RunConfig
from sofed_flwr.core.errors import ConfigError
from sofed_flwr.core.records import Noise, Release, Update
from sofed_flwr.core.state_dicts import is_parameter
from sofed_flwr.launch.progress import result_table
from sofed_flwr.server.rounds import RunStoppedError, Server
from sofed_flwr.server.summary import summarise
from sofed_flwr.storage.metrics_log import read_rows
from sofed_flwr.storage.privacy_ledger import PrivacyLedger
from tests.storage.test_generations import flip
from tests.support.federation import same
from tests.support.replies import aggregate

Smoke = Callable[..., RunConfig]
FACTS = dict.fromkeys(("dataset", "encoder", "method", "policy", "clients", "rounds", "seed"), 0)
PRIVATE = ("strategy=dp_fixed", "rounds=9", "evaluation=none")


def epsilon(*noise: float) -> float:
    """The accountant's own, over one release per noise multiplier."""
    config = PrivacyConfig(1e-5, 10, NeighboringRelation.ADD_OR_REMOVE_ONE, SamplingMethod.NO_AMPLIFICATION)
    accountant = RdpAccountant(config)
    for multiplier in noise:
        accountant.compose(GaussianPrivacyEvent(multiplier, 10, 10))
    return accountant.get_privacy_spent().epsilon


def release(server: Server, number: int) -> None:
    """A round that is aggregated, so its model may have left, and not committed; what devices learn is no matter."""
    moved = {name: tensor + 0.01 if is_parameter(name, tensor) else tensor for name, tensor in server.shared.items()}
    aggregate(server, number, [Update(device, number, moved) for device in (0, 1)], {})


def rounds(server: Server, upto: int) -> Server:
    server.close_round(0)
    for number in range(max(server.committed, 0) + 1, upto + 1):
        release(server, number)
        server.close_round(number)
    return server


def begun(config: RunConfig, upto: int) -> Server:
    return rounds(build_server(config), upto)


def resumed(config: RunConfig, *overrides: str) -> Server:
    return build_server(compose([f"resume={config.out}", *overrides]))


def spent(server: Server) -> Any:
    """The last entry of the metrics log."""
    return [row for row in read_rows(server.directory.log.path) if row["name"] == "epsilon"][-1]


def ledger(config: RunConfig) -> Path:
    return Path(str(config.out)) / "privacy.jsonl"


def test_a_round_repeated_after_a_crash_costs_again(smoke: Smoke) -> None:
    config = smoke(*PRIVATE)
    server = begun(config, upto=1)
    release(server, 2)
    again = resumed(config)
    rounds(again, upto=2)
    assert spent(again)["value"] == pytest.approx(epsilon(1, 1, 1))


def test_a_torn_checkpoint_gives_no_privacy_back(smoke: Smoke) -> None:
    config = smoke(*PRIVATE)
    server = begun(config, upto=3)
    newest = max((server.directory.path / "checkpoint").glob("*.safetensors"))
    newest.write_bytes(newest.read_bytes()[:100])
    again = resumed(config)
    assert again.committed == 2
    rounds(again, upto=3)
    assert spent(again)["value"] == pytest.approx(epsilon(1, 1, 1, 1))


def test_rounds_with_other_noise_are_composed_with_their_own(smoke: Smoke) -> None:
    config = smoke(*PRIVATE)
    begun(config, upto=2)
    again = resumed(config, "strategy=dp_fixed", "strategy.noise_multiplier=4", "force=true")
    rounds(again, upto=3)
    assert spent(again)["value"] == pytest.approx(epsilon(1, 1, 4))


@pytest.mark.parametrize("strategies", [("fedavg", "dp_fixed"), ("dp_fixed", "fedavg")])
def test_rounds_without_noise_void_the_guarantee_and_the_run_says_so(
    smoke: Smoke, strategies: tuple[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    before, after = strategies
    config = smoke(f"strategy={before}", "rounds=9", "evaluation=none")
    begun(config, upto=2)
    again = resumed(config, f"strategy={after}", "force=true")
    rounds(again, upto=3)
    assert spent(again)["value"] is None
    assert "without noise" in spent(again)["reason"]
    assert "without noise" in caplog.text
    summary = summarise(read_rows(again.directory.log.path), {})
    assert summary["epsilon"] is None
    assert "epsilon is infinite" in str(result_table({**summary, **FACTS}).caption)
    assert "without noise" in summary["no_privacy"]


def test_a_round_without_noise_that_was_never_committed_voids_it_too(smoke: Smoke) -> None:
    config = smoke("strategy=fedavg", "rounds=9", "evaluation=none")
    server = build_server(config)
    server.close_round(0)
    release(server, 1)
    again = resumed(config, "strategy=dp_fixed", "force=true")
    rounds(again, upto=1)
    assert spent(again)["value"] is None


def test_a_budget_cannot_be_kept_after_rounds_without_noise(smoke: Smoke) -> None:
    config = smoke("strategy=fedavg", "rounds=9", "evaluation=none")
    begun(config, upto=1)
    again = resumed(config, "strategy=dp_fixed", "strategy.max_epsilon=100", "force=true")
    with pytest.raises(RunStoppedError, match="without noise"):
        again.close_round(1)


def test_the_budget_counts_what_was_sent_and_not_committed(smoke: Smoke) -> None:
    assert epsilon(1, 1) < 7.5 < epsilon(1, 1, 1)
    config = smoke(*PRIVATE, "strategy.max_epsilon=7.5")
    server = begun(config, upto=1)
    release(server, 2)
    with pytest.raises(RunStoppedError, match=r"epsilon is 7\.077 of 7\.5 after 2 releases"):
        resumed(config).close_round(1)


def test_a_release_is_on_disk_before_the_model_is_anywhere(smoke: Smoke, monkeypatch: pytest.MonkeyPatch) -> None:
    config = smoke(*PRIVATE)
    server = begun(config, upto=1)
    before, write = server.shared, server.directory.ledger.write
    seen = []

    def watched(entry: Release) -> None:
        write(entry)
        seen.append((entry.round, same(server.shared, before), len(ledger(config).read_text().splitlines())))

    monkeypatch.setattr(server.directory.ledger, "write", watched)
    release(server, 2)
    assert seen == [(2, True, 2)]
    assert not same(server.shared, before)


def test_the_line_says_what_the_release_was(smoke: Smoke) -> None:
    config = smoke(*PRIVATE, "strategy.clipping_norm=3")
    server = begun(config, upto=1)
    line = json.loads(ledger(config).read_text())
    assert (line["number"], line["run"], line["round"]) == (1, server.run, 1)
    assert line["noise"] == {"noise_multiplier": 1.0, "clipping_norm": 3.0, "clients": 2, "delta": 1e-5}


@pytest.mark.parametrize("fails", ["open", "fsync"])
def test_a_model_whose_release_cannot_be_written_does_not_leave(
    smoke: Smoke, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    config = smoke(*PRIVATE, "federation.max_failed_rounds=2")
    server = begun(config, upto=1)
    before, content = server.shared, ledger(config).read_bytes()
    with monkeypatch.context() as broken:
        if fails == "fsync":
            broken.setattr("os.fsync", refuse)
        else:
            ledger(config).rename(ledger(config).with_name("away"))
        release(server, 2)
        assert same(server.shared, before)
        with pytest.raises(RunStoppedError, match=r"the privacy ledger cannot be written .*; 2 failed rounds in a row"):
            release(server, 3)
    if fails == "open":
        assert not ledger(config).exists(), "no second ledger begins"
        ledger(config).with_name("away").rename(ledger(config))
    release(server, 4)
    assert spent(server)["value"] == pytest.approx(epsilon(1, 1))
    assert ledger(config).read_bytes().startswith(content)
    assert [json.loads(line)["round"] for line in ledger(config).read_text().splitlines()] == [1, 4]


def refuse(_: int) -> None:
    raise OSError(28, "No space left on device")


def lines_of(config: RunConfig) -> list[bytes]:
    return ledger(config).read_bytes().splitlines(keepends=True)


DAMAGE: dict[str, Callable[[list[bytes]], bytes]] = {
    "a byte in the middle": lambda lines: lines[0] + lines[1].replace(b"1.0", b"9.0") + lines[2],
    "the checksum": lambda lines: lines[0] + lines[1] + lines[2].replace(b'm": "', b'm": "0', 1),
    "zeros in the middle": lambda lines: lines[0] + bytes(len(lines[1])) + lines[2],
    "a line taken out": lambda lines: lines[0] + lines[2],
    "a line twice": lambda lines: b"".join([*lines, lines[2]]),
    "the last lines taken out": lambda lines: lines[0],
    "nothing left": lambda lines: b"",
    "an empty line": lambda lines: b"".join(lines) + b"\n",
    "not a ledger": lambda lines: b"[]\n",
    "no text": lambda lines: b"\xff\xfe\n",
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_ledger_that_is_not_as_written_is_refused_in_one_sentence(smoke: Smoke, damage: str) -> None:
    config = smoke(*PRIVATE)
    begun(config, upto=3)
    ledger(config).write_bytes(DAMAGE[damage](lines_of(config)))
    with pytest.raises(ConfigError, match=r"privacy\.jsonl") as refusal:
        resumed(config)
    assert "\n" not in str(refusal.value)


def test_every_flipped_byte_of_a_ledger_is_noticed(smoke: Smoke) -> None:
    config = smoke(*PRIVATE)
    server = begun(config, upto=2)
    noise, size = server.strategy.noise(2), ledger(config).stat().st_size
    for place in range(size - 1):
        flip(ledger(config), place)
        with pytest.raises(ConfigError):
            PrivacyLedger(ledger(config)).load(noise)
        flip(ledger(config), place)
    flip(ledger(config), size - 1)  # the last line's end: it is unfinished, and counts
    torn = PrivacyLedger(ledger(config))
    torn.load(noise)
    assert len(torn.releases) == 2


NOISE = Noise(1.0, 1.0, 2, 1e-5)


def _release_forever(path: Path, first: int, acknowledged: int) -> None:
    own = PrivacyLedger(path)
    own.load(NOISE)
    for number in itertools.count(first):
        own.write(Release("run", number, NOISE))
        os.write(acknowledged, number.to_bytes(4, "big"))


def test_a_server_killed_at_30_random_points_has_every_model_that_left_in_its_ledger(tmp_path: Path) -> None:
    """One ledger, continued after every kill; a model leaves when its release is acknowledged."""
    draw, left, held = random.Random(0), [], PrivacyLedger(tmp_path / "privacy.jsonl")
    for kill in range(30):
        reading, writing = os.pipe()
        arguments = (held.path, 1000 * kill, writing)
        server = multiprocessing.get_context("fork").Process(target=_release_forever, args=arguments)
        server.start()
        os.close(writing)
        with os.fdopen(reading, "rb") as pipe:
            first = pipe.read(4)
            time.sleep(draw.uniform(0, 0.01))
            server.kill()
            server.join()
            sent = first + pipe.read()
        left += [int.from_bytes(sent[start : start + 4], "big") for start in range(0, len(sent), 4)]
        held.load(NOISE)
        assert set(left) <= {release.round for release in held.releases}
    assert len(held.releases) <= len(left) + 30


@pytest.mark.parametrize("how", ["deleted", "a directory", "a link", "another run's"])
def test_a_ledger_that_is_not_there_is_refused(smoke: Smoke, how: str) -> None:
    config = smoke(*PRIVATE)
    begun(config, upto=1)
    ledger(config).rename(ledger(config).with_name("away"))
    if how == "a directory":
        ledger(config).mkdir()
    elif how == "a link":
        ledger(config).symlink_to(ledger(config).with_name("away"))
    elif how == "another run's":
        other = smoke(*PRIVATE, out="other")
        begun(other, upto=3)
        shutil.copy(ledger(other), ledger(config))
    with pytest.raises(ConfigError, match=r"privacy\.jsonl") as refusal:
        resumed(config)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("left", [1, 30, -1])
def test_a_torn_last_line_counts_and_the_ledger_goes_on(smoke: Smoke, left: int) -> None:
    config = smoke(*PRIVATE)
    server = begun(config, upto=1)
    release(server, 2)
    first, second = lines_of(config)
    ledger(config).write_bytes(first + second[:left])
    for _ in range(2):
        again = resumed(config)
    rounds(again, upto=2)
    assert spent(again)["value"] == pytest.approx(epsilon(1, 1, 1))
    rounds(resumed(config), upto=3)
    assert len(lines_of(config)) == 4


def test_a_torn_line_counts_under_the_least_noise_known(smoke: Smoke) -> None:
    config = smoke(*PRIVATE)
    begun(config, upto=1)
    rounds(resumed(config, "strategy=dp_fixed", "strategy.noise_multiplier=0.5", "force=true"), upto=2)
    with ledger(config).open("ab") as file:
        file.write(b'{"number": 3, "ru')
    again = resumed(config, "strategy=dp_fixed", "strategy.noise_multiplier=4", "force=true")
    rounds(again, upto=3)
    assert spent(again)["value"] == pytest.approx(epsilon(1, 0.5, 0.5, 4))


def test_beginning_again_gives_no_privacy_back(smoke: Smoke) -> None:
    config = smoke(*PRIVATE)
    begun(config, upto=2)
    again = resumed(config, "restart=true")
    rounds(again, upto=1)
    assert spent(again)["value"] == pytest.approx(epsilon(1, 1, 1))
    rounds(resumed(config), upto=2)
    assert spent(again)["value"] == pytest.approx(epsilon(1, 1, 1, 1))


def test_the_table_of_a_run_says_what_was_spent(smoke: Smoke) -> None:
    config = smoke(*PRIVATE)
    summary = summarise(read_rows(begun(config, upto=2).directory.log.path), config.facts)
    assert str(result_table(summary).caption) == f"epsilon {epsilon(1, 1):.4g} at delta 1e-05"


def test_the_last_rounds_without_an_epsilon_are_no_guarantee() -> None:
    """What a run leaves that went on without noise and without its ledger."""
    rows = [{"round": n, "name": "replies", "value": 2} for n in (1, 2)]
    rows += [{"round": 1, "name": "epsilon", "value": 4.7}, {"round": 1, "name": "delta", "value": 1e-5}]
    assert summarise(rows, {})["epsilon"] is None
    assert summarise(rows[1:], {})["no_privacy"] == "round 2 reports no epsilon: no privacy guarantee"
    assert summarise([rows[0], *rows[2:]], {})["epsilon"] == 4.7
