"""BYOL as in eq. (1) and (3): losses against lightly, the target by hand, and what is shared."""

import copy

import pytest
import torch
from lightly.loss import NegativeCosineSimilarity
from torch import Tensor

from sofed_flwr.assembly import build_method
from sofed_flwr.config import compose
from sofed_flwr.methods.byol import BYOL, dissimilarity
from sofed_flwr.views import network_input
from tests.conftest import conf_names


def small(*overrides: str, seed: int = 0) -> BYOL:
    method = build_method(compose(["debug=smoke", f"seed={seed}", *overrides]))
    assert isinstance(method, BYOL)
    return method


def draw() -> torch.Generator:
    return torch.Generator().manual_seed(3)


def test_the_loss_is_two_plus_two_times_lightlys() -> None:
    first, second = torch.randn(5, 8), torch.randn(5, 8)
    expected = 2 + 2 * NegativeCosineSimilarity()(first, second)
    torch.testing.assert_close(dissimilarity(first, second), expected, rtol=0, atol=1e-6)


def test_loss_terms_one_by_one_give_the_gradient_of_their_sum(pixels: Tensor) -> None:
    apart, joint = small(), small()
    for term in apart.loss_terms(pixels, draw()):
        term.backward()
    sum(joint.loss_terms(pixels, draw())).backward()
    gradients = zip(apart.named_parameters(), joint.named_parameters(), strict=True)
    compared = [(a.grad, b.grad) for (_, a), (_, b) in gradients if a.requires_grad]
    assert len(compared) > 10
    for one, other in compared:
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


def test_the_target_gets_no_gradient_and_follows_by_moving_average(pixels: Tensor) -> None:
    method = small("method.ema=0.9")
    for term in method.loss_terms(pixels, draw()):
        term.backward()
    assert all(parameter.grad is None for parameter in method.target.parameters())
    with torch.no_grad():
        for parameter in method.online.parameters():
            parameter.fill_(1.0)
        for parameter in method.target.parameters():
            parameter.fill_(2.0)
    method.after_step()
    for parameter in method.target.parameters():
        torch.testing.assert_close(parameter, torch.full_like(parameter, 0.9 * 2.0 + 0.1 * 1.0))


def test_a_score_is_the_dissimilarity_of_an_image_and_its_mirror_image(pixels: Tensor) -> None:
    method = small().eval()
    online = method.predictor(method.online(network_input(pixels)))
    target = method.target(network_input(pixels.flip(3)))
    naive = [1 - (y @ z) / (y.norm() * z.norm()) for y, z in zip(online, target, strict=True)]
    torch.testing.assert_close(method.score(pixels, "flip"), torch.stack(naive).detach(), rtol=1e-4, atol=1e-5)


def test_a_score_is_the_images_own_and_scoring_leaves_no_trace(pixels: Tensor) -> None:
    method = small().train()
    before = copy.deepcopy(method.state_dict())
    together = method.score(pixels, "flip")
    alone = torch.cat([method.score(pixels[i : i + 1], "flip") for i in range(len(pixels))])
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-5)
    assert method.training
    assert all(torch.equal(before[name], tensor) for name, tensor in method.state_dict().items())


def test_online_encoder_and_predictor_are_shared_and_the_target_is_not() -> None:
    method = small()
    shared, local = method.shared_state(), method.local_state()
    assert {name.split(".")[0] for name in shared} == {"online", "predictor"}
    assert {name.split(".")[0] for name in local} == {"target"}
    assert shared.keys() | local.keys() == method.state_dict().keys()


def test_the_target_starts_as_a_copy_of_the_first_global_model_and_then_stays_the_devices_own() -> None:
    method, world = small(seed=1), small(seed=2).shared_state()
    method.take_global(world, local=None)
    online, target = method.online.state_dict(), method.target.state_dict()
    assert all(torch.equal(online[name], target[name]) and online[name] is not target[name] for name in online)

    own = {name: torch.full_like(tensor, 3) for name, tensor in method.local_state().items()}
    method.take_global(world, own)
    assert all((tensor == 3).all() for tensor in method.target.state_dict().values())
    assert all(torch.equal(method.shared_state()[name], tensor) for name, tensor in world.items())


def test_a_state_of_another_model_is_refused_by_name() -> None:
    wider = small("method.projector=[64,16]").shared_state()
    with pytest.raises(ValueError, match=r"online\.projector\.0\.weight of shape \(64, 32\).*\(32, 32\)"):
        small().load(wider)


@pytest.mark.parametrize("name", conf_names("method"))
def test_every_method_learns_scores_shares_and_comes_back(name: str, pixels: Tensor) -> None:
    method = build_method(compose([f"method={name}", "encoder=resnet8", "encoder.width=4"]))
    method.take_global(method.shared_state(), local=None)
    for term in method.loss_terms(pixels, draw()):
        assert torch.isfinite(term)
        term.backward()
    method.after_step()
    scores = method.score(pixels, "flip")
    assert scores.shape == (len(pixels),)
    assert ((scores >= -1e-6) & (scores <= 2 + 1e-6)).all()
    assert method.features(pixels).shape == (len(pixels), 32)
    method.take_global(method.shared_state(), method.local_state())
