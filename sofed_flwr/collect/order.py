"""The user's wishes -> the collector's order, checked while somebody is looking."""

import json
import os
import shlex
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

from sofed_flwr.collect.spool import parse_bytes
from sofed_flwr.component import ConfigError


def order(spool: Path, camera: str | None, command: str | None, every: float, limit: str, timeout: float) -> str:
    """As JSON. Our own camera program takes only the frames that are wanted; any other is asked for all it has."""
    if (camera is None) == (command is None):
        raise ConfigError("collect: give either --camera INDEX or --command COMMAND")
    try:
        content = {"spool": str(spool.expanduser().absolute()), "limit": parse_bytes(limit)}
    except ValueError as error:
        raise ConfigError(f"--{error}") from error
    if camera is not None:
        if find_spec("cv2") is None:
            raise ConfigError(f"--camera={camera}: needs OpenCV; pip install 'sofed-flwr[camera]'")
        program = [sys.executable, "-m", "sofed_flwr.collect.camera", camera, str(every)]
        return json.dumps({**content, "command": program, "every": 0.0, "timeout": timeout + every})
    program = shlex.split(command or "")
    if not program or shutil.which(program[0]) is None:
        raise ConfigError(f"--command={command}: there is no such program here")
    return json.dumps({**content, "command": program, "every": every, "timeout": timeout})


def replace_process(order: str) -> None:
    """Become the collector, under the same process id: the memory of everything imported so far is given back."""
    os.execv(sys.executable, [sys.executable, "-m", "sofed_flwr.collect", order])
