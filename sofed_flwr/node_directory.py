"""Which node speaks for which device. Node ids are Flower's; devices are what counts, and what state is keyed by.

A registered device is known by the name its key was registered under, `device-7`: nobody else can claim it. A node
without such a name (simulation, or a fleet without node keys) is asked who it is.
"""

import logging
import re
import time
from collections.abc import Iterable

from flwr.app import Context, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid

from sofed_flwr.stops import TooFewDevicesError

QUERY_SECONDS = 60.0
POLL_SECONDS = 1.0
STATUS_SECONDS = 60.0
REGISTERED = re.compile(r"device-(\d+)")

log = logging.getLogger(__name__)


def identify(message: Message, context: Context) -> Message:
    """A node's answer to "who are you?": a real device has a number of its own, a simulated node only a rank."""
    node = context.node_config
    name, number = ("device", node["device-id"]) if "device-id" in node else ("rank", node["partition-id"])
    return Message(RecordDict({"identity": MetricRecord({name: int(number)})}), reply_to=message)


class NodeDirectory:
    """Remembers who is who; `fewest` devices are needed for a round to begin."""

    def __init__(self, grid: Grid, devices: Iterable[int], fewest: int) -> None:
        self._grid = grid
        self._wanted = sorted(devices)
        self._fewest = fewest
        self._devices: dict[int, int] = {}
        self._ranks: dict[int, int] = {}

    def gather(self, everyone: float, wait: float) -> dict[int, int]:
        """Device -> node: of all devices, or of those here after `everyone` seconds if they are not too few.

        With too few of them it says so once a minute, and gives up after `wait` seconds.
        """
        began = time.monotonic()
        next_status = STATUS_SECONDS
        while True:
            here = self._here()
            waited = time.monotonic() - began
            if len(here) == len(self._wanted) or (len(here) >= self._fewest and waited >= everyone):
                return here
            if waited > wait:
                raise TooFewDevicesError(f"{TooFewDevicesError.SENTENCE} within {wait:g} s: {self._status(here)}")
            if waited > next_status:
                log.warning("waiting for devices: %s; giving up in %.0f s", self._status(here), wait - waited)
                next_status += STATUS_SECONDS
            time.sleep(POLL_SECONDS)

    def _status(self, here: dict[int, int]) -> str:
        missing = [device for device in self._wanted if device not in here]
        return f"{len(here)} of at least {self._fewest} are here, missing {missing}"

    def _here(self) -> dict[int, int]:
        """Real devices speak for themselves; simulated nodes, few or many, take the devices in turn."""
        self._meet()
        if self._ranks:
            nodes = sorted(self._ranks, key=lambda node: self._ranks[node])
            return {device: nodes[position % len(nodes)] for position, device in enumerate(self._wanted)}
        return {device: node for node, device in self._devices.items() if device in self._wanted}

    def _meet(self) -> None:
        """Take note of who came and who left; of two nodes for one device the later one is meant."""
        present = sorted(self._grid.get_nodes(), key=lambda node: node.last_activated_at)
        strangers = [node for node in present if node.node_id not in self._devices | self._ranks]
        unnamed = []
        for node in strangers:
            if match := REGISTERED.fullmatch(node.name):
                self._devices[node.node_id] = int(match[1])
            else:
                unnamed.append(node.node_id)
        self._ask(unnamed)
        order = [node.node_id for node in present]
        self._devices = {node: self._devices[node] for node in order if node in self._devices}
        self._ranks = {node: self._ranks[node] for node in order if node in self._ranks}

    def _ask(self, nodes: list[int]) -> None:
        questions = [
            Message(RecordDict(), dst_node_id=node, message_type=MessageType.QUERY, ttl=QUERY_SECONDS)
            for node in sorted(nodes)
        ]
        for reply in self._grid.send_and_receive(questions, timeout=QUERY_SECONDS) if questions else ():
            if not reply.has_error():
                identity = reply.content.metric_records["identity"]
                for name, known in (("device", self._devices), ("rank", self._ranks)):
                    if name in identity:
                        known[reply.metadata.src_node_id] = int(identity[name])  # type: ignore[arg-type]
