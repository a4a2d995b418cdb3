"""The systemd services of a site; a device's number is in `sofed.env`, so all devices have the same units.

The server runs in the site's directory, as the user who provisioned it; a device is installed below /etc by
`install.sh`. Each service may do what its program needs and nothing else: `systemd-analyze security` shows what
remains.
"""

from string import Template

HARDENING = """\
UMask=0077
NoNewPrivileges=yes
CapabilityBoundingSet=
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
LockPersonality=yes
RemoveIPC=yes
KeyringMode=private
ProtectKernelTunables=yes
ProtectKernelModules=yes
ProtectKernelLogs=yes
ProtectControlGroups=yes
ProtectClock=yes
ProtectHostname=yes
# Other users' processes are hidden; ProcSubset=pid would hide /proc/cpuinfo, by which torch chooses its kernels.
ProtectProc=invisible
SystemCallArchitectures=native
SystemCallFilter=@system-service
SystemCallFilter=~@privileged @resources
# A refused call is an error and does not kill: OpenMP asks for processors (@resources) and continues without.
SystemCallErrorNumber=EPERM
DevicePolicy=closed
"""

DEVICE_HARDENING = f"""\
{HARDENING}PrivateTmp=yes
ProtectHome=read-only
# All is read-only but the state and the spool; install.sh adds those of sofed.env that lie elsewhere.
ProtectSystem=strict
ReadWritePaths=-/var/lib/sofed -/var/spool/sofed
"""

COMPUTE = """\
# Not set, because torch compiles its convolutions (oneDNN; without: "could not create a primitive"):
# MemoryDenyWriteExecute.
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK
# A GPU, where there is one: NVIDIA, Jetson, AMD.
DeviceAllow=char-nvidia* rw
DeviceAllow=char-nvhost* rw
DeviceAllow=char-nvmap rw
DeviceAllow=char-nvgpu* rw
DeviceAllow=char-drm rw
DeviceAllow=char-kfd rw
"""

CAMERA = """\
MemoryDenyWriteExecute=yes
# No network: frames go to the spool and nowhere else. A camera that is read over the network by --command needs
# PrivateNetwork=no and RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6, by systemctl edit sofed-collect.
PrivateNetwork=yes
RestrictAddressFamilies=AF_UNIX AF_NETLINK
# Cameras: V4L, and what a Raspberry Pi's camera stack opens besides.
DeviceAllow=char-video4linux rw
DeviceAllow=char-media rw
DeviceAllow=char-dma_heap rw
DeviceAllow=char-drm rw
DeviceAllow=char-vchiq rw
"""

RESTART_SECONDS = 5
"""A refused node tries again after this and its own start of about 3 s; with 15 s it could take 78 s to get back."""
RESTART = f"""\
# A node that died without disconnecting is refused for up to a minute, until the server counts it as offline: so
# restart always, without a limit (StartLimitIntervalSec=0).
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
ExecStart=/etc/sofed/start.sh
# A fixed user of its own: its state survives reinstallation, and other users must be able to fill the spool. A
# DynamicUser would hide the state below /var/lib/private, possibly under another number after a restart.
User=sofed
Group=sofed
StateDirectory=sofed
StateDirectoryMode=0700
WorkingDirectory=/var/lib/sofed
{RESTART}# Only the training process is large: it alone is killed, its round is lost, the node stays connected.
MemoryMax=75%
OOMPolicy=continue
{DEVICE_HARDENING}{COMPUTE}
[Install]
WantedBy=multi-user.target
"""

COLLECT_UNIT = f"""\
[Unit]
Description=SOFed camera to spool
StartLimitIntervalSec=0

[Service]
ExecStart=/etc/sofed/collect.sh
User=sofed
Group=sofed
StateDirectory=sofed
StateDirectoryMode=0700
WorkingDirectory=/var/lib/sofed
Restart=always
RestartSec=10
MemoryMax=20%
{DEVICE_HARDENING}{CAMERA}
[Install]
WantedBy=multi-user.target
"""

SUPERLINK_UNIT = Template(f"""\
[Unit]
Description=SOFed server (Flower SuperLink)
Wants=network-online.target time-sync.target
After=network-online.target time-sync.target
StartLimitIntervalSec=0

[Service]
ExecStart="$server/start.sh"
# The user who provisioned, because runs write their results where this user says, with the data this user can read:
# so neither ProtectHome nor PrivateTmp.
User=$user
WorkingDirectory=$server
Restart=always
RestartSec=10
MemoryMax=90%
OOMPolicy=continue
ProtectSystem=full
{HARDENING}{COMPUTE}
[Install]
WantedBy=multi-user.target
""")


def superlink_unit(server: str, user: str) -> bytes:
    """`sofed-superlink.service`; in a unit a percent sign begins a specifier."""
    return SUPERLINK_UNIT.substitute(server=server.replace("%", "%%"), user=user.replace("%", "%%")).encode()
