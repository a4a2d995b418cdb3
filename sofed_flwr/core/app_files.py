"""Where the app's own files are: pyproject.toml, client_app.py, server_app.py and conf/, and the version they state.

In a clone, and in the copy that Flower unpacks, they are beside the package; in a wheel they are inside it, in `app/`.
An installed package may have files of other projects beside it, such as a `conf` directory, so the project's name is
checked.
"""

import tomllib
from functools import cache
from pathlib import Path
from typing import Any

from sofed_flwr.core.errors import ConfigError
from sofed_flwr.core.redaction import printable

PACKAGE = Path(__file__).resolve().parents[1]
INSIDE = PACKAGE / "app"
"""Where pyproject.toml (`force-include`) has the wheel put them."""
LONGEST = 30
"""Characters of a version in an error message."""


@cache
def app_files() -> Path:
    """The directory of the app's files."""
    for place in (INSIDE, PACKAGE.parent):
        if (place / "conf" / "config.yaml").is_file() and _project(place).get("name") == "sofed-flwr":
            return place
    raise ConfigError(f"{PACKAGE} comes without the app's files (conf, client_app.py ...); install sofed-flwr again")


@cache
def version() -> str:
    """Version of the running code; on a device that is Flower's copy of the app, not the installed package."""
    return str(_project(app_files())["version"])


def written_by(found: object) -> str:
    """The end of an error message about a file of version `found`; empty if that is this version."""
    if found == version():
        return ""
    other = "an earlier version than 0.2" if found is None else f"version {printable(str(found)[:LONGEST])}"
    return f"; it was written by {other}, this is {version()}"


def _project(place: Path) -> dict[str, Any]:
    try:
        project = tomllib.loads((place / "pyproject.toml").read_text(encoding="utf-8")).get("project")
    except (OSError, ValueError):  # missing, or of another project
        return {}
    return project if isinstance(project, dict) else {}
