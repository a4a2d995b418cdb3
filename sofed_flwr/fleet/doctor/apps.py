"""Whether Flower's copies of the app are whole: it makes one per version and never checks it again.

A copy's folder ends with the first digits of its bundle's hash, and a bundle contains its files only: so the bundle is
built again from the copy and must have that hash. Compression may differ between machines, so with another hash the
files themselves are checked.
"""

import ast
import hashlib
from pathlib import Path

from sofed_flwr.fleet.doctor.finding import Finding

SOURCES = {".py", ".toml", ".yaml"}


def check_apps(home: Path, remedy: str) -> Finding:
    """The copies in a FLWR_HOME; none is fine: the next task brings the app."""
    try:
        copies = sorted(path for path in (home / "apps").glob("*") if path.is_dir())
        whole = [copy for copy in copies if _is_whole(copy)]
        torn = {copy: files for copy in copies if copy not in whole and (files := _torn_files(copy))}
    except OSError as error:
        return Finding("app", "unknown", f"{home / 'apps'} cannot be read ({error.strerror})", "run as its owner")
    for copy, files in torn.items():
        seen = f"{copy} is torn: {len(files)} files are empty, cut or missing, such as {files[0]}"
        return Finding("app", "fail", seen, remedy)
    return Finding("app", "ok", f"{len(copies)} copies in {home / 'apps'}, {len(whole)} of them verified by hash")


def _torn_files(copy: Path) -> list[str]:
    """Files that are empty, cut or missing."""
    files = sorted(path for path in copy.rglob("*") if path.suffix in SOURCES)
    torn = [str(path.relative_to(copy)) for path in files if not _makes_sense(path)]
    return torn if (copy / "pyproject.toml").exists() else [*torn, "pyproject.toml"]


def _is_whole(copy: Path) -> bool:
    from flwr.cli.build import build_fab_from_disk  # takes a second

    try:
        bundle = build_fab_from_disk(copy)
    except (ValueError, OSError):
        return False
    return hashlib.sha256(bundle).hexdigest().startswith(copy.name.rpartition(".")[2])


def _makes_sense(path: Path) -> bool:
    content = path.read_bytes()
    if not content.strip(b"\0"):
        return path.name == "__init__.py" and not content
    try:
        if path.suffix == ".py":
            ast.parse(content)
    except (SyntaxError, ValueError):
        return False
    return b"\0" not in content and content.endswith(b"\n")
