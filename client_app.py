"""The ClientApp: one message in, one round on one device, one message out."""

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from sofed_flwr.build import build_device
from sofed_flwr.config.instantiate import trust
from sofed_flwr.config.schema import RunConfig
from sofed_flwr.device.node_config import Node
from sofed_flwr.flower.device_errors import redact_errors
from sofed_flwr.flower.messages import pack_update, unpack_task
from sofed_flwr.flower.node_registry import identify

app = ClientApp(mods=[redact_errors])


@app.query()
def query(message: Message, context: Context) -> Message:
    """Say which device this node is."""
    Node.read(context.node_config)
    return identify(message, context)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train one round (Algorithm 1, LocalTrain)."""
    task, shared = unpack_task(message, context)
    node = Node.read(context.node_config)
    trust(node.trusted())
    device = build_device(RunConfig.from_yaml(task.config), task.run, task.device, node)
    update = device.train_round(task.round, shared)
    return pack_update(update, message)
