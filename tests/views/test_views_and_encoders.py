"""Pixels become network input in one place; every encoder maps them to features of the width it announces."""

from typing import get_args

import pytest
import torch
from torch import Tensor
from torchvision.models import resnet18

from sofed_flwr.build import build_method
from sofed_flwr.config.instantiate import build
from sofed_flwr.policies.importance import Importance
from sofed_flwr.views.pixels import network_input
from sofed_flwr.views.training import TrainingViews
from sofed_flwr.views.weak import WEAK_VIEWS, _own_draws, flip, gray
from tests.support.federation import compose_once, conf_names


def views() -> TrainingViews:
    built: TrainingViews = build(compose_once().method["views"], "views")
    return built


def draw(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_network_input_is_normalised_by_hand() -> None:
    pixels = torch.tensor([0, 255, 51], dtype=torch.uint8).reshape(1, 3, 1, 1)
    torch.testing.assert_close(network_input(pixels).flatten(), torch.tensor([-2.0, 2.0, -1.2]))


def test_flip_mirrors_left_and_right() -> None:
    row = torch.tensor([1, 2, 3], dtype=torch.uint8).reshape(1, 1, 1, 3)
    assert flip(row).flatten().tolist() == [3, 2, 1]


def test_gray_is_the_rounded_luma_in_every_channel() -> None:
    """0.299 * 100 + 0.587 * 150 + 0.114 * 200 = 140.75; 0.299 * 255 = 76.245."""
    colours = torch.tensor([[100, 150, 200], [255, 0, 0], [255, 255, 255]], dtype=torch.uint8).reshape(3, 3, 1, 1)
    assert gray(colours).flatten(1).tolist() == [[141] * 3, [76] * 3, [255] * 3]


def test_the_policy_knows_every_weak_view() -> None:
    assert get_args(Importance.__annotations__["weak_view"]) == tuple(WEAK_VIEWS)


@pytest.mark.parametrize("name", WEAK_VIEWS)
class TestWeakViews:
    """A weak view is the image's own: no neighbour, no position and no generator has a part in it."""

    def test_a_batch_is_viewed_as_its_images_one_by_one(self, name: str, pixels: Tensor) -> None:
        view = WEAK_VIEWS[name]
        batch = view(pixels)
        assert torch.equal(batch, torch.cat([view(image[None]) for image in pixels]))
        order = torch.randperm(len(pixels), generator=draw(0))
        assert torch.equal(view(pixels[order]), batch[order])
        assert torch.equal(view(pixels), batch)

    def test_equal_images_get_equal_views(self, name: str, pixels: Tensor) -> None:
        first, *_, last = WEAK_VIEWS[name](torch.cat([pixels, pixels[:1]]))
        assert torch.equal(first, last)

    @pytest.mark.parametrize("shape", [(5, 3, 32, 32), (1, 3, 17, 30)])
    def test_pixels_stay_pixels(self, name: str, shape: tuple[int, ...]) -> None:
        images = torch.randint(256, shape, dtype=torch.uint8, generator=draw(0))
        before = images.clone()
        view = WEAK_VIEWS[name](images)
        assert (view.shape, view.dtype) == (images.shape, torch.uint8)
        assert not torch.equal(view, images)
        assert torch.equal(images, before)
        assert network_input(view).shape == shape

    def test_a_score_is_had_from_it(self, name: str, pixels: Tensor) -> None:
        scores = build_method(compose_once("encoder.width=4")).score(pixels, name)
        assert scores.shape == (12,)
        assert scores.isfinite().all()

    def test_torchs_generator_is_left_alone(self, name: str, pixels: Tensor) -> None:
        before = torch.get_rng_state()
        WEAK_VIEWS[name](pixels)
        assert torch.equal(torch.get_rng_state(), before)


def test_a_crop_shows_seven_eighths_of_each_side_and_nothing_else() -> None:
    """A ramp from left to right: the crop's range is 7/8 of the image's, and where it begins varies over images."""
    ramp = (torch.arange(32) * 8).to(torch.uint8).expand(40, 3, 32, 32).clone()
    ramp[:, 2] = torch.arange(40, dtype=torch.uint8)[:, None, None]
    views = WEAK_VIEWS["crop"](ramp)
    assert torch.equal(views[:, 2], ramp[:, 2])
    left, right = views[:, 0, 0, 0].int(), views[:, 0, 0, -1].int()
    assert (right - left).unique().tolist() == [27 * 8]
    assert left.unique().tolist() == [0, 8, 16, 24, 32]


def test_jitter_moves_every_image_by_factors_between_0_6_and_1_4() -> None:
    """A plain gray image has no contrast or saturation: what is left is its brightness."""
    plain = torch.full((40, 3, 8, 8), 100, dtype=torch.uint8)
    plain[torch.arange(40), :, 0, 0] = torch.arange(40, dtype=torch.uint8)[:, None]
    bright = WEAK_VIEWS["jitter"](plain)[:, :, 1:].flatten(1).float()
    assert bright.std(dim=1).max() < 1
    assert 60 - 3 <= bright.mean(dim=1).min() < 75
    assert 125 < bright.mean(dim=1).max() <= 140 + 3


def mixed(number: int) -> int:
    for _ in range(2):
        number = ((number ^ (number >> 16)) * 0x45D9F3B) % 2**32
    return number ^ (number >> 16)


def test_an_image_draws_what_pythons_whole_numbers_draw(pixels: Tensor) -> None:
    """The hash as a plain loop: the same on every machine, since nothing in it is rounded."""
    for image, drawn in zip(pixels, _own_draws(pixels, 2).T, strict=True):
        own = sum(value * (mixed(place) >> 12) for place, value in enumerate(image.flatten().tolist(), start=1))
        assert drawn.tolist() == [(mixed((own + k * 0x9E3779B9) % 2**32) >> 8) / 2**24 for k in (1, 2)]


def test_images_of_one_different_pixel_draw_apart(pixels: Tensor) -> None:
    nearly_equal = pixels[:1].repeat(256, 1, 1, 1)
    nearly_equal[:, 0, 0, 0] = torch.arange(256, dtype=torch.uint8)
    counts = torch.histc(_own_draws(nearly_equal, 1), bins=4, min=0, max=1)
    assert counts.min() > 256 / 8


def test_a_view_depends_on_its_generator_alone_and_leaves_the_global_one_alone(pixels: Tensor) -> None:
    torch.manual_seed(1)
    first = views()(pixels, draw(0))
    next_global = torch.rand(1)
    torch.manual_seed(1)
    assert torch.equal(torch.rand(1), next_global)
    torch.manual_seed(2)
    assert torch.equal(views()(pixels, draw(0)), first)
    assert not torch.equal(views()(pixels, draw(1)), first)


def test_two_views_of_a_batch_differ_image_by_image(pixels: Tensor) -> None:
    generator = draw(0)
    same_image = pixels[:1].expand(8, -1, -1, -1)
    first = views()(same_image, generator)
    assert first.shape == (8, 3, 16, 16)
    assert len({tuple(image.flatten().tolist()) for image in first}) == 8
    assert not torch.equal(first, views()(same_image, generator))


@pytest.mark.parametrize("name", conf_names("encoder"))
@pytest.mark.parametrize("stem", ["cifar", "imagenet"])
def test_every_encoder_gives_features_of_the_width_it_announces(name: str, stem: str) -> None:
    encoder = build(compose_once(f"encoder={name}", f"encoder.stem={stem}").encoder, "encoder").eval()
    assert encoder(torch.rand(2, 3, 32, 32)).shape == (2, encoder.feature_dim)


def test_the_half_stem_works_on_a_quarter_of_the_pixels() -> None:
    encoder = build(compose_once("encoder=resnet8", "encoder.stem=half").encoder, "encoder")
    assert encoder.conv1(torch.rand(1, 3, 32, 32)).shape == (1, 16, 16, 16)
    assert encoder(torch.rand(2, 3, 32, 32)).shape == (2, 128)


def test_our_resnet18_with_the_imagenet_stem_is_torchvisions() -> None:
    theirs = resnet18(weights=None).eval()
    ours = build(compose_once("encoder=resnet18", "encoder.stem=imagenet").encoder, "encoder").eval()
    ours.load_state_dict({k: v for k, v in theirs.state_dict().items() if not k.startswith("fc.")})
    theirs.fc = torch.nn.Identity()
    images = torch.rand(2, 3, 64, 64)
    torch.testing.assert_close(ours(images), theirs(images))
