"""Self-supervised federated learning on devices, as a Flower app.

>>> from sofed_flwr import load_classifier, load_encoder, simulate

The public names are loaded when they are asked for: torch takes seconds, which `sofed --help` must not cost.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sofed_flwr.analysis.simulate import simulate
    from sofed_flwr.classifier.model_directory import load_classifier
    from sofed_flwr.encoder import load_encoder

    __version__: str

__all__ = ["__version__", "load_classifier", "load_encoder", "simulate"]

_HOMES = {
    "load_classifier": "classifier.model_directory",
    "load_encoder": "encoder",
    "simulate": "analysis.simulate",
}
"""Public name -> the module that defines it."""


def __getattr__(name: str) -> object:
    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    if name == "__version__":
        from sofed_flwr.core.app_files import version

        return version()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """For completion in a notebook."""
    return __all__
