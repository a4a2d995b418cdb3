"""How a command ends: one sentence instead of a traceback for what a user can cause, and a code that says which kind.

0 done; 1 the run, or the server of a site, failed; 2 a wrong configuration or file; 3 too few devices; 130 interrupted.
"""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from sofed_flwr.component import ConfigError
from sofed_flwr.flower_commands import RunFailed
from sofed_flwr.provision.registration import SiteError
from sofed_flwr.running import InterruptedRunError
from sofed_flwr.stops import TooFewDevicesError
from sofed_flwr.tensor_file import DamagedFileError


@contextmanager
def exit_codes() -> Iterator[None]:
    """One sentence instead of a traceback for what a user can cause; a kill or a lost terminal ends like Ctrl-C."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:  # nohup stays nohup
            signal.signal(number, signal.default_int_handler)
    try:
        yield
    except (ConfigError, DamagedFileError, FileNotFoundError, PermissionError) as error:
        _fail(str(error), 2)
    except (RunFailed, SiteError) as error:
        _fail(str(error), TooFewDevicesError.EXIT_CODE if TooFewDevicesError.told_by(str(error)) else 1)
    except InterruptedRunError as error:
        _fail(str(error), 130)
    except KeyboardInterrupt:
        _fail("interrupted", 130)


def _fail(message: str, code: int) -> None:
    print(f"sofed: {message}", file=sys.stderr)
    raise typer.Exit(code)
