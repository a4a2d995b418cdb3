"""A camera that is read while the round runs: real child processes, good and bad ones."""

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import pytest
from PIL import Image

from sofed_flwr.build import build_device, build_method
from sofed_flwr.config.schema import RunConfig
from sofed_flwr.core.errors import DeviceError
from sofed_flwr.device.node_config import Node
from sofed_flwr.images import child_process
from sofed_flwr.sources import camera
from sofed_flwr.sources.camera import CameraSource, check_source
from tests.support.frames import encoded, jpeg, picture

SIZE = 16
BLACK = encoded(Image.new("RGB", (48, 36)))


def showing(folder: Path, frames: list[bytes], then: str = "") -> list[str]:
    """A program that writes its process id to a file, then frames, and then does something."""
    (folder / "frames").write_bytes(b"".join(frames))
    script = (
        f"import os, pathlib, signal, sys, time\n"
        f"pathlib.Path({str(folder / 'pid')!r}).write_text(str(os.getpid()))\n"
        f"sys.stdout.buffer.write(open({str(folder / 'frames')!r}, 'rb').read()); sys.stdout.flush()\n"
    )
    return [sys.executable, "-c", script + then]


def is_alive(folder: Path) -> bool:
    try:
        os.kill(int((folder / "pid").read_text()), 0)
    except ProcessLookupError:
        return False
    return True


def test_blank_repeated_and_broken_frames_are_left_out_and_counted(tmp_path: Path) -> None:
    broken = b"\xff\xd8\xff\xe0\x00\x02\xff\xd9"  # begins, and ends
    frames = [BLACK, jpeg(1), jpeg(1), jpeg(2), broken, jpeg(2), jpeg(3)]
    source = CameraSource(showing(tmp_path, frames), SIZE, every=0)
    portion = source.read(None, 5)
    assert (len(portion.images), portion.rejected, portion.unreadable) == (3, 3, 1)
    again = CameraSource(showing(tmp_path, [jpeg(3), jpeg(4)]), SIZE, every=0).read(portion.cursor, 5)
    assert (len(again.images), again.rejected) == (1, 1), "a camera that froze between two rounds"


@pytest.mark.parametrize("then", ["time.sleep(60)", "signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"])
def test_a_camera_that_hangs_makes_a_short_segment_and_is_ended(tmp_path: Path, then: str) -> None:
    source = CameraSource(showing(tmp_path, [jpeg(1), jpeg(2)], then), SIZE, every=0.01, silence=1.0)
    began = time.monotonic()
    assert len(source.read(None, 4).images) == 2
    assert time.monotonic() - began < 8
    assert not is_alive(tmp_path)
    assert len(source.read(None, 2).images) == 2, "the next segment tries again"


def test_a_frozen_camera_costs_bounded_time(tmp_path: Path) -> None:
    source = CameraSource(showing(tmp_path, [], FOREVER.format(frame=jpeg(1))), SIZE, every=0.1, silence=1.0)
    began = time.monotonic()
    portion = source.read(None, 8)
    assert (len(portion.images), portion.rejected > 5) == (1, True)
    assert time.monotonic() - began < 2 * 8 * 0.1 + 1.0 + 4
    assert not is_alive(tmp_path)


FOREVER = "while True:\n    sys.stdout.buffer.write({frame!r}); sys.stdout.flush(); time.sleep(0.05)"


def test_a_full_segment_ends_the_camera_too(tmp_path: Path) -> None:
    frames = [jpeg(seed) for seed in range(5)]
    source = CameraSource(showing(tmp_path, frames, "time.sleep(60)"), SIZE, every=0)
    assert len(source.read(None, 3).images) == 3
    assert not is_alive(tmp_path)


def test_a_process_that_cannot_be_ended_is_not_joined_by_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    source = CameraSource(showing(tmp_path, [jpeg(1)]), SIZE, every=0)
    assert len(source.read(None, 2).images) == 1
    monkeypatch.setattr(child_process.Child, "gone", lambda _: False)
    (tmp_path / "pid").unlink()
    assert len(source.read(None, 2).images) == 0
    assert not (tmp_path / "pid").exists()
    assert "no other one is started" in caplog.text


def test_a_camera_that_cannot_be_started_gives_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    portion = CameraSource([str(tmp_path / "secret")], SIZE).read(None, 3)
    assert portion.images.shape == (0, 3, SIZE, SIZE)
    assert "cannot be started" in caplog.text
    assert "secret" not in caplog.text


def test_without_opencv_the_owner_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    check_source("0")
    monkeypatch.setattr(camera, "has_opencv", lambda: False)
    with pytest.raises(DeviceError, match=r"^node config source: a camera needs OpenCV on this device; pip install"):
        check_source("0")


def test_a_device_trains_on_a_video_by_node_config(
    smoke: Callable[..., RunConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program that reads real cameras, with a file in the camera's place."""
    video = cv2.VideoWriter(str(tmp_path / "a.avi"), cv2.VideoWriter.fourcc(*"MJPG"), 10, (48, 36))
    for seed in range(20):
        video.write(np.asarray(picture(seed)))
    video.release()
    monkeypatch.setattr(camera, "SECONDS_PER_FRAME", 0.0)
    config = smoke("evaluation=none")
    here = Node.read({"device-id": 0, "source": f"camera:{tmp_path}/a.avi", "state-dir": str(tmp_path / "state")})
    metrics = build_device(config, "run", 0, here).train_round(1, build_method(config).shared_state()).metrics
    assert (metrics["steps"], metrics["seen"], metrics.get("starved")) == (2, 32, None)
