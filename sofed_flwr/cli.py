"""The `sofed` command: arguments in, exit codes out. 0 done, 1 failed, 2 wrong configuration, 130 interrupted."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from sofed_flwr.assembly import build_dataset
from sofed_flwr.component import ConfigError, build
from sofed_flwr.config import compose, sweep
from sofed_flwr.display import accuracies, comparison_table, console, findings_table, result_table
from sofed_flwr.doctor.examination import INSTALLED, device_facts, examine_device, examine_server
from sofed_flwr.encoder_file import load_encoder
from sofed_flwr.flower_commands import RunFailed
from sofed_flwr.provision.build import provision as make_site
from sofed_flwr.provision.build import steps
from sofed_flwr.provision.registration import SiteError, register
from sofed_flwr.provision.site import Site
from sofed_flwr.run_directory import RunDirectory
from sofed_flwr.running import InterruptedRunError, run_fleet, run_simulation
from sofed_flwr.stops import TooFewDevicesError
from sofed_flwr.tensor_file import DamagedFileError

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
    with _exit_codes():
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
            raise RunFailed(f"{len(failed)} cells failed: {'; '.join(failed)}")


@app.command()
def provision(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="the site: certificates, keys, scripts, services")],
    host: Annotated[list[str] | None, typer.Option(help="name or address of the server, repeatable")] = None,
    devices: Annotated[int, typer.Option(min=0, help="so many in all; more than before adds some")] = 0,
    port: Annotated[int | None, typer.Option(min=1, max=65535, help="where devices connect, default 9092")] = None,
    control_port: Annotated[int | None, typer.Option(min=1, max=65535, help="on loopback, default 8000")] = None,
    bind: Annotated[str | None, typer.Option(help="address to listen on, default 0.0.0.0")] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="no encryption, no keys: for an experiment only")
    ] = False,
    registering: Annotated[bool, typer.Option("--register", help="make the keys known to the running server")] = False,
) -> None:
    """Prepare real devices: keys, certificates, start scripts and services; run again to add devices or hosts."""
    with _exit_codes():
        ports = {"port": port, "control_port": control_port}
        site = make_site(directory, host or [], devices, **ports, bind=bind, insecure=insecure, say=typer.echo)
        if registering:
            register(site, typer.echo)
        else:
            typer.echo(steps(site))


@app.command()
def doctor(
    role: Annotated[str | None, typer.Option(help="server or device; default: what --site is")] = None,
    site: Annotated[Path, typer.Option(help="DIR of the server's site, or the device's folder")] = INSTALLED,
    superlink: Annotated[str | None, typer.Option(help="HOST:PORT of the server")] = None,
    ca: Annotated[str | None, typer.Option(help="the authority's certificate")] = None,
    key: Annotated[str | None, typer.Option(help="the device's private key")] = None,
    state_dir: Annotated[str | None, typer.Option(help="where the device keeps its state")] = None,
    source: Annotated[str | None, typer.Option(help="spool directory, or camera")] = None,
) -> None:
    """Check a server or a device, each finding with its remedy. Exit code 1 if something must be repaired."""
    with _exit_codes():
        if role not in (None, "server", "device"):
            raise ConfigError(f"--role {role}: expected server or device")
        if role == "server" or (role is None and (site / "server").is_dir()):
            findings = list(examine_server(Site(site.resolve())))
        else:
            given = {"SOFED_SUPERLINK": superlink, "SOFED_CA": ca, "SOFED_KEY": key, "SOFED_SPOOL": source}
            findings = list(examine_device(device_facts(site, given | {"SOFED_STATE": state_dir})))
        console.print(findings_table(str(site), findings))
        if any(finding.verdict == "fail" for finding in findings):
            raise typer.Exit(1)


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


@contextmanager
def _exit_codes() -> Iterator[None]:
    """One sentence instead of a traceback for what a user can cause; a kill or a lost terminal ends like Ctrl-C."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:  # nohup stays nohup
            signal.signal(number, signal.default_int_handler)
    try:
        yield
    except (ConfigError, DamagedFileError, FileNotFoundError, PermissionError) as error:
        _fail(str(error), 2)
    except (RunFailed, SiteError) as error:
        _fail(str(error), TooFewDevicesError.EXIT_CODE if TooFewDevicesError.told_by(str(error)) else 1)
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
