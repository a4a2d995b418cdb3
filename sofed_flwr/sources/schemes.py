"""Node config `source` -> a source: `spool:/path`, `camera:0`, `dataset`.

The text before the colon is the name of a module in this package, so a new kind of source is one file here. Only a
device's owner writes node config: no message and no file of the server can name a module. A plain path, as in earlier
versions, is refused: `camera` would be ambiguous.
"""

import importlib
import importlib.util
import pkgutil
import re
from typing import cast

from sofed_flwr.core.errors import DeviceError
from sofed_flwr.sources.base import Scheme, Setting, Source

PACKAGE = __name__.rpartition(".")[0]
NAME = re.compile(r"[a-z_]+")


def check_source(source: str) -> None:
    """A `DeviceError` if this device cannot have it."""
    scheme, text = _split(source)
    scheme.check_source(text)


def open_source(source: str, setting: Setting) -> Source:
    """The source that node config names."""
    scheme, text = _split(source)
    return scheme.open_source(text, setting)


def schemes() -> dict[str, Scheme]:
    """Every kind of source, by name, for error messages: these do not repeat the owner's text."""
    paths = importlib.import_module(PACKAGE).__path__
    names = [module.name for module in pkgutil.iter_modules(paths) if NAME.fullmatch(module.name)]
    return {name: found for name in names if (found := _scheme(name)) is not None}


def _split(source: str) -> tuple[Scheme, str]:
    name, colon, text = source.partition(":")
    scheme = _scheme(name) if NAME.fullmatch(name) else None
    if not colon and (scheme is None or ":" in scheme.FORM):
        raise DeviceError(f"node config source does not say of which kind it is; write {_forms()}")
    if scheme is None:
        raise DeviceError(f"node config source is of no known kind; there are {', '.join(sorted(schemes()))}")
    return scheme, text


def _forms() -> str:
    """What can be written, those with a colon first."""
    forms = sorted((scheme.FORM for scheme in schemes().values()), key=lambda form: (":" in form, form), reverse=True)
    return f"{', '.join(forms[:-1])} or {forms[-1]}"


def _scheme(name: str) -> Scheme | None:
    """The module of this name, if it is a kind of source and not a helper of this package."""
    full = f"{PACKAGE}.{name}"
    if full == __name__ or importlib.util.find_spec(full) is None:
        return None
    module = importlib.import_module(full)
    return cast("Scheme", module) if hasattr(module, "open_source") else None
