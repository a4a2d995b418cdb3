"""Errors of a device without private content: the server gets the kind of error and the place in our code, no message.

Flower answers an exception with its class and its whole message, which may hold a file's name, a path with a person's
name, or a piece of the data. So only the text of a `DeviceError`, which is written for the server, is sent. All other
errors are written to the device's own log in full: a wrong configuration at level ERROR, since its text is for the
device's owner, the rest at level DEBUG.
"""

import logging
import traceback

from flwr.app import Context, Message
from flwr.clientapp.typing import ClientAppCallable

from sofed_flwr.core.errors import ConfigError, DeviceError
from sofed_flwr.core.redaction import redacted

PACKAGE = __name__.partition(".")[0]

log = logging.getLogger(__name__)


def redact_errors(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """A Flower mod: the answer, or an error without private content. A simulated device has no private data."""
    if "partition-id" in context.node_config:
        return call_next(message, context)
    try:
        return call_next(message, context)
    except DeviceError as error:
        summary = redacted(error)
    except ConfigError as error:
        log.error("%s", error)
        summary = f"{type(error).__name__} {_place(error)}; the device's own log says more"
    except Exception as error:
        log.debug("the round failed", exc_info=error)
        summary = f"{type(error).__name__} {_place(error)}; the device's own log at level DEBUG says more"
    raise DeviceError(summary)


def _place(error: BaseException) -> str:
    """The innermost line of our code in the traceback."""
    ours = [
        f"in {module}.{frame.f_code.co_name}, line {line}"
        for frame, line in traceback.walk_tb(error.__traceback__)
        if (module := str(frame.f_globals.get("__name__"))).partition(".")[0] == PACKAGE and module != __name__
    ]
    return ours[-1] if ours else "outside of our code"
