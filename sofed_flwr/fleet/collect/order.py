"""Options of `sofed collect`, checked before the collector starts, as JSON for its process."""

import json
import math
import os
import shlex
import shutil
import sys
from pathlib import Path

from sofed_flwr.core.errors import ConfigError
from sofed_flwr.fleet.collect.spool import parse_bytes
from sofed_flwr.images.child_process import camera_command, has_opencv


def order(spool: Path, camera: str | None, command: str | None, every: float, limit: str, timeout: float) -> str:
    """As JSON. Our own camera program skips frames itself; of another command all frames are read."""
    if (camera is None) == (command is None):
        raise ConfigError("collect: give either --camera INDEX or --command COMMAND")
    for name, seconds, least in (("timeout", timeout, 0.1), ("every", every, 0)):
        if not least <= seconds < math.inf:  # refuses NaN, too
            raise ConfigError(f"--{name}={seconds}: expected seconds, at least {least}")
    try:
        allowed = parse_bytes(limit)
    except ValueError as error:
        raise ConfigError(f"--{error}") from error
    content = {"spool": str(_made(spool.expanduser().absolute())), "limit": allowed}
    if camera is not None:
        if not has_opencv():
            raise ConfigError(f"--camera={camera}: needs OpenCV; pip install 'sofed-flwr[camera]'")
        return json.dumps(
            {**content, "command": camera_command(camera, every), "every": 0.0, "timeout": timeout + every}
        )
    try:
        program = shlex.split(command or "")
    except ValueError as error:
        raise ConfigError(f"--command={command}: {str(error).lower()}") from error
    if not program or shutil.which(program[0]) is None:
        raise ConfigError(f"--command={command}: there is no such program here")
    return json.dumps({**content, "command": program, "every": every, "timeout": timeout})


def _made(spool: Path) -> Path:
    try:
        spool.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise ConfigError(f"{spool}: cannot be a spool ({error.strerror})") from error
    return spool


def replace_process(order: str) -> None:
    """Become the collector, under the same process id, which frees the memory of all imports so far."""
    os.execv(sys.executable, [sys.executable, "-m", "sofed_flwr.fleet.collect", order])
