"""The ServerApp: configuration -> server and strategy, all rounds, the result."""

from logging import INFO

from flwr.app import Context
from flwr.common import log
from flwr.serverapp import Grid, ServerApp

from sofed_flwr.build import build_server
from sofed_flwr.config.compose import compose
from sofed_flwr.flower.strategy import SofedFedAvg
from sofed_flwr.server.training_images import trained_on

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run SOFed's rounds (Algorithm 1)."""
    config = compose(str(context.run_config["overrides"]))
    server = build_server(config)
    images = trained_on(config, server.suite, server.split)  # now: the dataset may be gone when the last round is over
    SofedFedAvg(server, grid, config).run()
    server.finish(config.encoder, config.facts, images)
    log(INFO, "run directory: %s; encoder: %s", server.directory.path, server.directory.encoder)
