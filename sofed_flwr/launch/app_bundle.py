"""A copy of the Flower app's files, for Flower to pack and send.

`flwr run` reads every file below the given directory before it packs the few that belong to the app: with a .venv of
50,000 files that takes 3 s, and more with every run directory. So it gets a copy of those few. They are in another
place in a wheel than in a clone, and the user's own yamls are among them.
"""

import shutil
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from sofed_flwr.config.own_yamls import conf
from sofed_flwr.core.app_files import INSIDE, PACKAGE, app_files


@contextmanager
def app_directory(app: Path | None = None, scratch: str | None = None) -> Iterator[Path]:
    """A temporary directory with pyproject.toml and the files that its `fab-include` names; None: of our app."""
    with TemporaryDirectory(prefix="sofed-app-", dir=scratch) as folder:
        for home, file in _files(app or app_files()):
            copy = Path(folder) / file.relative_to(home)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, copy)
        yield Path(folder)


def _files(app: Path) -> Iterator[tuple[Path, Path]]:
    """Pairs of the app's top directory and a file below it."""
    project = tomllib.loads((app / "pyproject.toml").read_text(encoding="utf-8"))
    homes = {PACKAGE.name: PACKAGE.parent, "conf": conf().parent} if app == app_files() else {}
    for anchored in ["pyproject.toml", *project["tool"]["flwr"]["app"]["fab-include"]]:
        pattern = anchored.removeprefix("/")
        home = homes.get(pattern.partition("/")[0], app)
        yield from ((home, file) for file in home.glob(pattern) if home == app or not file.is_relative_to(INSIDE))
