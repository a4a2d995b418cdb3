"""Values of a round and of a finished run.

Those of a run are computed from its metrics log alone, so that a resumed run needs no special case.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from sofed_flwr.core.metrics import FROM_DEVICE, of_evaluators
from sofed_flwr.core.records import Update
from sofed_flwr.storage.metrics_log import Row

RATIOS = {"discard_ratio": ("discarded", "seen"), "rescoring_ratio": ("rescored", "held")}
"""Shares of sums over devices: new images not kept (paper, Fig. 6), buffer entries rescored (paper, Table 6)."""


OF_ENCODER = ("images_seen", "knn", "linear", "other", "untrained", "failed_rounds", "epsilon", "delta", "no_privacy")
"""What goes with the encoder: nothing that differs between two runs of the same seed, as seconds do."""


def summarise(rows: Sequence[Row], facts: Mapping[str, Any]) -> dict[str, Any]:
    """`facts` (method, policy, ...), then the last and the untrained evaluation, then what the devices counted.

    The last evaluation is the one of that round, even if it gave no accuracy: an earlier one belongs to another
    encoder.
    """
    of_run = [row for row in rows if "device" not in row and row["value"] is not None]
    of_devices = [row for row in rows if "device" in row and row["value"] is not None]
    last = {row["name"]: row["value"] for row in of_run}
    first = {row["name"]: row["value"] for row in of_run if row["round"] == 0}
    evaluated = max((row["round"] for row in rows if row["name"] == "feature_std"), default=0)
    final = {row["name"]: row["value"] for row in of_run if row["round"] == evaluated}
    return {
        **facts,
        "seconds": round(_sum(of_run, "seconds"), 1),
        **_accuracies(final),
        "untrained": _accuracies(first),
        "bytes_up_per_client_round": last.get("bytes_up"),
        "images_seen": _images_seen(of_devices),
        **{name: _ratio(of_devices, part, whole) for name, (part, whole) in RATIOS.items()},
        "loss": last.get("loss"),
        "feature_std": final.get("feature_std"),
        **_failures(rows),
        **_privacy(rows),
    }


def of_encoder(summary: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a summary that describes the encoder itself, wherever it is taken."""
    return {name: summary[name] for name in OF_ENCODER if name in summary}


def round_values(updates: Sequence[Update]) -> dict[str, float]:
    """What the devices counted in one round: means, shares of sums, sums of seconds."""
    names = sorted({name for update in updates for name in update.metrics})
    sums = {name: sum(update.metrics.get(name, 0.0) for update in updates) for name in names}
    means = {name: sums[name] / len(updates) for name in ("loss", "bytes_up") if name in sums}
    shares = {n: sums.get(part, 0.0) / sums[whole] for n, (part, whole) in RATIOS.items() if sums.get(whole)}
    times = {name: value for name, value in sums.items() if name.startswith("seconds_")}
    return means | shares | times | {"replies": len(updates)}


def last_failure(rows: Sequence[Row]) -> str:
    """Reason of the last failed round."""
    return next((row.get("reason", "") for row in reversed(rows) if _is_failure(row)), "")


def _failures(rows: Sequence[Row]) -> dict[str, Any]:
    failed = len({row["round"] for row in rows if _is_failure(row)})
    return {"failed_rounds": failed, "last_failure": last_failure(rows)} if failed else {}


def _is_failure(row: Row) -> bool:
    return row["name"] == "failed" and "device" not in row


def _privacy(rows: Sequence[Row]) -> dict[str, Any]:
    """For a run with a privacy budget: what the last counted round reported, or why nothing is guaranteed."""
    of_run = [row for row in rows if "device" not in row]
    spent = [row for row in of_run if row["name"] == "epsilon"]
    if not spent:
        return {}
    last = max((row["round"] for row in of_run if row["name"] == "replies"), default=0)
    unknown = f"round {last} reports no epsilon: no privacy guarantee"
    known = spent[-1]["round"] >= last and spent[-1]["value"] is not None
    delta = [row["value"] for row in of_run if row["name"] == "delta"]
    result = {"epsilon": spent[-1]["value"] if known else None, "delta": delta[-1] if delta else None}
    return result if known else {**result, "no_privacy": spent[-1].get("reason", unknown)}


def _accuracies(values: Mapping[str, float]) -> dict[str, Any]:
    linear = {name.removeprefix("linear_"): value for name, value in values.items() if name.startswith("linear_")}
    other = {name: values[name] for name in of_evaluators(values)}
    return {"knn": values.get("knn"), "linear": linear} | ({"other": other} if other else {})


def _images_seen(rows: Sequence[Row]) -> int:
    """By possible values only: a damaged log may hold any number."""
    seen = FROM_DEVICE["seen"]
    return int(sum(row["value"] for row in rows if row["name"] == "seen" and seen.allows(row["value"])))


def _ratio(rows: Sequence[Row], part: str, whole: str) -> float | None:
    total = _sum(rows, whole)
    return _sum(rows, part) / total if total else None


def _sum(rows: Sequence[Row], name: str) -> float:
    return float(sum(row["value"] for row in rows if row["name"] == name))
