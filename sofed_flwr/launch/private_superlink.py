"""Flower's SuperLink, controlled by one user of this machine only.

Anybody who reaches its port can run code as its user, and on the devices of a fleet; Flower 1.39 has no login without
its commercial plugins. On loopback the kernel knows the caller: /proc/net/tcp names the user of either end of a
connection. So a request of another user, root excepted, is answered with 403 before Flower sees it. There is no secret
that could leak, and Flower's own commands need no change. The port for devices is another one and stays open.
"""

import logging
import os
import socket
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import uvicorn
from flwr.superlink.cli import flower_superlink

Address = tuple[str, int]
Application = Callable[[dict[str, Any], Any, Callable[[dict[str, Any]], Awaitable[None]]], Awaitable[None]]

TABLE = Path("/proc/net/tcp")
log = logging.getLogger("flwr")


def caller(client: Address, server: Address, table: Path = TABLE) -> int | None:
    """User id of the process that holds the client's end of an IPv4 connection on this machine; None if unknown.

    A socket without an inode belongs to no process any more; the kernel then reports its user as root.
    """
    ends = [_hexadecimal(client), _hexadecimal(server)]
    lines = [line.split() for line in table.read_text().splitlines()[1:]]
    return next((int(fields[7]) for fields in lines if fields[1:3] == ends and fields[9] != "0"), None)


def own_user_only(application: Application) -> Application:
    """The application, refusing other users' requests."""

    async def guarded(scope: dict[str, Any], receive: Any, send: Callable[[dict[str, Any]], Awaitable[None]]) -> None:
        if scope["type"] == "lifespan" or caller(scope["client"], scope["server"]) in (0, os.getuid()):
            await application(scope, receive, send)
            return
        await send({"type": "http.response.start", "status": 403, "headers": []})
        await send({"type": "http.response.body", "body": b"another user's SuperLink"})

    return guarded


def main() -> None:
    """`flower-superlink` with its own arguments."""
    serve = uvicorn.run
    if _works_here():
        uvicorn.run = lambda app, **options: serve(own_user_only(app), **options)
    else:
        log.warning("%s does not name callers: every user of this machine can control this SuperLink", TABLE)
    flower_superlink()


def _works_here() -> bool:
    """Some sandboxes have no such table, or an empty one."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        return TABLE.exists() and caller(client.getsockname(), server.getsockname()) == os.getuid()


def _hexadecimal(address: Address) -> str:
    """As the kernel prints it: the four bytes as one number of this machine's byte order."""
    return f"{int.from_bytes(socket.inet_aton(address[0]), sys.byteorder):08X}:{address[1]:04X}"


if __name__ == "__main__":
    main()
