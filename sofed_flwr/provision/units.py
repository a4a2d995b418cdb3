"""The systemd services of a site. Those of a device name no device: `sofed.env` does, so they are alike on all.

The server is run in place, by whoever provisioned it; a device is installed below /etc by `install.sh`.
"""

from string import Template

HARDENING = """\
UMask=0077
NoNewPrivileges=yes
PrivateTmp=yes
ProtectSystem=full
ProtectHome=read-only
ProtectKernelTunables=yes
ProtectKernelModules=yes
ProtectControlGroups=yes
RestrictSUIDSGID=yes
LockPersonality=yes
# Not set, as they break what runs here: MemoryDenyWriteExecute (torch compiles code), PrivateDevices (camera, GPU).
"""

RESTART_SECONDS = 5
"""A refused node asks again after this and its own start of about 3 s: 15 could make 78 s of the minute's lease."""
RESTART = f"""\
# A node that died without a goodbye is refused for up to a minute, until the server counts it as offline: so always
# again, without ever giving up (StartLimitIntervalSec=0).
Restart=always
RestartSec={RESTART_SECONDS}
"""

SUPERNODE_UNIT = f"""\
[Unit]
Description=SOFed device (Flower SuperNode)
Wants=network-online.target time-sync.target
# Messages are signed with the time: a clock 5 s ahead or 305 s behind the server's is refused.
After=network-online.target time-sync.target
StartLimitIntervalSec=0

[Service]
EnvironmentFile=/etc/sofed/sofed.env
ExecStart=/etc/sofed/start.sh
# A user of its own, but a fixed one: its state outlives reinstallation, and others must be able to fill the spool. A
# DynamicUser hides the state below /var/lib/private and may own it under another number tomorrow.
User=sofed
Group=sofed
StateDirectory=sofed
StateDirectoryMode=0700
WorkingDirectory=/var/lib/sofed
{RESTART}# The training process is the big one: it alone is killed, its round is lost, the node stays in the federation.
MemoryMax=75%
OOMPolicy=continue
{HARDENING}
[Install]
WantedBy=multi-user.target
"""

COLLECT_UNIT = f"""\
[Unit]
Description=SOFed camera to spool
StartLimitIntervalSec=0

[Service]
EnvironmentFile=/etc/sofed/sofed.env
ExecStart=/etc/sofed/collect.sh
User=sofed
Group=sofed
StateDirectory=sofed
StateDirectoryMode=0700
WorkingDirectory=/var/lib/sofed
Restart=always
RestartSec=10
MemoryMax=20%
{HARDENING}
[Install]
WantedBy=multi-user.target
"""

SUPERLINK_UNIT = Template("""\
[Unit]
Description=SOFed server (Flower SuperLink)
Wants=network-online.target time-sync.target
After=network-online.target time-sync.target
StartLimitIntervalSec=0

[Service]
ExecStart="$server/start.sh"
# The user who provisioned, because runs write their results where this user says, with the data this user can read.
User=$user
WorkingDirectory=$server
Restart=always
RestartSec=10
MemoryMax=90%
OOMPolicy=continue
NoNewPrivileges=yes
ProtectSystem=full

[Install]
WantedBy=multi-user.target
""")


def superlink_unit(server: str, user: str) -> bytes:
    """`sofed-superlink.service`; in a unit a percent sign begins a specifier."""
    return SUPERLINK_UNIT.substitute(server=server.replace("%", "%%"), user=user).encode()
