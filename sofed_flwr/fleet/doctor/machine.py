"""Checks of the machine: Python, Flower, torch, memory, disk, synchronised clock."""

import ctypes
import platform
import shutil
import signal
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from sofed_flwr.fleet.doctor.finding import Finding, Verdict

OLDEST_PYTHON = (3, 11)
FLOWER = "1.39."
TORCH_SECONDS = 180.0  # a Raspberry Pi imports torch in 10 to 20 s from a slow card
TORCH_CHILD = """
import torch
assert torch.nn.functional.conv2d(torch.ones(2, 3, 8, 8), torch.ones(4, 3, 3, 3)).sum() == 2 * 4 * 36 * 27
assert (torch.ones(64, 64) @ torch.ones(64, 64)).sum() == 64**3
print(torch.__version__)
"""
MEMORY_MB = (500, 1000)
"""Fail, warn below: SuperNode and executor idle at 265 MB; the training process needs as much before it has a model."""
DISK_MB = (200, 1000)
"""Fail, warn below: state is tens of MB in two generations, the spool is bounded, logs and Flower's app copies grow."""
UNSYNCHRONISED = 5  # TIME_ERROR of adjtimex(2)


def check_python(found: tuple[int, ...] = sys.version_info[:3]) -> Finding:
    """Flower 1.39 needs 3.11."""
    text = ".".join(map(str, found))
    if found >= OLDEST_PYTHON:
        return Finding("Python", "ok", f"{text}, {platform.machine()}")
    return Finding("Python", "fail", f"{text}, 3.11 or newer is needed", "JetPack 6 has 3.10: use its containers or uv")


def check_flower(programs: Path) -> Finding:
    """Same version on all sides, and its commands where the scripts expect them: without one of them a node hangs."""
    names = ("flower-superlink", "flower-supernode", "flower-superexec", "flwr-clientapp", "flwr-serverapp")
    missing = [name for name in names if not shutil.which(name, path=str(programs))]
    if missing:
        seen = f"{programs} has no {', '.join(missing)}"
        return Finding("Flower", "fail", seen, "set SOFED_BIN in sofed.env to the bin folder of the environment")
    try:
        found = version("flwr")
    except PackageNotFoundError:
        found = "nothing"
    if found.startswith(FLOWER):
        return Finding("Flower", "ok", f"{found} in {programs}")
    return Finding("Flower", "fail", f"flwr {found}, all sides need {FLOWER}*", "pip install 'flwr>=1.39,<1.40'")


def check_torch() -> Finding:
    """In a child process, because a torch built for another processor dies at an illegal instruction."""
    try:
        command = [sys.executable, "-c", TORCH_CHILD]
        child = subprocess.run(command, capture_output=True, text=True, timeout=TORCH_SECONDS)
    except subprocess.TimeoutExpired:
        return Finding("torch", "fail", f"no result within {TORCH_SECONDS:g} s", "free memory, or a faster disk")
    if child.returncode == 0:
        return Finding("torch", "ok", f"{child.stdout.strip()} imports, convolves and multiplies")
    if child.returncode > 0:
        return Finding(
            "torch", "fail", child.stderr.strip().splitlines()[-1], "pip install torch (on a Pi: CPU wheels)"
        )
    number = -child.returncode
    seen = f"died by signal {number} ({signal.Signals(number).name})"
    if number == signal.SIGILL:
        remedy = (
            "this torch is built for another processor. Raspberry Pi 4: not 2.4.0 or 2.10.0, take 2.11 or newer; "
            "x86 whose system grants no AMX: no bf16"
        )
        return Finding("torch", "fail", seen, remedy)
    remedy = "out of memory: add swap" if number == signal.SIGKILL else "reinstall torch"
    return Finding("torch", "fail", seen, remedy)


def check_memory(table: Path = Path("/proc/meminfo")) -> Finding:
    """Available memory, which includes the kernel's caches."""
    lines = [line.split() for line in table.read_text().splitlines()] if table.exists() else []
    found = [int(words[1]) // 1024 for words in lines if words[0] == "MemAvailable:"]
    if not found:
        return Finding("memory", "unknown", f"{table} does not say")
    remedy = "close programs, add swap; a smaller encoder= and buffer= need less"
    return _enough("memory", found[0], MEMORY_MB, "available", remedy)


def check_disk(place: Path) -> Finding:
    """Where the state is, or will be."""
    existing = next(path for path in (place, *place.resolve().parents) if path.exists())
    free = shutil.disk_usage(existing).free // 2**20
    return _enough("disk", free, DISK_MB, f"free at {existing}", "delete old runs; bound the spool; a larger card")


def kernel_clock() -> int | None:
    """State of the clock by Linux, whichever service sets it; None on other systems."""
    query = getattr(ctypes.CDLL(None), "adjtimex", None)
    return int(query(ctypes.create_string_buffer(512))) if query else None


def check_ntp(state: int | None) -> Finding:
    """An unsynchronised clock drifts by seconds a day on a small board, until the server refuses it."""
    if state is None or state < 0:
        return Finding("NTP", "unknown", "this system does not say whether its clock is synchronised")
    if state != UNSYNCHRONISED:
        return Finding("NTP", "ok", "the clock is synchronised")
    remedy = "sudo timedatectl set-ntp true; without internet, NTP from the server"
    return Finding("NTP", "warn", "the clock is not synchronised", remedy)


def _enough(name: str, found: int, limits: tuple[int, int], what: str, remedy: str) -> Finding:
    least, comfortable = limits
    verdict: Verdict = "fail" if found < least else "warn" if found < comfortable else "ok"
    needed = "" if verdict == "ok" else f", {comfortable} MB are wanted, {least} needed"
    return Finding(name, verdict, f"{found} MB {what}{needed}", "" if verdict == "ok" else remedy)
