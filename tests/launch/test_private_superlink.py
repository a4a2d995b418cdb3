"""Who calls, read off the kernel's table; with a real SuperLink and a real other user: `test_launcher.py`."""

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from sofed_flwr.launch import private_superlink
from sofed_flwr.launch.private_superlink import caller, own_user_only

HEADING = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
LISTENS = "   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     7        0 111 1 0\n"
OTHER = "   1: 0100007F:A000 0100007F:1F91 01 00000000:00000000 00:00000000 00000000  1001        0 222 1 0\n"
OPEN = "   2: 0100007F:A000 0100007F:1F90 01 00000000:00000000 00:00000000 00000000  1002        0 333 1 0\n"
CLOSED = "   3: 0100007F:A001 0100007F:1F90 06 00000000:00000000 03:00000A5C 00000000     0        0 0 3 0\n"
SERVER = ("127.0.0.1", 0x1F90)


def test_the_caller_is_found_by_both_ends_of_its_connection(tmp_path: Path) -> None:
    (table := tmp_path / "tcp").write_text(HEADING + LISTENS + OTHER + OPEN + CLOSED)
    assert caller(("127.0.0.1", 0xA000), SERVER, table) == 1002
    assert caller(("127.0.0.1", 0xA002), SERVER, table) is None


def test_a_caller_that_closed_its_end_is_nobody_and_not_root(tmp_path: Path) -> None:
    (table := tmp_path / "tcp").write_text(HEADING + CLOSED)
    assert caller(("127.0.0.1", 0xA001), SERVER, table) is None


def test_a_real_connection_is_ours() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        with socket.create_connection(server.getsockname()) as client:
            address = client.getsockname()
            assert caller(address, server.getsockname()) == os.getuid()
        assert caller(address, server.getsockname()) is None


@pytest.mark.parametrize(("user", "expected"), [(1000, [200]), (1001, [403]), (None, [403]), (0, [200])])
def test_only_its_own_user_reaches_flower(
    monkeypatch: pytest.MonkeyPatch, user: int | None, expected: list[int]
) -> None:
    async def flower(scope: dict[str, Any], receive: Any, send: Callable[[dict[str, Any]], Awaitable[None]]) -> None:
        await send({"type": "http.response.start", "status": 200})

    said: list[int] = []

    async def send(message: dict[str, Any]) -> None:
        said.extend([message["status"]] if "status" in message else [])

    monkeypatch.setattr(private_superlink, "caller", lambda client, server: user)
    monkeypatch.setattr(os, "getuid", lambda: 1000)
    scope = {"type": "http", "client": ("127.0.0.1", 5), "server": SERVER}
    asyncio.run(own_user_only(flower)(scope, None, send))
    assert said == expected
