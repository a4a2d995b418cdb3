"""One round's messages over Flower's grid: sent, awaited as long as it is worth it, then let go.

Flower's own `send_and_receive` looks every three seconds and waits for every reply or the deadline, also for a device
that restarted and will never answer, because a message is delivered once. Here a round ends, too, when enough devices
have answered (ask more than you need: some drop out of every round) and when nobody is left to wait for. What arrives
for a round gone by is ignored, and counted.
"""

import time
from collections.abc import Iterable
from typing import NamedTuple

from flwr.app import Message
from flwr.serverapp import Grid

POLL_SECONDS = 0.25
PRESENCE_SECONDS = 3.0
"""Between two looks at who is connected; Flower itself learns of it no faster."""


class Sent(NamedTuple):
    """A message on its way: to which node, since when that node had been connected, and when the message expires."""

    node: int
    connected: str
    expires: float


class Exchange:
    """Stands in for the grid in Flower's round loop; `enough` usable replies end a round, None waits for all."""

    def __init__(self, grid: Grid, enough: int | None) -> None:
        self.grid = grid
        self.enough = enough
        self.unanswered: dict[str, str] = {}
        """Of the last round: why there is no reply, by message id."""
        self._overdue: set[str] = set()
        self._late: list[str] = []

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float) -> list[Message]:
        """The replies that came in time, errors among them."""
        until = time.monotonic() + timeout
        waiting = self._send(list(messages))
        replies: list[Message] = []
        next_look = time.monotonic() + PRESENCE_SECONDS
        while waiting and time.monotonic() < until:
            replies += self._pull(waiting)
            if self._is_enough(replies):
                break
            if time.monotonic() > next_look:
                self._give_up_restarted(waiting)
                next_look = time.monotonic() + PRESENCE_SECONDS
            time.sleep(POLL_SECONDS if waiting else 0)
        why = f"{self.enough} replies were enough" if self._is_enough(replies) else f"no reply within {timeout:g} s"
        self._let_go(waiting, waiting.keys(), why)
        return replies

    def late(self) -> list[str]:
        """Ids of messages whose replies came after their round had ended, each once."""
        found, self._late = self._late, []
        return found

    def _send(self, messages: list[Message]) -> dict[str, Sent]:
        self.unanswered = {}
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

    def _pull(self, waiting: dict[str, Sent]) -> list[Message]:
        replies = []
        for reply in self.grid.pull_messages([*waiting, *self._overdue]):
            asked = reply.metadata.reply_to_message_id
            if asked in waiting:
                if not _says_expired(reply, waiting[asked]):
                    del waiting[asked]
                    replies.append(reply)
            elif asked in self._overdue:
                self._overdue.remove(asked)
                self._late += [] if reply.has_error() else [asked]
        return replies

    def _is_enough(self, replies: list[Message]) -> bool:
        return self.enough is not None and sum(not reply.has_error() for reply in replies) >= self.enough

    def _give_up_restarted(self, waiting: dict[str, Sent]) -> None:
        now = self._connected()
        gone = [name for name, sent in waiting.items() if now.get(sent.node, sent.connected) != sent.connected]
        self._let_go(waiting, gone, "restarted during the round")

    def _let_go(self, waiting: dict[str, Sent], names: Iterable[str], why: str) -> None:
        for name in list(names):
            del waiting[name]
            self._overdue.add(name)
            self.unanswered[name] = why

    def _connected(self) -> dict[int, str]:
        return {node.node_id: node.last_activated_at for node in self.grid.get_nodes()}


def _says_expired(reply: Message, sent: Sent) -> bool:
    """Flower's own word that a message's time is up; it may come just before our deadline and says no more."""
    return reply.has_error() and time.time() >= sent.expires
