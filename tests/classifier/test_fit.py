"""`sofed fit` from end to end: what is written, what is said, what is kept."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import Result
from typer.testing import CliRunner

from sofed_flwr.classifier import finetune, progress_lines
from sofed_flwr.classifier import fit as fit_module
from sofed_flwr.classifier.assessment import assess
from sofed_flwr.classifier.fit import FINE_TUNED, FROZEN, Fit, fit
from sofed_flwr.classifier.labels import Choice, LabelSet, NamedImages
from sofed_flwr.classifier.model_directory import load_classifier, write_model
from sofed_flwr.classifier.warnings import about_accuracy
from sofed_flwr.cli.main import app
from sofed_flwr.core.errors import ConfigError
from sofed_flwr.core.records import LabeledImages, Pixels
from sofed_flwr.datasets.shapes import CLASS_NAMES, Shapes
from sofed_flwr.encoder import FrozenEncoder, load_encoder, save_encoder
from sofed_flwr.evaluation.features import untouched
from tests.datasets.test_folder import save_image
from tests.evaluation.test_evaluation import gratings
from tests.support.models import SMALL, encoder_of, unwatched

SHAPES = ["dataset=shapes", "dataset.train=300", "dataset.test=100", "--per-class", "10"]


@pytest.fixture
def encoder(tmp_path: Path) -> Path:
    file = tmp_path / "encoder.safetensors"
    whole = encoder_of(size=32)
    save_encoder(file, whole.backbone, SMALL, {"image_size": [32, 32], "rounds": 3})
    return file


def called(*words: object) -> Result:
    return CliRunner().invoke(app, ["fit", *map(str, words)])


def named(data: LabeledImages) -> NamedImages:
    return NamedImages(data, [f"image {place}" for place in range(len(data))])


def labels_of(train: LabeledImages, test: LabeledImages | None = None) -> LabelSet:
    classes = tuple(f"class {number}" for number in range(int(train.labels.max()) + 1))
    return LabelSet(classes, named(train), None if test is None else named(test), "folder")


def fitted(labels: LabelSet, fine_tuning: bool = False, seed: int = 0, encoder: FrozenEncoder | None = None) -> Fit:
    return fit(encoder or encoder_of(), labels, Choice(seed=seed), fine_tuning, unwatched)


def noise(counts: list[int], seed: int = 0) -> LabeledImages:
    """Pictures that tell nothing of their label."""
    labels = np.repeat(np.arange(len(counts)), counts)
    images = np.random.default_rng(seed).integers(256, size=(len(labels), 3, 16, 16), dtype=np.uint8)
    return LabeledImages(images, labels)


def sentences(found: Fit) -> list[str]:
    return [warning.sentence for warning in found.warnings]


# the command


def test_from_a_dataset_to_a_classifier_that_is_as_good_as_was_said(
    encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress_lines, "EVERY_S", float("inf"))  # of a busy machine
    first, second = (called(encoder, *SHAPES, "--out", tmp_path / name) for name in ("one", "two"))
    assert (first.exit_code, first.stderr) == (0, ""), first.output
    assert first.output.replace("one", "") == second.output.replace("two", "")
    files = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("one", "two")]
    assert files[0] == files[1]
    model = load_classifier(tmp_path / "one")
    assert model.classes == CLASS_NAMES
    assert {key: model.facts[key] for key in ("training", "labels", "labels_per_class", "per_class", "seed")} == {
        "training": "frozen",
        "labels": 100,
        "labels_per_class": [10, 10],
        "per_class": 10,
        "seed": 0,
    }
    test = Shapes(train=300, test=100, seed=0).load().test
    right = model.probabilities(torch.from_numpy(test.images)).argmax(dim=1).numpy() == test.labels
    assert model.facts["accuracy"] == pytest.approx(100 * right.mean())
    assert model.facts["evaluated_by"] == "test images"
    assert f"{100 * right.mean():.1f}" in first.stdout
    for shown in ("95 % interval", "cross-validation", "rows: class, columns: predicted", "recall (%)", "saltire"):
        assert shown in first.stdout


def test_from_folders_beside_a_run_and_once_more_from_the_model(encoder: Path, tmp_path: Path) -> None:
    data = gratings(60)
    for number, (image, label) in enumerate(zip(data.images, data.labels, strict=True)):
        save_pixels(tmp_path / "photos" / f"kind {label % 2}" / f"{number}.png", image)
    (tmp_path / "photos" / "kind 0" / "bad.png").write_bytes(b"no image")
    done = called(encoder.parent, tmp_path / "photos", "--out", tmp_path / "model")
    assert done.exit_code == 0, done.output
    assert "1 unreadable images left out, the first is kind 0/bad.png" in done.stdout
    assert load_classifier(tmp_path / "model").facts["evaluated_by"] == "cross-validation"
    assert str(tmp_path) not in (tmp_path / "model" / "config.json").read_text(), "a model that is given away"
    assert "rows: class, columns: predicted" in done.stdout.splitlines()
    config = json.loads((tmp_path / "model" / "config.json").read_text())["sofed"]["classifier"]
    assert config["evaluated_images"] == 60
    figures = [config["accuracy"], *config["interval"]]
    assert figures == [round(value, 4) for value in figures] != [round(value, 2) for value in figures]
    every = called(encoder.parent, tmp_path / "photos", "--out", tmp_path / "model", "--per-class", "50")
    fewest, most = np.sort(np.bincount(data.labels % 2)).tolist()
    assert f"--per-class 50: 2 of 2 classes have fewer labels, {fewest} at the least; all of theirs" in every.stdout
    assert load_classifier(tmp_path / "model").facts["per_class"] == most
    again = called(tmp_path / "model", tmp_path / "photos", "--out", tmp_path / "model", "--fraction", "0.5")
    assert again.exit_code == 0, again.output
    assert load_classifier(tmp_path / "model").facts["labels"] == 30


def save_pixels(path: Path, image: Pixels) -> None:
    from PIL import Image

    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(image.transpose(1, 2, 0)).resize((32, 32)).save(path)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["dataset=shapes", "--per-class", "2", "--fraction", "0.1"], "--fraction and --per-class: expected one"),
        (["dataset=shapes", "--fraction", "1.5"], "--fraction 1.5: expected more than 0 and at most 1"),
        (["dataset=shapes", "--fraction", "nan"], "--fraction nan: expected more than 0"),
        (["dataset=nowhere"], "there is no such dataset"),
        (["dataset=shapes", "photos"], "photos: expected one folder or CSV of labels, or overrides"),
        (["photos", "others"], "photos: expected one folder or CSV"),
        (["nowhere"], "nowhere is neither a folder nor a file"),
        (["one.csv"], "all images are of the class 'ant'"),
    ],
)
def test_a_wrong_word_is_one_sentence(
    encoder: Path, tmp_path: Path, words: list[str], sentence: str, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    save_image(tmp_path / "a.png")
    (tmp_path / "one.csv").write_text("a.png,ant\n")
    done = called(encoder, *words, "--out", tmp_path / "model")
    assert done.exit_code == 2, done.output
    assert sentence in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "model").exists()


def test_a_directory_of_something_else_is_refused_before_anything_is_computed(encoder: Path, tmp_path: Path) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.tex").touch()
    done = called(encoder, "dataset=nowhere", "--out", tmp_path / "thesis")
    assert (done.exit_code, "holds chapter.tex" in done.stderr) == (2, True)


# warnings


def test_few_labels_and_labels_that_cannot_be_learned_are_said() -> None:
    found = fitted(labels_of(noise([40, 4, 3])))
    chance, few = sentences(found)
    assert re.fullmatch(
        r"the accuracy is [\d.]+ %, and it is no better than chance: always answering 'class 0' is right for 85.1 %, "
        r"which is not below the interval of [\d.]+ to [\d.]+ %",
        chance,
    )
    assert few == "fewer than 5 labels in 2 of 3 classes: class 2 (3), class 1 (4)"
    assert found.classifier.facts["warnings"] == [chance, few]


def test_few_images_cannot_tell_a_good_accuracy_from_chance() -> None:
    """6 of 12, a third of them by chance: the interval begins at 25.4 %."""
    labels = np.repeat([0, 1, 2], 4)
    (warning,) = about_accuracy(assess(("ant", "bee", "cat"), labels, np.repeat([0, 1, 2, 0], [4, 2, 0, 6])))
    assert warning.sentence == (
        "the accuracy is 50.0 %, and 12 images cannot tell it from chance: always answering 'ant' is right for 33.3 %, "
        "which is not below the interval of 25.4 to 74.6 %"
    )


def test_nothing_is_known_where_every_class_has_one_image() -> None:
    found = fitted(labels_of(noise([1, 1])))
    assert sentences(found)[0].startswith("nothing is known of the accuracy")
    assert found.kept.assessment is None
    assert "accuracy" not in found.classifier.facts
    with pytest.raises(ConfigError, match="--finetune: every class has one image"):
        fitted(labels_of(noise([1, 1])), fine_tuning=True)


def test_duplicates_across_folds_and_across_the_split_are_said() -> None:
    train, test = noise([20, 20]), noise([5, 5], seed=1)
    assert not any("identical" in text for text in sentences(fitted(labels_of(train, test))))
    test.images[7] = train.images[3]
    found = fitted(labels_of(train, test))
    (said,) = (warning for warning in found.warnings if "identical" in warning.sentence)
    assert said.sentence == (
        "identical images across labels and test images: 1 (1 with different labels); the accuracy may be too high"
    )
    assert said.names == "image 7 and image 3"
    train.images[:20] = train.images[0]
    (text,) = (text for text in sentences(fitted(labels_of(train))) if "identical" in text)
    assert text == "identical images across folds of cross-validation: 16; the accuracy may be too high"


def test_an_encoder_without_finite_features_is_refused() -> None:
    broken = encoder_of()
    broken.backbone.conv1.weight.fill_(torch.nan)  # type: ignore[union-attr, operator]
    with pytest.raises(ConfigError, match="values that are not finite"):
        fitted(labels_of(noise([3, 3])), encoder=broken)


# fine-tuning


@pytest.fixture
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finetune, "EPOCHS", 5)
    monkeypatch.setattr(finetune, "FEWEST_STEPS", 20)


def two_kinds(data: LabeledImages) -> LabeledImages:
    """Gratings of the lower and of the higher frequency."""
    return LabeledImages(data.images, data.labels // 5)


@pytest.mark.usefixtures("_short")
def test_fine_tuning_is_kept_where_held_out_labels_are_better_and_test_images_choose_nothing() -> None:
    train, test = two_kinds(gratings(80)), two_kinds(gratings(40, seed=1))
    shuffled = LabeledImages(test.images, np.random.default_rng(0).permutation(test.labels))
    encoder = encoder_of()
    with untouched(encoder.backbone):
        found, other = (fitted(labels_of(train, evaluate), True, encoder=encoder) for evaluate in (test, shuffled))
    frozen, tuned = found.candidates
    assert (frozen.name, tuned.name, found.kept) == (FROZEN, FINE_TUNED, tuned)
    assert tuned.validation is not None
    assert frozen.validation is not None
    assert tuned.validation.correct > frozen.validation.correct
    assert tuned.validation.images == frozen.validation.images == 80
    assert (found.classifier.facts["training"], *found.classifier.facts["not_kept"]) == (FINE_TUNED, FROZEN)
    weights, others = (result.classifier.state_dict() for result in (found, other))
    assert all(torch.equal(weights[name], others[name]) for name in weights)
    before = encoder.backbone.state_dict()
    after = found.classifier.encoder.backbone.state_dict()
    assert not torch.equal(before["conv1.weight"], after["conv1.weight"])
    assert torch.equal(before["bn1.running_mean"], after["bn1.running_mean"]), "statistics of pretraining stay"


@pytest.mark.usefixtures("_short")
def test_an_encoder_that_saw_labels_says_so_wherever_it_goes(tmp_path: Path) -> None:
    """Fine-tuned, fitted once more on the same images, and exported without its head."""
    labels = labels_of(two_kinds(gratings(80)))
    tuned = fitted(labels, fine_tuning=True)
    assert not any("trained with labels" in text for text in sentences(tuned))
    write_model(tmp_path / "one", tuned.classifier)
    again = fitted(labels, encoder=load_encoder(tmp_path / "one"))
    warning = "the encoder was trained with labels; if these images are among them, the accuracy is too high"
    assert sentences(again)[0] == warning
    write_model(tmp_path / "two", again.classifier)
    write_model(tmp_path / "alone", load_classifier(tmp_path / "two").encoder)
    for name in ("one", "two", "alone"):
        assert load_encoder(tmp_path / name).facts["fine_tuned"] == {"images": 80, "classes": 2}
        card = (tmp_path / name / "README.md").read_text()
        assert "- fine-tuned with labels: 80 images of 2 classes" in card.splitlines()
        assert "encoder, without labels" not in card
        assert (f"- warnings: `{warning}`" in card.splitlines()) == (name == "two")


@pytest.mark.usefixtures("_short")
def test_fine_tuning_that_changes_nothing_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finetune, "LEARNING_RATE", 0.0)
    monkeypatch.setattr(finetune, "FEWEST_STEPS", 5)
    monkeypatch.setattr(finetune, "EPOCHS", 1)
    found = fitted(labels_of(two_kinds(gratings(40))), True)
    assert found.kept.name == FROZEN
    assert found.classifier.facts["training"] == FROZEN
    assert "fine_tuned" not in found.classifier.encoder.facts


def test_of_many_labels_one_fold_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finetune, "EPOCHS", 0.1)
    monkeypatch.setattr(finetune, "FEWEST_STEPS", 5)
    monkeypatch.setattr(finetune, "ENOUGH", 20)
    found = fitted(labels_of(two_kinds(gratings(120))), True)
    assert [candidate.validation.images for candidate in found.candidates if candidate.validation] == [24, 24]


@pytest.mark.parametrize(("small", "threads"), [(fit_module.SMALL, 1), (0, 2)])
def test_a_small_network_is_fine_tuned_on_one_thread(small: int, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """And a large one on as many as there were, which are left as they were."""
    before = torch.get_num_threads()

    def end(*_: object) -> None:
        raise ConfigError(f"fine-tuning on {torch.get_num_threads()} threads")

    monkeypatch.setattr(fit_module, "SMALL", small)
    monkeypatch.setattr(finetune, "validate", end)
    torch.set_num_threads(2)
    try:
        with pytest.raises(ConfigError, match=f"on {threads} threads"):
            fitted(labels_of(noise([2, 2])), True)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_without_a_terminal_a_line_says_how_far_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By a clock that moves six seconds with every step, so that every second one is told, but for the last."""
    clock = iter(range(0, 100, 6))
    monkeypatch.setattr(progress_lines, "monotonic", lambda: float(next(clock)))
    assert list(progress_lines.lines("abcd", "fine-tuning")) == list("abcd")
    assert capsys.readouterr().err == "sofed: fine-tuning: 2 of 4, about 12 s left\n"


def test_probabilities_are_made_likely_again() -> None:
    """Right in three of four with a margin of 8: log(3) / 8 would be likeliest, which is a temperature of 7.28."""
    logits = torch.tensor([[8.0, 0.0]] * 4)
    assert finetune._temperature(logits, torch.tensor([0, 0, 0, 1])) == pytest.approx(7.28, rel=0.05)
