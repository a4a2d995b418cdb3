"""The bar of a command that takes long: on stderr, in time, and never in the way of the result."""

import pytest

from sofed_flwr.launch import watched as module
from sofed_flwr.launch.watched import watched


@pytest.mark.parametrize(("delay", "terminal"), [(-1.0, True), (2.0, True), (-1.0, False)])
def test_a_bar_is_shown_to_a_terminal_and_only_after_a_while(
    delay: float, terminal: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "BAR_DELAY_S", delay)
    monkeypatch.setenv("TTY_COMPATIBLE", "1" if terminal else "0")
    for item in watched(["a", "b", "c"], "[b]images[/b]"):
        print(item)
    shown = capsys.readouterr()
    assert shown.out == "a\nb\nc\n"
    assert ("[b]images[/b]" in shown.err) == ("3/3" in shown.err) == (delay < 0 and terminal)
