"""Labels as people have them: folders, CSVs, and everything that can be wrong with either."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from sofed_flwr.classifier.label_files import CLASSES, find_labels
from sofed_flwr.classifier.labels import Choice, LabelSet, of_dataset, read_labels
from sofed_flwr.core.errors import ConfigError
from sofed_flwr.core.records import Split
from tests.datasets.test_folder import save_image
from tests.support.federation import labelled
from tests.support.models import unwatched

Make = Callable[[Path], Path]


def read(place: Path, choice: Choice | None = None) -> LabelSet:
    return read_labels(place, (16, 16), choice or Choice(), unwatched)


def folders(root: Path, **counts: int) -> Path:
    for name, count in counts.items():
        (root / name).mkdir(parents=True)
        for number in range(count):
            save_image(root / name / f"{number:03}.png", number)
    return root


def csv(root: Path, text: str | bytes) -> Path:
    root.mkdir(exist_ok=True)
    for name in ("a.png", "b.png", "c.png"):
        save_image(root / "images" / name)
    file = root / "labels.csv"
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    return file


def test_class_folders_and_their_names(tmp_path: Path) -> None:
    found = read(folders(tmp_path, dog=2, cat=3))
    assert (found.classes, found.test, found.source) == (("cat", "dog"), None, "folder")
    assert found.train.data.labels.tolist() == [0, 0, 0, 1, 1]
    assert found.train.data.images.shape == (5, 3, 16, 16)
    assert found.train.names[-1] == str(Path("dog/001.png"))


def test_train_and_test_folders(tmp_path: Path) -> None:
    folders(tmp_path / "train", dog=2, cat=3)
    folders(tmp_path / "test", dog=4)
    found = read(tmp_path)
    assert found.test is not None
    assert (len(found.train.data), found.test.data.labels.tolist()) == (5, [1, 1, 1, 1])


ROWS = "images/a.png,ant\nimages/b.png,bee\n\nimages/c.png,ant\n"


@pytest.mark.parametrize(
    "text",
    [
        ROWS,
        "path,label\n" + ROWS,
        "\ufeffPath, Label\r\n" + ROWS.replace("\n", "\r\n"),
        "id,label,path\n1,bee,images/b.png\n2,ant,images/a.png\n3,ant,images/c.png",
        '"images/a.png","ant"\nimages/../images/b.png,bee\n./images/c.png, ant',
    ],
)
def test_a_csv_with_and_without_a_header(tmp_path: Path, text: str) -> None:
    """Columns by name where a header names them; paths start at the CSV; rows have one order."""
    found = read(csv(tmp_path, text))
    assert (found.classes, found.train.data.labels.tolist(), found.source) == (("ant", "bee"), [0, 0, 1], "CSV")


def test_an_absolute_path_in_a_csv(tmp_path: Path) -> None:
    other = save_image(tmp_path / "elsewhere" / "x.png")
    file = csv(tmp_path / "here", f"{other},cow\nimages/a.png,ant")
    assert read(file).train.names == ["images/a.png", str(other)]


def test_unreadable_images_are_left_out_and_told(tmp_path: Path) -> None:
    folders(tmp_path, cat=3, dog=2)
    (tmp_path / "cat" / "bad\x1b[2J.png").write_bytes(b"no image")
    found = read(tmp_path)
    assert len(found.train.data) == 5
    (remark,) = found.remarks
    assert remark.startswith("1 unreadable images left out, the first is cat/bad [2J.png: ")
    assert remark.isprintable()


def test_photos_in_other_formats_and_links_to_folders_are_told(tmp_path: Path) -> None:
    folders(tmp_path / "photos", cat=3, dog=2)
    folders(tmp_path, elsewhere=1)
    (tmp_path / "photos" / "cat" / "IMG_1.HEIC").touch()
    (tmp_path / "photos" / "dog" / "more").symlink_to(tmp_path / "elsewhere")
    assert read(tmp_path / "photos").remarks == (
        "1 unreadable images left out, the first is cat/IMG_1.HEIC: HEIC is not read; save it as JPEG or PNG",
        "1 links to folders are not followed, the first is dog/more",
    )
    (tmp_path / "photos" / "owl").mkdir()
    (tmp_path / "photos" / "owl" / "2.cr2").touch()
    with pytest.raises(ConfigError, match=r"owl holds no image; .*2\.cr2: CR2 is not read; save it as JPEG or PNG"):
        read(tmp_path / "photos")


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (
            lambda root: root / "nowhere",
            "nowhere is neither a folder nor a file; expected class folders, a CSV, or overrides",
        ),
        (lambda root: root, "holds no labelled image"),
        (lambda root: folders(root, cat=2, dog=0), "dog holds no image; add some, or remove the folder"),
        (lambda root: folders(root, cat=2), "all images are of the class 'cat'; expected at least two classes"),
        (
            lambda root: folders(root, **{"cat\x1b[2J": 1, "dog": 1}),
            r"called 'cat\\x1b\[2J'; expected 1 to 100 printable",
        ),
        (lambda root: folders(root, **{"c" * 101: 1, "dog": 1}), "expected 1 to 100 printable"),
        (lambda root: save_image(root / "loose.png").parent, "holds images without class folders"),
        (lambda root: folders(root / "train", cat=1, dog=1).parent, "halves of a dataset, not classes"),
        (lambda root: csv(root, ""), "holds no labelled image"),
        (lambda root: csv(root, "path,label\n"), "holds no labelled image"),
        (lambda root: csv(root, "images/a.png,ant\n"), "all images are of the class 'ant'"),
        (lambda root: csv(root, ROWS + "x.png,ant\ny.png,bee"), "x.png and 1 others, which is no file; paths start at"),
        (lambda root: csv(root, f"{ROWS}{'n' * 5000},ant"), "which is no file"),
        (lambda root: csv(root, f"{ROWS}images,ant"), "which is no file"),
        (lambda root: csv(root, ROWS + "images/a.png"), "line 5 has 1 columns, expected 2, path and label"),
        (lambda root: csv(root, "path,label\n" + ROWS + "images/a.png,b,c"), "line 6 has 3 columns, expected 2$"),
        (lambda root: csv(root, ROWS + "images/a.png,"), "a class is called ''"),
        (lambda root: csv(root, ROWS.encode() + b"images/a.png,\xe9t\xe9"), "is not UTF-8"),
        (lambda root: csv(root, ROWS + 'images/a.png,"ant'), "is not a CSV of paths and labels"),
        (lambda root: csv(root, ROWS + "images/a.png\0,ant"), "which is no file|is not a CSV"),
        (lambda root: csv(root, "x" * 200_000 + ",ant"), "is not a CSV of paths and labels"),
        (lambda root: csv(root, "".join(f"images/a.png,{n}\n" for n in range(10_000))), "has 10000 classes for 10000"),
    ],
)
def test_what_cannot_be_labels_is_one_sentence(tmp_path: Path, make: Make, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence) as refused:
        find_labels(make(tmp_path))
    assert str(refused.value).isprintable()


def test_a_folder_whose_name_is_not_text(tmp_path: Path) -> None:
    folders(tmp_path, cat=1)
    save_image(tmp_path / os.fsdecode(b"\xff\xfe") / "0.png")
    with pytest.raises(ConfigError, match="printable characters"):
        find_labels(tmp_path)


def test_halves_that_do_not_fit(tmp_path: Path) -> None:
    folders(tmp_path / "train", cat=1, dog=1)
    (tmp_path / "test").mkdir()
    with pytest.raises(ConfigError, match="test holds no image"):
        find_labels(tmp_path)
    folders(tmp_path / "test", owl=1)
    with pytest.raises(ConfigError, match="the class 'owl' has test images, but no training images"):
        find_labels(tmp_path)


def test_a_class_of_which_nothing_can_be_read(tmp_path: Path) -> None:
    folders(tmp_path, cat=2, dog=0)
    (tmp_path / "dog" / "0.png").write_bytes(b"no image")
    with pytest.raises(ConfigError, match=r"no image of the class 'dog' can be read; dog/0.png: not an image in"):
        read(tmp_path)


def test_a_choice_is_the_same_for_every_source_and_smaller_ones_are_parts_of_larger(tmp_path: Path) -> None:
    folders(tmp_path, cat=20, dog=3)
    ten, five, again = (read(tmp_path, Choice(per_class=n, seed=1)) for n in (10, 5, 5))
    assert np.bincount(ten.train.data.labels).tolist() == [10, 3]
    assert set(five.train.names) < set(ten.train.names)
    assert five.train.names == again.train.names != read(tmp_path, Choice(per_class=5, seed=2)).train.names
    half = read(tmp_path, Choice(fraction=0.5))
    assert np.bincount(half.train.data.labels).tolist() == [10, 2]
    data = labelled([20, 3])
    by_dataset = of_dataset(Split(data, data), None, "dataset=x", Choice(per_class=5, seed=1), [])
    assert [name.split()[-1] for name in by_dataset.train.names[:5]] == [
        str(int(Path(name).stem)) for name in five.train.names[:5]
    ]


def test_a_dataset_keeps_its_classes_and_leaves_out_tests_that_nobody_could_pass() -> None:
    whole = labelled([4, 4, 4])
    odd = np.flatnonzero(whole.labels != 1)
    train = type(whole)(whole.images[odd], whole.labels[odd])
    found = of_dataset(Split(train, whole), ("ant", "bee", "cat"), "dataset=x", Choice(), ["first"])
    assert found.classes == ("ant", "cat")
    assert found.train.data.labels.tolist() == [0] * 4 + [1] * 4
    assert found.test is not None
    assert found.test.data.images[:, 0, 0, 0].tolist() == [0] * 4 + [2] * 4
    assert found.remarks == ("first", "4 test images of classes without training images left out")
    assert of_dataset(Split(train, whole), None, "dataset=x", Choice(), []).classes == ("0", "2")


def test_a_dataset_of_one_class_or_of_too_many() -> None:
    one, many = labelled([3]), labelled([1] * (CLASSES + 1))
    for data, sentence in ((one, "dataset=x: all images are of the class '0'"), (many, "has 1001 classes for 1001")):
        with pytest.raises(ConfigError, match=sentence):
            of_dataset(Split(data, data), None, "dataset=x", Choice(), [])
