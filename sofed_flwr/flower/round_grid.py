"""One round's messages over Flower's grid: send, wait, stop waiting when enough replies have come.

Flower's own `send_and_receive` polls every three seconds and waits for every reply or the deadline, also for a device
that restarted and will never answer, because a message is delivered once. Here a round also ends when enough devices
have answered (sample more than you need: some fail in every round) and when no reply can come any more. A reply to an
earlier round is ignored and counted.

Replies are fetched one by one: Flower decodes together what it fetches together, and one reply that cannot be decoded
would cost the replies of the other devices.
"""

import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from flwr.app import Message
from flwr.serverapp import Grid

from sofed_flwr.core.errors import UnreadableReplyError

POLL_SECONDS = 0.25
PAUSE_SHARE = 9
"""Polls without a reply take at most a tenth of the time, however many devices there are."""
PRESENCE_SECONDS = 3.0
"""Between two checks of the connected nodes; Flower itself notices changes no faster."""


class Sent(NamedTuple):
    """A message on its way: to which node, since when that node had been connected, and when the message expires."""

    node: int
    connected: str
    expires: float


def fetch(grid: Grid, asked: str) -> Message | None:
    """The reply to one message, or None; a reply that names another message is ignored."""
    try:
        found = list(grid.pull_messages([asked]))
    except Exception as error:  # Flower's decoding may raise anything on malformed bytes
        raise UnreadableReplyError(f"its reply cannot be read ({type(error).__name__})") from error
    return next((reply for reply in found if reply.metadata.reply_to_message_id == asked), None)


@dataclass
class RoundGrid:
    """What Flower's round loop uses of a grid; `stop_at_replies` usable replies end a round, None waits for all.

    While it waits it calls `meanwhile` every few seconds, and `arrived` with the number of replies so far.
    `unanswered` says why there is no reply, by message id of the last round.
    """

    grid: Grid
    stop_at_replies: int | None
    meanwhile: Callable[[], None] = lambda: None
    arrived: Callable[[int], None] = lambda _: None
    unanswered: dict[str, str] = field(default_factory=dict, init=False)
    _unreadable: dict[str, str] = field(default_factory=dict, init=False)
    _overdue: set[str] = field(default_factory=set, init=False)
    _late: list[str] = field(default_factory=list, init=False)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float) -> list[Message]:
        """The replies that came in time, including errors."""
        until = time.monotonic() + timeout
        waiting = self._send(list(messages))
        replies: list[Message] = []
        next_check = 0.0
        while waiting and (now := time.monotonic()) < until:
            empty = self._receive(waiting, replies)
            if self._is_enough(replies):
                break
            if now > next_check:
                self._check_nodes(waiting)
                next_check = now + PRESENCE_SECONDS
            time.sleep(max(POLL_SECONDS, PAUSE_SHARE * empty) if waiting else 0)
        why = (
            f"{self.stop_at_replies} replies were enough"
            if self._is_enough(replies)
            else f"no reply within {timeout:g} s"
        )
        self._give_up(waiting, waiting.keys(), why)
        self.unanswered |= self._unreadable
        return replies

    def late(self) -> list[str]:
        """Ids of messages whose replies came after their round had ended, each once."""
        found, self._late = self._late, []
        return found

    def _send(self, messages: list[Message]) -> dict[str, Sent]:
        self.unanswered, self._unreadable = {}, {}
        connected = self._connected() if messages else {}
        accepted = set(self.grid.push_messages(messages)) if messages else set()
        waiting = {}
        for message in messages:
            name, node = message.metadata.message_id, message.metadata.dst_node_id
            if name in accepted:
                expires = message.metadata.created_at + message.metadata.ttl
                waiting[name] = Sent(node, connected.get(node, ""), expires)
            else:
                self.unanswered[name] = "could not be sent to"
        return waiting

    def _receive(self, waiting: dict[str, Sent], replies: list[Message]) -> float:
        """Move replies from `waiting` to `replies`; returns the seconds spent on polls without a reply.

        A reply that cannot be read is lost: the next poll answers that Flower does not know the message.
        """
        empty = 0.0
        for asked, sent in list(waiting.items()):
            began = time.monotonic()
            try:
                reply = fetch(self.grid, asked)
            except UnreadableReplyError as error:
                self._unreadable[asked] = str(error)
                continue
            if reply is None or _says_expired(reply, sent):
                empty += time.monotonic() - began
            elif reply.has_error() and asked in self._unreadable:
                self._give_up(waiting, [asked], self._unreadable.pop(asked))
            else:
                del waiting[asked]
                self._unreadable.pop(asked, None)
                replies.append(reply)
                self.arrived(len(replies))
        return empty

    def _is_enough(self, replies: list[Message]) -> bool:
        return (
            self.stop_at_replies is not None and sum(not reply.has_error() for reply in replies) >= self.stop_at_replies
        )

    def _check_nodes(self, waiting: dict[str, Sent]) -> None:
        """Find devices that restarted and late replies to earlier rounds, and call `meanwhile`."""
        now = self._connected()
        gone = [name for name, sent in waiting.items() if now.get(sent.node, sent.connected) != sent.connected]
        for asked in list(self._overdue):
            with suppress(UnreadableReplyError):
                if (reply := fetch(self.grid, asked)) is not None:
                    self._overdue.remove(asked)
                    self._late += [] if reply.has_error() else [asked]
        self._give_up(waiting, gone, "restarted during the round")
        self.meanwhile()

    def _give_up(self, waiting: dict[str, Sent], names: Iterable[str], why: str) -> None:
        for name in list(names):
            del waiting[name]
            self._overdue.add(name)
            self.unanswered[name] = why

    def _connected(self) -> dict[int, str]:
        return {node.node_id: node.last_activated_at for node in self.grid.get_nodes()}


def _says_expired(reply: Message, sent: Sent) -> bool:
    """Whether this is Flower's own error that a message expired, which may come just before our deadline."""
    return reply.has_error() and time.time() >= sent.expires
