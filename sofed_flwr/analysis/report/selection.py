"""What the devices keep: discarded images, rescored ones, and the scores themselves."""

from sofed_flwr.analysis.charts.panels import TRACED, score_trend
from sofed_flwr.analysis.charts.svg import chart
from sofed_flwr.analysis.report.section import Runs, Section, curves, over_rounds


def discarding(runs: Runs) -> Section:
    """How many new images the policy rejects."""
    caption = (
        "Share of new images that did not get into the buffer, over all devices, from 0 to 1. Dashed: 0.5, what random "
        "replacement discards. Importance scoring discards far more (over 0.8 in the paper, Fig. 6) and comes closer "
        "to the line as the model learns."
    )
    charts = over_rounds(curves(runs, "discard_ratio"), "discarded / seen", y_limits=(-0.02, 1.02), reference=0.5)
    return Section("Discard ratio", caption, charts=charts)


def rescoring(runs: Runs) -> Section:
    """What lazy scoring saves."""
    caption = (
        "Share of buffer entries whose score was recomputed, over all devices, from 0 to 1. With a lazy scoring "
        "interval of T it is about 1/T (paper, Table 6); lower is cheaper. A policy without scores stays at 0."
    )
    charts = over_rounds(curves(runs, "rescoring_ratio"), "rescored / held", y_limits=(-0.02, 1.02))
    return Section("Rescoring ratio", caption, charts=charts)


def contents(runs: Runs) -> Section:
    """Why one policy learns more than another."""
    caption = (
        "What the buffers of simulated devices hold after each round, means over devices. Classes: how many equally "
        "frequent classes would give the same entropy; the labels are the simulator's and no policy sees them. "
        "Diversity: how many images without any likeness would be as diverse, by the encoder's features (Vendi "
        "score). Age: iterations that images have stayed, median, and what nine of ten are below. Few classes mean a "
        "buffer that follows a correlated stream; ages that only grow mean a buffer that has stopped changing."
    )
    shown = {
        "buffer_classes": "effective classes",
        "buffer_classes_present": "classes present",
        "buffer_vendi": "effective images",
        "buffer_age_median": "age (iterations)",
        "buffer_age_90": "age of the oldest tenth",
    }
    charts: list[str] = []
    for name, title in shown.items():
        charts += over_rounds(curves(runs, name), title, y_limits=(0, None))
    return Section("What the buffers hold", caption, charts=charts)


def score_trends(runs: Runs) -> Section:
    """Why lazy scoring works, or does not."""
    caption = (
        "Importance scores on a device, iteration by iteration, over the number of images it has seen in the round "
        "(paper, “Impacts of Lazy Scoring”, Fig. 7). Shaded: lowest to highest score; dots: mean; lines: images that "
        f"stayed throughout, i-17 being the one with index 17, {TRACED} of them at most. Flat lines mean that an old "
        "score is still a good one, which is what lazy scoring relies on. Each device's newest traced round is shown."
    )
    names = {label: f"{label}, " if len(runs) > 1 else "" for label in runs}
    charts = [chart(score_trend(trace, names[label])) for label, run in runs.items() for trace in run.traces]
    return Section("Score trends", caption, charts=charts)
