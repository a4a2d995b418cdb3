"""The process of `sofed collect`: without torch, small enough to run beside training for months."""

import json
import sys
from functools import partial
from pathlib import Path

from sofed_flwr.fleet.collect.collector import Collector
from sofed_flwr.fleet.collect.spool import Spool
from sofed_flwr.fleet.collect.stopping import Stopping


def main(order: str) -> None:
    """Collect until a signal comes; that is the normal end, so the exit code is 0."""
    content = json.loads(order)
    spool = Spool(Path(content.pop("spool")), content.pop("limit"))
    with Stopping() as stopping:
        Collector(spool, stopping, partial(print, "sofed collect:", flush=True), **content).run()


if __name__ == "__main__":
    main(sys.argv[1])
