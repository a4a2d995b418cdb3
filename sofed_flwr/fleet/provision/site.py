"""A provisioned directory: its files and its settings.

    DIR/ca/        ca.crt  ca.key              the authority; its key signs server certificates and stays here
    DIR/server/    start.sh  sofed.env  ca.crt  server.crt  server.key  sofed-superlink.service
                   keys/device-K.pub           what is registered; device-K.node, Flower's number for it, once it is
                   flower/config.toml          FLWR_HOME with the connection `fleet`: flwr list fleet, ...
                   state/superlink.db          registrations and runs, once the server has run
    DIR/device-K/  start.sh  collect.sh  install.sh  bin/flwr-clientapp  sofed.env  ca.crt  key  key.pub
                   sofed-supernode.service  sofed-collect.service

Private keys are 0600, directories 0700. A device's private key is made here and copied with its folder; a device that
makes its own key and sends only the public half would be safer, and is not supported.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from sofed_flwr.core.errors import ConfigError
from sofed_flwr.fleet.provision.hosts import split_address
from sofed_flwr.fleet.provision.settings import read_settings

SERVER_SETTINGS = ("SOFED_BIN", "SOFED_SUPERLINK", "SOFED_FLEET", "SOFED_CONTROL_PORT")


@dataclass(frozen=True)
class Site:
    """The paths of a provisioned directory and its settings."""

    directory: Path

    @property
    def server(self) -> Path:
        """Folder of the server."""
        return self.directory / "server"

    @property
    def settings(self) -> dict[str, str]:
        """The server's settings; empty before the first provisioning is complete."""
        return read_settings(self.server / "sofed.env", SERVER_SETTINGS)

    @property
    def authority(self) -> Path:
        """Folder of the certificate authority."""
        return self.directory / "ca"

    @property
    def secure(self) -> bool:
        """With encryption and authentication; a first run that was killed may be neither this nor `insecure`."""
        return any(path.exists() for path in (self.authority, self.server / "ca.crt", self.server / "server.key"))

    @property
    def insecure(self) -> bool:
        """Made with `--insecure`."""
        return bool(self.settings) and not self.secure

    @property
    def listening(self) -> dict[str, str]:
        """Where the server listens: `bind` and `port` for devices, `control_port` on loopback for `flwr`."""
        bind, port = split_address(self.settings["SOFED_FLEET"])
        control_port = split_address(f":{self.settings['SOFED_CONTROL_PORT']}")[1]
        for name, valid in {"SOFED_FLEET": bind and port, "SOFED_CONTROL_PORT": control_port}.items():
            if not valid:
                raise ConfigError(f"{self.server / 'sofed.env'}: {name} has no valid port or address")
        return {"bind": bind, "port": port, "control_port": control_port}

    @property
    def devices(self) -> list[int]:
        """Numbers of all devices, ascending; the folder of one that was copied to its device may be gone."""
        paths = [*self.directory.glob("device-*"), *(self.server / "keys").glob("device-*.pub")]
        numbers = {path.name.removeprefix("device-").removesuffix(".pub") for path in paths}
        return sorted(int(number) for number in numbers if re.fullmatch("0|[1-9][0-9]{0,8}", number))

    def device(self, number: int) -> Path:
        """Folder of a device: what is copied to it."""
        return self.directory / f"device-{number}"

    def public_key(self, number: int) -> Path:
        """The server's copy of a device's public key."""
        return self.server / "keys" / f"device-{number}.pub"
