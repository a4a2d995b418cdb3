"""`sofed inspect`: argument parsing only."""

from pathlib import Path
from typing import Annotated

import typer

from sofed_flwr.cli.exit_codes import exit_codes


def inspect(
    path: Annotated[Path, typer.Argument(metavar="RUN|DEVICE_DIR", help="a simulation's run, or a device's state")],
    out: Annotated[Path, typer.Option(help="the page; the contact sheet goes beside it, as .png")] = Path(
        "inspect.html"
    ),
) -> None:
    """Show the images in the buffers of a simulation, or of the device this is typed on; nothing is sent anywhere."""
    with exit_codes():
        from sofed_flwr.analysis.inspect import inspect as look

        for line in look(path, out):
            typer.echo(line)
        typer.echo(f"{out} and {out.with_suffix('.png')} hold images of the devices: only you can read them")
