"""A model directory: what is written is what is read, by us and by timm."""

from pathlib import Path

import pytest
import timm
import torch
from torch import Tensor

from sofed_flwr import load_classifier, load_encoder
from sofed_flwr.classifier.model import Classifier
from sofed_flwr.classifier.model_directory import read_model, write_model
from sofed_flwr.encoder import FrozenEncoder
from tests.support.frames import picture
from tests.support.models import SMALL, classifier_of, encoder_of

RESNET18 = SMALL | {"blocks": [2, 2, 2, 2], "width": 64, "stem": "imagenet"}


def test_a_classifier_comes_back_as_it_was(tmp_path: Path, pixels: Tensor) -> None:
    before = classifier_of(encoder_of(), images=30)
    write_model(tmp_path / "model", before)
    after = read_model(tmp_path / "model")
    assert isinstance(after, Classifier)
    assert after.classes == ("ant", "bee", "cat")
    assert after.facts == {"images": 30}
    assert not after.encoder.facts.keys() & {"classes", "classifier"}, "what --encoder-only exports"
    assert after.image_size == (16, 16)
    assert torch.equal(after.probabilities(pixels), before.probabilities(pixels))
    assert torch.equal(load_encoder(tmp_path / "model").features(pixels), before.encoder.features(pixels))
    assert load_classifier(tmp_path / "model").predict(pixels) == before.predict(pixels)


def test_an_encoder_comes_back_as_it_was(tmp_path: Path, pixels: Tensor) -> None:
    before = encoder_of()
    write_model(tmp_path / "model", before)
    after = read_model(tmp_path / "model")
    assert isinstance(after, FrozenEncoder)
    assert after.facts["policy"] == "importance"
    assert torch.equal(after.features(pixels), before.features(pixels))


@pytest.mark.parametrize("with_head", [False, True])
def test_timm_computes_the_same_with_its_own_transform(tmp_path: Path, with_head: bool) -> None:
    encoder = encoder_of(RESNET18, size=64)
    model = classifier_of(encoder) if with_head else encoder
    write_model(tmp_path, model)
    theirs = timm.create_model(f"local-dir:{tmp_path}", pretrained=True).eval()
    transform = timm.data.create_transform(**timm.data.resolve_model_data_config(theirs))
    pictures = [picture(seed, (64, 64)) for seed in range(4)]
    with torch.inference_mode():
        found = theirs(torch.stack([transform(image) for image in pictures]))
    features = encoder.features(pictures)
    expected = model.head(features) if isinstance(model, Classifier) else features
    assert expected.std() > 0.01
    assert torch.allclose(found, expected, atol=1e-5)
    assert theirs.pretrained_cfg.get("label_names") == (["ant", "bee", "cat"] if with_head else None)
