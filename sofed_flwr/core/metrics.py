"""Every metric, once: its name in messages and in `metrics.jsonl`, what it means and, of a device's, its range.

Only the names in `FROM_DEVICE` are read from a reply, so no other name can reach the metrics log. A newer device may
send names that this server does not know: they are left out and counted, and so is a known metric with an impossible
value. The model in the same reply is checked separately.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeGuard

MOST = 10**12
"""Upper limit of a count in one round; far below 2**53, so sums over devices stay exact as floats."""


@dataclass(frozen=True)
class Metric:
    """What a device's number means; `low` and `high` are possible values, `whole` ones have no fraction."""

    meaning: str
    low: float = 0
    high: float = MOST
    whole: bool = True

    def allows(self, value: object) -> TypeGuard[float]:
        """Whether `value` is possible; NaN is within no range, and a bool is not a number."""
        if not isinstance(value, int | float) or isinstance(value, bool) or not self.low <= value <= self.high:
            return False
        return not self.whole or float(value).is_integer()


FROM_DEVICE = {
    "round": Metric("the round this reply belongs to", high=2**31),
    "loss": Metric("mean loss over the round's steps", low=-1e6, high=1e6, whole=False),
    "steps": Metric("optimizer steps made"),
    "seen": Metric("new images taken from the source"),
    "discarded": Metric("new images that the policy did not keep"),
    "held": Metric("buffer entries that the policy was shown, summed over segments"),
    "rescored": Metric("buffer entries whose score was recomputed, summed over segments"),
    "starved": Metric("segments with fewer new images than wanted"),
    "unreadable": Metric("files that could not be decoded"),
    "rejected": Metric("blank or repeated images left out"),
    "unsaved": Metric("1 if the round could not be written to the device's disk", high=1),
    "seconds_scoring": Metric("for scoring and selecting", high=1e9, whole=False),
    "seconds_training": Metric("for optimizer steps", high=1e9, whole=False),
}
"""What a device may report of itself."""

OF_SERVER = {
    "asked": "devices that got a task",
    "arrived": "replies that have arrived so far, errors included; one row per reply",
    "replies": "replies that entered the aggregate",
    "dropped": "1 for a device without a usable reply; the row has the reason",
    "late": "1 for a reply that came after its round had ended",
    "failed": "1 for a round with too few usable replies",
    "collapsed": "1 for an encoder to which all images look alike; the row has the reason",
    "features_not_finite": "1 for an encoder without usable features; the row has the reason",
    "clipped": "updates cut to the length bound",
    "screening_skipped": "1 for a round in which screening would have dropped a majority",
    "seconds": "wall-clock time of the round",
    "bytes_up": "size of the model a device sent; the mean over devices",
    "left_out": "metrics in a device's reply that are unknown here or have impossible values",
    "discard_ratio": "discarded over seen, all devices",
    "rescoring_ratio": "rescored over held, all devices",
    "feature_std": "spread of normalised features; 1 is healthy, 0 collapsed",
    "buffer_classes": "effective number of classes in a buffer (exp of their entropy)",
    "buffer_classes_present": "classes in a buffer; means over simulated devices, like the rest",
    "buffer_vendi": "effective number of unlike images in a buffer, by their features",
    "buffer_age_median": "iterations that images have been in a buffer",
    "buffer_age_90": "the same; nine of ten are not older",
    "knn": "accuracy of the kNN classifier, %",
    "linear_": "accuracy of the linear probe, %; the share of labels follows the name",
    "epsilon": "privacy spent so far",
    "delta": "the probability epsilon is stated for",
}
"""What the server measures or decides; of a device's own numbers it logs sums, means and ratios, too."""


def of_evaluators(names: Iterable[str]) -> list[str]:
    """The accuracies that another evaluator than kNN and the linear probe has measured: all names that are not ours."""
    ours = FROM_DEVICE.keys() | OF_SERVER.keys()
    return sorted(name for name in names if name not in ours and not name.startswith("linear_"))


def from_device(record: Mapping[str, object]) -> tuple[dict[str, float], list[str]]:
    """The usable metrics of a reply, and the known names whose values are impossible.

    How many were left out is a metric, too. The work does not grow with the record.
    """
    known = {name: record[name] for name in FROM_DEVICE if name in record}
    numbers = {name: float(value) for name, value in known.items() if FROM_DEVICE[name].allows(value)}
    impossible = [name for name in known if name not in numbers]
    left_out = len(record) - len(numbers)
    return numbers | ({"left_out": float(left_out)} if left_out else {}), impossible
