"""Which image files a user has labelled: a folder of class folders, or a CSV of paths and labels.

Here a mistake is refused that `dataset=folder` passes over: the classes found are the answers a classifier gives for
the rest of its life, so a class folder without images, a label that cannot be printed or a column of ids instead of
labels ends in a sentence. What a name holds may be somebody else's, so it is shown without its control characters
(`ConfigError`).
"""

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from sofed_flwr.core.errors import ConfigError
from sofed_flwr.datasets.image_files import UNLABELED, PassedOver, find_images

CLASSES = 1000
"""More would need a solver of another kind: L-BFGS keeps 200 times the weights of the head in float64."""
LONGEST = 100
"""Characters of a label."""
LARGEST_CSV = 64 * 2**20
"""Bytes; half a million rows."""
COLUMNS = ("path", "label")

Entry = tuple[Path, str]
"""A file and its label."""


class LabelFiles(NamedTuple):
    """Labelled files, in a fixed order; `test` is None where nothing says which images are for testing.

    `passed_over` is what lies beside them.
    """

    root: Path
    train: list[Entry]
    test: list[Entry] | None
    passed_over: PassedOver

    @property
    def classes(self) -> tuple[str, ...]:
        """Those that can be learned, sorted."""
        return tuple(sorted({label for _, label in self.train}))


def find_labels(place: Path) -> LabelFiles:
    """A folder's images by class folder, in train/ and test/ if it has both; otherwise the rows of a CSV."""
    passed_over = PassedOver()
    if place.is_dir():
        halves = [place / half for half in ("train", "test")]
        if all(half.is_dir() for half in halves):
            train, test = (_class_folders(half, passed_over) for half in halves)
            found = LabelFiles(place, train, test, passed_over)
        else:
            found = LabelFiles(place, _class_folders(place, passed_over), None, passed_over)
    elif place.is_file():
        found = LabelFiles(place.parent, _rows(place), None, passed_over)
    else:
        raise ConfigError(
            f"{place} is neither a folder nor a file; expected class folders, a CSV, or overrides like dataset=shapes"
        )
    refuse_what_are_no_classes(place, found.classes, len(found.train))
    _refuse_other_tests(place, found)
    return found


def _class_folders(folder: Path, passed_over: PassedOver) -> list[Entry]:
    try:
        found = find_images(folder, passed_over)
    except ValueError as error:
        raise ConfigError(f"{folder}: {error}") from error
    if any(label == UNLABELED for _, label in found):
        raise ConfigError(f"{folder} holds images without class folders; expected {folder}/CLASS/IMAGE")
    folders = {path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")}
    if empty := sorted(folders - {label for _, label in found}):
        photos = [": ".join(photo) for photo in passed_over.photos if Path(photo[0]).is_relative_to(folder / empty[0])]
        remedy = photos[0] if photos else "add some, or remove the folder"
        raise ConfigError(f"{folder / empty[0]} holds no image; {remedy}")
    return [(Path(file), label) for file, label in found]


def _rows(file: Path) -> list[Entry]:
    """Two columns, path and label; with a header that names both, other columns may stand beside them."""
    rows = _cells(file)
    header = [cell.lower() for cell in rows[0][1]] if rows else []
    named = all(name in header for name in COLUMNS)
    places = [header.index(name) for name in COLUMNS] if named else [0, 1]
    width = len(header) if named else len(COLUMNS)
    entries = []
    for line, cells in rows[1:] if named else rows:
        if len(cells) != width:
            remedy = "" if named else ", path and label; a header with these names allows for more"
            raise ConfigError(f"{file}: line {line} has {len(cells)} columns, expected {width}{remedy}")
        path, label = (cells[place] for place in places)
        entries.append((file.parent / path, label))
    _refuse_missing(file, entries)
    return sorted(entries, key=lambda entry: (entry[1], entry[0]))


def _cells(file: Path) -> list[tuple[int, list[str]]]:
    """The number of each line and its cells; empty lines are passed over."""
    if (size := file.stat().st_size) > LARGEST_CSV:
        raise ConfigError(f"{file} has {size} bytes, expected a CSV of at most {LARGEST_CSV}")
    try:
        text = file.read_bytes().decode("utf-8-sig")
        reader = csv.reader(io.StringIO(text, newline=""), skipinitialspace=True, strict=True)
        return [(reader.line_num, [cell.strip() for cell in row]) for row in reader if row]
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file} is not UTF-8 (byte {error.start}); save it as CSV UTF-8") from error
    except csv.Error as error:
        raise ConfigError(f"{file} is not a CSV of paths and labels ({error})") from error


def _refuse_missing(file: Path, entries: list[Entry]) -> None:
    """Of a file that cannot be found, the label is lost: that is an error of the CSV, not of an image."""
    missing = [path for path, _ in entries if not _is_file(path)]
    if missing:
        others = f" and {len(missing) - 1} others" if len(missing) > 1 else ""
        raise ConfigError(f"{file} names {str(missing[0])[:300]}{others}, which is no file; paths start at the CSV")


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a name too long, a link to itself
        return False


def refuse_what_are_no_classes(source: object, classes: Sequence[str], images: int) -> None:
    """Before anything takes memory for each of them; `source` is what the labels are from."""
    for label in classes:
        if not label or not label.isprintable() or len(label) > LONGEST:
            shown = repr(label[:LONGEST])
            raise ConfigError(f"{source}: a class is called {shown}; expected 1 to {LONGEST} printable characters")
    if not classes:
        raise ConfigError(f"{source} holds no labelled image; expected CLASS/IMAGE, or rows of path,label")
    if len(classes) == 1:
        raise ConfigError(f"{source}: all images are of the class {classes[0]!r}; expected at least two classes")
    if len(classes) > CLASSES:
        raise ConfigError(f"{source} has {len(classes)} classes for {images} images; expected at most {CLASSES}")


def _refuse_other_tests(place: Path, found: LabelFiles) -> None:
    if found.test == []:
        raise ConfigError(f"{place / 'test'} holds no image; expected {place / 'test'}/CLASS/IMAGE")
    if unknown := sorted({label for _, label in found.test or []} - set(found.classes)):
        raise ConfigError(f"{place}: the class {unknown[0]!r} has test images, but no training images")
