"""Flower's ClientApp: hands messages to a :class:`~equipoise.flower.node.Node`."""

from __future__ import annotations

import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from equipoise.flower import options
from equipoise.flower.logs import log_to_screen
from equipoise.flower.node import Node
from equipoise.flower.wire import disclose, enclose

app = ClientApp()


def _answer(message: Message, context: Context) -> Message:
    log_to_screen()
    settings, _ = options.read(dict(context.run_config))
    torch.set_num_threads(settings.run.threads)
    node = Node(settings.flat, options.NodeConfig.of(dict(context.node_config)))
    return Message(enclose(node.answer(disclose(message.content))), reply_to=message)


app.train()(_answer)
app.query()(_answer)
