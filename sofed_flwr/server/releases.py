"""What happens before a model may leave the server, and what the models that left have cost in privacy."""

import math
from collections.abc import Mapping

from sofed_flwr.core.records import Release, State
from sofed_flwr.core.state_dicts import not_finite
from sofed_flwr.server.gate import unusable
from sofed_flwr.storage.privacy_ledger import PrivacyLedger, broken_guarantee
from sofed_flwr.strategies.inner import InnerStrategy


class Releases:
    """The privacy ledger of a run directory, on behalf of one run and its strategy."""

    def __init__(self, ledger: PrivacyLedger, run: str, strategy: InnerStrategy) -> None:
        self._ledger, self._run, self._strategy = ledger, run, strategy

    def refuse(self, round_number: int, model: State, replies: int) -> str | None:
        """Why the model must not be sent, or None: then its release is on disk, before any device can get the model."""
        if (fault := unusable(model) or not_finite(self._strategy.state_dict())) is not None:
            return f"has no usable aggregate of {replies} replies ({fault})"
        try:
            self._ledger.write(Release(self._run, round_number, self._strategy.noise(replies)))
        except OSError as error:
            return f"released no model, the privacy ledger cannot be written ({error})"
        return None

    def cost(self) -> tuple[Mapping[str, float], str | None]:
        """What the strategy reports of all releases, or an infinite epsilon with the reason."""
        reason = broken_guarantee(self._ledger.releases)
        return (
            (self._strategy.report(self._ledger.releases), None) if reason is None else ({"epsilon": math.inf}, reason)
        )

    def exhausted(self) -> str | None:
        """Why the strategy allows no further round."""
        return self._strategy.exhausted(self._ledger.releases)

    def of_run(self) -> int:
        """How many there are of this run, for its checkpoint."""
        return self._ledger.of_run(self._run)
