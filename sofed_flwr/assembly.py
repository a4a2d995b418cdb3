"""From a configuration to running parts: the one place that knows how device and server are put together."""

from functools import partial
from itertools import pairwise
from pathlib import Path

import torch

from sofed_flwr import rng
from sofed_flwr.aggregators.base import Aggregator
from sofed_flwr.buffer import Buffer
from sofed_flwr.component import ConfigError, build
from sofed_flwr.contracts import Indices, Labels, Split
from sofed_flwr.datasets.base import Dataset
from sofed_flwr.datasets.cache import open_split
from sofed_flwr.datasets.ordering import stc_order
from sofed_flwr.datasets.subset import Subset
from sofed_flwr.device import Device, Identity
from sofed_flwr.evaluation.suite import Suite
from sofed_flwr.methods.base import Method
from sofed_flwr.node import Node
from sofed_flwr.run_config import Part, RunConfig
from sofed_flwr.run_directory import RunDirectory
from sofed_flwr.score_trace import ScoreTrace
from sofed_flwr.server import Limits, Server
from sofed_flwr.sources.base import Source
from sofed_flwr.sources.dataset import DatasetSource
from sofed_flwr.sources.folder import FolderSource
from sofed_flwr.store import Store
from sofed_flwr.stream import Stream
from sofed_flwr.tracking.base import Tracker
from sofed_flwr.trainer import Trainer, Watcher

SIMULATED_NODE = Node()


def check(config: RunConfig) -> None:
    """Build everything once, so that whatever cannot work in a simulation says so before anything starts."""
    check_server(config)
    build_streams(config, build_dataset(config).train.groups)


def check_server(config: RunConfig) -> None:
    """The same without the streams: a fleet's devices may have images of their own."""
    if config.resume is None and RunDirectory(config.directory).config.exists():
        raise ConfigError(f"out={config.out}: holds a run already; continue it with resume=DIR or choose another out")
    most = build_method(config).most_clients
    if most is not None and config.clients > most:
        raise ConfigError(f"clients={config.clients}: method={config.choices['method']} is made for {most}")
    build(config.policy, "policy")
    if config.trace is not None and "weak_view" not in config.policy:
        raise ConfigError(f"trace: policy={config.choices['policy']} has no scores to watch; use policy=importance")
    build_tracker(config, committed=-1)
    torch_device(config)
    check_replies(config)
    if build_suite(config).due(0, config.rounds):
        build_dataset(config)


def check_replies(config: RunConfig) -> None:
    """A run whose rounds would all fail for want of replies does not start."""
    federation = config.federation
    steps = {
        "clients": config.clients,
        "federation.ask": federation.ask,
        "federation.enough": federation.enough,
        "federation.quorum": federation.quorum,
    }
    given = [(key, value) for key, value in steps.items() if value is not None]
    for (upper, most), (key, value) in pairwise(given):
        if value > most:
            raise ConfigError(f"{key}={value}: more than {upper}={most}")
    key, replies = given[-2]
    aggregator: Aggregator = build(config.strategy, "strategy")
    if aggregator.fewest > replies:
        name = config.choices["strategy"]
        settings = ", ".join(f"strategy.{key}={value}" for key, value in config.strategy.items() if key != "_target_")
        why = f" for {settings}" if settings else ""
        raise ConfigError(f"{key}={replies}: strategy={name} needs at least {aggregator.fewest}{why}")


def torch_device(config: RunConfig) -> torch.device:
    """Where to compute."""
    wanted = config.device.accelerator
    if wanted == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device.accelerator=cuda: torch finds no CUDA device here; use auto or cpu")
    return torch.device("cuda" if wanted != "cpu" and torch.cuda.is_available() else "cpu")


def build_method(config: RunConfig) -> Method:
    """The SSL method with initial weights that the seed alone decides, whatever the accelerator."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(rng.derive(config.seed, rng.SERVER, 0, "initial weights"))
        method: Method = build(config.method, "method", encoder=build(config.encoder, "encoder"))
    return method.to(torch_device(config))


def build_dataset(config: RunConfig) -> Split:
    """The dataset as memory maps."""
    whole: Dataset = build(config.dataset, "dataset")
    part = Subset(whole, config.subset.train, config.subset.test)
    try:
        return open_split(whole if config.subset == Part() else part)
    except ValueError as error:
        raise ConfigError(f"dataset.{error}") from error


def build_streams(config: RunConfig, groups: Labels) -> list[Indices]:
    """Each client's images in stream order; every process derives the same from the seed."""
    if config.clients > len(groups):
        raise ConfigError(f"clients={config.clients}: more than the {len(groups)} training images")
    deal = build(config.partition, "partition")
    try:
        shares = deal(groups, config.clients, rng.numpy_generator(config.seed, "partition"))
    except ValueError as error:
        raise ConfigError(f"partition.{error}") from error
    smallest = min(map(len, shares))
    if config.buffer > smallest:
        raise ConfigError(f"buffer={config.buffer}: larger than the smallest client's stream of {smallest} images")
    order = rng.numpy_generator(config.seed, "stream order")
    return [share[stc_order(groups[share], config.stream.stc, order)] for share in shares]


def build_source(config: RunConfig, device: int, node: Node) -> Source:
    """A device's own images where it has any; then no dataset is opened, which it would have to download first."""
    if spool := node.spool():
        return FolderSource(spool, config.stream.image_size)
    train = build_dataset(config).train
    streams = build_streams(config, train.groups)
    if device >= len(streams):
        raise ConfigError(f"node config device-id={device}: expected less than clients={config.clients}")
    return DatasetSource(train.images, streams[device])


def build_device(config: RunConfig, run: str, device: int, node: Node = SIMULATED_NODE) -> Device:
    """A participant; its state is read from disk when its round begins."""
    torch.set_num_threads(node.threads or config.device.threads)
    home = node.home(device, RunDirectory(config.directory).device_home(device))
    optimizer = config.optimizer
    return Device(
        Identity(device, run, config.seed),
        Stream(build_source(config, device, node)),
        Buffer(config.buffer),
        Trainer(build_method(config), build(config.policy, "policy"), optimizer.momentum, optimizer.weight_decay),
        Store(home),
        config.stream.segments,
        partial(optimizer.learning_rate, rounds=config.rounds),
        _watchers(config, device, home),
    )


def _watchers(config: RunConfig, device: int, home: Path) -> dict[int, Watcher]:
    """Scores never leave the device: their trace lies beside its state."""
    trace = config.trace
    if trace is None or trace.device != device:
        return {}
    file = home / f"scores_round_{trace.round}.json"
    facts = {"device": device, "round": trace.round, "interval": config.policy["lazy_interval"]}
    return {trace.round: ScoreTrace(file, facts, config.policy["weak_view"], trace.iterations)}


def build_suite(config: RunConfig) -> Suite:
    """The second stage."""
    suite: Suite = build(config.evaluation, "evaluation")
    return suite


def build_tracker(config: RunConfig, committed: int) -> Tracker:
    """Who follows the diary from the round after `committed` on."""
    tracker: Tracker = build(config.tracking, "tracking", directory=config.directory, committed=committed)
    return tracker


def build_server(config: RunConfig) -> Server:
    """The other participant."""
    check_server(config)
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
        build_suite(config),
        partial(build_dataset, config),
        Limits(federation.quorum, federation.patience, federation.norm_limit),
        config.rounds,
    )
