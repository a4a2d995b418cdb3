"""Whether Flower's copies of the app are whole: it makes one per version and never checks it again.

A copy's folder ends with the first digits of its bundle's hash, and a bundle holds its files uncompressed and nothing
else: so the bundle is built again from the copy and must have that hash, on every machine.
"""

import hashlib
from pathlib import Path

from sofed_flwr.fleet.doctor.finding import Finding


def check_apps(home: Path, remedy: str) -> Finding:
    """The copies in a FLWR_HOME; none is fine: the next task brings the app."""
    try:
        copies = sorted(path for path in (home / "apps").glob("*") if path.is_dir())
        damaged = [copy for copy in copies if not _is_whole(copy)]
    except OSError as error:
        return Finding("app", "unknown", f"{home / 'apps'} cannot be read ({error.strerror})", "run as its owner")
    if damaged:
        seen = f"{damaged[0]} is not what the server sent: files are empty, cut, missing or changed"
        return Finding("app", "fail", seen, remedy)
    return Finding("app", "ok", f"{len(copies)} copies in {home / 'apps'}, all as the server sent them")


def _is_whole(copy: Path) -> bool:
    from flwr.cli.build import build_fab_from_disk  # takes a second

    try:
        bundle = build_fab_from_disk(copy)
    except ValueError:
        return False
    return hashlib.sha256(bundle).hexdigest().startswith(copy.name.rpartition(".")[2])
