"""Node config `source` -> a source: `spool:/path`, `camera:0`, `dataset`.

The text before the colon is the name of a module in this package, so a new kind of source is one file here. Only a
device's owner writes node config: no message and no file of the server can name a module.
"""

import importlib
import pkgutil
from typing import cast

from sofed_flwr.core.errors import DeviceError
from sofed_flwr.sources.base import Scheme, Setting, Source

PACKAGE = __name__.rpartition(".")[0]


def check_source(source: str) -> None:
    """A `DeviceError` if this device cannot have it."""
    scheme, text = _split(source)
    scheme.check_source(text)


def open_source(source: str, setting: Setting) -> Source:
    """The source that node config names."""
    scheme, text = _split(source)
    return scheme.open_source(text, setting)


def schemes() -> dict[str, Scheme]:
    """Every kind of source, by name; other modules of this package have no `FORM`."""
    paths = importlib.import_module(PACKAGE).__path__
    modules = {name: importlib.import_module(f"{PACKAGE}.{name}") for _, name, _ in pkgutil.iter_modules(paths)}
    return {name: cast("Scheme", module) for name, module in modules.items() if hasattr(module, "FORM")}


def _split(source: str) -> tuple[Scheme, str]:
    """An error message does not repeat the owner's text."""
    kinds = schemes()
    name, colon, text = source.partition(":")
    scheme = kinds.get(name)
    if not colon and (scheme is None or ":" in scheme.FORM):
        forms = sorted((kind.FORM for kind in kinds.values()), key=lambda form: (":" in form, form))[::-1]
        ways = f"{', '.join(forms[:-1])} or {forms[-1]}"
        raise DeviceError(f"node config source does not say of which kind it is; write {ways}")
    if scheme is None:
        raise DeviceError(f"node config source is of no known kind; there are {', '.join(sorted(kinds))}")
    return scheme, text
