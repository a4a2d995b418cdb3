"""What the replay buffers hold: the images themselves, their scores and ages."""

from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence

from torch import Tensor

from sofed_flwr.analysis.buffers.duplicates import NEAR, SIDE
from sofed_flwr.analysis.buffers.held import MOST_DEVICES, Held
from sofed_flwr.analysis.buffers.sheet import MOST_IMAGES, Sheet
from sofed_flwr.analysis.charts.contact_sheet import png
from sofed_flwr.analysis.charts.panels import Histogram
from sofed_flwr.analysis.charts.svg import chart
from sofed_flwr.analysis.report.section import Section
from sofed_flwr.analysis.report.tables import NOTHING, Table

Buffers = Mapping[str, Sequence[Held]]
"""Of each run, by its label."""


def holdings(buffers: Buffers) -> Section:
    """The buffers in numbers."""
    caption = (
        "The replay buffers after the last round that each device saved. The score is the policy's, the age counts the "
        "iterations (segments of the stream) that an image has stayed; a dash: the policy has no scores. "
        f"Near-duplicates: images that, reduced to {SIDE} x {SIDE} pixels, differ by at most {NEAR:.0%} of the range "
        "of colours (root mean square). Stayed: images that were there one saved round before, too. "
        f"Of a run with more devices the first {MOST_DEVICES} are shown."
    )
    charts = [
        *_histogram(buffers, lambda held: held.scores, "score", whole=False),
        *_histogram(buffers, lambda held: held.now.ages, "age in iterations", whole=True),
    ]
    return Section(
        "Buffers at the end", caption, tables=[table(buffers).html()] if any(buffers.values()) else [], charts=charts
    )


def pictures(drawn: Sequence[Sheet]) -> Section:
    """The images themselves."""
    caption = (
        "These are images of the devices' streams, which may show people: this page is for the machine that made it, "
        "and only its owner can read the file. Highest score first, youngest first where there are no scores; below "
        "each image its score and its age. Images with frames of one colour and number (≈) are near-duplicates. At "
        f"most {MOST_IMAGES} per device are shown."
    )
    return Section("Images in the buffers", caption, tables=[_embedded(sheet) for sheet in drawn])


def table(buffers: Buffers) -> Table:
    """One row per device."""
    several = len(buffers) > 1
    about = ["device", "after round", "images", "pixels"]
    values = ["scores: lowest", "median", "highest", "ages: median", "highest", "near-duplicates", "stayed"]
    rows = [[*([label] if several else []), *_row(held)] for label, devices in buffers.items() for held in devices]
    return Table([*(["run"] if several else []), *about, *values], rows, words=(0, 1) if several else (0,))


def _row(held: Held) -> list[str]:
    scores = held.scores
    height, width = held.now.images.shape[-2:]
    groups = held.duplicates
    stayed = NOTHING if held.before is None else f"{held.stayed} of {len(held)} since round {held.before.round}"
    return [
        str(held.device),
        str(held.now.round),
        str(len(held)),
        f"{height} x {width}" if len(held) else NOTHING,
        *(f"{float(of(scores)):.3f}" if len(scores) else NOTHING for of in (Tensor.min, Tensor.median, Tensor.max)),
        *(str(int(of(held.now.ages))) if len(held) else NOTHING for of in (Tensor.median, Tensor.max)),
        f"{sum(map(len, groups))} in {len(groups)} group{'s' if len(groups) > 1 else ''}" if groups else "0",
        stayed,
    ]


def _histogram(buffers: Buffers, values: Callable[[Held], Tensor], label: str, whole: bool) -> list[str]:
    """By device, or by run where there are several."""
    series: dict[str, list[float]] = {}
    for name, devices in buffers.items():
        for held in devices:
            key = name if len(buffers) > 1 else f"device {held.device}"
            series.setdefault(key, []).extend(values(held).tolist())
    if not any(series.values()):
        return []
    return [chart(Histogram(series, x_label=label, y_label="images", whole=whole))]


def _embedded(sheet: Sheet) -> str:
    content = b64encode(png([sheet.pixels])).decode()
    alternative = f"images in the buffer of device {sheet.device}"
    return f'<img class="sheet" alt="{alternative}" src="data:image/png;base64,{content}">'
