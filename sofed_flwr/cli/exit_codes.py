"""How a command ends: one sentence and an exit code instead of a traceback; `core/errors` has the codes."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from sofed_flwr.core.errors import (
    ConfigError,
    DamagedFileError,
    InterruptedRunError,
    RunFailed,
    TerminatedError,
)
from sofed_flwr.core.redaction import one_line


@contextmanager
def exit_codes() -> Iterator[None]:
    """One sentence instead of a traceback for what a user can cause; a kill or a lost terminal ends like Ctrl-C."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:  # nohup stays nohup
            signal.signal(number, _terminate)
    try:
        yield
    except BrokenPipeError:  # of `| head`; typer handles it
        raise
    except (ConfigError, DamagedFileError, OSError) as error:
        _fail(one_line(str(error)), ConfigError.exit_code)
    except MemoryError as error:
        _fail(one_line(f"not enough memory ({error})"), ConfigError.exit_code)
    except (RunFailed, InterruptedRunError) as error:
        _fail(str(error), error.exit_code)
    except KeyboardInterrupt:
        _fail("interrupted", InterruptedRunError.exit_code)


def _terminate(*_: object) -> None:
    raise TerminatedError


def _fail(message: str, code: int) -> None:
    """The message may quote untrusted text, so control characters are removed."""
    shown = "".join(sign if sign.isprintable() or sign == "\n" else " " for sign in message)
    print(f"sofed: {shown}", file=sys.stderr)
    raise typer.Exit(code)
