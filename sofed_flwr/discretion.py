"""What a failure may say outside the device: what kind it was and where in our code, not what it was about.

Flower answers an exception with its class and its whole message, and a message tells what went wrong with what: a
file's name, a path with a person's name in it, a piece of the data. So only texts that were written for the server get
out; of everything else the full story stays in the device's own log, at DEBUG level.
"""

import logging
import traceback

from flwr.app import Context, Message
from flwr.clientapp.typing import ClientAppCallable

from sofed_flwr.component import ConfigError
from sofed_flwr.device import DeviceError

PACKAGE = __name__.partition(".")[0]

log = logging.getLogger(__name__)


def discreet(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """A Flower mod: the answer, or an error that may be told. A simulated device has nobody to keep secrets from."""
    if "partition-id" in context.node_config:
        return call_next(message, context)
    try:
        return call_next(message, context)
    except (DeviceError, ConfigError):
        raise
    except Exception as error:
        log.debug("the round failed", exc_info=error)
        summary = f"{type(error).__name__} {_place(error)}; the device's own log at level DEBUG says more"
    raise DeviceError(summary)


def _place(error: BaseException) -> str:
    """The innermost line of ours on the way to the error."""
    ours = [
        f"in {module}.{frame.f_code.co_name}, line {line}"
        for frame, line in traceback.walk_tb(error.__traceback__)
        if (module := str(frame.f_globals.get("__name__"))).partition(".")[0] == PACKAGE and module != __name__
    ]
    return ours[-1] if ours else "outside of our code"
