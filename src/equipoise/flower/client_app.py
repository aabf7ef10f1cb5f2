"""Flower's ClientApp: hands messages to a :class:`~equipoise.flower.node.Node`."""

from __future__ import annotations

import logging
from typing import Any

import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from equipoise.flower import config
from equipoise.flower.audit import AuditLog, digest
from equipoise.flower.launch import log_to_screen
from equipoise.flower.node import Node, encode_error
from equipoise.flower.wire import from_record, to_record

LOG = logging.getLogger("equipoise")
app = ClientApp()


def _answer(message: Message, context: Context) -> Message:
    return answer(message, dict(context.run_config), dict(context.node_config))


def answer(message: Message, run: dict[str, Any], about: dict[str, Any]) -> Message:
    """``run``: the run's options; ``about``: what this node was told at its start."""
    log_to_screen()
    try:
        settings, _ = config.read_app_config(run)
        torch.set_num_threads(settings.run.threads)
        node, asked = config.NodeConfig.from_dict(about), from_record(message.content)
        data = Node(settings.to_dict, node).answer(asked)
        AuditLog(node.state_dir / "audit.jsonl").record(
            "answered", asked=digest(asked), sent=digest(data), bytes=len(data)
        )
    except Exception as error:  # Flower would send its text, which may quote this client's rows
        LOG.exception("this node cannot answer")
        data = encode_error(error)
    return Message(to_record(data), reply_to=message)


app.train()(_answer)
app.query()(_answer)
