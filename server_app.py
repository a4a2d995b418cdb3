"""The ServerApp: configuration -> server and strategy, all rounds, the result."""

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from sofed_flwr.assembly import build_server
from sofed_flwr.config import compose
from sofed_flwr.strategy import Rules, SofedStrategy

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run SOFed's rounds (Algorithm 1)."""
    config = compose(str(context.run_config["overrides"]))
    server = build_server(config)
    federation = config.federation
    rules = Rules(
        config.clients, federation.everyone, federation.wait, federation.ask, federation.enough, federation.deadline
    )
    SofedStrategy(server, grid, config.to_yaml(), config.seed, rules).run()
    server.finish(config.encoder, config.facts)
