"""Checks of what the machine keeps: state directory, private key, and the images that come in."""

import os
import subprocess
import sys
from itertools import islice
from pathlib import Path

from sofed_flwr.doctor.finding import Finding
from sofed_flwr.provision.certificates import device_public_key

OTHERS = 0o077
CAMERA_SECONDS = 30.0
CAMERA_CHILD = """
import sys, cv2
name = sys.argv[1]
read, frame = cv2.VideoCapture(int(name) if name.isdigit() else name).read()
sys.exit(0 if read else "the camera gives no frame")
"""


def check_state(place: Path) -> Finding:
    """Commit a file as `store.py` does, and look who else may read: the buffer holds images."""
    remedy = f"sudo install -d -m 0700 -o sofed {place}, and run this check as the user who trains: sudo -u sofed"
    if not place.is_dir():
        return Finding("state", "fail", f"{place} is not a directory", remedy)
    probe = place / ".doctor.tmp"
    try:
        with probe.open("wb") as file:
            file.write(b"probe")
            file.flush()
            os.fsync(file.fileno())
        probe.replace(committed := place / ".doctor")
        committed.unlink()
    except OSError as error:
        return Finding("state", "fail", f"{place} cannot be written ({error.strerror})", remedy)
    mode = place.stat().st_mode & 0o777
    if mode & OTHERS:
        return Finding("state", "warn", f"{place} has mode {mode:04o}: others may look in", f"chmod 0700 {place}")
    return Finding("state", "ok", f"{place} is writable and private")


def check_private(place: Path) -> Finding:
    """A private key that others can read is no key."""
    if not place.exists():
        return Finding("key", "fail", f"{place} does not exist", "copy it from the site's folder of this device")
    mode = place.stat().st_mode & 0o777
    if mode & OTHERS:
        return Finding("key", "fail", f"{place} has mode {mode:04o}, expected 0600", f"chmod 0600 {place}")
    if not os.access(place, os.R_OK):
        return Finding("key", "fail", f"{place} is not readable by this user", "run as its owner: sudo -u sofed")
    return Finding("key", "ok", f"{place}, 0600")


def check_device_key(place: Path) -> Finding:
    """Private, and of the kind Flower reads."""
    finding = check_private(place)
    if finding.verdict != "ok":
        return finding
    try:
        kind = device_public_key(place.read_bytes(), "device").split()[0].decode()
    except ValueError as error:
        return Finding("key", "fail", f"{place} is not a private key ({error})", "copy it anew from the site")
    return Finding("key", "ok", f"{place}, 0600, {kind}")


def check_source(source: str) -> Finding:
    """A spool is a directory to read from; anything else that exists or has a number is a camera."""
    place = Path(source)
    if source.isdigit() or place.is_char_device():
        return _camera(source)
    remedy = f"sudo install -d -m 0750 -o sofed {source}, and let `sofed collect` or anything else put images into it"
    if not place.is_dir():
        return Finding("images", "fail", f"{source} is not a directory", remedy)
    try:
        some = sum(1 for _ in islice(place.iterdir(), 1001))
    except OSError as error:
        return Finding("images", "fail", f"{source} cannot be read ({error.strerror})", remedy)
    if not some:
        return Finding("images", "warn", f"{source} is empty", "a device without new images trains on its buffer")
    return Finding("images", "ok", f"{source} holds {some if some < 1001 else 'over 1000'} files")


def _camera(source: str) -> Finding:
    """In a child, because a camera that hangs cannot be interrupted from within."""
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
