"""From a configuration to running parts: the one place that knows how device and server are put together."""

from functools import cache, partial
from pathlib import Path

import torch

from sofed_flwr.codecs.base import Codec
from sofed_flwr.config.instantiate import build
from sofed_flwr.config.schema import RunConfig
from sofed_flwr.config.sections import Part
from sofed_flwr.core import rng
from sofed_flwr.core.errors import ConfigError, DeviceError
from sofed_flwr.core.records import Indices, Labels, Pixels, Split
from sofed_flwr.datasets.base import Dataset
from sofed_flwr.datasets.cache import open_split
from sofed_flwr.datasets.partition import stc_order
from sofed_flwr.datasets.subset import Subset
from sofed_flwr.device.buffer import Buffer
from sofed_flwr.device.node_config import Node
from sofed_flwr.device.participant import Device
from sofed_flwr.device.score_trace import watchers
from sofed_flwr.device.stream import Stream
from sofed_flwr.device.trainer import Trainer
from sofed_flwr.evaluation.known_images import KnownImages
from sofed_flwr.evaluation.suite import Suite
from sofed_flwr.methods.base import Method
from sofed_flwr.models.accelerator import torch_device
from sofed_flwr.server.buffer_diagnostics import BufferDiagnostics
from sofed_flwr.server.pretrained import load_pretrained
from sofed_flwr.server.reply_counts import refuse_too_few_replies
from sofed_flwr.server.rounds import Server
from sofed_flwr.sources.base import Setting, Source
from sofed_flwr.sources.schemes import open_source
from sofed_flwr.storage.generations import Store
from sofed_flwr.storage.run_directory import RunDirectory
from sofed_flwr.storage.run_start import Start, begin, find
from sofed_flwr.tracking.base import Tracker

SIMULATED_NODE = Node()


def check(config: RunConfig) -> None:
    """Build everything once, so that errors of a simulation appear before anything starts."""
    check_server(config)
    build_streams(config, build_dataset(config).train.groups)


def check_server(config: RunConfig) -> None:
    """The same without the streams: a fleet's devices may have images of their own."""
    check_parts(config)
    find(RunDirectory(config.directory), _start(config))
    load_initial(config, build_method(config))


def check_parts(config: RunConfig) -> None:
    """The same without the run directory."""
    most = build_method(config).most_clients
    if most is not None and config.clients > most:
        raise ConfigError(f"clients={config.clients}: method={config.choices['method']} allows at most {most}")
    build(config.policy, "policy")
    build_codec(config)
    if config.trace is not None and "weak_view" not in config.policy:
        raise ConfigError(f"trace: policy={config.choices['policy']} has no scores to watch; use policy=importance")
    build_tracker(config, committed=-1)
    torch_device(config)
    refuse_too_few_replies(config, build(config.strategy, "strategy"))
    if build_suite(config).due(0, config.rounds):
        build_dataset(config)


def build_method(config: RunConfig) -> Method:
    """The SSL method with initial weights that the seed alone decides, whatever the accelerator."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(rng.derive(config.seed, rng.SERVER, 0, "initial weights"))
        method: Method = build(config.method, "method", encoder=build(config.encoder, "encoder"))
    return method.to(torch_device(config))


def load_initial(config: RunConfig, method: Method) -> dict[str, str] | None:
    """Give the method the weights of `pretrained=`, and say which; a run that continues has its own."""
    if config.pretrained is None or find(RunDirectory(config.directory), _start(config)) is not None:
        return None
    return load_pretrained(config.pretrained, method.backbone(), config.encoder)


def build_dataset(config: RunConfig, thorough: bool = True) -> Split:
    """The dataset as memory maps; only the process that checks a run needs `thorough`."""
    whole: Dataset = build(config.dataset, "dataset")
    part = Subset(whole, config.subset.train, config.subset.test)
    try:
        return open_split(whole if config.subset == Part() else part, thorough)
    except ConfigError:
        raise
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


def build_source(config: RunConfig, device: int, node: Node, home: Path) -> Source:
    """Where a device's images come from, by its node config."""
    share = partial(_share, config, device)
    return open_source(node.source, Setting(config.stream.image_size, node.max_pixels, home, share))


def _share(config: RunConfig, device: int) -> tuple[Pixels, Indices]:
    """All training images, and which of them are this device's."""
    train = build_dataset(config, thorough=False).train
    streams = build_streams(config, train.groups)
    if device >= len(streams):
        raise DeviceError(f"node config device-id={device}: expected less than clients={config.clients}")
    return train.images, streams[device]


def build_device(config: RunConfig, run: str, device: int, node: Node = SIMULATED_NODE) -> Device:
    """A participant; its state is read from disk when its round begins."""
    torch.set_num_threads(node.threads or config.device.threads)
    home = node.home(device, RunDirectory(config.directory).device_home(device))
    optimizer = config.optimizer
    return Device(
        device,
        run,
        config.seed,
        Stream(build_source(config, device, node, home)),
        Buffer(config.buffer),
        Trainer(build_method(config), build(config.policy, "policy"), optimizer.momentum, optimizer.weight_decay),
        build_codec(config),
        Store(home),
        config.stream.segments,
        partial(optimizer.learning_rate, rounds=config.rounds),
        watchers(config, device, home),
    )


def build_codec(config: RunConfig) -> Codec:
    """How uploads travel: a device encodes, the server decodes."""
    codec: Codec = build(config.codec, "codec")
    return codec


def build_suite(config: RunConfig) -> Suite:
    """The second stage."""
    suite: Suite = build(config.evaluation, "evaluation")
    return suite


def build_tracker(config: RunConfig, committed: int) -> Tracker:
    """The tracker, which writes from the round after `committed` on."""
    tracker: Tracker = build(config.tracking, "tracking", directory=config.directory, committed=committed)
    return tracker


def _start(config: RunConfig) -> Start:
    noise = build(config.strategy, "strategy").noise(config.clients)
    return Start(config.resume is not None, config.restart, config.rounds, build_method(config).shared_state(), noise)


def build_server(config: RunConfig) -> Server:
    """The server, at its last committed round."""
    check_parts(config)
    torch.set_num_threads(1)
    directory = RunDirectory(config.directory)
    method = build_method(config)
    pretrained = load_initial(config, method)
    committed = begin(directory, config.to_yaml(), _start(config))
    suite = build_suite(config)
    split = cache(partial(build_dataset, config, thorough=False))
    known = KnownImages(lambda: split().train) if suite.due(0, config.rounds) else None
    return Server(
        directory,
        committed,
        build_tracker(config, committed.round if committed else -1),
        method,
        build(config.strategy, "strategy"),
        suite,
        split,
        BufferDiagnostics([directory.device_home(device) for device in range(config.clients)], known),
        config.federation,
        config.rounds,
        pretrained,
    )
