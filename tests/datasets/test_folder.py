"""Image files: three layouts, one split, and files that are not what their names say."""

import json
import logging
import os
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from sofed_flwr.config.compose import compose
from sofed_flwr.config.instantiate import build
from sofed_flwr.core.errors import ConfigError
from sofed_flwr.core.records import LabeledImages
from sofed_flwr.datasets.cache import open_split
from sofed_flwr.datasets.folder import Folder
from sofed_flwr.images.decoding import decode, pixels_of
from sofed_flwr.launch.progress import result_table
from tests.support.federation import federate
from tests.support.frames import BAD


def save_image(path: Path, colour: int = 0, size: tuple[int, int] = (40, 30), **options: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, (colour, 100, 200)).save(path, **options)
    return path


def folder(path: Path, size: int = 16, test_fraction: float = 0.2, seed: int = 0) -> Folder:
    return Folder(path=str(path), size=size, test_fraction=test_fraction, seed=seed)


def reds(data: LabeledImages) -> list[int]:
    """The colour each image was saved with."""
    return data.images[:, 0, 5, 5].tolist()


def test_train_and_test_folders_are_the_halves(tmp_path: Path) -> None:
    for number, name in enumerate(["train/dog/1.png", "train/cat/2.png", "train/cat/1.png", "test/dog/9.png"]):
        save_image(tmp_path / name, number)
    split = folder(tmp_path).load()
    assert split.train.images.shape == (3, 3, 16, 16)
    assert (reds(split.train), split.train.labels.tolist()) == ([2, 1, 0], [0, 0, 1])
    assert (reds(split.test), split.test.labels.tolist()) == ([3], [1])


def test_class_folders_are_split_class_by_class(tmp_path: Path) -> None:
    for name, count, first in (("ant", 10, 0), ("bee", 20, 10), ("cow", 1, 30)):
        for number in range(count):
            save_image(tmp_path / name / f"{number:02}.png", first + number)
    split, again, other = (folder(tmp_path, seed=seed).load() for seed in (0, 0, 1))
    assert np.bincount(split.test.labels).tolist() == [2, 4], "the only cow is for training"
    assert np.bincount(split.train.labels).tolist() == [8, 16, 1]
    assert sorted(reds(split.train) + reds(split.test)) == list(range(31))
    assert reds(split.test) == reds(again.test) != reds(other.test)


def test_images_at_any_depth_belong_to_the_class_of_the_first_folder(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    names = ["cat/2.png", "cat/a/deep/0.png", "cat/a/1.png", "dog/b/3.png", "dog/.hidden/9.png", "dog/b/.9.png"]
    for half in ("train", "test"):
        for number, name in enumerate(names):
            save_image(tmp_path / half / name, number)
    with caplog.at_level(logging.INFO):
        split = folder(tmp_path).load()
    assert (reds(split.train), split.train.labels.tolist()) == ([0, 2, 1, 3], [0, 0, 0, 1])
    assert "4 training and 4 test images of 2 classes: cat 3 + 3, dog 1 + 1" in caplog.text


def test_the_log_names_the_largest_classes_of_many(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for number in range(40):
        save_image(tmp_path / f"class{number:02}" / "0.png")
        save_image(tmp_path / f"class{number:02}" / "1.png")
    with caplog.at_level(logging.INFO):
        folder(tmp_path).load()
    assert "40 training and 40 test images of 40 classes: class00 1 + 1, " in caplog.text
    assert "class19 1 + 1 and 20 more" in caplog.text
    assert "class20" not in caplog.text


def test_links_are_followed_once_and_never_in_circles(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    save_image(tmp_path / "elsewhere" / "1.png", 1)
    save_image(tmp_path / "elsewhere" / "2.png", 2)
    images = tmp_path / "images"
    save_image(images / "ant" / "3.png", 3)
    save_image(images / "ant" / "4.png", 4)
    (images / "bee").symlink_to(tmp_path / "elsewhere")
    (images / "ant" / "up").symlink_to(images)
    (images / "ant" / "self.png").symlink_to(images / "ant" / "self.png")
    (images / "ant" / "gone.png").symlink_to(images / "nowhere.png")
    (images / "loop").symlink_to(images / "loop")
    split = folder(images).load()
    assert sorted(reds(split.train) + reds(split.test)) == [1, 2, 3, 4]
    assert f"1 folders are passed over, the first is {images / 'ant' / 'up'}" in caplog.text


def test_a_third_folder_beside_train_and_test_is_said_to_be_passed_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for half in ("train", "test", "val"):
        save_image(tmp_path / half / "ant" / "1.png")
    folder(tmp_path).load()
    assert f"1 folders are passed over, the first is {tmp_path / 'val'}" in caplog.text


def test_names_that_are_no_text_are_read_and_shown_as_text(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for number, name in enumerate((b"caf\xe9", b"esc\x1b[2J", b"new\nline")):
        for file in ("1.png", "2.png"):
            save_image(tmp_path / os.fsdecode(name) / file, number)
    with caplog.at_level(logging.INFO):
        split = open_split(folder(tmp_path))
    assert len(split.train) == 3
    assert "caf 1 + 1, esc [2J 1 + 1, new line 1 + 1" in caplog.text


def test_images_without_folders_are_one_class(tmp_path: Path) -> None:
    for number in range(10):
        save_image(tmp_path / f"{number}.png", number)
    split = folder(tmp_path, test_fraction=0.3).load()
    assert (len(split.train), len(split.test)) == (7, 3)
    assert set(split.train.labels) | set(split.test.labels) == {0}


def test_an_image_is_turned_upright_scaled_and_cut_in_the_middle(tmp_path: Path) -> None:
    """Left red, right blue, saved lying on its side: upright, the upper half is red."""
    pixels = np.zeros((40, 120, 3), np.uint8)
    pixels[:, :60, 0] = pixels[:, 60:, 2] = 255
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned clockwise
    Image.fromarray(pixels).save(tmp_path / "photo.png", exif=exif)
    image = decode(tmp_path / "photo.png", 8)
    assert image.shape == (3, 8, 8)
    assert image[:, 1, 4].tolist() == [255, 0, 0]
    assert image[:, 6, 4].tolist() == [0, 0, 255]
    plain = Image.fromarray(pixels)
    plain.save(tmp_path / "plain.png")
    assert decode(tmp_path / "plain.png", 8)[:, 4, [0, 7]].T.tolist() == [[255, 0, 0], [0, 0, 255]]


@pytest.mark.parametrize(
    ("mode", "suffix"), [("L", "png"), ("P", "gif"), ("RGBA", "webp"), ("YCbCr", "jpg"), ("1", "bmp")]
)
def test_every_kind_of_picture_becomes_rgb(mode: str, suffix: str, tmp_path: Path) -> None:
    Image.new("RGB", (300, 200), "white").convert(mode).save(tmp_path / f"image.{suffix}")
    image = decode(tmp_path / f"image.{suffix}", 16)
    assert (image.shape, image.dtype) == ((3, 16, 16), np.uint8)
    assert image.min() >= 254


def transparent(kind: str) -> Image.Image:
    """A black picture of which nothing, or half of the light, can be seen; once all of it."""
    match kind:
        case "palette":
            picture = Image.new("P", (40, 30), 0)
            picture.putpalette([0, 0, 0, 255, 0, 0])
        case "gray" | "faint":
            return Image.new("LA", (40, 30), (0, 128 if kind == "faint" else 0))
        case "colour":
            picture = Image.new("RGB", (40, 30), (0, 0, 0))
        case _:
            return Image.new("RGBA", (40, 30), (0, 0, 0, {"clear": 0, "half": 128, "opaque": 255}[kind]))
    picture.info["transparency"] = 0 if kind == "palette" else (0, 0, 0)
    return picture


@pytest.mark.parametrize(
    ("kind", "seen"),
    [("clear", 255), ("half", 127), ("opaque", 0), ("gray", 255), ("faint", 127), ("palette", 255), ("colour", 255)],
)
def test_what_is_transparent_is_seen_on_white(kind: str, seen: int, tmp_path: Path) -> None:
    picture = transparent(kind)
    picture.save(tmp_path / "image.png", **({"transparency": picture.info["transparency"]} if picture.info else {}))
    for image in (decode(tmp_path / "image.png", 8), pixels_of(picture, (8, 8))):
        assert np.unique(image).tolist() == [seen]
    assert picture.getpixel((0, 0)) == transparent(kind).getpixel((0, 0))


def test_a_transparent_border_does_not_darken_what_it_surrounds(tmp_path: Path) -> None:
    """Red on the left, on the right something black that nobody sees; the scaled edge is between red and white."""
    pixels = np.zeros((64, 64, 4), np.uint8)
    pixels[:, :32] = [255, 0, 0, 255]
    Image.fromarray(pixels).save(tmp_path / "image.webp", lossless=True, exact=True)
    image = decode(tmp_path / "image.webp", 8)
    assert image[:, 4, [0, 7]].T.tolist() == [[255, 0, 0], [255, 255, 255]]
    assert image[0].min() >= 253


def test_of_a_phones_several_pictures_in_one_file_the_photo_is_taken(tmp_path: Path) -> None:
    photo, depth = Image.new("RGB", (40, 30), "white"), Image.new("RGB", (40, 30), "black")
    photo.save(tmp_path / "photo.jpg", format="MPO", save_all=True, append_images=[depth])
    assert decode(tmp_path / "photo.jpg", 16).min() >= 254


def write_text(path: Path) -> None:
    path.write_text("not an image")


def write_half(path: Path) -> None:
    whole = save_image(path, size=(200, 200)).read_bytes()
    path.write_bytes(whole[: len(whole) // 2])


def write_deep(path: Path) -> None:
    Image.fromarray(np.full((8, 8), 40000, np.uint16)).save(path)


def write_bomb(path: Path) -> None:
    path.write_bytes(BAD["bomb"][1](1))


def write_cmyk(path: Path) -> None:
    Image.new("CMYK", (40, 30)).save(path, format="JPEG")


def write_moving(path: Path) -> None:
    save_image(path, format="GIF", save_all=True, append_images=[Image.new("RGB", (40, 30), "white")])


@pytest.mark.parametrize("write", [write_text, write_half, write_deep, write_bomb, write_cmyk, write_moving])
def test_an_unreadable_file_is_left_out_and_counted(
    write: Callable[[Path], None], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for half in ("train", "test"):
        save_image(tmp_path / half / "ant" / "1.png", 1)
        save_image(tmp_path / half / "bee" / "3.png", 3)
        write(tmp_path / half / "ant" / "2.png")
    with caplog.at_level(logging.WARNING):
        split = folder(tmp_path).load()
    assert (reds(split.train), split.train.labels.tolist()) == ([1, 3], [0, 1])
    (record,) = caplog.records
    assert "2 unreadable images left out, the first is 2.png: " in record.getMessage()


def test_photos_in_other_formats_are_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("ant/1.png", "ant/2.png", "bee/3.png", "bee/4.png"):
        save_image(tmp_path / name)
    for name in ("bee/deep/5.jxl", "ant/6.HEIC"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert len(folder(tmp_path).load().train) == 2
    (record,) = caplog.records
    told = "2 unreadable images left out, the first is 6.HEIC: HEIC is not read; save it as JPEG or PNG"
    assert told in record.getMessage()


def test_other_and_hidden_files_are_not_images(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    save_image(tmp_path / "1.PNG", 1)
    save_image(tmp_path / "2.jpeg", 2)
    save_image(tmp_path / ".thumbnails" / "1.png", 9)
    write_text(tmp_path / "readme.txt")
    write_text(tmp_path / "._1.png")
    split = folder(tmp_path).load()
    assert len(split.train) + len(split.test) == 2
    assert not caplog.records


def test_a_changed_added_or_renamed_file_changes_the_fingerprint(tmp_path: Path) -> None:
    first, second = save_image(tmp_path / "1.png", 1), save_image(tmp_path / "2.png", 2)
    seen = {folder(tmp_path).fingerprint()}
    assert folder(tmp_path).fingerprint() in seen
    save_image(first, 3, size=(50, 50))
    seen.add(folder(tmp_path).fingerprint())
    second.rename(tmp_path / "4.png")
    seen.add(folder(tmp_path).fingerprint())
    save_image(tmp_path / "5.png")
    seen |= {folder(tmp_path).fingerprint(), folder(tmp_path, size=8).fingerprint()}
    assert len(seen) == 5
    assert len(open_split(folder(tmp_path)).train) == 2


def loose_and_sorted(path: Path) -> None:
    save_image(path / "1.png")
    save_image(path / "ant" / "1.png")


def no_image(path: Path) -> None:
    (path / "ant").mkdir()


def no_test_image(path: Path) -> None:
    save_image(path / "train" / "ant" / "1.png")
    (path / "test").mkdir()


def wrapped(path: Path) -> None:
    save_image(path / "dataset" / "ant" / "1.png")
    save_image(path / "dataset" / "bee" / "1.png")


def other_halves(path: Path) -> None:
    save_image(path / "train" / "ant" / "1.png")
    save_image(path / "val" / "ant" / "1.png")


def circle(path: Path) -> None:
    path.rmdir()
    path.symlink_to(path)


def file_instead(path: Path) -> None:
    path.rmdir()
    path.touch()


def nothing_readable(path: Path) -> None:
    for number in range(4):
        write_text(path / f"{number}.png")


@pytest.mark.parametrize(
    ("prepare", "message"),
    [
        (loose_and_sorted, r"holds images \(1.png\) beside folders of images \(ant\); expected are train/CLASS/"),
        (no_image, r"has no training images; expected are train/CLASS/ and test/CLASS/, or CLASS/, or images without"),
        (no_test_image, "has no test images"),
        (lambda path: (path / "1.heic").touch(), r"has no training images; .*1.heic: HEIC is not read"),
        (nothing_readable, r"none of 3 images can be read; \d.png: not an image in one of the formats"),
        (
            wrapped,
            r"all images are in folders of 'dataset'; if those are the classes, use .*images/dataset",
        ),
        (
            other_halves,
            r"'train', 'val' are halves of a dataset, not classes; expected are train/CLASS/",
        ),
        (circle, "is not a folder"),
        (file_instead, "is not a folder"),
        (lambda path: path.rmdir(), r"is not a folder; dataset=folder needs dataset.path=FOLDER"),
    ],
)
def test_a_folder_that_is_no_dataset_says_what_is_wrong(
    prepare: Callable[[Path], None], message: str, tmp_path: Path
) -> None:
    (tmp_path / "images").mkdir()
    prepare(tmp_path / "images")
    with pytest.raises(ValueError, match=rf"^path='.*images'.*{message}"):
        open_split(folder(tmp_path / "images"))


def test_a_bad_fraction_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"dataset.test_fraction=1: input should be less than 1"):
        build(compose(["dataset=folder", f"dataset.path={tmp_path}", "dataset.test_fraction=1"]).dataset, "dataset")


SMALL = ["encoder.width=4", "heads.hidden=32", "heads.output=16", "clients=2", "buffer=8", "rounds=1"]


def trained(path: Path) -> tuple[dict[str, Any], str]:
    """A federation on `path`/images: its summary, and the table a user sees."""
    config = compose(["dataset=folder", f"dataset.path={path / 'images'}", f"out={path / 'run'}", *SMALL])
    server = federate(config)
    server.finish(config.encoder, config.facts)
    assert server.directory.encoder.exists()
    summary = json.loads(server.directory.summary.read_text())
    console = Console(file=StringIO(), width=160)
    console.print(result_table(summary))
    return summary, console.file.getvalue()


def test_unlabeled_images_train_an_encoder_and_have_no_accuracy(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(40):
        save_image(tmp_path / "images" / f"{number}.png", 6 * number)
    summary, table = trained(tmp_path)
    assert "all training images are of one class, or unlabeled: no accuracies" in caplog.text
    assert (summary["knn"], summary["linear"], summary["untrained"]) == (None, {}, {"knn": None, "linear": {}})
    assert summary["feature_std"] > 0
    assert f"trained without labels │ {summary['loss']:.2f} │" in table


def test_class_folders_train_and_are_evaluated(tmp_path: Path) -> None:
    for number in range(40):
        save_image(tmp_path / "images" / "ab"[number % 2] / f"{number}.png", 6 * number)
    summary, table = trained(tmp_path)
    assert summary["knn"] is not None
    assert "linear, 10% labels" in table
    assert "untrained" in table
