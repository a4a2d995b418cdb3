"""Costs of a run: seconds and bytes."""

from itertools import accumulate

from sofed_flwr.analysis.charts.panels import Bars
from sofed_flwr.analysis.charts.svg import chart
from sofed_flwr.analysis.report.read import Curve, Run
from sofed_flwr.analysis.report.section import Runs, Section, curves, over_rounds

PARTS = {"scoring": "seconds_scoring", "training": "seconds_training"}


def time(runs: Runs) -> Section:
    """Where a round's seconds go, one chart per run."""
    caption = (
        "Seconds of wall-clock time per round: what the slowest device spent on scoring and selecting images and on "
        "training; the rest is everything else: sending, starting processes, aggregation, evaluation, and in a "
        "simulation devices that wait for a free worker. Round 0 only evaluates."
    )
    charts = [
        chart(
            Bars(
                list(run.federation["seconds"]),
                split(run),
                x_label="round",
                y_label="seconds",
                title=label if len(runs) > 1 else "",
            )
        )
        for label, run in runs.items()
        if "seconds" in run.federation
    ]
    return Section("Time per round", caption, charts=charts)


def split(run: Run) -> dict[str, list[float]]:
    """Per round: a round lasts at least as long as its slowest device computes, so the parts add up to the round.

    Devices work side by side, so their sum, which is in the federation's rows, may exceed the round.
    """
    devices = [run.of_device(number) for number in run.devices]
    rows = []
    for number, seconds in run.federation["seconds"].items():
        spent = [[values.get(name, {}).get(number, 0.0) for name in PARTS.values()] for values in devices]
        slowest = max(spent, key=sum, default=[0.0, 0.0])
        rows.append([*slowest, max(0.0, seconds - sum(slowest))])
    return dict(zip([*PARTS, "rest"], map(list, zip(*rows, strict=True)), strict=True))


def upload(runs: Runs) -> Section:
    """What goes over the network."""
    caption = (
        "Megabytes (a million bytes) of model arrays that devices send to the server: mean per device and round, and "
        "the sum over all devices and rounds so far. Images, features and scores are never sent."
    )
    each = {label: _megabytes(curve) for label, curve in curves(runs, "bytes_up").items()}
    total = {label: _megabytes(run.summed.get("bytes_up", {})) for label, run in runs.items()}
    so_far = {label: dict(zip(curve, accumulate(curve.values()), strict=True)) for label, curve in total.items()}
    charts = [
        *over_rounds(each, "MB", "per device and round", y_limits=(0, None)),
        *over_rounds(so_far, "MB", "all devices, cumulative", y_limits=(0, None)),
    ]
    return Section("Upload", caption, charts=charts)


def _megabytes(curve: Curve) -> Curve:
    return {number: curve[number] / 1e6 for number in sorted(curve)}
