"""What several commands accept: overrides, and where a user's own components are."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from sofed_flwr.cli.completion import complete_override

Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="[OVERRIDE]...", help="policy=fifo rounds=20 ...", autocompletion=complete_override),
]
Trust = Annotated[
    list[str] | None, typer.Option("--trust", metavar="PACKAGE", help="components may come from here, too; repeatable")
]
ConfigDir = Annotated[
    Path | None, typer.Option("--config-dir", metavar="DIR", help="your own yamls: DIR/policy/mine.yaml is policy=mine")
]


@contextmanager
def extended(packages: list[str] | None, config_dir: Path | None) -> Iterator[None]:
    """Accept the user's own components: their code for the rest of the process, their yamls within the block."""
    from sofed_flwr.config.instantiate import trust
    from sofed_flwr.config.own_yamls import own_yamls

    trust(packages or [])
    with own_yamls(config_dir):
        yield
