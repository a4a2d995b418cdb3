"""A finished run in numbers, computed from its diary alone, so that a resumed run sums up like any other."""

from collections.abc import Mapping, Sequence
from typing import Any

from sofed_flwr.runlog import Row

RATIOS = {"discard_ratio": ("discarded", "seen"), "rescoring_ratio": ("rescored", "held")}
"""Shares of sums over devices: new images not kept (paper, Fig. 6), buffer entries rescored (paper, Table 6)."""

BUDGET = ("epsilon", "delta")
"""Privacy spent, with a strategy that spends it."""


def summarise(rows: Sequence[Row], facts: Mapping[str, Any]) -> dict[str, Any]:
    """`facts` (method, policy, ...), then the last and the untrained evaluation, then what the devices counted."""
    of_run = [row for row in rows if "device" not in row and row["value"] is not None]
    of_devices = [row for row in rows if "device" in row and row["value"] is not None]
    last = {row["name"]: row["value"] for row in of_run}
    first = {row["name"]: row["value"] for row in of_run if row["round"] == 0}
    return {
        **facts,
        "seconds": round(_sum(of_run, "seconds"), 1),
        **_accuracies(last),
        "untrained": _accuracies(first),
        "bytes_up_per_client_round": last.get("bytes_up"),
        **{name: _ratio(of_devices, part, whole) for name, (part, whole) in RATIOS.items()},
        "loss": last.get("loss"),
        "feature_std": last.get("feature_std"),
        **{name: last[name] for name in BUDGET if name in last},
    }


def _accuracies(values: Mapping[str, float]) -> dict[str, Any]:
    linear = {name.removeprefix("linear_"): value for name, value in values.items() if name.startswith("linear_")}
    return {"knn": values.get("knn"), "linear": linear}


def _ratio(rows: Sequence[Row], part: str, whole: str) -> float | None:
    total = _sum(rows, whole)
    return _sum(rows, part) / total if total else None


def _sum(rows: Sequence[Row], name: str) -> float:
    return float(sum(row["value"] for row in rows if row["name"] == name))
