"""How fast images come and go, from the metrics log: for real devices, too, whose images nobody else sees."""

from sofed_flwr.analysis.buffers.held import MOST_DEVICES
from sofed_flwr.analysis.report.read import Curve, Run, Values
from sofed_flwr.analysis.report.section import Runs, Section, over_rounds


def turnover(runs: Runs) -> Section:
    """Device by device, or run by run."""
    caption = (
        "New images that a device got from its stream in a round; the share of them that it discarded; and how many "
        "iterations an image stays at that rate, on average: the size of the buffer over the new images that an "
        f"iteration put into it. One line per device (the first {MOST_DEVICES}); of several runs, one line per run, "
        "all devices together."
    )
    counts = _counts(runs)
    seen = {label: of["seen"] for label, of in counts.items()}
    discarded = {label: _ratio(of["discarded"], of["seen"]) for label, of in counts.items()}
    stay = {label: _ratio(of["room"], of["kept"]) for label, of in counts.items()}
    charts = [
        *over_rounds(seen, "images", "new images", y_limits=(0, None)),
        *over_rounds(discarded, "discarded / seen", "discarded", y_limits=(-0.02, 1.02)),
        *over_rounds(stay, "iterations", "mean stay", y_limits=(0, None)),
    ]
    return Section("How fast images come and go", caption, charts=charts)


def _counts(runs: Runs) -> dict[str, Values]:
    if len(runs) > 1:
        return {label: _counted(run.summed, run) for label, run in runs.items()}
    run = next(iter(runs.values()))
    return {f"device {number}": _counted(run.of_device(number), run) for number in list(run.devices)[:MOST_DEVICES]}


def _counted(values: Values, run: Run) -> Values:
    """`room` is the buffer's size times the iterations, each of which could have filled it with new images."""
    size = run.config.get("buffer")
    seen, discarded, steps = (values.get(name, {}) for name in ("seen", "discarded", "steps"))
    kept = {at: seen[at] - discarded[at] for at in seen.keys() & discarded.keys()}
    room = {at: count * size for at, count in steps.items()} if isinstance(size, int) else {}
    return {"seen": seen, "discarded": discarded, "kept": kept, "room": room}


def _ratio(part: Curve, whole: Curve) -> Curve:
    return {at: part[at] / whole[at] for at in part.keys() & whole.keys() if whole[at] > 0}
