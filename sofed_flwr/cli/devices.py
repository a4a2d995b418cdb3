"""`sofed provision | doctor | collect`: the commands for real devices; argument parsing only."""

from pathlib import Path
from typing import Annotated

import typer

from sofed_flwr.cli.exit_codes import exit_codes
from sofed_flwr.core.errors import ConfigError

INSTALLED = Path("/etc/sofed")
"""Where the installation puts a device's folder."""

MOST_DEVICES = 10_000
"""Each costs a key and ten files: half an hour and 100,000 files for that many."""


def provision(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="the site: certificates, keys, scripts, services")],
    host: Annotated[list[str] | None, typer.Option(help="name or address of the server, repeatable")] = None,
    devices: Annotated[
        int, typer.Option(min=0, max=MOST_DEVICES, help="total number; a larger one than before adds devices")
    ] = 0,
    port: Annotated[int | None, typer.Option(min=1, max=65535, help="where devices connect, default 9092")] = None,
    control_port: Annotated[int | None, typer.Option(min=1, max=65535, help="on loopback, default 8000")] = None,
    bind: Annotated[str | None, typer.Option(help="address to listen on, default 0.0.0.0")] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="no encryption, no keys: for an experiment only")
    ] = False,
    registering: Annotated[bool, typer.Option("--register", help="make the keys known to the running server")] = False,
) -> None:
    """Prepare real devices: keys, certificates, start scripts and services; run again to add devices or hosts."""
    with exit_codes():
        from sofed_flwr.fleet.provision.build import provision as make_site
        from sofed_flwr.fleet.provision.build import steps
        from sofed_flwr.fleet.provision.registration import register

        ports = {"port": port, "control_port": control_port}
        site = make_site(directory, host or [], devices, **ports, bind=bind, insecure=insecure, say=typer.echo)
        if registering:
            register(site, typer.echo)
        else:
            typer.echo(steps(site))


def doctor(
    role: Annotated[str | None, typer.Option(help="server or device; default: what --site is")] = None,
    site: Annotated[Path, typer.Option(help="DIR of the server's site, or the device's folder")] = INSTALLED,
    superlink: Annotated[str | None, typer.Option(help="HOST:PORT of the server")] = None,
    ca: Annotated[str | None, typer.Option(help="the authority's certificate")] = None,
    key: Annotated[str | None, typer.Option(help="the device's private key")] = None,
    state_dir: Annotated[str | None, typer.Option(help="where the device keeps its state")] = None,
    source: Annotated[str | None, typer.Option(help="spool:DIRECTORY, or camera:INDEX")] = None,
) -> None:
    """Check a server or a device, each finding with its remedy. Exit code 1 if something must be repaired."""
    with exit_codes():
        from sofed_flwr.fleet.doctor.examination import device_settings, examine_device, examine_server
        from sofed_flwr.fleet.provision.place import resolved
        from sofed_flwr.fleet.provision.site import Site
        from sofed_flwr.launch.progress import console, findings_table

        if role not in (None, "server", "device"):
            raise ConfigError(f"--role {role}: expected server or device")
        if role == "server" or (role is None and (site / "server").is_dir()):
            findings = list(examine_server(Site(resolved(site))))
        else:
            given = {"SOFED_SUPERLINK": superlink, "SOFED_CA": ca, "SOFED_KEY": key, "SOFED_SOURCE": source}
            findings = list(examine_device(device_settings(site, given | {"SOFED_STATE": state_dir})))
        console.print(findings_table(str(site), findings))
        if any(finding.verdict == "fail" for finding in findings):
            raise typer.Exit(1)


def collect(
    spool: Annotated[Path, typer.Argument(help="directory the frames go to; created if missing")],
    camera: Annotated[
        str | None, typer.Option(metavar="INDEX|FILE", help="a camera by OpenCV, or a video file")
    ] = None,
    command: Annotated[
        str | None, typer.Option(help='one that writes JPEGs: "rpicam-vid -t 0 --codec mjpeg -o -"')
    ] = None,
    every: Annotated[float, typer.Option(min=0, help="seconds between two frames that are kept")] = 1.0,
    limit: Annotated[str, typer.Option(help="bytes of frames at most; the oldest are deleted first")] = "200MB",
    timeout: Annotated[float, typer.Option(min=0.1, help="seconds without a frame before a restart")] = 10.0,
) -> None:
    """Fill a spool with a camera's frames until stopped; a camera that hangs is started again."""
    with exit_codes():
        from sofed_flwr.fleet.collect.order import order, replace_process

        replace_process(order(spool, camera, command, every, limit, timeout))
