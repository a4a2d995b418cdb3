"""A provisioned directory and what can be started from it.

    DIR/ca/        ca.crt  ca.key              the authority; its key signs server certificates and goes nowhere
    DIR/server/    start.sh  sofed.env  ca.crt  server.crt  server.key  sofed-superlink.service
                   keys/device-K.pub           what is registered; device-K.node, Flower's number for it, once it is
                   flower/config.toml          FLWR_HOME with the connection `fleet`: flwr list fleet, ...
                   state/superlink.db          registrations and runs, once the server has run
    DIR/device-K/  start.sh  collect.sh  install.sh  sofed.env  ca.crt  key  key.pub
                   sofed-supernode.service  sofed-collect.service

Private keys are 0600, directories 0700. A device's private key is made here and copied with its folder; a device that
makes its own key and hands in only the public half would be safer still, and is not offered. Commands are the shipped
scripts themselves with the variables of `sofed.env` in their environment, so a test runs what a device runs.
"""

import os
from dataclasses import dataclass
from pathlib import Path

from sofed_flwr.provision.files import read_settings

CONNECTION = "fleet"


@dataclass(frozen=True)
class Command:
    """A program to start: `Popen(command.arguments, env=command.environment)`; the process becomes Flower's own."""

    arguments: list[str]
    environment: dict[str, str]


@dataclass(frozen=True)
class Site:
    """The paths of a provisioned directory, its settings and its commands."""

    directory: Path

    @property
    def server(self) -> Path:
        """Folder of the server."""
        return self.directory / "server"

    @property
    def settings(self) -> dict[str, str]:
        """The server's settings; empty before the first provisioning is complete."""
        return read_settings(self.server / "sofed.env")

    @property
    def authority(self) -> Path:
        """Folder of the certificate authority."""
        return self.directory / "ca"

    @property
    def secure(self) -> bool:
        """With encryption and authentication; a first run that was killed may be neither this nor `insecure`."""
        return self.authority.exists()

    @property
    def insecure(self) -> bool:
        """Without them, as `--insecure` wanted it."""
        return bool(self.settings) and not self.secure

    @property
    def listening(self) -> dict[str, str]:
        """Where the server listens: `bind` and `port` for devices, `control_port` on loopback for `flwr`."""
        bind, _, port = self.settings["SOFED_FLEET"].rpartition(":")
        return {"bind": bind.strip("[]"), "port": port, "control_port": self.settings["SOFED_CONTROL_PORT"]}

    @property
    def devices(self) -> list[int]:
        """Numbers of all devices, ascending; the folder of one that was handed over may be gone."""
        paths = [*self.directory.glob("device-*"), *(self.server / "keys").glob("device-*.pub")]
        numbers = {path.name.removeprefix("device-").removesuffix(".pub") for path in paths}
        return sorted(int(number) for number in numbers if number.isdigit())

    def device(self, number: int) -> Path:
        """Folder of a device: what is copied to it."""
        return self.directory / f"device-{number}"

    def public_key(self, number: int) -> Path:
        """The server's copy of a device's public key."""
        return self.server / "keys" / f"device-{number}.pub"

    def superlink_command(self, state: Path | None = None) -> Command:
        """The server, as it ships; `state` holds its database, by default DIR/server/state."""
        chosen = {"SOFED_STATE": str(state)} if state else {}
        return Command([str(self.server / "start.sh")], {**os.environ, **self.settings, **chosen})

    def supernode_command(
        self,
        number: int,
        *,
        source: Path | None = None,
        state: Path | None = None,
        port: int | None = None,
        superlink: str | None = None,
    ) -> Command:
        """A device, as it ships, on this machine; what is given replaces lines of `sofed.env`, as its owner would."""
        given = {"SOFED_SPOOL": source, "SOFED_STATE": state, "SOFED_PORT": port, "SOFED_SUPERLINK": superlink}
        chosen = {name: str(value) for name, value in given.items() if value is not None}
        shipped = read_settings(self.device(number) / "sofed.env") | {"SOFED_BIN": self.settings["SOFED_BIN"]}
        return Command([str(self.device(number) / "start.sh")], {**os.environ, **shipped, **chosen})

    def flwr_command(self, *arguments: str) -> Command:
        """One of Flower's own commands against this site's server, such as `list`; name `fleet` where it asks."""
        program = str(Path(self.settings["SOFED_BIN"]) / "flwr")
        quiet = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
        loopback = {"no_proxy": ",".join(["127.0.0.1", os.environ.get("no_proxy", "")])}
        home = {"FLWR_HOME": str(self.server / "flower")}
        return Command([program, *arguments], {**os.environ, **quiet, **loopback, **home})
