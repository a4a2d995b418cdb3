"""The ClientApp: one message in, one round on one device, one message out."""

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from sofed_flwr.assembly import build_device
from sofed_flwr.discretion import discreet
from sofed_flwr.flower import pack_update, unpack_task
from sofed_flwr.node import Node
from sofed_flwr.node_directory import identify
from sofed_flwr.run_config import RunConfig

app = ClientApp(mods=[discreet])


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
    device = build_device(RunConfig.from_yaml(task.config), task.run, task.device, node)
    update = device.train_round(task.round, shared)
    return pack_update(update, message)
