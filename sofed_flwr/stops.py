"""Why a run stops before its last round. Every committed round is safe, and the same command continues from there."""


class RunStoppedError(RuntimeError):
    """Round after round failed, or no further one may be had; the message says why."""


class TooFewDevicesError(RuntimeError):
    """Not enough devices connected in time."""

    SENTENCE = "too few devices connected"
    EXIT_CODE = 3

    @classmethod
    def told_by(cls, text: str) -> bool:
        """Whether a message that came back from a ServerApp, as text, is about this."""
        return cls.SENTENCE in text
