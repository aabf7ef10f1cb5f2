"""Flower's ServerApp: the run of ``equipoise run``, with its clients behind Flower's grid."""

from __future__ import annotations

import json
import logging
import secrets
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from equipoise.core import files as checkpoint
from equipoise.flower import options, register
from equipoise.flower.logs import log_to_screen
from equipoise.flower.remote import Remote
from equipoise.flower.wire import GridWire
from equipoise.privacy.ledger import in_words
from equipoise.records.rounds import RoundRecord
from equipoise.runs import running as runs

LOG = logging.getLogger("equipoise")
app = ServerApp()


class TooFewReplies(Exception):
    """The run asked to stop when too few clients reply; it can be resumed."""


def main(grid: Grid, context: Context) -> None:
    serve(grid, dict(context.run_config))


def serve(grid: Grid, table: dict[str, Any]) -> None:
    """A new run, or the next round of one that stopped."""
    log_to_screen()
    settings, deployment = options.read(table)
    out, bound = Path(deployment.out), register.read(Path(deployment.nodes)) if deployment.nodes else None

    def remote(*about: Any) -> Remote:
        wire = GridWire(grid, about[1].clients, deployment.min_replies, deployment.wait, bound)
        limit, fewest = deployment.time_limit, deployment.min_replies
        return Remote(*about, wire=wire, run=_run_id(out), time_limit=limit, fewest=fewest)

    def watch(record: RoundRecord) -> None:
        headline = record.trained.headline or ""
        scores = {name: record.named(name).get(headline) for name in ("global", "personal")} if record.test else {}
        LOG.info("round %d of %d: %s, %.1f s", record.round, settings.run.rounds, scores, record.seconds)
        if record.privacy:
            LOG.info("round %d: %s", record.round, in_words(record.privacy))
        if record.skipped:
            LOG.warning("round %d changed nothing: %s", record.round, record.skipped)
            if deployment.below == "stop":
                raise TooFewReplies(record.skipped)

    resume = (out / "config.json").is_file()
    summary = runs.run(settings, out, resume=resume, watch=watch, make_executor=remote)
    LOG.info("finished after %d rounds; everything is in %s", summary.rounds, out)


def _run_id(out: Path) -> str:
    """The name under which clients keep their state: made once, the same when the run is resumed."""
    file = out / "flower.json"
    if not file.exists():
        checkpoint.write_text(file, json.dumps({"run": secrets.token_hex(8)}))
    run: str = json.loads(file.read_text())["run"]
    return run


app.main()(main)
