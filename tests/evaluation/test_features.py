"""Features for the second stage: an image at a time or in batches, from an encoder that stays untouched."""

import math
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from sofed_flwr.core.records import LabeledImages
from sofed_flwr.evaluation.features import extract, untouched
from tests.evaluation.test_evaluation import gaussian, gratings


def channel_means(images: Tensor) -> Tensor:
    assert images.dtype == torch.uint8
    return images.double().mean(dim=(2, 3))


@pytest.mark.parametrize("batch", [1, 4, 10, 512])
def test_extract_equals_an_image_by_image_loop(batch: int) -> None:
    data = gratings(10)
    naive = torch.stack([channel_means(torch.from_numpy(image)[None])[0] for image in data.images])
    features = extract(channel_means, data, batch=batch)
    assert torch.equal(features.values, naive.float())
    assert features.labels.tolist() == data.labels.tolist()
    assert features.labels.dtype == torch.int64


def test_extract_reads_a_read_only_memmap_without_warning_and_without_sharing_it(tmp_path: Path) -> None:
    data = gratings(7)
    np.save(tmp_path / "images.npy", data.images)
    mapped = LabeledImages(np.load(tmp_path / "images.npy", mmap_mode="r"), data.labels)

    def destructive(images: Tensor) -> Tensor:
        means = channel_means(images)
        images.zero_()
        return means

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        features = extract(destructive, mapped, batch=3)
    assert torch.equal(features.values, extract(channel_means, data).values)
    assert np.array_equal(mapped.images, data.images)


def test_extracted_features_carry_no_graph() -> None:
    layer = nn.Linear(3, 2)
    features = extract(lambda x: layer(x.float().mean(dim=(2, 3))), gratings(4))
    assert not features.values.requires_grad


# --- untouched -------------------------------------------------------------------------------------------------------


def encoder() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)).eval()


def test_untouched_lets_a_frozen_encoder_pass() -> None:
    net = encoder()
    with untouched(net):
        net(gaussian(8, 3))


def test_untouched_lets_a_diverged_encoder_pass() -> None:
    net = encoder()
    with torch.no_grad():
        net[0].weight.fill_(math.nan)
    with untouched(net):
        pass


def change_weight(net: nn.Sequential) -> None:
    with torch.no_grad():
        net[0].weight[0, 0] += 1e-3


def change_batchnorm_buffer(net: nn.Sequential) -> None:
    net[1].train()
    net(gaussian(8, 3))
    net[1].eval()


def change_scratch_buffer(net: nn.Sequential) -> None:
    net[1].scratch.add_(1)


def change_flag(net: nn.Sequential) -> None:
    net[1].train()


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (change_weight, "tensor '0.weight'"),
        (change_batchnorm_buffer, "tensor '1.running_mean'"),
        (change_scratch_buffer, "tensor '1.scratch'"),
        (change_flag, "training flag of '1' changed"),
        (nn.Module.train, "training flag of 'Sequential' changed"),
    ],
)
def test_untouched_names_what_changed(change: Callable[[nn.Sequential], None], name: str) -> None:
    net = encoder()
    net[1].register_buffer("scratch", torch.zeros(()), persistent=False)
    with pytest.raises(AssertionError, match=name), untouched(net):
        change(net)


def test_untouched_does_not_hide_an_error_of_its_block() -> None:
    net = encoder()

    def change_and_fail() -> None:
        change_weight(net)
        raise KeyError

    with pytest.raises(KeyError), untouched(net):
        change_and_fail()
