"""The `sofed` command: arguments in, exit codes out. 0 done, 1 failed, 2 wrong configuration, 130 interrupted."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from sofed_flwr.assembly import build_dataset
from sofed_flwr.component import ConfigError, build
from sofed_flwr.config import compose, sweep
from sofed_flwr.display import accuracies, comparison_table, console, result_table
from sofed_flwr.encoder_file import load_encoder
from sofed_flwr.launcher import SimulationFailed
from sofed_flwr.simulation import InterruptedRunError, run_simulation
from sofed_flwr.store import DamagedFileError

app = typer.Typer(add_completion=False, no_args_is_help=True, help="Self-supervised federated learning on devices.")
Overrides = Annotated[list[str] | None, typer.Argument(metavar="[OVERRIDE]...", help="policy=fifo rounds=20 ...")]


@app.command()
def run(
    overrides: Overrides = None,
    multirun: Annotated[bool, typer.Option("-m", "--multirun", help="sweep: policy=fifo,importance")] = False,
) -> None:
    """Simulate a federation and train its encoder."""
    given = overrides or []
    with _exit_codes():
        if multirun:
            _sweep(given)
        else:
            _run(given)


@app.command()
def evaluate(
    encoder: Annotated[Path, typer.Argument(help="encoder.safetensors of a run")], overrides: Overrides = None
) -> None:
    """Judge a saved encoder: kNN and linear probe."""
    with _exit_codes():
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
    with _exit_codes():
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
    with _exit_codes():
        from sofed_flwr.reproduce import table as grid  # matplotlib is an extra, and slow to import

        wanted = grid.order(table, scale, seeds, data or [], only or [], overrides or [])
        content = grid.reproduce(wanted, results, runs, run_simulation, console.rule)
        console.print(f"{results / wanted.stem}.md, .json, .svg", soft_wrap=True, markup=False)
        if failed := grid.failures(content):
            raise SimulationFailed(f"{len(failed)} cells failed: {'; '.join(failed)}")


@app.command()
def collect(
    spool: Annotated[Path, typer.Argument(help="directory the frames go to; created if missing")],
    camera: Annotated[
        str | None, typer.Option(metavar="INDEX|FILE", help="a camera by OpenCV, or a video file")
    ] = None,
    command: Annotated[
        str | None, typer.Option(help='one that writes JPEGs: "rpicam-vid -t 0 --codec mjpeg -o -"')
    ] = None,
    every: Annotated[float, typer.Option(min=0, help="seconds between two frames that are kept")] = 1.0,
    limit: Annotated[str, typer.Option(help="bytes of frames at most; the oldest go first")] = "200MB",
    timeout: Annotated[float, typer.Option(min=0.1, help="seconds without a frame before a restart")] = 10.0,
) -> None:
    """Fill a spool with a camera's frames until stopped; a camera that hangs is started again."""
    with _exit_codes():
        from sofed_flwr.collect.order import order, replace_process

        replace_process(order(spool, camera, command, every, limit, timeout))


def _run(overrides: list[str]) -> None:
    directory, summary = run_simulation(overrides)
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


@contextmanager
def _exit_codes() -> Iterator[None]:
    """One sentence instead of a traceback for what a user can cause; a kill or a lost terminal ends like Ctrl-C."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:  # nohup stays nohup
            signal.signal(number, signal.default_int_handler)
    try:
        yield
    except (ConfigError, DamagedFileError, FileNotFoundError) as error:
        _fail(str(error), 2)
    except SimulationFailed as error:
        _fail(str(error), 1)
    except InterruptedRunError as error:
        _fail(str(error), 130)
    except KeyboardInterrupt:
        _fail("interrupted", 130)


def _fail(message: str, code: int) -> None:
    print(f"sofed: {message}", file=sys.stderr)
    raise typer.Exit(code)


def main() -> None:
    """Entry point."""
    app()
