"""Which image files a folder holds, and of which class: the first folder below it, whatever the file's depth.

A class folder may be a link; a link to a folder further down is not followed: so no file is found twice, the search
ends, and a link in a downloaded archive leads nowhere else. Hidden files and folders are skipped. Photos in a format
that is not read are no images here, but their owner is told.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from sofed_flwr.images.decoding import has_image_name, why_not_read

LAYOUTS = "expected are train/CLASS/ and test/CLASS/, or CLASS/, or images without any folders"
UNLABELED = ""
"""Class of images that are in no class folder."""
HALVES = {"train", "test", "val", "valid", "validation"}
"""Names that folders of classes have, and classes do not."""

File = os.DirEntry[str]
Entry = tuple[File, str]
"""A file and its class."""


@dataclass(frozen=True)
class PassedOver:
    """What a search leaves out, by path: folders that are not looked into, and photos with the reason."""

    folders: list[str] = field(default_factory=list)
    photos: list[tuple[str, str]] = field(default_factory=list)

    def add_photos(self, children: list[File]) -> None:
        """Those of them whose format is not read."""
        for child in children:
            if (why := why_not_read(child.name)) is not None and _is_file(child):
                self.photos.append((child.path, why))


def find_images(folder: Path, passed_over: PassedOver) -> list[Entry]:
    """Image files in order of class and name: the order of a directory differs between machines.

    Folders that are links inside a class are added to `passed_over`, and photos in other formats.
    """
    children = _listing(folder)
    passed_over.add_photos(children)
    loose = [(child, UNLABELED) for child in children if _is_image(child)]
    found = {child.name: list(images_below(child, passed_over)) for child in children if _is_folder(child)}
    nested = {name: files for name, files in found.items() if files}
    sorted_in = [(file, name) for name, files in nested.items() for file in files]
    if loose and sorted_in:
        raise ValueError(
            f"{folder} holds images ({loose[0][0].name}) beside folders of images ({sorted_in[0][1]}); {LAYOUTS}"
        )
    _refuse_what_are_no_classes(folder, nested)
    return loose or sorted_in


def _refuse_what_are_no_classes(folder: Path, nested: dict[str, list[File]]) -> None:
    """Folders of class folders would make one class of many."""
    outer = [name for name, files in nested.items() if all(Path(file).parent != folder / name for file in files)]
    if halves := [name for name in outer if name.lower() in HALVES]:
        raise ValueError(f"{str(halves)[1:-1]} are halves of a dataset, not classes; {LAYOUTS}")
    for name in outer if len(nested) == 1 else ():
        if len({Path(file).relative_to(folder).parts[1] for file in nested[name]}) > 1:
            raise ValueError(
                f"all images are in folders of {name!r}; if those are the classes, use dataset.path={folder / name}"
            )


def images_below(top: Path | File, passed_over: PassedOver) -> Iterator[File]:
    """Files in order of their path's parts; a stack instead of a recursion, since folders can be nested deeply."""
    stack: list[Path | File] = [top]
    while stack:
        folder = stack.pop()
        children = _listing(folder)
        passed_over.add_photos(children)
        yield from (child for child in children if _is_image(child))
        for child in reversed(children):
            if _is_folder(child):
                if child.is_symlink():
                    passed_over.folders.append(child.path)
                else:
                    stack.append(child)


def _listing(folder: Path | File) -> list[File]:
    with os.scandir(folder) as entries:
        return sorted((entry for entry in entries if not entry.name.startswith(".")), key=lambda entry: entry.name)


def _is_image(entry: File) -> bool:
    return has_image_name(entry.name) and _is_file(entry)


def _is_file(entry: File) -> bool:
    try:
        return entry.is_file()
    except OSError:  # a link to itself
        return False


def _is_folder(entry: File) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False
