#!/bin/sh
# Fills the spool by `sofed collect`, whose options SOFED_COLLECT holds, quoted as in a shell.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
[ -n "${SOFED_DEVICE:-}" ] || { set -a; . "$here/sofed.env"; set +a; }
eval "set -- $SOFED_COLLECT"
exec "$SOFED_BIN/sofed" collect "$SOFED_SPOOL" "$@"
