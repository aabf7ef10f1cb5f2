"""Flower's ServerApp: ``equipoise run`` with its clients behind Flower's grid."""

from __future__ import annotations

import json
import logging
import secrets
from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from equipoise.core import Method, Task, TrainingConfig
from equipoise.experiment import runner
from equipoise.flower import config
from equipoise.flower.async_executor import AsyncRemoteExecutor
from equipoise.flower.audit import AuditLog, read_node_register
from equipoise.flower.guests import offer_model
from equipoise.flower.launch import FAILURE, log_to_screen
from equipoise.flower.progress import ProgressLog, describe_clients, describe_round
from equipoise.flower.remote_executor import RemoteExecutor
from equipoise.flower.request_journal import RequestJournal
from equipoise.flower.table_agreement import (
    agree_on_preprocessing,
    load_agreement,
    raw_table_config,
)
from equipoise.flower.wire import GridWire
from equipoise.privacy.accountant import describe_spent
from equipoise.records.rounds import RoundRecord
from equipoise.records.run_dir import RunFolder
from equipoise.utils import io
from equipoise.utils.errors import UsageError

LOG = logging.getLogger("equipoise")
app = ServerApp()


class TooFewReplies(Exception):
    """The run asked to stop when too few clients reply; it can be resumed."""


def serve(grid: Grid, table: Mapping[str, Any]) -> None:
    """Start a run, or resume one that stopped.

    Args:
        grid: Flower's grid.
        table: Options of the app.

    Raises:
        TooFewReplies: If too few clients replied and the options ask to stop then.
        UsageError: If an option is wrong.
    """
    log_to_screen()
    settings, deployment = config.read_app_config(table)
    out = Path(deployment.out)
    bound = read_node_register(Path(deployment.nodes)) if deployment.nodes else None
    # Next to the run's folder, so that a new run does not overwrite it.
    audit = AuditLog(out.with_name(f"{out.name}-audit.jsonl"))
    is_resumed = RunFolder(out).has_config()

    @cache
    def wire(clients: int) -> GridWire:
        return GridWire(grid, clients, deployment.min_replies, deployment.wait, bound, audit)

    progress = ProgressLog(out)
    executors: list[RemoteExecutor] = []
    agreed = None
    if raw := raw_table_config(settings):
        if is_resumed:
            agreed = load_agreement(RunFolder(out))
        else:
            agreed = agree_on_preprocessing(
                raw, settings.privacy, wire(raw.clients), deployment.time_limit
            )
        settings = agreed.settings(settings)

    def say(line: str) -> None:
        progress.append(line)
        LOG.info("%s", line)

    def make_executor(
        method: Method, task: Task, training: TrainingConfig, seed: int, rounds: int
    ) -> RemoteExecutor:
        make: Callable[..., RemoteExecutor] = RemoteExecutor
        if settings.timing.carries_stale_updates:
            make = partial(AsyncRemoteExecutor, timing=settings.timing)
        executor = make(
            method,
            task,
            training,
            seed,
            rounds,
            wire=wire(task.info.num_clients),
            run=_run_id(out, agreed.upload_bytes if agreed else 0),
            time_limit=deployment.time_limit,
            min_replies=deployment.min_replies,
            preparation=agreed.preprocessor.to_json() if agreed else "",
            journal=RequestJournal(RunFolder(out).requests),
            verdict=deployment.verdict,
        )
        executors.append(executor)
        return executor

    def on_round_end(record: RoundRecord) -> None:
        executor = executors[-1]
        line = describe_round(
            record, settings.run.rounds, wire(executor.task.info.num_clients).names, executor.note
        )
        say(line)
        if record.privacy:
            say(f"round {record.round}: {describe_spent(record.privacy)}")
        audit.record("round", round=record.round, **outcome(record))
        if record.skipped and deployment.below == "stop":
            raise TooFewReplies(record.skipped)

    io.make_folder(out, private=True)
    summary = runner.run(
        settings,
        out,
        resume=is_resumed,
        on_round_end=on_round_end,
        make_executor=make_executor,
        on_message=say,
    )
    if executors:  # else the run was finished before
        info = executors[-1].task.info
        connection = wire(info.num_clients)
        for line in describe_clients(RunFolder(out), info.metric, connection.names):
            say(line)
        run_id = executors[-1].run_id
        limit = deployment.time_limit
        for line in offer_model(connection, RunFolder(out), run_id, info.metric, limit):
            say(line)
        folder = f"<state-dir>/{run_id}/client-<number>"
        say(f"each client's own model is on its machine: equipoise predict {folder} new.csv")
    LOG.info("finished after %d rounds; everything is in %s", summary.rounds, out)


def outcome(record: RoundRecord) -> dict[str, object]:
    """Return who contributed to a round, who was rejected and why, and who was absent."""
    contributed: list[int] | str = "all others"
    if record.skipped:
        contributed = []
    elif record.ids is not None:
        contributed = [client for client in record.ids if client not in record.dropped]
    not_finite = dict.fromkeys(record.dropped, "its numbers are not finite")
    return {
        "contributed": contributed,
        "rejected": {
            client: record.rejected.get(client, reason) for client, reason in not_finite.items()
        },
        "absent": record.absent,
        "skipped": record.skipped,
    }


def _run_id(out: Path, statistics_bytes: int) -> str:
    """Return the name under which clients keep their state; it stays when the run is resumed.

    Args:
        out: Folder of the run.
        statistics_bytes: Bytes that clients sent before round 1, which a resumed run counts too.
    """
    file = RunFolder(out).flower
    if not file.exists():
        metadata = {"run": secrets.token_hex(8), "statistics_bytes": statistics_bytes}
        file.write(json.dumps(metadata))
    run: str = json.loads(file.read_text())["run"]
    return run


def main(grid: Grid, context: Context) -> None:
    """Serve the app's run; the log says in one line why it cannot go on."""
    try:
        serve(grid, context.run_config)
    except (UsageError, TooFewReplies) as error:
        log_to_screen()
        LOG.error("%s%s", FAILURE.removeprefix("equipoise: "), " ".join(str(error).split()))
        raise


app.main()(main)
