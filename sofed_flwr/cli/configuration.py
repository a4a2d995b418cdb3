"""`sofed config`: what can be set, and what it means."""

from typing import Annotated

import typer

from sofed_flwr.cli.completion import complete_key
from sofed_flwr.cli.exit_codes import exit_codes
from sofed_flwr.cli.options import ConfigDir, Trust, extended


def config(
    key: Annotated[
        str | None,
        typer.Argument(
            metavar="[KEY]", help="rounds, optimizer, policy, policy=fifo, policy.max_age", autocompletion=complete_key
        ),
    ] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="all of them: docs/configuration.md")] = False,
    trusted: Trust = None,
    config_dir: ConfigDir = None,
) -> None:
    """Explain a key, a group or a choice of the configuration; without KEY, name all of them."""
    with exit_codes(), extended(trusted, config_dir):
        from sofed_flwr.config.describe.markdown import markdown as page
        from sofed_flwr.config.describe.text import about, overview

        if markdown:
            typer.echo(page(), nl=False)
        else:
            typer.echo(about(key) if key else overview())
