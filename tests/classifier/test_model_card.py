"""The model card: what a reader finds in it, and that no text of a stranger becomes Markdown."""

import re

from sofed_flwr.classifier.model_card import model_card
from sofed_flwr.classifier.timm_config import timm_config
from tests.support.models import SMALL, encoder_of

RESULTS = {
    "images_seen": 12800,
    "knn": 41.825,
    "linear": {"0.01": 27.59},
    "untrained": {"knn": 28.4, "linear": {"0.01": 18.3}},
}


def card(classes: tuple[str, ...] = (), classifier: object = None, **facts: object) -> str:
    encoder = encoder_of(**facts)
    more = {"classifier": classifier} if classes else {}
    return model_card({**timm_config(encoder, classes), "sofed": {**encoder.facts, **more}})


def test_a_card_says_what_trained_the_model_and_how_good_it_is() -> None:
    fitted = {"labels": 20, "accuracy": 75.0, "warnings": ["few", "alike"]}
    others = {"not_kept": {"frozen": {"accuracy": 81.25, "interval": [70.5, 90.0]}}}
    text = card(
        ("ant", "bee"), fitted | others | {"matrix": [[1, 0], [0, 1], [2, 2]], "fraction": None}, results=RESULTS
    )
    for line in (
        "# Image classifier of 2 classes",
        "Classes: `ant`, `bee`",
        "- devices: 4",
        "- rounds: 10",
        "- images seen, all devices together: 12,800",
        "- policy that chose what a device kept: `importance`",
        "- strategy of the server: not recorded",
        "- kNN: 41.83 (before training 28.4)",
        "- linear probe, `0.01` of the labels: 27.59 (before training 18.3)",
        "- labels: 20",
        "- accuracy: 75 %",
        "- not kept.frozen.accuracy: 81.25 %",
        "- not kept.frozen.95 % interval: 70.5 to 90 %",
        "- warnings: `few`",
        "- warnings: `alike`",
    ):
        assert line in text.splitlines(), line
    assert "load_classifier" in text
    assert "timm" not in text
    assert "matrix" not in text
    assert "fraction" not in text
    assert "- not recorded" in card()


def test_a_card_claims_no_training_without_labels_for_weights_it_does_not_know() -> None:
    assert "## Training of the encoder, without labels\n" in card()
    title = "## Training of the encoder, without labels, from weights whose own training is not recorded\n"
    assert title in card(pretrained={"name": "resnet18.safetensors", "sha256": "0" * 64})


def test_a_card_names_timm_where_timm_can_load_it() -> None:
    network = SMALL | {"blocks": [2, 2, 2, 2], "width": 64, "stem": "imagenet"}
    text = model_card({**timm_config(encoder_of(network), ()), "sofed": {"architecture": network}})
    assert "library_name: timm" in text
    assert "Network: `resnet18` (`blocks=[2, 2, 2, 2] width=64 stem=imagenet`), 512 features" in text
    assert 'timm.create_model("local-dir:DIRECTORY", pretrained=True)' in text


def test_no_text_of_a_stranger_becomes_markdown() -> None:
    """Whatever stands outside of code spans is ours: no link, image, HTML, heading, mention or control character."""
    hostile = "`x`\n# own heading\n<img src=x onerror=alert(1)> [a](http://b) ![c](http://d) @all \x1b[2J \u202e|"
    nested = {hostile: {hostile: hostile}, "list": [1, 2, 3], "deep": {"a": {"b": {"c": {"d": {"e": {"f": 1}}}}}}}
    facts = dict.fromkeys(("method", "policy", "strategy", "dataset", "clients", "rounds", "version"), hostile)
    results = {"knn": hostile, "linear": {hostile: hostile}, "images_seen": {"name": hostile}, "untrained": 5}
    text = card((hostile, ""), nested, results=results, **facts)
    assert "onerror" in text
    outside = re.sub(r"`[^`\n]*`", "", text.partition("# Image")[2])
    assert outside.count("`") == 0
    for sign in ("own heading", "onerror", "<", "http", "![", "@all", "\x1b", "\u202e"):
        assert sign not in outside, sign
    assert [line for line in text.splitlines() if line.startswith("#")] == [
        "# Image classifier of 2 classes",
        "## Training of the encoder, without labels",
        "## Accuracy of the encoder before it saw labels, in percent",
        "## The classifier on top",
        "## Limits",
        "## Use",
    ]


def test_numbers_of_any_size_and_facts_of_any_type_are_written() -> None:
    for odd in (10**400, -1, 1e308, True, None, [], {}, [[]], "x" * 9000):
        text = card(("ant",), odd, results=odd, clients=odd, seed=odd, pretrained={"name": odd, "sha256": "0"})
        facts = {**encoder_of().facts, "fine_tuned": {"images": odd, "classes": odd}}
        text += model_card({**timm_config(encoder_of(), ()), "sofed": facts})
        assert len(text) < 8000
