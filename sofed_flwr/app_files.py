"""The Flower app by itself, for Flower to pack and send.

`flwr run` looks at every file below the directory it is given before it packs the few that belong to the app: with a
.venv of 50,000 files beside them that takes 3 s, and more with every run directory. So it is given a copy of those few.
"""

import shutil
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from sofed_flwr.component import ConfigError

CLONE = Path(__file__).resolve().parent.parent
"""The directory of pyproject.toml, client_app.py and server_app.py."""


@contextmanager
def app_directory(clone: Path = CLONE) -> Iterator[Path]:
    """A directory with pyproject.toml and the files that its `fab-include` names, for a while."""
    if not (clone / "pyproject.toml").exists():
        raise ConfigError(f"{clone} has no pyproject.toml: runs are started from a clone, `pip install` is for devices")
    project = tomllib.loads((clone / "pyproject.toml").read_text(encoding="utf-8"))
    with TemporaryDirectory(prefix="sofed-app-") as folder:
        for pattern in ["pyproject.toml", *project["tool"]["flwr"]["app"]["fab-include"]]:
            for path in clone.glob(pattern.removeprefix("/")):
                copy = Path(folder) / path.relative_to(clone)
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, copy)
        yield Path(folder)
