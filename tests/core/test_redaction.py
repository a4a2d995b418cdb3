"""Text from elsewhere: cut, on one line, printable, without paths."""

import time

import pytest

from sofed_flwr.core.errors import TooFewDevicesError
from sofed_flwr.core.redaction import LONGEST, redacted

IMPORT = (
    "<class 'ImportError'>:<'cannot import name 'build' from 'sofed_flwr.config.instantiate' "
    "(/home/ada/.flwr/apps/sofed.sofed-flwr.1.0.0.1a2b/sofed_flwr/config/instantiate.py)'>"
)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("answers round 3, expected 4", "answers round 3, expected 4"),
        ("No such file: '/home/ada/My Holiday.jpg'", "No such file: <path>"),
        ('No such file: "/home/ada\'s/My Holiday.jpg"', "No such file: <path>"),
        ("dataset.path=/home/ada/x.npz: is not a file", "dataset.path=<path> is not a file"),
        ("no C:\\Users\\ada\\x here", "no C:<path> here"),
        ("no ~/x, no file:///home/ada/x", "no <path> no file:<path>"),
        ("in /home/Ada King Lovelace/x.py", "in <path>"),
        (IMPORT, "<class 'ImportError'>:<'cannot import name 'build' from 'sofed_flwr.config.instantiate' (<path>"),
        ("\x1b[2J\x1b]0;owned\x07cleared", "[2J ]0;owned cleared"),
        ("one\r\x0btwo\x9b\x00three\u2028four", "one two three four"),
        ("safe \u202egpj.exe\u202c", "safe gpj.exe"),
        ("lone \ud800 surrogate", "lone surrogate"),
        ("[/b][bold red]as it is", "<path> red]as it is"),
        ("[b]as it is", "[b]as it is"),
        ("", ""),
        (None, "None"),
        ("what: \n  in between\n\n  ImportError: why\n", "what: ... ImportError: why"),
    ],
)
def test_what_is_left_of_a_text(text: object, shown: str) -> None:
    assert redacted(text) == shown


def test_a_traceback_is_its_first_and_its_last_line() -> None:
    frames = [f'  File "/home/ada/app/{number}.py", line {number}, in call' for number in range(200)]
    text = "\n".join(["Traceback (most recent call last):", *frames, "ImportError: cannot import name 'build'"])
    assert redacted(text) == "Traceback (most recent call last): ... ImportError: cannot import name 'build'"


@pytest.mark.parametrize("piece", ["x", "x ", "\n", "/", " /", "'/", "<path> ", "a/ b c ", "=(", "\x1b[31m", "\u202e"])
def test_five_megabytes_are_cut_in_no_time_and_cutting_again_changes_nothing(piece: str) -> None:
    text = piece * (5_000_000 // len(piece))
    began = time.perf_counter()
    shown = redacted(text)
    assert time.perf_counter() - began < 0.5
    assert len(shown) <= LONGEST
    assert shown.isprintable()
    assert redacted(shown) == shown


def test_cutting_leaves_no_half_of_a_path() -> None:
    for before in range(LONGEST - 20, 4 * LONGEST + 20):
        assert "ada" not in redacted("x" * before + " /home/ada/lovelace/ada.jpg and more")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("too few devices connected within 5 s: 1 of at least 2 are here, missing [1]", True),
        ("ServerApp failed with exception: too few devices connected within 5 s: 1 of at least 2 are here", True),
        (
            "The process is gone. See log:\nsofed_flwr.stops.TooFewDevicesError: too few devices connected within 5 s",
            True,
        ),
        (
            "ServerApp failed with exception: round 3 had 0 usable replies (device 1: too few devices connected)",
            False,
        ),
        ("round 3: device 1 dropped: too few devices connected within 5 s", False),
    ],
)
def test_no_device_decides_with_which_code_a_run_ends(text: str, told: bool) -> None:
    assert TooFewDevicesError.is_named_in(text) == told
