"""`sofed.env` as its owner, an editor or a full disk may leave it: read as a shell reads it, or one sentence."""

import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sofed_flwr.cli import main as cli
from sofed_flwr.core.errors import ConfigError
from sofed_flwr.fleet.provision.build import provision
from sofed_flwr.fleet.provision.settings import read_settings, settings

BROKEN = {
    b"SOFED_BIN='/opt/sofed\n": "line 1: a quote is not closed",
    b'A=1\nB="x\n': "line 2: a quote is not closed",
    b"A=1\0\n": "is not a text of settings",
    b"\0" * 512: "is not a text of settings",
    b"A=\xff\n": "is not a text of settings",
    b"A=\x1b[2J\n": "is not a text of settings",
    b"A=1\n" * 20000: "is not a text of settings",
    b"A=1\nB=2\nA=3\n": "line 3: A is set a second time",
    b"A 1\n": "line 1: expected NAME=VALUE",
    b"A=1 2\n": "line 1: expected NAME=VALUE",
    b"A=1 B=2\n": "line 1: expected NAME=VALUE",
    b"export A=1\n": "line 1: expected NAME=VALUE",
    b"A-B=1\n": "line 1: expected NAME=VALUE",
    b"A=$HOME/spool\n": "line 1: $ and ` are not expanded here",
    b"A=`reboot`\n": "line 1: $ and ` are not expanded here",
}


@pytest.mark.parametrize("content", BROKEN, ids=BROKEN.values())
def test_a_broken_line_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "sofed.env").write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        read_settings(tmp_path / "sofed.env")
    assert BROKEN[content] in str(caught.value)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("content", [b"", b"SOFED_BIN=/x\n", b"SOFED_BIN='\n", b"\0\0", b"SOFED_FLEET=x\n"])
@pytest.mark.parametrize("command", [["provision"], ["provision", "--register"], ["doctor", "--site"]])
def test_every_command_says_one_sentence(tmp_path: Path, content: bytes, command: list[str]) -> None:
    site = provision(tmp_path / "site", ["server.lan"], 1)
    (site.server / "sofed.env").write_bytes(content)
    result = CliRunner().invoke(cli.app, [*command, str(site.directory)])
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert "server/sofed.env" in result.stderr


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("SOFED_FLEET=0.0.0.0\n", "SOFED_FLEET has no valid port or address"),
        ("SOFED_FLEET=0.0.0.0:99999\n", "SOFED_FLEET has no valid port or address"),
        ("SOFED_CONTROL_PORT='8000\"x'\n", "SOFED_CONTROL_PORT has no valid port or address"),
    ],
)
def test_an_address_that_is_none_is_named(tmp_path: Path, line: str, reason: str) -> None:
    site = provision(tmp_path / "site", ["server.lan"], 1)
    place, name = site.server / "sofed.env", line.partition("=")[0]
    place.write_text("".join(old for old in place.read_text().splitlines(True) if not old.startswith(name)) + line)
    result = CliRunner().invoke(cli.app, ["provision", str(site.directory)])
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert reason in result.stderr


@pytest.mark.parametrize("content", [b"SOFED_STATE='/x\n", b"SOFED_STATE=/x\n", b"\0"])
def test_a_devices_doctor_says_one_sentence(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "sofed.env").write_bytes(content)
    result = CliRunner().invoke(cli.app, ["doctor", "--site", str(tmp_path)])
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert "sofed.env" in result.stderr


def test_a_directory_in_its_place_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "sofed.env").mkdir()
    with pytest.raises(ConfigError, match=r"sofed.env is not a file"):
        read_settings(tmp_path / "sofed.env")


def test_a_shell_and_python_read_the_same(tmp_path: Path) -> None:
    values = {
        "SPACES": "a b  c",
        "QUOTES": """--command "x 'y'" """,
        "EMPTY": "",
        "HASH": "a#b",
        "BACK": "a\\b",
        "UE": "ü",
    }
    place = tmp_path / "sofed.env"
    place.write_bytes(b"# A comment.\n\n" + settings(values) + b"EDITED='8001'  # taken here\nDOUBLE=\"x y\"\n")
    script = f'set -a; . {place}; printf "%s\\n" ' + " ".join(f'"${name}"' for name in [*values, "EDITED", "DOUBLE"])
    shell = subprocess.run(["sh", "-c", script], check=True, capture_output=True, text=True)
    assert shell.stdout.split("\n")[:-1] == list(read_settings(place).values())
    assert read_settings(place) == values | {"EDITED": "8001", "DOUBLE": "x y"}
