"""Every metric, once: its name in messages and in `metrics.jsonl`, what it means, its unit and its range.

Only the names in `FROM_DEVICE` are read from a reply, so no other name can reach the metrics log. A newer device may
send names that this server does not know: they are left out and counted, and so is a known metric with an impossible
value. The model in the same reply is checked separately.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

MOST = 10**12
"""Upper limit of a count in one round; far below 2**53, so sums over devices stay exact as floats."""


@dataclass(frozen=True)
class Metric:
    """What one number means; `low` and `high` are possible values, `whole` ones have no fraction."""

    meaning: str
    unit: str
    low: float = 0
    high: float = MOST
    whole: bool = True

    def allows(self, value: object) -> bool:
        """Whether `value` is possible; NaN is within no range, and a bool is not a number."""
        if not isinstance(value, int | float) or isinstance(value, bool) or not self.low <= value <= self.high:
            return False
        return not self.whole or float(value).is_integer()


FROM_DEVICE = {
    "round": Metric("the round this reply belongs to", "rounds", high=2**31),
    "loss": Metric("mean loss over the round's steps", "1", low=-1e6, high=1e6, whole=False),
    "steps": Metric("optimizer steps made", "steps"),
    "seen": Metric("new images taken from the source", "images"),
    "discarded": Metric("new images that the policy did not keep", "images"),
    "held": Metric("buffer entries that the policy was shown, summed over segments", "images"),
    "rescored": Metric("buffer entries whose score was recomputed, summed over segments", "images"),
    "starved": Metric("segments with fewer new images than wanted", "segments"),
    "unreadable": Metric("files that could not be decoded", "images"),
    "rejected": Metric("blank or repeated images left out", "images"),
    "unsaved": Metric("1 if the round could not be written to the device's disk", "1", high=1),
    "seconds_scoring": Metric("time for scoring and selecting", "s", high=1e9, whole=False),
    "seconds_training": Metric("time for optimizer steps", "s", high=1e9, whole=False),
}
"""What a device may report of itself."""

OF_SERVER = {
    "asked": Metric("devices that got a task", "devices"),
    "arrived": Metric("replies that have arrived so far, errors included; one row per reply", "replies"),
    "replies": Metric("replies that entered the aggregate", "replies"),
    "dropped": Metric("1 for a device without a usable reply; the row has the reason", "1", high=1),
    "late": Metric("1 for a reply that came after its round had ended", "1", high=1),
    "failed": Metric("1 for a round with too few usable replies", "1", high=1),
    "collapsed": Metric("1 for an encoder to which all images look alike; the row has the reason", "1", high=1),
    "features_not_finite": Metric("1 for an encoder without usable features; the row has the reason", "1", high=1),
    "clipped": Metric("updates cut to the length bound", "updates"),
    "screening_skipped": Metric("1 for a round in which screening would have dropped a majority", "1", high=1),
    "seconds": Metric("wall-clock time of the round", "s", high=1e9, whole=False),
    "bytes_up": Metric("size of the model a device sent; the mean over devices", "bytes", high=1e15, whole=False),
    "left_out": Metric("metrics in a device's reply that are unknown here or have impossible values", "metrics"),
    "discard_ratio": Metric("discarded over seen, all devices", "1", high=1, whole=False),
    "rescoring_ratio": Metric("rescored over held, all devices", "1", high=1, whole=False),
    "feature_std": Metric("spread of normalised features; 1 is healthy, 0 collapsed", "1", high=100, whole=False),
    "buffer_classes": Metric("effective number of classes in a buffer (exp of their entropy)", "classes", whole=False),
    "buffer_classes_present": Metric(
        "classes in a buffer; means over simulated devices, like the rest", "classes", whole=False
    ),
    "buffer_vendi": Metric("effective number of unlike images in a buffer, by their features", "images", whole=False),
    "buffer_age_median": Metric("iterations that images have been in a buffer", "iterations", whole=False),
    "buffer_age_90": Metric("the same; nine of ten are not older", "iterations", whole=False),
    "knn": Metric("accuracy of the kNN classifier", "%", high=100, whole=False),
    "linear_": Metric("accuracy of the linear probe; the share of labels follows the name", "%", high=100, whole=False),
    "epsilon": Metric("privacy spent so far", "1", high=float("inf"), whole=False),
    "delta": Metric("the probability epsilon is stated for", "1", high=1, whole=False),
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
    impossible = [name for name, value in known.items() if not FROM_DEVICE[name].allows(value)]
    numbers = {
        name: float(value) for name, value in known.items() if name not in impossible and isinstance(value, int | float)
    }
    left_out = len(record) - len(numbers)
    return numbers | ({"left_out": float(left_out)} if left_out else {}), impossible
