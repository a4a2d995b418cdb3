"""`--config-dir`: the yamls of conf/, and beside them those of the user; DIR/policy/mine.yaml is `policy=mine`.

The ServerApp composes in another process, and with a fleet on another machine, from a copy of the app. So both are
copied into one directory, from which this process composes and which Flower packs: what was checked is what runs.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from tempfile import TemporaryDirectory

from sofed_flwr.config.plain_yaml import bytes_of, read_yaml
from sofed_flwr.core.app_files import app_files
from sofed_flwr.core.errors import ConfigError

_joined: ContextVar[Path | None] = ContextVar("_joined", default=None)


def conf() -> Path:
    """The directory to compose from; its name is conf."""
    return _joined.get() or app_files() / "conf"


@contextmanager
def own_yamls(folder: Path | None) -> Iterator[None]:
    """Within the block, compose from the user's yamls, too; None: there are none."""
    if folder is None:
        yield
        return
    ours = app_files() / "conf"
    own = _find(folder, ours)
    with TemporaryDirectory(prefix="sofed-conf-") as scratch:
        joined = Path(scratch, "conf")
        _copy(ours, [file.relative_to(ours) for file in ours.rglob("*.yaml")], joined)
        _copy(folder, own, joined)
        token = _joined.set(joined)
        try:
            yield
        finally:
            _joined.reset(token)


def _find(folder: Path, ours: Path) -> list[Path]:
    """Names of the yamls in folders named like our groups; other content of the directory is ignored."""
    if not folder.is_dir():
        raise ConfigError(f"--config-dir {folder}: there is no such directory")
    groups = sorted(path.relative_to(ours) for path in ours.rglob("*") if path.is_dir())
    found = [file.relative_to(folder) for group in groups for file in sorted((folder / group).glob("*.yaml"))]
    for name in found:
        if (ours / name).exists():
            raise ConfigError(f"--config-dir {folder}: {name} has the name of one of ours; choose another")
        read_yaml(bytes_of(folder / name), f"--config-dir {folder}: {name}")
    if not found:
        expected = f"expected GROUP/NAME.yaml, GROUP one of {', '.join(map(str, groups))}"
        raise ConfigError(f"--config-dir {folder}: holds no yaml of a group; {expected}")
    return found


def _copy(source: Path, names: list[Path], place: Path) -> None:
    for name in names:
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source / name, place / name)
