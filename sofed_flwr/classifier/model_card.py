"""README.md of a model directory: what the model is and what trained it, for people who were not there.

It is written from config.json alone, which may hold a stranger's text: an encoder file says what it likes of itself. So
a text stands in a code span, short and printable, in which Markdown has no links, HTML, images or mentions.
"""

import re
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from sofed_flwr.core.redaction import one_line
from sofed_flwr.storage.model_files import OURS

LONGEST, SENTENCE = 80, 300
"""Characters of a text."""
MOST_FACTS = 60
DEEPEST = 4
CLASSES_SHOWN = 50
TRAINING = {
    "method": "method",
    "policy": "policy that chose what a device kept",
    "strategy": "strategy of the server",
    "dataset": "dataset",
    "clients": "devices",
    "rounds": "rounds",
    "images_seen": "images seen, all devices together",
    "seed": "seed",
    "epsilon": "privacy spent (epsilon)",
    "delta": "at delta",
    "no_privacy": "no privacy guarantee",
    "pretrained": "started from",
    "version": "version of sofed_flwr",
}
"""Fact -> what it is called in the card; the first seven are named even if they are not known."""
ALWAYS = 7
PERCENT = {"accuracy": "accuracy", "interval": "95 % interval"}
"""Facts of a classifier that are percentages -> what they are called in the card."""
WITHOUT_LABELS = "Training of the encoder, without labels"

HEAD = """\
---
library_name: {library}
pipeline_tag: {task}
tags:
- federated-learning
- self-supervised-learning
---

# {title}

Network: {network} ({settings}), {features} features per image, for images of {size}. Pixels are scaled to 0 .. 1, then
normalised by mean {mean} and standard deviation {std}.
"""
LIMITS = """\
## Limits

- Images of another kind, camera or size than those of training are answered worse, without a sign of it.
{of_classifier}- The accuracies above are those of the images they were measured on.
- Training without labels learns what is frequent on the devices; what is rare there is represented badly.
"""
OF_CLASSIFIER = """\
- Every image gets one of the classes, also one that shows none of them; a probability is not a guarantee.
  `sofed predict --threshold P` answers `unsure` below a probability.
"""
USE = """\
## Use

    from sofed_flwr import {loader}

    model = {loader}("DIRECTORY")
    model.{call}(["photo.jpg"])
"""
TIMM = """
or `timm.create_model("local-dir:DIRECTORY", pretrained=True)`.
"""


def model_card(config: Mapping[str, Any]) -> str:
    """Markdown, from the content of config.json."""
    facts, classes = config[OURS], config.get("label_names", [])
    is_timm = not config["architecture"].startswith(OURS)
    loader, call = ("load_classifier", "predict") if classes else ("load_encoder", "features")
    parts = [
        _head(config, classes, is_timm),
        _section(_title(facts), _training(facts)),
        _section(
            "Accuracy of the encoder before it saw labels, in percent", _accuracies(_mapping(facts.get("results")))
        ),
        _section("The classifier on top", islice(_flat(facts.get("classifier")), MOST_FACTS)),
        LIMITS.format(of_classifier=OF_CLASSIFIER if classes else ""),
        USE.format(loader=loader, call=call) + (TIMM if is_timm else ""),
    ]
    return "\n".join(part for part in parts if part)


def _head(config: Mapping[str, Any], classes: list[str], is_timm: bool) -> str:
    cfg, settings = config["pretrained_cfg"], config[OURS]["architecture"]
    size = " x ".join(map(str, cfg["input_size"][1:])) + " pixels" if "input_size" in cfg else "a size not recorded"
    text = HEAD.format(
        library="timm" if is_timm else "sofed_flwr",
        task="image-classification" if classes else "image-feature-extraction",
        title=f"Image classifier of {len(classes)} classes" if classes else "Image encoder",
        network=_text(config["architecture"]),
        settings=_text(" ".join(f"{name}={value}" for name, value in settings.items() if name != "_target_")),
        features=config["num_features"],
        size=size,
        mean=cfg["mean"][0],
        std=cfg["std"][0],
    )
    if not classes:
        return text
    more = f" and {len(classes) - CLASSES_SHOWN} more" if len(classes) > CLASSES_SHOWN else ""
    return f"{text}\nClasses: {', '.join(map(_text, classes[:CLASSES_SHOWN]))}{more}\n"


def _title(facts: Mapping[str, Any]) -> str:
    if facts.get("fine_tuned") is not None:
        return "Training of the encoder, first without and then with labels"
    given = facts.get("pretrained") is not None
    return f"{WITHOUT_LABELS}, from weights whose own training is not recorded" if given else WITHOUT_LABELS


def _training(facts: Mapping[str, Any]) -> Iterator[str]:
    known = {**_mapping(facts.get("results")), **facts}
    for place, (name, called) in enumerate(TRAINING.items()):
        if known.get(name) is not None:
            yield f"{called}: {_value(known[name])}"
        elif place < ALWAYS:
            yield f"{called}: not recorded"
    labels = _mapping(facts.get("fine_tuned"))
    if {"images", "classes"} <= labels.keys():
        yield f"fine-tuned with labels: {_value(labels['images'])} images of {_value(labels['classes'])} classes"


def _accuracies(results: Mapping[str, Any]) -> Iterator[str]:
    before = _mapping(results.get("untrained"))
    measured = {"kNN": (results.get("knn"), before.get("knn"))}
    trained, untrained = (_mapping(values.get("linear")) for values in (results, before))
    measured |= {f"linear probe, {_text(part)} of the labels": (trained[part], untrained.get(part)) for part in trained}
    known = {name: pair for name, pair in measured.items() if pair[0] is not None}
    for name, (value, start) in islice(known.items(), MOST_FACTS):
        yield f"{name}: {_value(value)}" + ("" if start is None else f" (before training {_value(start)})")
    if not known:
        yield "not recorded"


def _flat(facts: Any, before: str = "") -> Iterator[str]:
    """Every value below a mapping: a range as such, texts one by one; other lists, such as a matrix, are left out."""
    for name, value in _mapping(facts).items():
        called, unit = _name(f"{before}{name}"), ""
        if name in PERCENT:
            called, unit = f"{_name(before) if before else ''}{PERCENT[name]}", " %"
        match value:
            case Mapping():
                yield from _flat(value, f"{before}{name}.") if before.count(".") < DEEPEST else ()
            case [int() | float() as low, int() | float() as high]:
                yield f"{called}: {_value(low)} to {_value(high)}{unit}"
            case list():
                yield from (f"{called}: {_text(text, SENTENCE)}" for text in value if isinstance(text, str))
            case None:
                pass
            case _:
                yield f"{called}: {_value(value)}{unit}"


def _section(title: str, lines: Iterator[str]) -> str:
    body = "".join(f"- {line}\n" for line in lines)
    return f"## {title}\n\n{body}" if body else ""


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _value(value: Any) -> str:
    match value:
        case float():
            return f"{value:.4g}"
        case int() if not isinstance(value, bool) and abs(value) < 10**15:
            return f"{value:,}"
        case {"name": name}:
            return _text(name)
        case _:
            return _text(value)


def _name(name: str) -> str:
    """As words if it has no sign that means something in Markdown."""
    return name.replace("_", " ") if re.fullmatch(r"[a-z0-9_. -]{1,60}", name) else _text(name)


def _text(value: object, longest: int = LONGEST) -> str:
    return "`" + (one_line(str(value), longest).replace("`", "'") or " ") + "`"
