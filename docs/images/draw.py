"""The pictures of README and tutorial, drawn from runs: python docs/images/draw.py RUN LABELS MODEL PHOTO

RUN is a finished `make run`; LABELS, MODEL and PHOTO are what the tutorial's steps 2 to 4 make. The curves of the
README are those of `results/runs`.
"""

import json
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import mean

import numpy as np
import yaml
from matplotlib.figure import Figure
from PIL import Image

from sofed_flwr import load_classifier
from sofed_flwr.analysis.buffers.held import device_homes, read_held
from sofed_flwr.analysis.buffers.sheet import sheets
from sofed_flwr.analysis.charts import contact_sheet
from sofed_flwr.analysis.charts.panels import COLOURS
from sofed_flwr.core.records import Pixels
from sofed_flwr.core.rng import numpy_generator
from sofed_flwr.datasets.shapes import CLASS_NAMES, render_shapes
from sofed_flwr.storage.metrics_log import read_rows

HERE = Path(__file__).parent
PUBLISHED = HERE.parent.parent / "results" / "runs"
POLICIES = {
    "fading_strata": "fading strata (default)",
    "strata": "strata",
    "importance": "importance scoring (paper)",
    "reservoir": "reservoir",
}
SETTING = {"experiment": "table3_policies", "scale": "long"}
EXAMPLES, PER_CLASS = 10, 3
SMALLER = 0.6
"""Of the contact sheet's size, so that a page shows 16 pictures side by side."""


def rows_of(log: Path, name: str) -> dict[int, float]:
    """A server's metric by round."""
    found = (row for row in read_rows(log) if row["name"] == name and "device" not in row)
    return {row["round"]: row["value"] for row in found}


def published(policy: str) -> list[Path]:
    """Runs at scale `long`, STC 500, of every seed."""

    def fits(folder: Path) -> bool:
        config = yaml.safe_load((folder / "config.yaml").read_text())
        return SETTING.items() <= config["choices"].items() and config["stream"]["stc"] == 150

    return [folder for folder in sorted(PUBLISHED.glob(f"sofed-{policy}-*")) if fits(folder)]


def curve(runs: Sequence[Path], name: str) -> tuple[list[float], list[float]]:
    """Mean over the runs, by steps of a device."""
    values = defaultdict(list)
    for run in runs:
        steps = max(row["value"] for row in read_rows(run / "metrics.jsonl") if row["name"] == "steps")
        for number, value in rows_of(run / "metrics.jsonl", name).items():
            values[number * steps].append(value)
    return sorted(values), [mean(values[step]) for step in sorted(values)]


def embedded() -> Pixels:
    """A line of images for each class, (H, W, 3)."""
    made = render_shapes(EXAMPLES * len(CLASS_NAMES), numpy_generator(0, "picture"))
    lines = [np.concatenate(list(made.images[made.labels == label]), axis=2) for label in range(len(CLASS_NAMES))]
    return np.concatenate(lines, axis=1).transpose(1, 2, 0)


def overview() -> None:
    """The embedded dataset, and accuracy and age of the kept images by policy."""
    figure = Figure(figsize=(10.8, 3.2), layout="constrained")
    shapes, accuracy, age = figure.subplots(1, 3, width_ratios=[2, 3, 3])
    shapes.imshow(embedded())
    shapes.set_axis_off()
    shapes.set_title("the embedded dataset: ten outlines", fontsize=9)
    for colour, (policy, label) in zip(COLOURS, POLICIES.items(), strict=False):
        runs = published(policy)
        accuracy.plot(*curve(runs, "knn"), "o-", color=colour, markersize=4, label=f"{label}, {len(runs)} seeds")
        age.plot(*curve(runs, "buffer_age_median"), color=colour)
    accuracy.legend(fontsize=7)
    age.set_yscale("log")
    titles = ("CIFAR-10 subset, 2 devices, 32 images each: kNN (%)", "median age of the images held (steps)")
    for axes, title in zip((accuracy, age), titles, strict=True):
        axes.set_title(title, fontsize=9)
        axes.set_xlabel("steps per device", fontsize=8)
        axes.tick_params(labelsize=8)
        axes.grid(alpha=0.4)
    figure.savefig(HERE / "overview.png", dpi=100, metadata={"Software": None})


def learned(run: Path) -> None:
    """Three charts of the run's report side by side."""
    figure = Figure(figsize=(9.4, 2.3), layout="constrained")
    named = {"linear_1.0": "linear probe, 100 % labels (%)", "loss": "loss", "discard_ratio": "new images discarded"}
    for axes, (name, title) in zip(figure.subplots(1, 3), named.items(), strict=True):
        values = rows_of(run / "metrics.jsonl", name)
        axes.plot(values.keys(), values.values(), "o-", color=COLOURS[0], markersize=3)
        axes.set_title(title, fontsize=9)
        axes.set_xlabel("round", fontsize=8)
        axes.tick_params(labelsize=8)
        axes.grid(alpha=0.4)
    figure.savefig(HERE / "tutorial_report.png", dpi=100, metadata={"Software": None})


def kept(run: Path) -> None:
    """The buffer of the first device, as `sofed inspect` draws it."""
    (sheet,) = sheets([read_held(device_homes(run)[0])])
    height, width, _ = sheet.pixels.shape
    size = (round(width * SMALLER), round(height * SMALLER))
    Image.fromarray(sheet.pixels).resize(size, Image.Resampling.LANCZOS).save(HERE / "tutorial_buffer.png")


def labelled(labels: Path, model: Path, photo: Path) -> None:
    """Some of the labelled images, and the photo with its prediction."""
    classifier = load_classifier(model)
    best = classifier.probabilities([photo])[0]
    answer = f"{photo.name}: {classifier.classes[int(best.argmax())]} {float(best.max()):.2f}"
    chosen = [(file, f"{file.parent.name}/{file.name}") for file in _some(labels)]
    pictures = [contact_sheet.Picture(_thumbnail(file), caption) for file, caption in [*chosen, (photo, answer)]]
    (HERE / "tutorial_labels.png").write_bytes(contact_sheet.png([contact_sheet.draw("labels", pictures)]))


def _some(labels: Path) -> Iterator[Path]:
    for folder in sorted(labels.iterdir()):
        yield from sorted(folder.iterdir(), key=lambda file: int(file.stem))[:PER_CLASS]


def _thumbnail(file: Path) -> Pixels:
    side = contact_sheet.SIDE
    return np.asarray(Image.open(file).convert("RGB").resize((side, side), Image.Resampling.NEAREST))


if __name__ == "__main__":
    run, labels, model, photo = map(Path, sys.argv[1:])
    print(json.dumps({policy: [folder.name for folder in published(policy)] for policy in POLICIES}, indent=1))
    overview()
    learned(run)
    kept(run)
    labelled(labels, model, photo)
