"""The methods: losses against lightly's, merge rules by hand, and what each one shares and keeps."""

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from lightly.loss import NegativeCosineSimilarity, NTXentLoss, VICRegLoss
from torch import Tensor
from torch.nn import functional

from sofed_flwr.build import build_method, check
from sofed_flwr.config.schema import RunConfig
from sofed_flwr.core.errors import ConfigError
from sofed_flwr.core.records import State
from sofed_flwr.methods import losses
from sofed_flwr.views.pixels import network_input
from sofed_flwr.views.weak import WEAK_VIEWS
from tests.support.federation import compose_once, conf_names, federate, same


def small(*overrides: str, seed: int = 0) -> Any:
    return build_method(compose_once("scale=smoke", f"seed={seed}", *overrides))


def draw() -> torch.Generator:
    return torch.Generator().manual_seed(3)


def test_byols_loss_is_two_plus_two_times_lightlys() -> None:
    first, second = torch.randn(5, 8), torch.randn(5, 8)
    expected = 2 + 2 * NegativeCosineSimilarity()(first, second)
    torch.testing.assert_close(losses.dissimilarity(first, second), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("temperature", [0.07, 0.5])
def test_nt_xent_is_lightlys(temperature: float) -> None:
    first, second = torch.randn(2, 5, 8, dtype=torch.float64)  # float32 differs by its own rounding now and then
    expected = NTXentLoss(temperature)(first, second)
    torch.testing.assert_close(losses.nt_xent(first, second, temperature), expected, rtol=0, atol=1e-6)


def test_nt_xent_by_hand() -> None:
    """Two images, four views on the axes: each view has its twin at cosine 1 and two strangers at cosine 0."""
    views = torch.eye(2)
    expected = -math.log(math.e / (math.e + 2))
    assert float(losses.nt_xent(views, views, 1.0)) == pytest.approx(expected, abs=1e-6)


def test_info_nce_is_lightlys_with_a_memory_bank() -> None:
    query, key, queue = torch.randn(5, 8), torch.randn(5, 8), functional.normalize(torch.randn(16, 8))
    oracle = NTXentLoss(temperature=0.2, memory_bank_size=(16, 8))
    oracle.memory_bank.bank.copy_(queue.T if oracle.memory_bank.bank.shape == queue.T.shape else queue)
    query.requires_grad_()  # lightly consults its bank in training only
    torch.testing.assert_close(losses.info_nce(query, key, queue, 0.2), oracle(query, key), rtol=0, atol=1e-6)


def test_vicreg_is_lightlys() -> None:
    first, second = torch.randn(6, 4), torch.randn(6, 4)
    expected = VICRegLoss(lambda_param=25, mu_param=25, nu_param=1)(first, second)
    ours = losses.vicreg(first, second, variance=25, invariance=25, covariance=1)
    torch.testing.assert_close(ours, expected, rtol=0, atol=1e-4)


def test_eq_1_as_printed_is_the_first_term_alone(pixels: Tensor) -> None:
    both = [float(term.detach()) for term in small().loss_terms(pixels, draw())]
    one = [float(term.detach()) for term in small("method.symmetric=false").loss_terms(pixels, draw())]
    assert (len(both), one) == (2, both[:1])


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


def filled(state: State, value: float) -> State:
    """The same names and shapes, all floats equal to `value`."""
    return {name: torch.full_like(t, value) if t.is_floating_point() else t.clone() for name, t in state.items()}


@pytest.mark.parametrize(("distance", "predictor"), [(0.39, 2.0), (0.41, 1.0)])
def test_fedu_takes_the_global_predictor_unless_its_encoder_moved_by_mu(distance: float, predictor: float) -> None:
    method = small("method=fedu")
    method.take_global(filled(method.shared_state(), 0.0), local=None)
    with torch.no_grad():
        for module in method.backbone().modules():
            if isinstance(module, torch.nn.Conv2d):  # 1x1 shortcuts move far, and must not count
                far = 100.0 if module.kernel_size == (1, 1) else distance
                module.weight.fill_(far / math.sqrt(module.weight.numel()))
        for parameter in method.predictor.parameters():
            parameter.fill_(1.0)
    method.take_global(filled(method.shared_state(), 2.0), method.local_state())
    assert all((parameter == predictor).all() for parameter in method.predictor.parameters())
    assert all((parameter == 2.0).all() for parameter in method.online.parameters())


def test_fedema_keeps_tau_of_its_own_model_first_and_then_more_or_less_by_distance() -> None:
    """First: own 1, global 0, any distance d gives w = 0.7, so 0.7. Then own 0.7, global 0.2: half the distance."""
    method = small("method=fedema", "method.tau=0.7")
    method.take_global(filled(method.shared_state(), 1.0), local=None)
    method.take_global(filled(method.shared_state(), 0.0), method.local_state())
    for parameter in [*method.online.parameters(), *method.predictor.parameters()]:
        torch.testing.assert_close(parameter, torch.full_like(parameter, 0.7))
    method.take_global(filled(method.shared_state(), 0.2), method.local_state())
    for parameter in method.online.parameters():
        torch.testing.assert_close(parameter, torch.full_like(parameter, 0.65 * 0.2 + 0.35 * 0.7))
    method.take_global(filled(method.shared_state(), 9.0), method.local_state())
    for parameter in method.online.parameters():
        torch.testing.assert_close(parameter, torch.full_like(parameter, 0.375), msg="w never exceeds 1")


def test_fedema_keeps_its_target_and_the_global_counters() -> None:
    method = small("method=fedema")
    method.take_global(method.shared_state(), local=None)
    kept = filled({n: t for n, t in method.local_state().items() if n.startswith("target.")}, 5.0)
    world = {name: t if t.is_floating_point() else t + 7 for name, t in method.shared_state().items()}
    method.take_global(world, method.local_state() | kept)
    assert all((parameter == 5.0).all() for parameter in method.target.parameters())
    assert all(t == 7 for name, t in method.shared_state().items() if name.endswith("num_batches_tracked"))


def test_mocos_queue_holds_the_newest_keys_and_survives_a_round_on_the_device(pixels: Tensor) -> None:
    method = small("method=fedmoco", "method.queue=30")
    method.take_global(method.shared_state(), local=None)
    before = method.queue.clone()
    for term in method.loss_terms(pixels, draw()):
        term.backward()
    method.after_step()
    torch.testing.assert_close(method.queue[24:], before[:6])
    torch.testing.assert_close(method.queue.norm(dim=1), torch.ones(30))
    assert "queue" not in method.shared_state()

    again = small("method=fedmoco", "method.queue=30", seed=5)
    again.take_global(method.shared_state(), method.local_state())
    assert torch.equal(again.queue, method.queue)


def test_simsiams_target_is_its_online_encoder_without_gradient(pixels: Tensor) -> None:
    """The gradient of SimSiam is that of BYOL with a target that is a frozen copy, in the same mode."""
    siamese, frozen = small("method=fedsimsiam"), small("method=sofed")
    frozen.load(siamese.shared_state())
    frozen.target.load_state_dict(frozen.online.state_dict())
    for method in (siamese, frozen):
        method.train()
        sum(method.loss_terms(pixels, draw())).backward()
    of = dict(frozen.named_parameters())
    for name, parameter in siamese.named_parameters():
        torch.testing.assert_close(parameter.grad, of[name].grad, rtol=1e-3, atol=1e-6)


def test_centralized_byol_refuses_company() -> None:
    with pytest.raises(ConfigError, match="clients=2: method=byol_centralized allows at most 1"):
        check(compose_once("scale=smoke", "method=byol_centralized", "out=nowhere"))


@pytest.mark.parametrize("name", conf_names("method"))
def test_every_method_learns_scores_shares_and_comes_back(name: str, pixels: Tensor) -> None:
    method = build_method(compose_once(f"method={name}", "encoder=resnet8", "encoder.width=4"))
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


@pytest.mark.parametrize("name", conf_names("method"))
def test_every_method_computes_where_its_weights_are(
    name: str, pixels: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a machine without a GPU: whatever is created without naming a device is without content, and would show."""
    method = build_method(compose_once(f"method={name}", "encoder.width=4"))
    monkeypatch.setattr(method, "views", lambda images, _: images.float() / 255)  # kornia minds the device itself
    with torch.device("meta"):
        method.take_global(method.shared_state(), local=None)
        assert all(torch.isfinite(term).item() for term in method.loss_terms(pixels, draw()))
        method.after_step()
        for weak_view in WEAK_VIEWS:
            assert torch.isfinite(method.score(pixels, weak_view)).all()
        assert method.features(pixels).device == torch.device("cpu")
        assert all(tensor.device.type == "cpu" for tensor in method.shared_state().values())


@pytest.mark.parametrize("name", conf_names("method"))
def test_every_method_trains_a_federation_with_a_policy_that_asks_the_model(
    name: str, smoke: Callable[..., RunConfig]
) -> None:
    clients = 1 if name == "byol_centralized" else 2
    config = smoke(f"method={name}", "policy=importance", f"clients={clients}", "evaluation=none")
    first = build_method(config).shared_state()
    server = federate(config)
    assert server.committed == 2
    assert not same(server.shared, first)
    assert all(torch.isfinite(tensor).all() for tensor in server.shared.values())
