"""Flower's ServerApp: ``equipoise run`` with its clients behind Flower's grid."""

from __future__ import annotations

import json
import logging
import secrets
from functools import cache, partial
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from equipoise.experiment import runner as runs
from equipoise.flower import audit as register
from equipoise.flower import config
from equipoise.flower.async_executor import AsyncRemoteExecutor
from equipoise.flower.audit import AuditLog
from equipoise.flower.launch import log_to_screen
from equipoise.flower.remote_executor import RemoteExecutor
from equipoise.flower.table_agreement import (
    agree_on_preprocessing,
    load_agreement,
    raw_table_config,
)
from equipoise.flower.wire import GridWire
from equipoise.privacy.accountant import describe_spent
from equipoise.records.rounds import RoundRecord
from equipoise.records.run_dir import Folder
from equipoise.utils import io as checkpoint

LOG = logging.getLogger("equipoise")
app = ServerApp()


class TooFewReplies(Exception):
    """The run asked to stop when too few clients reply; it can be resumed."""


def main(grid: Grid, context: Context) -> None:
    serve(grid, dict(context.run_config))


def serve(grid: Grid, table: dict[str, Any]) -> None:
    """A new run, or the next round of one that stopped."""
    log_to_screen()
    settings, deployment = config.read_app_config(table)
    out, bound = (
        Path(deployment.out),
        register.read_node_register(Path(deployment.nodes)) if deployment.nodes else None,
    )

    audit = AuditLog(
        out.with_name(f"{out.name}-audit.jsonl")
    )  # beside the folder, with which it is never overwritten

    @cache
    def wire(clients: int) -> GridWire:
        return GridWire(grid, clients, deployment.min_replies, deployment.wait, bound, audit)

    agreed = None
    if raw := raw_table_config(settings):
        known = (out / "config.json").is_file()
        agreed = (
            load_agreement(Folder(out))
            if known
            else agree_on_preprocessing(
                raw, settings.privacy, wire(raw.clients), deployment.time_limit
            )
        )
        settings = agreed.settings(settings)

    def remote(*about: Any) -> RemoteExecutor:
        task = about[1]
        told = task.preprocessing_json() if agreed else ""
        run = _run_id(out, agreed.upload_bytes if agreed else 0)
        make = (
            partial(AsyncRemoteExecutor, timing=settings.timing)
            if settings.timing.carries_stale_updates
            else RemoteExecutor
        )
        return make(
            *about,
            wire=wire(task.num_clients),
            run=run,
            time_limit=deployment.time_limit,
            min_replies=deployment.min_replies,
            preparation=told,
        )

    def watch(record: RoundRecord) -> None:
        headline = record.trained.headline or ""
        scores = (
            {name: record.named(name).get(headline) for name in ("global", "personal")}
            if record.test
            else {}
        )
        LOG.info(
            "round %d of %d: %s, %.1f s", record.round, settings.run.rounds, scores, record.seconds
        )
        if record.privacy:
            LOG.info("round %d: %s", record.round, describe_spent(record.privacy))
        audit.record("round", round=record.round, **outcome(record))
        if record.skipped:
            LOG.warning("round %d changed nothing: %s", record.round, record.skipped)
            if deployment.below == "stop":
                raise TooFewReplies(record.skipped)

    checkpoint.make_folder(out, private=True)
    resume = (out / "config.json").is_file()
    summary = runs.run(settings, out, resume=resume, on_round_end=watch, make_executor=remote)
    LOG.info("finished after %d rounds; everything is in %s", summary.rounds, out)


def outcome(record: RoundRecord) -> dict[str, Any]:
    """Who contributed to the new model, who was left out and why, who was absent; for an audit."""
    if record.skipped:
        contributed: list[int] | str = []
    elif record.ids is None:
        contributed = "all others"
    else:
        contributed = [client for client in record.ids if client not in record.dropped]
    why = {
        client: record.rejected.get(client, "its numbers are not finite")
        for client in record.dropped
    }
    return {
        "contributed": contributed,
        "rejected": why,
        "absent": record.absent,
        "skipped": record.skipped,
    }


def _run_id(out: Path, told: int) -> str:
    """The name under which clients keep their state: made once, the same when the run is resumed.

    ``told``: bytes that clients told before round 1, which a resumed run bills too.
    """
    file = out / "flower.json"
    if not file.exists():
        checkpoint.write_text(file, json.dumps({"run": secrets.token_hex(8), "told": told}))
    run: str = json.loads(file.read_text())["run"]
    return run


app.main()(main)
