"""How many replies a run can have at most, and how many its strategy needs: refused before anything starts."""

from itertools import pairwise

from sofed_flwr.config.schema import RunConfig
from sofed_flwr.core.errors import ConfigError
from sofed_flwr.strategies.inner import InnerStrategy


def refuse_too_few_replies(config: RunConfig, strategy: InnerStrategy) -> None:
    """Refuse a run that can never have enough replies, or whose strategy bounds updates in another way."""
    federation, name = config.federation, config.choices["strategy"]
    steps = {
        "clients": config.clients,
        "federation.sample": federation.sample,
        "federation.stop_at_replies": federation.stop_at_replies,
        "federation.quorum": federation.quorum,
    }
    given = [(key, value) for key, value in steps.items() if value is not None]
    for (upper, most), (key, value) in pairwise(given):
        if value > most:
            raise ConfigError(f"{key}={value}: more than {upper}={most}")
    if strategy.bounded and federation.clip_norm_ratio is not None:
        raise ConfigError(
            f"federation.clip_norm_ratio={federation.clip_norm_ratio:g}: strategy={name} bounds updates by itself"
        )
    key, replies = given[-2]
    if strategy.min_replies > replies:
        settings = ", ".join(f"strategy.{key}={value}" for key, value in config.strategy.items() if key != "_target_")
        why = f" for {settings}" if settings else ""
        raise ConfigError(f"{key}={replies}: strategy={name} needs at least {strategy.min_replies}{why}")
