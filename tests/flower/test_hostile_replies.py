"""A hostile device against the operator: through messages, server, metrics log and log records to the screen."""

import json
from collections.abc import Callable, Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Array, ArrayRecord, Error, Message, MetricRecord, RecordDict
from rich.console import Console

from sofed_flwr.config.schema import RunConfig
from sofed_flwr.core.metrics import FROM_DEVICE, OF_SERVER
from sofed_flwr.flower import round_grid as exchange
from sofed_flwr.launch import progress as display
from sofed_flwr.launch.progress import RunProgress, comparison_table, findings_table
from sofed_flwr.storage.metrics_log import RunLog, read_rows
from sofed_flwr.storage.tensor_file import from_bytes, to_bytes
from tests.flower.test_messages import Grid, strategy_of
from tests.support.federation import federate
from tests.support.replies import aggregate

pytestmark = pytest.mark.usefixtures("_inside_a_run")

ESCAPES = "\x1b[2J\x1b]0;owned\x07[/b][bold red]\u202e\x9b31m\r\n/home/ada/holiday.jpg\n"
Attack = Callable[[Message, Message], Message]
"""The task and the honest reply to it -> the reply that is sent."""


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> StringIO:
    """What the operator's terminal gets, byte for byte."""
    text = StringIO()
    made = Console(file=text, force_terminal=True, width=400, markup=False, emoji=False, color_system=None)
    monkeypatch.setattr(display, "console", made)
    return text


def error(reason: str) -> Attack:
    return lambda task, _: Message(Error(code=2, reason=reason), reply_to=task)


def counts(**more: float) -> Attack:
    def changed(_: Message, honest: Message) -> Message:
        honest.content["counts"] = MetricRecord({**honest.content.metric_records["counts"], **more})
        return honest

    return changed


def tensors(change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]) -> Attack:
    def changed(_: Message, honest: Message) -> Message:
        model = to_bytes(change(from_bytes(honest.content.array_records["shared"]["model"].data)))
        honest.content["shared"] = ArrayRecord({"model": Array("uint8", (len(model),), "safetensors", model)})
        return honest

    return changed


def renamed(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    first, *rest = state
    return {ESCAPES: state[first], **{name: state[name] for name in rest}}


def deepened(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    first = next(iter(state))
    return {**state, first: state[first].reshape(*[1] * 60, *state[first].shape)}


def emptied(_: Message, honest: Message) -> Message:
    honest.__dict__["_content"] = RecordDict({ESCAPES * 1000: MetricRecord({"a": 1})})
    return honest


ATTACKS: dict[str, tuple[Attack, str | None]] = {
    "a reason of 5 MB": (error(ESCAPES + "x" * 5_000_000), "[2J ]0;owned <path> red] 31m"),
    "a traceback": (
        error("Traceback:\n" + '  File "/home/ada/x.py"\n' * 200 + "ImportError: no x"),
        "Traceback: ... Imp",
    ),
    "no reason": (error(""), "error code 2"),
    "metrics of the server": (counts(dropped=1, collapsed=1, seconds=1e9, failed=1, knn=100.0), None),
    "100,000 metrics": (counts(**{f"{ESCAPES}{number}": 1.0 for number in range(100_000)}), None),
    "a loss that is no number": (counts(loss=float("nan")), None),
    "a tensor's name": (tensors(renamed), "tensor names differ from the global model's, first of 2: [2J"),
    "a tensor's shape": (tensors(deepened), "has shape (1, 1, 1"),
    "no content": (emptied, "reply holds other records than the arrays shared and the metrics counts"),
}


class Hostile(Grid):
    """Two simulated devices; what device 1 answers is changed on the way."""

    def __init__(self, attack: Attack) -> None:
        super().__init__(n5={"partition-id": 0})
        self.attack = attack

    def replies(self, message: Message) -> Iterator[Message]:
        for honest in super().replies(message):
            task = message.content.config_records.get("task")
            yield honest if task is None or task["device"] == 0 else self.attack(message, honest)


@pytest.mark.parametrize("kind", ATTACKS)
def test_what_a_hostile_device_sends_reaches_log_and_screen_cut_and_clean(
    kind: str, smoke: Callable[..., RunConfig], screen: StringIO, caplog: pytest.LogCaptureFixture
) -> None:
    attack, reason = ATTACKS[kind]
    strategy = strategy_of(smoke("rounds=1", "evaluation=none"), Hostile(attack))
    path = strategy.server.directory.log.path
    path.touch()
    with RunProgress(path, 1) as progress:
        strategy.run()
        progress.update()
    assert strategy.server.committed == 1
    dropped = [row["reason"] for row in read_rows(path) if row["name"] == "dropped"]
    assert len(dropped) == (reason is not None)
    assert all((reason or "") in text for text in dropped)
    assert path.stat().st_size < 5000
    names = {row["name"] for row in read_rows(path)}
    assert names <= FROM_DEVICE.keys() | OF_SERVER.keys()
    logged = "".join(record.getMessage() for record in caplog.records)
    assert len(logged) < 3000, "Flower's own lines are a thousand characters"
    shown = screen.getvalue()
    assert all(text in shown for text in dropped)
    for told in (logged, path.read_text(), shown):
        assert "ada" not in told
        assert not commands(told)


def commands(text: str) -> list[str]:
    """What would make a terminal do something, as it is or as JSON writes it."""
    return [piece for piece in ("\x1b[2J", "\x1b]0", "\u202e", "\x9b", "\x07", "\\u001b", "\\u202e") if piece in text]


def test_a_failed_round_of_a_thousand_devices_is_one_line(
    smoke: Callable[..., RunConfig], caplog: pytest.LogCaptureFixture
) -> None:
    strategy = strategy_of(smoke("federation.quorum=2"), Grid())
    aggregate(strategy.server, 1, [], dict.fromkeys(range(1000), "x" * 1000))
    last = caplog.records[-1].getMessage()
    assert last.endswith("; and 990 more); the global model stays as it is")
    assert len(last) < 11 * 350


def test_every_metric_of_a_run_is_in_the_list(smoke: Callable[..., RunConfig]) -> None:
    server = federate(smoke("rounds=1"))
    names = {row["name"] for row in read_rows(server.directory.log.path)}
    known = FROM_DEVICE.keys() | OF_SERVER.keys()
    assert {"linear_" if name.startswith("linear_") else name for name in names} <= known
    assert not FROM_DEVICE.keys() & OF_SERVER.keys()


# the display by itself


def rows(path: Path, *content: dict[str, Any] | str) -> None:
    with path.open("a") as file:
        file.writelines((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in content)


def test_a_log_that_somebody_else_wrote_does_not_end_the_display(tmp_path: Path, screen: StringIO) -> None:
    path = tmp_path / "metrics.jsonl"
    path.touch()
    with RunProgress(path, 2):
        rows(
            path,
            {"round": 1, "name": "dropped", "value": 1},
            {"round": ESCAPES, "name": "dropped", "value": 1, "device": 1, "reason": ESCAPES},
            {"round": 1, "name": "dropped", "value": 1, "device": ESCAPES, "reason": ESCAPES},
            {"round": 1, "name": "collapsed", "value": 1, "reason": ESCAPES},
            {"round": ESCAPES, "name": "seconds", "value": 1},
            {"round": 10**400, "name": "seconds", "value": 1},
            {"round": 1, "name": "loss", "value": ESCAPES},
            {"round": 1, "name": "arrived", "value": float("inf")},
            {"round": 1, "name": "asked", "value": float("nan")},
            {"round": 1},
            "[" * 100_000,
            "not json",
            '"text"',
            {"round": 1, "name": "seconds", "value": 2.0},
        )
    shown = screen.getvalue()
    assert "round 1: device None dropped: no reason given" in shown
    assert "collapsed: [2J ]0;owned <path>" in shown
    assert "1/2" in shown
    assert not commands(shown)


def test_progress_moves_with_every_reply_and_says_how_long_it_will_take(tmp_path: Path, screen: StringIO) -> None:
    log = RunLog(tmp_path / "metrics.jsonl")
    log.write(0, {"seconds": 1.0})
    with RunProgress(log.path, 4) as progress:
        task = progress._bar.tasks[0]

        def after(number: int, **values: float) -> tuple[float, str]:
            log.write(number, values)
            progress.update()
            return task.completed, task.description

        assert after(1, asked=4) == (0, "round 1  0 of 4 replies")
        assert after(1, arrived=1) == (0.25, "round 1  1 of 4 replies")
        assert after(1, arrived=2) == (0.5, "round 1  2 of 4 replies")
        assert task.time_remaining is not None, "before the first round is over"
        assert after(1, loss=0.5, knn=40.0, seconds=3.0) == (1, "round 1  loss 0.500  kNN 40.0 %")
        assert after(2, asked=4) == (1, "round 2  0 of 4 replies  loss 0.500  kNN 40.0 %")
        assert after(2, arrived=4) == (2, "round 2  4 of 4 replies  loss 0.500  kNN 40.0 %")


def test_paths_and_titles_are_shown_as_they_are(screen: StringIO) -> None:
    display.console.print("encoder: runs/[x]/[/b]/encoder.safetensors :smile:", soft_wrap=True)
    display.console.rule("out=[/x]")
    display.console.print(comparison_table("runs/[x] on [/b]", [("[red]label", {"kNN": 40.0})]))
    display.console.print(findings_table("[/site]", [("name", "fail", "/tmp/[/b]", "do [this]")]))
    shown = screen.getvalue()
    for text in ("runs/[x]/[/b]/enc", ":smile:", "out=[/x]", "runs/[x] on [/b]", "[red]label", "[/site]", "do [this]"):
        assert text in shown


def test_the_display_reads_no_markup() -> None:
    assert display.console._markup is False
    assert display.console._emoji is False


def test_progress_rows_disturb_neither_the_summary_nor_a_resumed_run(
    smoke: Callable[..., RunConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchange, "POLL_SECONDS", 0.01)
    config = smoke("rounds=1", "evaluation=none")
    strategy = strategy_of(config, Grid(n5={"partition-id": 0}))
    strategy.run()
    strategy.server.finish(config.encoder, config.facts)
    found = read_rows(strategy.server.directory.log.path)
    progress = [(row["name"], row["value"]) for row in found if row["name"] in ("asked", "arrived")]
    assert progress == [("asked", 2), ("arrived", 1), ("arrived", 2)]
    assert not any("device" in row for row in found if row["name"] in ("asked", "arrived"))
    summary = json.loads(strategy.server.directory.summary.read_text())
    assert not {"asked", "arrived"} & summary.keys()
    strategy.server.directory.log.rewind(0)
    assert {row["round"] for row in read_rows(strategy.server.directory.log.path)} <= {0}
