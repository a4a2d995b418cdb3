"""Strategies that use the mean's step as a gradient: Flower's FedAvgM, FedAdam and FedYogi, on parameters only.

FedAdagrad is left out: its steps only shrink, and the streams do not end.
"""

from typing import Annotated

from flwr.serverapp import strategy as flower
from pydantic import Field, validate_call

from sofed_flwr.strategies.inner import InnerStrategy

Positive = Annotated[float, Field(gt=0)]
Decay = Annotated[float, Field(ge=0, lt=1)]


@validate_call
def fedavgm(lr: Positive, momentum: Decay) -> InnerStrategy:
    """SGD with momentum on the server (Hsu et al. 2019): m ← momentum m + (W - mean), W ← W - lr m."""
    return InnerStrategy(flower.FedAvgM(server_learning_rate=lr, server_momentum=momentum), parameters_only=True)


@validate_call
def fedadam(lr: Positive, beta_1: Decay, beta_2: Decay, tau: Positive) -> InnerStrategy:
    """m ← beta_1 m + (1 - beta_1) Δ, v ← beta_2 v + (1 - beta_2) Δ², W ← W + lr m / (√v + tau), with Δ = mean - W.

    Reddi et al. 2021. A coordinate moves by about lr where |Δ| is far above tau, by less where it is below. Adam's
    correction of the first steps is in Flower's form (step + 1 for step).
    """
    adam = flower.FedAdam(eta=lr, beta_1=beta_1, beta_2=beta_2, tau=tau)
    return InnerStrategy(adam, parameters_only=True)


@validate_call
def fedyogi(lr: Positive, beta_1: Decay, beta_2: Decay, tau: Positive) -> InnerStrategy:
    """FedAdam with v ← v - (1 - beta_2) Δ² sign(v - Δ²), which forgets a large Δ more slowly."""
    yogi = flower.FedYogi(eta=lr, beta_1=beta_1, beta_2=beta_2, tau=tau)
    return InnerStrategy(yogi, parameters_only=True)
