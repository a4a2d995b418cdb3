"""The only place that knows matplotlib, which is an extra: without it, one sentence."""

from sofed_flwr.core.errors import ConfigError

try:
    import matplotlib  # noqa: F401
except ImportError as error:
    raise ConfigError("matplotlib, which draws charts, is not installed; pip install 'sofed-flwr[report]'") from error
