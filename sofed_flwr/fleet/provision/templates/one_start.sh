exec 9<"$FLWR_HOME"
! command -v flock >/dev/null || flock -n 9 || { echo "sofed: already running on $FLWR_HOME" >&2; exit 1; }
# A copy of the app may be torn, and Flower makes another; a read-only disk keeps its copy and goes on.
rm -rf "$FLWR_HOME/apps" || echo "sofed: $FLWR_HOME/apps cannot be removed" >&2
