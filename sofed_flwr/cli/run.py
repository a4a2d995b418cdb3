"""`sofed run` and `sofed stop`: argument parsing, and what is shown at the end."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from sofed_flwr.cli.exit_codes import exit_codes
from sofed_flwr.cli.options import ConfigDir, Overrides, Trust, extended
from sofed_flwr.core.redaction import one_line

if TYPE_CHECKING:
    from sofed_flwr.storage.run_directory import RunDirectory


class RunCommand(TyperCommand):
    """A command whose help ends with the groups and their choices, for which only names of files are read."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Typer shows an epilog line by line where an empty one lies between."""
        from sofed_flwr.config.describe.keys import groups

        lines = [f"{group.name}= {', '.join(group.choices)}" for group in groups().values()]
        self.epilog = "\n\n".join(["Groups (sofed config explains them and all other keys):", *lines])
        super().format_help(ctx, formatter)


def run(
    overrides: Overrides = None,
    multirun: Annotated[
        bool, typer.Option("-m", "--multirun", help="sweep: policy=fifo,importance seed=0,1,2")
    ] = False,
    fleet: Annotated[
        Path | None, typer.Option(metavar="SITE", help="real devices instead: the directory of sofed provision")
    ] = None,
    cfg: Annotated[bool, typer.Option("--cfg", help="print the resolved configuration, run nothing")] = False,
    trusted: Trust = None,
    config_dir: ConfigDir = None,
) -> None:
    """Train an encoder on simulated devices, or on a fleet of real ones."""
    given = overrides or []
    with exit_codes(), extended(trusted, config_dir):
        if cfg:
            for text in _resolved(given, multirun, fleet):
                typer.echo(text, nl=False)
            return
        from sofed_flwr.launch.run import run_fleet, run_simulation

        if fleet:
            _show(*run_fleet(given, fleet))
        elif multirun:
            _sweep(given)
        else:
            _show(*run_simulation(given))


def stop(site: Annotated[Path, typer.Argument(metavar="SITE", help="the directory of sofed provision")]) -> None:
    """End the run of a fleet; the command that began it continues it from its last committed round."""
    with exit_codes():
        from sofed_flwr.launch.fleet_run import stop_runs

        for name in stop_runs(site) or ["nothing: no run is going on"]:
            typer.echo(f"stopped {name}")


def _show(directory: "RunDirectory", summary: dict[str, Any]) -> None:
    from sofed_flwr.launch.progress import console, result_table

    console.print(result_table(summary))
    console.print(
        f"{summary['seconds']:.0f} s; encoder: {directory.encoder}; sofed report {directory.path} draws it",
        soft_wrap=True,
        markup=False,
    )


def _sweep(overrides: list[str]) -> None:
    from sofed_flwr.launch.progress import console, plain_table
    from sofed_flwr.launch.run import run_simulation
    from sofed_flwr.launch.sweep_table import as_cells
    from sofed_flwr.launch.sweeps import plan_sweep, refuse_failures, run_sweep

    planned = plan_sweep(overrides)
    outcomes = run_sweep(planned, run_simulation, console.rule)
    console.print(plain_table(str(planned.directory), as_cells(outcomes)))
    console.print(f"{planned.directory}/table.md, table.json", soft_wrap=True, markup=False)
    refuse_failures(planned, outcomes)


def _resolved(overrides: list[str], multirun: bool, fleet: Path | None) -> Iterator[str]:
    """What config.yaml of each run would hold."""
    from sofed_flwr.config.compose import compose

    if multirun:
        from sofed_flwr.launch.sweeps import plan_sweep

        planned = plan_sweep(overrides)
        for number, job in enumerate(planned.jobs):
            yield f"--- # {one_line(' '.join(job))}\n{compose(planned.overrides(number)).to_yaml()}"
    elif fleet:
        from sofed_flwr.launch.run import fleet_config

        yield fleet_config(overrides, fleet).to_yaml()
    else:
        yield compose(overrides).to_yaml()
