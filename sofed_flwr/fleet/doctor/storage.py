"""Checks of the state directory and of the source of images."""

import subprocess
import sys
from itertools import islice
from pathlib import Path

from sofed_flwr.fleet.doctor.finding import Finding
from sofed_flwr.storage.atomic_files import write_atomically

OTHERS = 0o077
CAMERA_SECONDS = 30.0
CAMERA_CHILD = """
import sys, cv2
name = sys.argv[1]
read, frame = cv2.VideoCapture(int(name) if name.isdigit() else name).read()
sys.exit(0 if read else "the camera gives no frame")
"""


def check_state(place: Path) -> Finding:
    """Write a file as a commit does, and check who else may read: the buffer holds images."""
    remedy = f"sudo install -d -m 0700 -o sofed {place}, and run this check as the user who trains: sudo -u sofed"
    if not place.is_dir():
        return Finding("state", "fail", f"{place} is not a directory", remedy)
    probe = place / ".doctor"
    try:
        write_atomically(probe, b"probe")
        probe.unlink()
    except OSError as error:
        return Finding("state", "fail", f"{place} cannot be written ({error.strerror})", remedy)
    mode = place.stat().st_mode & 0o777
    if mode & OTHERS:
        return Finding("state", "warn", f"{place} has mode {mode:04o}: others may read it", f"chmod 0700 {place}")
    return Finding("state", "ok", f"{place} is writable and private")


def check_source(source: str) -> Finding:
    """By the scheme of node config, without `sources/`: that needs torch, which may be what is broken here."""
    scheme, colon, text = source.partition(":")
    if scheme == "spool" and text:
        return _spool(Path(text).expanduser())
    if scheme == "camera" and text:
        return _camera(text)
    if not colon and scheme != "dataset":
        return Finding("images", "fail", f"{source} does not say of which kind it is", f"write spool:{source}")
    return Finding("images", "warn", f"{source} is not checked here", "the first round shows whether it gives images")


def _spool(place: Path) -> Finding:
    remedy = f"sudo install -d -m 0750 -o sofed {place}, and let `sofed collect` or anything else put images into it"
    if not place.is_dir():
        return Finding("images", "fail", f"{place} is not a directory", remedy)
    try:
        some = sum(1 for _ in islice(place.iterdir(), 1001))
    except OSError as error:
        return Finding("images", "fail", f"{place} cannot be read ({error.strerror})", remedy)
    if not some:
        return Finding("images", "warn", f"{place} is empty", "a device without new images trains on its buffer")
    return Finding("images", "ok", f"{place} holds {some if some < 1001 else 'over 1000'} files")


def _camera(source: str) -> Finding:
    """In a child process, because a camera that hangs cannot be interrupted."""
    remedy = "plug it in, join the group video, pip install 'sofed-flwr[camera]'; a Pi camera needs picamera2 by apt"
    try:
        command = [sys.executable, "-c", CAMERA_CHILD, source]
        child = subprocess.run(command, capture_output=True, text=True, timeout=CAMERA_SECONDS)
    except subprocess.TimeoutExpired:
        return Finding("images", "fail", f"camera {source} gave no frame within {CAMERA_SECONDS:g} s", remedy)
    if child.returncode:
        reason = (child.stderr.strip().splitlines() or ["no reason given"])[-1]
        return Finding("images", "fail", f"camera {source}: {reason}", remedy)
    return Finding("images", "ok", f"camera {source} gives frames")
