"""Whatever people hold their images in becomes the same pixels, or is refused by its type and shape."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from sofed_flwr.images.batches import as_pixels
from sofed_flwr.images.decoding import decode
from tests.support.frames import encoded, picture

ARRAY = np.arange(2 * 3 * 4 * 5, dtype=np.uint8).reshape(2, 3, 4, 5)
"""Two images of 4 x 5 pixels, colours first."""


@pytest.mark.parametrize(
    "images",
    [
        ARRAY,
        ARRAY.transpose(0, 2, 3, 1),
        torch.from_numpy(ARRAY),
        torch.from_numpy(ARRAY).permute(0, 2, 3, 1),
        np.flip(np.flip(ARRAY, 2).copy(), 2),
        np.frombuffer(ARRAY.tobytes(), np.uint8).reshape(ARRAY.shape),
    ],
    ids=["first", "last", "tensor first", "tensor last", "backwards", "read-only"],
)
def test_arrays_of_both_layouts_are_taken_at_their_size(images: Any) -> None:
    pixels = as_pixels(images, (32, 32))
    assert pixels.dtype == torch.uint8
    assert pixels.tolist() == ARRAY.tolist()


def test_pictures_and_files_become_the_middle_of_an_upright_image(tmp_path: Path) -> None:
    """Four columns red, green, green, blue, two rows: the middle square is green, however it is given."""
    columns = np.zeros((2, 4, 3), np.uint8)
    columns[:, 0, 0] = columns[:, 1:3, 1] = columns[:, 3, 2] = 255
    wide = Image.fromarray(columns)
    on_its_side = wide.rotate(90, expand=True)
    exif = on_its_side.getexif()
    exif[0x0112] = 6  # turn it back by 90 degrees
    (tmp_path / "wide.png").write_bytes(encoded(wide, "PNG"))
    (tmp_path / "side.png").write_bytes(encoded(on_its_side, "PNG", exif=exif))
    green = torch.tensor([0, 255, 0], dtype=torch.uint8)[:, None, None].expand(3, 2, 2)
    for images in (
        wide,
        [wide],
        (Image.open(tmp_path / "side.png"),),
        str(tmp_path / "wide.png"),
        [tmp_path / "wide.png"],
        tmp_path / "side.png",
    ):
        assert torch.equal(as_pixels(images, (2, 2)), green[None]), images
    both = as_pixels([wide, tmp_path / "wide.png"], (2, 4))
    assert torch.equal(both[0], torch.from_numpy(columns).permute(2, 0, 1))
    assert torch.equal(both[0], both[1])
    assert wide.size == (4, 2)


def test_a_file_is_what_training_made_of_it(tmp_path: Path) -> None:
    (tmp_path / "gray.bmp").write_bytes(encoded(picture(1).convert("L"), "BMP"))
    (pixels,) = as_pixels([tmp_path / "gray.bmp"], (24, 24))
    assert np.array_equal(pixels.numpy(), decode(tmp_path / "gray.bmp", 24))


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (torch.rand(2, 3, 8, 8), r"images are float32 \(2, 3, 8, 8\); expected pixels: uint8"),
        (np.zeros((2, 8, 8, 3)), r"images are float64 \(2, 8, 8, 3\); expected pixels: uint8"),
        (torch.zeros(2, 3, 8, 8, dtype=torch.int64), r"images are int64"),
        (ARRAY[0], r"images are \(3, 4, 5\), which is one image without an axis for several; add it: images\[None\]"),
        (ARRAY[0, 0], r"images are uint8 \(4, 5\); expected .* shape \(n, 3, H, W\) or \(n, H, W, 3\)"),
        (np.zeros((2, 1, 8, 8), np.uint8), r"images are uint8 \(2, 1, 8, 8\)"),
        (np.zeros((2, 8, 8, 4), np.uint8), r"images are uint8 \(2, 8, 8, 4\)"),
        (ARRAY[:0], r"\(0, 3, 4, 5\); expected .* n at least 1"),
        (ARRAY[:, :, :0], r"images are uint8 \(2, 3, 0, 5\)"),
        (torch.zeros(2, 3, 8, 3, dtype=torch.uint8), r"\(2, 3, 8, 3\), which can be read with colours first or last"),
        ([], r"images are an empty list; expected pixels"),
        (5, r"images are of type int; expected pixels: .*, or pictures of PIL, or paths"),
        (None, r"images are of type NoneType"),
        ([ARRAY], r"a list of arrays; make one of them: np\.stack\(images\)"),
        ([5], r"an image of the list is of type int; expected a picture of PIL, or a path"),
        (b"image.png", r"images are of type bytes"),
        (Image.new("CMYK", (4, 4)), r"the picture cannot be read as an image \(CMYK has no colours"),
        (Image.new("I;16", (4, 4)), r"the picture cannot be read as an image \(pixels of mode I;16"),
    ],
)
def test_what_are_no_pixels_is_refused_by_type_and_shape(images: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        as_pixels(images, (8, 8))


def test_a_file_that_is_no_image_and_one_that_is_missing_are_named(tmp_path: Path) -> None:
    (tmp_path / "text.png").write_bytes(b"text")
    with pytest.raises(ValueError, match=r"text\.png cannot be read as an image \(not an image in one of"):
        as_pixels([tmp_path / "text.png"], (8, 8))
    with pytest.raises(FileNotFoundError, match=r"none\.png"):
        as_pixels(str(tmp_path / "none.png"), (8, 8))


def test_a_model_that_does_not_know_its_size_takes_arrays_only() -> None:
    assert len(as_pixels(ARRAY, None)) == 2
    with pytest.raises(ValueError, match="does not say the size of its images; scale them yourself"):
        as_pixels(picture(0), None)
