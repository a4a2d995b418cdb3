"""From a configuration to running parts: the one place that knows how device and server are put together."""

import torch

from sofed_flwr import rng
from sofed_flwr.buffer import Buffer
from sofed_flwr.component import ConfigError, build
from sofed_flwr.contracts import Indices, Labels, Split
from sofed_flwr.datasets.cache import open_split
from sofed_flwr.datasets.ordering import stc_order
from sofed_flwr.device import Device, Identity
from sofed_flwr.methods.base import Method
from sofed_flwr.run_config import RunConfig
from sofed_flwr.run_directory import RunDirectory
from sofed_flwr.server import Limits, Server
from sofed_flwr.sources.dataset import DatasetSource
from sofed_flwr.stream import Stream
from sofed_flwr.tracking.base import Tracker
from sofed_flwr.trainer import Trainer


def check(config: RunConfig) -> None:
    """Build everything once, so that whatever cannot work says so before anything starts."""
    if config.resume is None and RunDirectory(config.directory).config.exists():
        raise ConfigError(f"out={config.out}: holds a run already; continue it with resume=DIR or choose another out")
    build_method(config)
    for group in ("policy", "strategy", "evaluation"):
        build(getattr(config, group), group)
    build_tracker(config, committed=-1)
    if config.federation.quorum > config.clients:
        raise ConfigError(f"federation.quorum={config.federation.quorum}: more than the {config.clients} clients")
    build_streams(config, build_dataset(config).train.labels)


def build_method(config: RunConfig) -> Method:
    """The SSL method with initial weights that the seed alone decides."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(rng.derive(config.seed, rng.SERVER, 0, "initial weights"))
        method: Method = build(config.method, "method", encoder=build(config.encoder, "encoder"))
    return method


def build_dataset(config: RunConfig) -> Split:
    """The dataset as memory maps."""
    dataset = build(config.dataset, "dataset")
    try:
        return open_split(dataset)
    except ValueError as error:
        raise ConfigError(f"dataset.{error}") from error


def build_streams(config: RunConfig, labels: Labels) -> list[Indices]:
    """Each client's images in stream order; every process derives the same from the seed."""
    if config.clients > len(labels):
        raise ConfigError(f"clients={config.clients}: more than the {len(labels)} training images")
    deal = build(config.partition, "partition")
    try:
        shares = deal(labels, config.clients, rng.numpy_generator(config.seed, "partition"))
    except ValueError as error:
        raise ConfigError(f"partition.{error}") from error
    smallest = min(map(len, shares))
    if config.buffer > smallest:
        raise ConfigError(f"buffer={config.buffer}: larger than the smallest client's stream of {smallest} images")
    order = rng.numpy_generator(config.seed, "stream order")
    return [share[stc_order(labels[share], config.stream.stc, order)] for share in shares]


def build_device(config: RunConfig, run: str, device: int) -> Device:
    """A participant; its state is read from disk when its round begins."""
    torch.set_num_threads(config.device.threads)
    train = build_dataset(config).train
    source = DatasetSource(train.images, build_streams(config, train.labels)[device])
    return Device(
        Identity(device, run, config.seed),
        Stream(source),
        Buffer(config.buffer),
        Trainer(build_method(config), build(config.policy, "policy"), **config.optimizer.model_dump()),
        RunDirectory(config.directory).device_store(device),
        config.stream.segments,
    )


def build_tracker(config: RunConfig, committed: int) -> Tracker:
    """Who follows the diary from the round after `committed` on."""
    tracker: Tracker = build(config.tracking, "tracking", directory=config.directory, committed=committed)
    return tracker


def build_server(config: RunConfig) -> Server:
    """The other participant."""
    check(config)
    torch.set_num_threads(1)
    directory = RunDirectory(config.directory)
    committed = directory.begin(config.to_yaml())
    federation = config.federation
    return Server(
        directory,
        committed,
        build_tracker(config, committed.round if committed else -1),
        build_method(config),
        build(config.strategy, "strategy"),
        build(config.evaluation, "evaluation"),
        build_dataset(config),
        Limits(federation.quorum, federation.patience, federation.norm_limit),
        config.rounds,
    )
