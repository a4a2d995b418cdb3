"""Pixels become network input in one place; every encoder maps them to features of the width it announces."""

import pytest
import torch
from torch import Tensor
from torchvision.models import resnet18

from sofed_flwr.component import build
from sofed_flwr.config import compose
from sofed_flwr.views import TrainingViews, flip, network_input
from tests.conftest import conf_names


def views() -> TrainingViews:
    built: TrainingViews = build(compose([]).method["views"], "views")
    return built


def draw(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_network_input_is_normalised_by_hand() -> None:
    pixels = torch.tensor([0, 255, 51], dtype=torch.uint8).reshape(1, 3, 1, 1)
    torch.testing.assert_close(network_input(pixels).flatten(), torch.tensor([-2.0, 2.0, -1.2]))


def test_flip_mirrors_left_and_right() -> None:
    row = torch.tensor([1, 2, 3], dtype=torch.uint8).reshape(1, 1, 1, 3)
    assert flip(row).flatten().tolist() == [3, 2, 1]


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
    encoder = build(compose([f"encoder={name}", f"encoder.stem={stem}"]).encoder, "encoder").eval()
    assert encoder(torch.rand(2, 3, 32, 32)).shape == (2, encoder.feature_dim)


def test_the_half_stem_works_on_a_quarter_of_the_pixels() -> None:
    encoder = build(compose(["encoder=resnet8", "encoder.stem=half"]).encoder, "encoder")
    assert encoder.conv1(torch.rand(1, 3, 32, 32)).shape == (1, 16, 16, 16)
    assert encoder(torch.rand(2, 3, 32, 32)).shape == (2, 128)


def test_our_resnet18_with_the_imagenet_stem_is_torchvisions() -> None:
    theirs = resnet18(weights=None).eval()
    ours = build(compose(["encoder=resnet18", "encoder.stem=imagenet"]).encoder, "encoder").eval()
    ours.load_state_dict({k: v for k, v in theirs.state_dict().items() if not k.startswith("fc.")})
    theirs.fc = torch.nn.Identity()
    images = torch.rand(2, 3, 64, 64)
    torch.testing.assert_close(ours(images), theirs(images))
