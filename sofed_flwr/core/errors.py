"""Every exception of this project, each with the exit code that a command ends with; messages are sentences for people.

Codes: 1 the run, or the server of a site, failed; 2 a wrong configuration or file; 3 too few devices; 130 interrupted.
Only the standard library is imported here, so that a command that needs no more than this starts at once.
"""

import re


class ConfigError(ValueError):
    """The user's configuration cannot be run: one sentence with the key, the value and what is allowed.

    The value may come from an untrusted file, so control characters are removed.
    """

    exit_code = 2

    def __init__(self, sentence: str) -> None:
        super().__init__("".join(sign if sign.isprintable() else " " for sign in sentence))


class DamagedFileError(ValueError):
    """The file is not as this project wrote it: cut short, corrupted or of another kind."""

    exit_code = 2


class DamagedCacheError(Exception):
    """The cached files of a dataset are not what was written; they can be written again."""


class DeviceError(RuntimeError):
    """Why a device has no update to send: a text for the server, so it holds no path, no name and no data."""


class UnreadableReplyError(ValueError):
    """Flower could not decode a reply; the message has the kind of failure only, since the rest is the sender's."""


class RunStoppedError(RuntimeError):
    """A ServerApp ends before its last round: rounds failed, or no further one is allowed. Its commits are safe."""


class TooFewDevicesError(RuntimeError):
    """A ServerApp ends because not enough devices connected in time. Committed rounds are safe."""

    SENTENCE = "too few devices connected"
    exit_code = 3

    @classmethod
    def is_named_in(cls, text: str) -> bool:
        """Whether a message that came back from a ServerApp, as text, is about this.

        The sentence must begin a line, after at most a prefix of Flower's: elsewhere it may be a device's text.
        """
        return re.search(rf"(?m)^([\w. ]*: )?{cls.SENTENCE}", text) is not None


class RunFailed(RuntimeError):  # noqa: N818
    """The run failed; the message is the app's own reason, in which a ServerApp's error is text only."""

    @property
    def exit_code(self) -> int:
        """3 if too few devices were the reason."""
        return TooFewDevicesError.exit_code if TooFewDevicesError.is_named_in(str(self)) else 1


class SiteError(RunFailed):
    """The site's server did not do what was asked; the message is its own."""


class InterruptedRunError(RuntimeError):
    """The user stopped the run; the message says how to go on."""

    exit_code = 130


class RunGoesOnError(InterruptedRunError):
    """The user stopped watching a run that goes on; the message says how to come back and how to stop it."""


class TerminatedError(KeyboardInterrupt):
    """SIGTERM or SIGHUP; handled wherever Ctrl-C is."""
