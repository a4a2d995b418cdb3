"""The `sofed` command: arguments in, exit codes out (`exit_codes.py`).

A command imports what it needs when it is called: torch, Flower and Hydra take seconds and hundreds of megabytes, which
`sofed --help` and a collector beside training (`sofed collect`) must not cost.
"""

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sofed_flwr.cli import configuration as cli_configuration
from sofed_flwr.cli import devices as cli_devices
from sofed_flwr.cli import fit as cli_fit
from sofed_flwr.cli import inspect as cli_inspect
from sofed_flwr.cli import model as cli_model
from sofed_flwr.cli import run as cli_run
from sofed_flwr.cli.completion import complete_table
from sofed_flwr.cli.exit_codes import exit_codes
from sofed_flwr.cli.options import ConfigDir, Overrides, Trust, extended
from sofed_flwr.core.app_files import version
from sofed_flwr.core.errors import ConfigError, RunFailed

if TYPE_CHECKING:
    from sofed_flwr.analysis.reproduce.order import Order

app = typer.Typer(
    no_args_is_help=True,
    suggest_commands=False,  # click does so, too
    pretty_exceptions_enable=False,  # Rich's show the values of variables: weights, keys, paths
    pretty_exceptions_show_locals=False,
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"sofed {version()}")
        raise typer.Exit


@app.callback()
def sofed(
    _: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="show the version")] = False,
) -> None:
    """Self-supervised federated learning on devices."""


app.command(cls=cli_run.RunCommand)(cli_run.run)
app.command()(cli_run.stop)


@app.command()
def evaluate(
    encoder: Annotated[Path, typer.Argument(help="encoder.safetensors, or the directory of a run or model")],
    overrides: Overrides = None,
    trusted: Trust = None,
    config_dir: ConfigDir = None,
) -> None:
    """Measure a saved encoder: kNN and linear probe, on the images it was trained on unless others are named."""
    with exit_codes(), extended(trusted, config_dir):
        from sofed_flwr.analysis.evaluate import evaluate as measure
        from sofed_flwr.launch.progress import comparison_table, console

        data, values, remarks = measure(encoder, overrides or [])
        for line in [f"{encoder} on {data}", *remarks]:
            console.print(line, soft_wrap=True, markup=False, highlight=False)
        console.print(comparison_table("", [("encoder", values)]))


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN_DIR...", help="directories of runs, finished or not")],
    out: Annotated[
        Path | None, typer.Option(help="the page; default RUN_DIR/report.html, ./report.html for several")
    ] = None,
    images: Annotated[bool, typer.Option(help="show what a simulation's buffers hold, if it is one run")] = True,
) -> None:
    """Draw one run, or compare several: one HTML page, and a markdown table beside it."""
    with exit_codes():
        from sofed_flwr.analysis.report.page import write_report
        from sofed_flwr.launch.progress import console

        place = out or (runs[0] if len(runs) == 1 else Path()) / "report.html"
        typer.echo(write_report(runs, place, images))
        console.print(f"report: {place}", soft_wrap=True, markup=False)


@app.command()
def reproduce(
    table: Annotated[
        str | None,
        typer.Argument(help="table3_policies, figure6_discard, ...: see --list", autocompletion=complete_table),
    ] = None,
    overrides: Overrides = None,
    scale: Annotated[str | None, typer.Option(help="paper: days on a GPU box; small: minutes per cell")] = None,
    seeds: Annotated[int, typer.Option(min=1, max=9999, help="runs per cell")] = 1,
    data: Annotated[list[str] | None, typer.Option(help="NAME=FILE.npz instead of a download, repeatable")] = None,
    only: Annotated[list[str] | None, typer.Option(help="cells whose name contains this, repeatable")] = None,
    results: Annotated[Path, typer.Option(help="tables and plots")] = Path("results"),
    runs: Annotated[Path, typer.Option(help="the runs themselves, which tables share")] = Path("outputs/reproduce"),
    trusted: Trust = None,
    config_dir: ConfigDir = None,
    listing: Annotated[bool, typer.Option("--list", help="name the tables, run nothing")] = False,
    plan: Annotated[bool, typer.Option("--plan", help="name the cells and the time left, run nothing")] = False,
    jobs: Annotated[int, typer.Option(min=1, max=64, help="cells at a time, one worker each if several")] = 1,
) -> None:
    """Run a table or figure of the paper; the same command continues one that was stopped."""
    with exit_codes(), extended(trusted, config_dir):
        from sofed_flwr.analysis.reproduce import order
        from sofed_flwr.analysis.reproduce import plan as planning

        if listing:
            typer.echo("\n".join(planning.listing()))
            return
        if table is None:
            raise ConfigError("name a table; sofed reproduce --list shows them")
        wanted = order.order(table, scale, seeds, data or [], only or [], overrides or [])
        planned = planning.plan(wanted, results, runs)
        typer.echo("\n".join(map(str, [*(planned.cells if plan else []), planned])))
        if not plan:
            _reproduce(wanted, results, runs, jobs)


def _reproduce(wanted: "Order", results: Path, runs: Path, jobs: int) -> None:
    from sofed_flwr.analysis.reproduce import table as grid  # matplotlib is an extra
    from sofed_flwr.launch.progress import console
    from sofed_flwr.launch.run import run_simulation
    from sofed_flwr.launch.side_by_side import SideBySide

    with SideBySide() as processes:
        simulate = run_simulation if jobs == 1 else processes.simulate
        content = grid.reproduce(wanted, results, runs, simulate, console.rule, jobs)
    typer.echo(f"{results / wanted.stem}.md, .json, .svg")
    if failed := grid.failures(content):
        raise RunFailed(f"{len(failed)} cells failed: {'; '.join(failed)}")


for _command in (
    *(cli_inspect.inspect, cli_fit.fit, cli_model.export, cli_model.predict, cli_configuration.config),
    *(cli_devices.provision, cli_devices.doctor, cli_devices.collect),
):
    app.command()(_command)


def main() -> None:
    """Entry point; the project's log is shown to the user, for example the images found in a folder."""
    logging.basicConfig(format="%(message)s")
    logging.getLogger("sofed_flwr").setLevel(logging.INFO)
    app()
