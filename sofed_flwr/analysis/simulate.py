"""A run from Python, in a notebook for instance: `sofed run` with keywords, and a result to work with.

>>> result = simulate(policy="importance", policy__lazy_interval=50, rounds=5)
>>> result.encoder.features(images)
>>> pandas.DataFrame(result.metrics)

Keywords are keys of the configuration; two underscores stand for the dot of a nested one, as in scikit-learn. The run
is the command's own: checked before anything starts, in processes that end with the call, also if the kernel is
interrupted. What goes wrong is one sentence, in an exception of `core/errors`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from sofed_flwr.config import instantiate
from sofed_flwr.config.override_text import literal
from sofed_flwr.config.own_yamls import own_yamls
from sofed_flwr.encoder import FrozenEncoder, load_encoder
from sofed_flwr.launch.progress import result_table
from sofed_flwr.launch.run import run_simulation
from sofed_flwr.storage.metrics_log import Row, read_rows
from sofed_flwr.storage.run_directory import RunDirectory

COLUMNS = ("round", "name", "value", "device")


@dataclass(frozen=True)
class Result:
    """What a finished run left in `path`; `summary` is its summary.json."""

    path: Path
    summary: dict[str, Any]

    @cached_property
    def encoder(self) -> FrozenEncoder:
        """Loaded when it is first asked for."""
        return load_encoder(RunDirectory(self.path).encoder)

    @property
    def metrics(self) -> list[Row]:
        """The metrics log as rows of equal columns, which pandas.DataFrame takes; device None: the server's own."""
        return [{column: row.get(column) for column in COLUMNS} for row in read_rows(RunDirectory(self.path).log.path)]

    def report(self) -> Path:
        """Write the HTML page of `sofed report`; where it is."""
        from sofed_flwr.analysis.report.page import write_report  # matplotlib is an extra

        page = self.path / "report.html"
        write_report([self.path], page)
        return page

    def _repr_mimebundle_(self, include: Sequence[str], exclude: Sequence[str], **more: Any) -> dict[str, str]:
        """What a notebook shows: the command's last table."""
        return result_table(self.summary)._repr_mimebundle_(include, exclude, **more)


def simulate(*overrides: str, trust: Sequence[str] = (), config_dir: Path | None = None, **keys: Any) -> Result:
    """Run to the end: `simulate(policy="fifo", rounds=5, optimizer__lr=0.1)`, or `simulate("optimizer.lr=0.1")`.

    `trust` and `config_dir` are the command's options: packages and yamls of your own.
    """
    given = [f"{name.replace('__', '.')}={literal(value)}" for name, value in keys.items()]
    instantiate.trust(trust)
    with own_yamls(config_dir):
        directory, summary = run_simulation([*overrides, *given])
    return Result(directory.path, summary)
