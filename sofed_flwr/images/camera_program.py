"""A camera or a video file as JPEGs on standard output.

`python camera_program.py INDEX_OR_FILE SECONDS`: a separate program, since a camera's driver may hang and OpenCV
cannot interrupt it. `child_process.camera_command` starts it.
"""

import sys
from time import monotonic

import cv2


def main(target: str, every: float) -> int:
    """One frame per `every` seconds; the others are read and dropped, or the camera's queue would return old ones."""
    camera = cv2.VideoCapture(int(target) if target.isdigit() else target)
    following = 0.0
    while camera.grab():
        if monotonic() < following:
            continue
        following = monotonic() + every
        decoded, image = camera.retrieve()
        if decoded:
            sys.stdout.buffer.write(cv2.imencode(".jpg", image)[1].tobytes())
            sys.stdout.buffer.flush()
    return 0 if following else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], float(sys.argv[2])))
