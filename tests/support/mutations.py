"""Damage to files, decided by a seed: bytes as a failing disk leaves them, and structure as an attacker writes it."""

import io
import json
import zipfile
from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import yaml

from sofed_flwr.storage.generations import ALL_OR_NOTHING
from sofed_flwr.storage.tensor_file import decode, encode

Mutation = Callable[[bytes, Random], bytes]

DEEP: Any = []
for _ in range(200):
    DEEP = [DEEP]
HOSTILE: list[Any] = [
    *(None, True, -1, 0, 1, 7, 0.5, -0.0, 2**31, 2**63, 10**30, 1e308, -1e308, float("nan"), float("inf")),
    *(
        "",
        "x",
        "0",
        "nan",
        "~",
        "a" * 5000,
        "[/b]",
        "\x1b[2J",
        "line\nline",
        "${oc.env:HOME}",
        "/dev/null",
        "../..",
        "'",
    ),
    *([], {}, [[]], [None], {"": None}, {"_target_": "os.getcwd"}, list(range(300)), DEEP),
]


def damaged(content: bytes, random: Random) -> bytes:
    """One to three accidents to any file."""
    for _ in range(random.randint(1, 3)):
        content = random.choice(ACCIDENTS)(content, random)
    return content


def _flip(content: bytes, random: Random) -> bytes:
    if not content:
        return content
    place, data = random.randrange(len(content)), bytearray(content)
    data[place] ^= 1 << random.randrange(8)
    return bytes(data)


def _truncate(content: bytes, random: Random) -> bytes:
    return content[: random.randint(0, len(content))]


def _insert(content: bytes, random: Random) -> bytes:
    place = random.randint(0, len(content))
    return content[:place] + random.randbytes(random.randint(1, 40)) + content[place:]


def _overwrite(content: bytes, random: Random) -> bytes:
    place, length = random.randint(0, len(content)), random.randint(1, 64)
    filling = random.choice([b"\x00", b"\xff", b"9", b"[", b'"', b"\n", b" "]) * length
    return content[:place] + filling + content[place + length :]


def _delete(content: bytes, random: Random) -> bytes:
    place = random.randint(0, len(content))
    return content[:place] + content[place + random.randint(1, 64) :]


def _swap(content: bytes, random: Random) -> bytes:
    first, second, third = sorted(random.randint(0, len(content)) for _ in range(3))
    return content[:first] + content[second:third] + content[first:second] + content[third:]


ACCIDENTS: list[Mutation] = [_flip, _flip, _truncate, _insert, _overwrite, _delete, _swap]


def edited(data: Any, random: Random) -> Any:
    """One value anywhere in a tree becomes another, disappears or appears."""
    if isinstance(data, dict) and data and random.random() < 0.85:
        key = random.choice(list(data))
        how = random.random()
        if how < 0.1:
            return {name: value for name, value in data.items() if name != key}
        if how < 0.15:
            return {**data, "surplus": random.choice(HOSTILE)}
        return {**data, key: edited(data[key], random)}
    if isinstance(data, list) and data and random.random() < 0.85:
        place = random.randrange(len(data))
        return [*data[:place], edited(data[place], random), *data[place + 1 :]]
    return random.choice(HOSTILE)


def edit_json(content: bytes, random: Random) -> bytes:
    return json.dumps(edited(json.loads(content), random)).encode()


def edit_lines(content: bytes, random: Random) -> bytes:
    """One line of JSON among many."""
    lines = content.splitlines()
    place = random.randrange(len(lines))
    lines[place] = edit_json(lines[place], random)
    return b"\n".join(lines) + b"\n"


def edit_rows(content: bytes, random: Random) -> bytes:
    """One cell of a CSV."""
    rows = [line.split(b",") for line in content.splitlines()]
    row = random.choice(rows)
    row[random.randrange(len(row))] = str(random.choice(HOSTILE)).encode()
    return b"\n".join(b",".join(cells) for cells in rows)


def edit_yaml(content: bytes, random: Random) -> bytes:
    return yaml.safe_dump(edited(yaml.safe_load(content), random), sort_keys=False).encode()


def edit_settings(content: bytes, random: Random) -> bytes:
    """A line of NAME=VALUE with what shells and parsers stumble over."""
    lines = content.decode().splitlines()
    place = random.randrange(len(lines))
    name, _, value = lines[place].partition("=")
    odd = ['"', "'", "$(id)", "`", "\\", "\x00", "\t", "=", "\x1b[2J", "[/b]", "999999999999", "-1", "::", "é"]
    lines[place] = f"{name}={random.choice([value, ''])}{random.choice(odd)}"
    return "\n".join(lines).encode()


def edit_npz(content: bytes, random: Random) -> bytes:
    """An array of other shape, type or values, with or without a header that says so."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    name = random.choice(list(members))
    array = np.load(io.BytesIO(members[name]))
    stated = np.lib.format.header_data_from_array_1_0(array)
    types = ["|u1", "<i8", "<u8", "<f2", "<f8", "<c16", "|O", "|S0", "<U3", "<M8[s]", "|b1"]
    shapes = [
        (),
        (0,),
        (2**62,),
        (10**9, 8, 8, 3),
        (1,) * 30,
        (-1,),
        array.shape[::-1],
        array.shape[:1],
        (len(array), 0),
    ]
    changes: dict[str, Any] = random.choice(
        [
            {"shape": random.choice(shapes)},
            {"descr": random.choice(types)},
            {"fortran_order": True},
            {"shape": random.choice(shapes), "descr": random.choice(types)},
        ]
    )
    file = io.BytesIO()
    np.lib.format.write_array_header_2_0(file, stated | changes)
    members[name] = file.getvalue() + array.tobytes()[: random.choice([None, 0, 7])]
    if random.random() < 0.3:
        values = [np.full(array.shape, value) for value in (-1, 0.5, np.nan, 2**40, "x")]
        file = io.BytesIO()
        np.save(file, random.choice(values))
        members[name] = file.getvalue()
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", random.choice([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])) as archive:
        for member, data in members.items():
            archive.writestr(member, data)
    return target.getvalue()


def edit_tensors(content: bytes, random: Random) -> bytes:
    """Other facts or tensors under checksums that are right: what a person writes, not a disk."""
    whole = decode(content)
    tensors, meta = dict(whole.tensors), whole.meta
    name = random.choice(list(tensors))
    match random.randrange(5):
        case 0:
            tensors[name] = tensors[name].new_full(tensors[name].shape, random.choice([-1, 0, 127]))
        case 1:
            tensors[name] = tensors[name].reshape(-1)[:1]
        case 2:
            del tensors[name]
        case _:
            meta = edited(meta, random)
    return encode(tensors, meta, ALL_OR_NOTHING)
