"""A mean of networks that learned different things is evaluated as it was trained."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from sofed_flwr.config.compose import compose
from sofed_flwr.config.instantiate import build
from sofed_flwr.core.records import Update
from sofed_flwr.core.state_dicts import mean


def network() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        encoder: nn.Module = build(compose(["encoder=mobilenet_v3_small"]).encoder, "encoder")
    return encoder


def briefly_trained(images: Tensor) -> nn.Module:
    """Eight steps of a task of its own, which move every layer."""
    encoder = network().train()
    optimizer = torch.optim.SGD(encoder.parameters(), lr=0.003, momentum=0.9)
    for _ in range(8):
        features = functional.normalize(encoder(images), dim=1)
        loss = (features @ features.T - torch.eye(len(images))).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return encoder


def test_the_mean_of_two_devices_is_evaluated_as_it_was_trained() -> None:
    """Averaged running statistics would not be those of the averaged weights."""
    images = torch.randn(16, 3, 16, 16, generator=torch.Generator().manual_seed(1))
    states = [briefly_trained(half).state_dict() for half in images.chunk(2)]
    encoder = network()
    encoder.load_state_dict(mean([Update(k, 1, state) for k, state in enumerate(states)], states[0]))
    with torch.inference_mode():
        training, evaluating = encoder.train()(images), encoder.eval()(images)
    torch.testing.assert_close(evaluating, training)
    assert float(evaluating.std(dim=0).mean()) > 0.01
