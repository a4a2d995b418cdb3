"""What the devices keep: discarded images, rescored ones, and the scores themselves."""

from math import isnan

from sofed_flwr.charts import COLOURS, Range, chart
from sofed_flwr.report.read import ScoreTrace
from sofed_flwr.report.section import Runs, Section, curves, over_rounds

TRACED = len(COLOURS) - 1
"""Images drawn in a score trend: one colour each, besides that of the range."""


def discarding(runs: Runs) -> Section:
    """How choosy the policy is."""
    caption = (
        "Share of new images that did not get into the buffer, over all devices, from 0 to 1. Dashed: 0.5, what random "
        "replacement discards. Importance scoring discards far more (over 0.8 in the paper, Fig. 6) and comes closer "
        "to the line as the model understands more of what it sees."
    )
    charts = over_rounds(curves(runs, "discard_ratio"), "discarded / seen", y_limits=(-0.02, 1.02), reference=0.5)
    return Section("Discard ratio", caption, charts=charts)


def rescoring(runs: Runs) -> Section:
    """What lazy scoring saves."""
    caption = (
        "Share of buffer entries whose score was computed anew, over all devices, from 0 to 1. With a lazy scoring "
        "interval of T it is about 1/T (paper, Table 6); lower is cheaper. A policy without scores stays at 0."
    )
    charts = over_rounds(curves(runs, "rescoring_ratio"), "rescored / held", y_limits=(-0.02, 1.02))
    return Section("Rescoring ratio", caption, charts=charts)


def score_trends(runs: Runs) -> Section:
    """Why lazy scoring works, or does not."""
    caption = (
        "Importance scores on a device, iteration by iteration, over the number of images it has seen in the round "
        "(paper, “Impacts of Lazy Scoring”, Fig. 7). Shaded: lowest to highest score; dots: mean; lines: images that "
        f"stayed throughout, i-17 being the one with index 17, {TRACED} of them at most. Flat lines mean that an old "
        "score is still a good one, which is what lazy scoring relies on. Each device's newest traced round is shown."
    )
    several = len(runs) > 1
    charts = [_trend(trace, f"{label}, " if several else "") for label, run in runs.items() for trace in run.traces]
    return Section("Score trends", caption, charts=charts)


def _trend(trace: ScoreTrace, label: str) -> str:
    interval = "" if trace.interval is None else f", T = {trace.interval}"
    stayed = {f"i-{name}": scores for name, scores in trace.samples.items() if not any(map(isnan, scores))}
    panel = Range(
        trace.seen,
        trace.low,
        trace.mean,
        trace.high,
        dict(list(stayed.items())[:TRACED]),
        x_label="images seen in the round",
        y_label="importance score",
        title=f"{label}device {trace.device}, round {trace.round}{interval}",
    )
    return chart(panel)
