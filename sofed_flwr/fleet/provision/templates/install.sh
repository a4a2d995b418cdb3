#!/bin/sh
# Run as root on the device, in the folder that was copied to it: a user, its directories, the services. Running it
# again updates scripts and units and keeps the device's settings and state.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
id sofed >/dev/null 2>&1 || useradd --system --user-group --no-create-home --shell /usr/sbin/nologin sofed
for group in video render; do
    ! getent group "$group" >/dev/null || usermod --append --groups "$group" sofed
done
install -d -m 0755 /etc/sofed
[ -e /etc/sofed/sofed.env ] || install -m 0644 "$here/sofed.env" /etc/sofed/sofed.env
install -m 0755 "$here/start.sh" "$here/collect.sh" /etc/sofed/
install -D -m 0755 "$here/bin/flwr-clientapp" /etc/sofed/bin/flwr-clientapp
[ ! -e "$here/key" ] || install -m 0600 -o sofed -g sofed "$here/key" /etc/sofed/key
[ ! -e "$here/ca.crt" ] || install -m 0644 "$here/ca.crt" /etc/sofed/ca.crt
. /etc/sofed/sofed.env
case "$SOFED_STATE$SOFED_SPOOL" in
    *[!A-Za-z0-9/._-]*) echo "sofed: SOFED_STATE and SOFED_SPOOL: letters, digits and / . _ - only" >&2; exit 2 ;;
esac
install -d -m 0700 -o sofed -g sofed "$SOFED_STATE"
install -d -m 0750 -o sofed -g sofed "$SOFED_SPOOL"
install -m 0644 "$here/sofed-supernode.service" "$here/sofed-collect.service" /etc/systemd/system/
for unit in sofed-supernode sofed-collect; do  # everything else is read-only for them
    install -d -m 0755 "/etc/systemd/system/$unit.service.d"
    printf '[Service]\nReadWritePaths=-%s -%s\n' "$SOFED_STATE" "$SOFED_SPOOL" |
        install -m 0644 /dev/stdin "/etc/systemd/system/$unit.service.d/paths.conf"
done
systemctl daemon-reload
# A board without a battery clock starts in the past, and its signatures are refused; this makes time-sync.target wait.
systemctl enable systemd-time-wait-sync.service ||
    echo "no systemd-timesyncd: let your NTP service provide time-sync.target"
systemctl enable sofed-supernode.service
systemctl restart sofed-supernode.service
echo "running; see: journalctl -fu sofed-supernode. With a camera also: systemctl enable --now sofed-collect"
