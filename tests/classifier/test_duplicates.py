"""Images on both sides of a split: the same pixels, the same picture, and pictures that only share a background."""

import numpy as np

from sofed_flwr.classifier.duplicates import Pair, across
from sofed_flwr.core.records import Pixels
from tests.support.models import unwatched


def pictures(count: int, seed: int = 0) -> Pixels:
    """Smooth random pictures, as photos are."""
    coarse = np.random.default_rng(seed).integers(256, size=(count, 3, 6, 6))
    return np.repeat(np.repeat(coarse, 4, axis=2), 4, axis=3).astype(np.uint8)


def test_the_same_pixels_and_the_same_picture_are_found_in_other_groups_only() -> None:
    images = pictures(12)
    noise = np.random.default_rng(1).integers(-6, 7, size=images.shape[1:])
    images[7] = images[2]
    images[9] = (images[3] * 0.9 + noise).clip(0, 255)
    images[5] = images[1]
    groups = np.array([0] * 6 + [1] * 6)
    assert across(images, groups, unwatched) == [Pair(7, 2, True), Pair(9, 3, False)], "1 and 5 are in one group"
    folds = np.array([0, 1, 0, 2, 0, 2, 2, 1, 1, 0, 1, 2])
    assert [pair.image for pair in across(images, folds, unwatched)] == [3, 5, 7]


def test_what_all_images_share_makes_no_duplicates() -> None:
    """A bright bone before a dark ground, as on every X-ray, and a little of each one's own."""
    own = pictures(40).astype(int)
    bone = np.zeros(own.shape[1:], int)
    bone[:, :, 8:14] = 200
    images = (bone + own // 8).astype(np.uint8)
    correlation = np.corrcoef(images.reshape(40, -1))
    assert correlation[0, 1] > 0.95
    assert across(images, np.arange(40) % 2, unwatched) == []


def test_pictures_of_one_colour_are_identical_or_nothing() -> None:
    images = np.stack([np.full((3, 16, 16), value, np.uint8) for value in (10, 10, 200, 90)])
    assert across(images, np.array([0, 1, 0, 1]), unwatched) == [Pair(1, 0, True)]


def test_all_images_the_same() -> None:
    images = np.repeat(pictures(1), 600, axis=0)
    found = across(images, np.arange(600) % 5, unwatched)
    assert len(found) == 480
    assert all(pair.identical for pair in found)
