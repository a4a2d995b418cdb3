"""Which Flower node is which device. Node ids change; state and metrics are kept by device number.

A registered device is known by the name under which its key was registered, such as `device-7`: no other node can claim
it. A node without such a name (simulation, or a fleet without node keys) is asked for its number, once per connection
(and once a round while its answer is an error), and no round waits for that. Its answer is only a claim: it does not
get a device that is registered, taken or not of this run. The first node to claim a device keeps it until it
disconnects.

A simulated node has no device of its own, only a rank, and the simulated nodes take the devices in turn. Ranks are used
only if every answer is one: otherwise a single such answer among real devices would take all devices.
"""

import logging
import re
import time
from collections.abc import Iterable

from flwr.app import Context, Message, MessageType, MetricRecord, RecordDict
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid

from sofed_flwr.core.errors import TooFewDevicesError, UnreadableReplyError
from sofed_flwr.flower.round_grid import fetch

QUERY_SECONDS = 3600.0
"""A busy device answers late; no round waits for it."""
QUESTIONS = 100
"""Most open questions at a time: polling for answers takes time."""
REFUSALS_LOGGED = 20
"""A node that reconnects again and again must not fill the log."""
POLL_SECONDS = 0.25
STATUS_SECONDS = 60.0
REGISTERED = re.compile(r"device-([0-9]{1,9})")
LARGEST = 10**9
"""No device has a number this large."""

log = logging.getLogger(__name__)


def identify(message: Message, context: Context) -> Message:
    """A node's answer to "who are you?": a real device has a number of its own, a simulated node only a rank."""
    node = context.node_config
    name, number = ("device", node["device-id"]) if "device-id" in node else ("rank", node["partition-id"])
    return Message(RecordDict({"identity": MetricRecord({name: int(number)})}), reply_to=message)


class NodeRegistry:
    """Maps devices to nodes; a round needs at least `fewest` devices to begin."""

    def __init__(self, grid: Grid, devices: Iterable[int], fewest: int) -> None:
        self._grid = grid
        self._wanted = sorted(devices)
        self._fewest = fewest
        self._named: dict[int, int] = {}
        self._answers: dict[int, tuple[str, int]] = {}
        self._registered: set[int] = set()
        self._has_devices = False
        self._open: dict[str, int] = {}
        self._asked: dict[int, str] = {}
        self._failed: set[int] = set()
        self._refused: set[tuple[int, str]] = set()

    def gather(self, first_wait: float, quorum_wait: float) -> dict[int, int]:
        """Device -> node: of all devices, or of those connected after `first_wait` seconds if they are enough.

        With too few it logs a warning once a minute, and raises `TooFewDevicesError` after `quorum_wait` seconds.
        """
        for node in self._failed:
            self._asked.pop(node, None)
        self._failed.clear()
        began = time.monotonic()
        next_status = STATUS_SECONDS
        while True:
            self.meet()
            waited = time.monotonic() - began
            here = self._here(patient=waited < first_wait)
            if len(here) == len(self._wanted) or (len(here) >= self._fewest and waited >= first_wait):
                return here
            if waited > quorum_wait:
                raise TooFewDevicesError(
                    f"{TooFewDevicesError.SENTENCE} within {quorum_wait:g} s: {self._status(here)}"
                )
            if waited > next_status:
                log.warning("waiting for devices: %s; giving up in %.0f s", self._status(here), quorum_wait - waited)
                next_status += STATUS_SECONDS
            time.sleep(POLL_SECONDS)

    def meet(self) -> None:
        """Update which nodes are connected and have answered; ask unknown ones. Does not wait."""
        present = sorted(self._grid.get_nodes(), key=lambda node: (node.last_activated_at, node.node_id))
        ids = {node.node_id for node in present}
        self._named = {node.node_id: int(match[1]) for node in present if (match := REGISTERED.fullmatch(node.name))}
        self._registered |= set(self._named.values())
        self._answers = {node: answer for node, answer in self._answers.items() if node in ids}
        self._asked = {node: since for node, since in self._asked.items() if node in ids}
        self._read_answers()
        known = self._named.keys() | self._answers.keys()
        unknown = [node for node in present if node.node_id not in known]
        self._ask([node for node in unknown if self._asked.get(node.node_id) != node.last_activated_at])

    def _status(self, here: dict[int, int]) -> str:
        missing = [device for device in self._wanted if device not in here]
        return f"{len(here)} of at least {self._fewest} are here, missing {missing[:20]}"

    def _here(self, patient: bool) -> dict[int, int]:
        """A real node is its own device; simulated nodes take the devices in turn.

        If `patient`, only after all of them have answered, so that all share the work.
        """
        ranks = sorted((rank, node) for node, (kind, rank) in self._answers.items() if kind == "rank")
        self._has_devices |= bool(self._named) or len(ranks) < len(self._answers)
        if ranks and not self._has_devices:
            nodes = [] if self._open and patient else [node for _, node in ranks]
            return {device: nodes[place % len(nodes)] for place, device in enumerate(self._wanted) if nodes}
        here: dict[int, int] = {}
        for node, (kind, device) in self._answers.items():
            if kind == "rank":
                self._refuse(node, "answers like a simulated one, beside real devices")
            elif device in self._registered:
                self._refuse(node, f"claims device {device}, which is registered with a key")
            elif device not in self._wanted:
                self._refuse(node, f"claims device {device}, which is not one of this run")
            elif here.setdefault(device, node) != node:
                self._refuse(node, f"claims device {device}, which another node has claimed")
        return here | {device: node for node, device in self._named.items() if device in self._wanted}

    def _ask(self, nodes: list[NodeInfo]) -> None:
        chosen = nodes[: QUESTIONS - len(self._open)]
        questions = [
            Message(RecordDict(), dst_node_id=node.node_id, message_type=MessageType.QUERY, ttl=QUERY_SECONDS)
            for node in chosen
        ]
        accepted = set(self._grid.push_messages(questions)) if questions else set()
        again = {node.node_id for node in chosen}
        self._open = {question: node for question, node in self._open.items() if node not in again}
        for node, question in zip(chosen, questions, strict=True):
            if question.metadata.message_id in accepted:
                self._asked[node.node_id] = node.last_activated_at
                self._open[question.metadata.message_id] = node.node_id

    def _read_answers(self) -> None:
        """Read the answers so far; an answer belongs to the node that was asked, whatever it claims."""
        for question, node in list(self._open.items()):
            try:
                answer = fetch(self._grid, question)
            except UnreadableReplyError:
                self._refuse(node, "does not say which device it is")
                continue
            if answer is None:
                continue
            del self._open[question]
            if node not in self._asked:
                continue
            if answer.has_error():
                self._failed.add(node)
                continue
            identity = _identity(answer)
            if identity is None:
                self._refuse(node, "does not say which device it is")
            else:
                self._answers[node] = identity

    def _refuse(self, node: int, why: str) -> None:
        if (node, why) in self._refused or len(self._refused) == REFUSALS_LOGGED:
            return
        self._refused.add((node, why))
        last = "; no more of this kind is logged" if len(self._refused) == REFUSALS_LOGGED else ""
        log.warning("node %d is not asked to train: it %s%s", node, why, last)


def _identity(answer: Message) -> tuple[str, int] | None:
    """What a node claims to be, "device" or "rank", and its number; None for an unusable answer."""
    content = answer.content if answer.has_content() else None
    record = content.get("identity") if isinstance(content, RecordDict) else None
    if not isinstance(record, MetricRecord) or len(record) != 1:
        return None
    kind, number = next(iter(record.items()))
    if kind in ("device", "rank") and type(number) is int and 0 <= number < LARGEST:
        return kind, number
    return None
