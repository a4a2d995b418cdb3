"""The `sofed` command: arguments in, exit codes out (`exit_codes.py`)."""

from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from sofed_flwr import cli_devices
from sofed_flwr.assembly import build_dataset
from sofed_flwr.component import build
from sofed_flwr.config import compose, sweep
from sofed_flwr.display import accuracies, comparison_table, console, result_table
from sofed_flwr.encoder_file import load_encoder
from sofed_flwr.exit_codes import exit_codes
from sofed_flwr.flower_commands import RunFailed
from sofed_flwr.run_directory import RunDirectory
from sofed_flwr.running import run_fleet, run_simulation

app = typer.Typer(add_completion=False, no_args_is_help=True, help="Self-supervised federated learning on devices.")
Overrides = Annotated[list[str] | None, typer.Argument(metavar="[OVERRIDE]...", help="policy=fifo rounds=20 ...")]


@app.command()
def run(
    overrides: Overrides = None,
    multirun: Annotated[bool, typer.Option("-m", "--multirun", help="sweep: policy=fifo,importance")] = False,
    fleet: Annotated[
        Path | None, typer.Option(metavar="SITE", help="real devices instead: the directory of sofed provision")
    ] = None,
) -> None:
    """Train an encoder on simulated devices, or on a fleet of real ones."""
    given = overrides or []
    with exit_codes():
        if fleet:
            _show(*run_fleet(given, fleet / "server" / "flower", fleet / "run"))
        elif multirun:
            _sweep(given)
        else:
            _show(*run_simulation(given))


@app.command()
def evaluate(
    encoder: Annotated[Path, typer.Argument(help="encoder.safetensors of a run")], overrides: Overrides = None
) -> None:
    """Judge a saved encoder: kNN and linear probe."""
    with exit_codes():
        config = compose(overrides or [])
        frozen = load_encoder(encoder)
        values = build(config.evaluation, "evaluation").run(frozen, frozen.features, build_dataset(config))
        console.print(comparison_table(f"{encoder} on {config.choices['dataset']}", [(encoder.name, values)]))


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN_DIR...", help="directories of runs, finished or not")],
    out: Annotated[
        Path | None, typer.Option(help="the page; default RUN_DIR/report.html, ./report.html for several")
    ] = None,
) -> None:
    """Draw one run, or several over each other: a page of its own, and a markdown table beside it."""
    with exit_codes():
        from sofed_flwr.report.page import write_report  # matplotlib is an extra, and slow to import

        place = out or (runs[0] if len(runs) == 1 else Path()) / "report.html"
        typer.echo(write_report(runs, place))
        console.print(f"report: {place}", soft_wrap=True, markup=False)


@app.command()
def reproduce(
    table: Annotated[str, typer.Argument(help="table3_policies, figure6_discard, ...: a yaml of conf/experiment")],
    overrides: Overrides = None,
    scale: Annotated[str, typer.Option(help="paper: days on a GPU box; small: minutes per cell")] = "paper",
    seeds: Annotated[int, typer.Option(min=1, help="runs per cell")] = 1,
    data: Annotated[list[str] | None, typer.Option(help="NAME=FILE.npz instead of a download, repeatable")] = None,
    only: Annotated[list[str] | None, typer.Option(help="cells whose name contains this, repeatable")] = None,
    results: Annotated[Path, typer.Option(help="tables and plots")] = Path("results"),
    runs: Annotated[Path, typer.Option(help="the runs themselves, which tables share")] = Path("outputs/reproduce"),
) -> None:
    """Run a table or figure of the paper; the same command continues one that was stopped."""
    with exit_codes():
        from sofed_flwr.reproduce import table as grid  # matplotlib is an extra, and slow to import

        wanted = grid.order(table, scale, seeds, data or [], only or [], overrides or [])
        content = grid.reproduce(wanted, results, runs, run_simulation, console.rule)
        console.print(f"{results / wanted.stem}.md, .json, .svg", soft_wrap=True, markup=False)
        if failed := grid.failures(content):
            raise RunFailed(f"{len(failed)} cells failed: {'; '.join(failed)}")


for _command in (cli_devices.provision, cli_devices.doctor, cli_devices.collect):
    app.command()(_command)


def _show(directory: RunDirectory, summary: dict[str, Any]) -> None:
    console.print(result_table(summary))
    console.print(
        f"{summary['seconds']:.0f} s; encoder: {directory.encoder}; sofed report {directory.path} draws it",
        soft_wrap=True,
    )


def _sweep(overrides: list[str]) -> None:
    parent = Path(datetime.now().strftime("multirun/%Y-%m-%d/%H-%M-%S"))
    rows = []
    for number, job in enumerate(sweep(overrides)):
        console.rule(" ".join(job))
        _, summary = run_simulation([*job, f"out={parent / str(number)}"])
        rows.append((" ".join(job), accuracies(summary)))
    console.print(comparison_table(str(parent), rows))


def main() -> None:
    """Entry point."""
    app()
