"""Whether a run may begin or continue in a directory; a refused directory is left unchanged.

A first start needs a directory without a run, a resumed one its last committed round. If that is lost, only
`restart=true` begins again: a run of days must not start from zero silently.
"""

from dataclasses import dataclass

from sofed_flwr.core.errors import ConfigError
from sofed_flwr.core.records import Noise, State
from sofed_flwr.core.state_dicts import unlike
from sofed_flwr.storage.atomic_files import write_atomically
from sofed_flwr.storage.metrics_log import read_rows
from sofed_flwr.storage.plain_files import refuse_links
from sofed_flwr.storage.run_directory import Checkpoint, RunDirectory


@dataclass(frozen=True)
class Start:
    """How a run begins: new, continued or restarted; with which model, rounds and noise."""

    resume: bool
    restart: bool
    rounds: int
    model: State
    noise: Noise | None


def begin(directory: RunDirectory, config: str, start: Start) -> Checkpoint | None:
    """Create and lock it, or find the last committed round and remove what was logged after it."""
    try:
        directory.path.mkdir(parents=True, exist_ok=True)
        directory.lock.take()
        committed = find(directory, start)
        if start.resume and start.restart:
            directory.set_aside()
        write_atomically(directory.config, config.encode())
        directory.log.rewind(-1 if committed is None else committed.round)
    except OSError as error:
        raise ConfigError(f"out={directory.path}: cannot be used ({error})") from error
    return committed


def find(directory: RunDirectory, start: Start) -> Checkpoint | None:
    """The last committed round, None for a first start; what cannot be continued is refused. Changes nothing."""
    refuse_links(directory.path)
    for file in (directory.config, directory.log.path, directory.ledger.path, directory.summary, directory.encoder):
        if file.is_dir():
            raise ConfigError(f"{file}: a directory where a file belongs")
    directory.ledger.load(start.noise)
    if not start.resume:
        _refuse_what_is_there(directory)
    if not start.resume or start.restart:
        return None
    committed = directory.newest()
    if committed is None:
        _refuse_loss(directory)
        return None
    _refuse_another(directory, committed, start)
    if start.rounds < (done := committed.round):
        raise ConfigError(f"resume={directory.path}: {done} rounds are done; rounds={start.rounds} is fewer")
    return committed


def _refuse_what_is_there(directory: RunDirectory) -> None:
    if directory.config.exists():
        raise ConfigError(
            f"out={directory.path}: holds a run already; continue it with resume=DIR or choose another out"
        )
    remains = [
        path.name
        for path in (directory.checkpoints.directory, directory.log.path, directory.ledger.path)
        if path.exists()
    ]
    if remains:
        raise ConfigError(f"out={directory.path}: holds {', '.join(remains)} without config.yaml; choose another out")


def _refuse_loss(directory: RunDirectory) -> None:
    """Without a checkpoint a run may begin only if it never committed a round."""
    there = any(directory.checkpoints.directory.glob("*.safetensors"))
    if there or directory.ledger.releases or any(row["round"] > 0 for row in read_rows(directory.log.path)):
        what = "there is no checkpoint that can be read"
        raise ConfigError(f"resume={directory.path}: {what}; restart=true begins again and keeps the old files")


def _refuse_another(directory: RunDirectory, committed: Checkpoint, start: Start) -> None:
    """The checkpoint of another model, or one that knows of more releases than the ledger."""
    folder, ledger = directory.checkpoints.directory, directory.ledger
    if unlike(committed.shared, start.model, "this run's") is not None:
        raise ConfigError(f"{folder}: holds another model than this configuration makes")
    missing = committed.releases - ledger.of_run(committed.run)
    if missing > 0 and ledger.releases:
        raise ConfigError(f"{folder}: is another run's, or {ledger.path.name} lacks {missing} models it released")
    if missing > 0 and start.noise is not None:
        raise ConfigError(f"{ledger.path}: missing, so the privacy that {missing} models spent is unknown")
