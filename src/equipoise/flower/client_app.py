"""Flower's ClientApp: hands messages to a :class:`~equipoise.flower.node.Node`."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from equipoise.flower import config
from equipoise.flower.audit import AuditLog, digest
from equipoise.flower.guests import GuestNode
from equipoise.flower.launch import log_to_screen
from equipoise.flower.node import Node, encode_error
from equipoise.flower.wire import from_record, to_record

LOG = logging.getLogger("equipoise")
app = ClientApp()


def answer(message: Message, options: Mapping[str, Any], node_config: Mapping[str, Any]) -> Message:
    """Answer a message of the server.

    Args:
        message: The message.
        options: Options of the app.
        node_config: Table of the node's ``--node-config``.

    Returns:
        The reply.
    """
    log_to_screen()
    try:
        settings, _ = config.read_app_config(options)
        torch.set_num_threads(settings.run.threads)
        node = config.NodeConfig.from_dict(node_config)
        asked = from_record(message.content)
        make = Node if node.role == "train" else GuestNode
        data = make(settings.to_dict, node).answer(asked)
        AuditLog(node.state_dir / "audit.jsonl").record(
            "answered", asked=digest(asked), sent=digest(data), bytes=len(data)
        )
    except Exception as error:  # Flower would send the text, which may quote this client's rows
        LOG.exception("this node cannot answer")
        data = encode_error(error)
    return Message(to_record(data), reply_to=message)


def _answer(message: Message, context: Context) -> Message:
    """Answer a message with the options that Flower passes on."""
    return answer(message, context.run_config, context.node_config)


app.train()(_answer)
app.query()(_answer)
