"""Flower's ServerApp: ``equipoise run`` with its clients behind Flower's grid."""

from __future__ import annotations

import json
import logging
import secrets
from collections.abc import Callable, Mapping
from functools import partial
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
    PreprocessingAgreement,
    agree_on_preprocessing,
    load_agreement,
    raw_table_config,
)
from equipoise.flower.wire import GridWire
from equipoise.privacy.accountant import describe_spent
from equipoise.records.rounds import RoundRecord
from equipoise.records.run_dir import RunFolder
from equipoise.records.summary import Summary
from equipoise.settings.experiment_config import ExperimentConfig
from equipoise.tasks.remote_tables import RemoteTablesConfig
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
    if isinstance(settings.task_config, RemoteTablesConfig):
        settings.task_config.check_server_folder()  # before anybody waits for clients
    deployed = DeployedRun(grid, settings, deployment)
    deployed.agree_on_preprocessing()
    summary = deployed.run()
    if deployed.executor is not None:  # else the run was finished before
        deployed.conclude(deployed.executor)
    LOG.info("finished after %d rounds; everything is in %s", summary.rounds, deployed.folder.path)


class DeployedRun:
    """A run whose clients are behind Flower's grid: its connection, logs and executor."""

    def __init__(
        self, grid: Grid, settings: ExperimentConfig, deployment: config.DeploymentConfig
    ) -> None:
        """Open the logs of a run.

        Args:
            grid: Flower's grid.
            settings: Options of the run.
            deployment: Options of the deployment.
        """
        self.grid = grid
        self.settings = settings
        self.deployment = deployment
        self.folder = RunFolder(Path(deployment.out))
        self.is_resumed = self.folder.has_config()
        out = self.folder.path
        # Next to the run's folder, so that a new run does not overwrite it.
        self.audit = AuditLog(out.with_name(f"{out.name}-audit.jsonl"))
        self.progress = ProgressLog(out)
        self.agreed: PreprocessingAgreement | None = None
        """What the clients' tables agreed on before round 1, if each client has its own tables."""
        self.executor: RemoteExecutor | None = None
        """Executor of the rounds, once they begin."""
        self._bound = read_node_register(Path(deployment.nodes)) if deployment.nodes else None
        self._wire: GridWire | None = None

    def wire(self, clients: int) -> GridWire:
        """Return the connection to the clients, opened at the first call."""
        if self._wire is None:
            deployment = self.deployment
            self._wire = GridWire(
                self.grid,
                clients,
                deployment.min_replies,
                deployment.wait,
                self._bound,
                self.audit,
            )
        return self._wire

    def agree_on_preprocessing(self) -> None:
        """Let the clients' tables agree on columns and statistics, if they have their own."""
        raw = raw_table_config(self.settings)
        if not raw:
            return
        if self.is_resumed:
            self.agreed = load_agreement(self.folder)
        else:
            self.agreed = agree_on_preprocessing(
                raw, self.settings.privacy, self.wire(raw.clients), self.deployment.time_limit
            )
        self.settings = self.agreed.settings(self.settings)

    def run(self) -> Summary:
        """Run all rounds; return the summary."""
        io.make_folder(self.folder.path, private=True)
        return runner.run(
            self.settings,
            self.folder.path,
            resume=self.is_resumed,
            on_round_end=self.on_round_end,
            make_executor=self.make_executor,
            on_message=self.say,
        )

    def say(self, line: str) -> None:
        """Write a line to the progress log and to the screen."""
        self.progress.append(line)
        LOG.info("%s", line)

    def make_executor(
        self, method: Method, task: Task, training: TrainingConfig, seed: int, rounds: int
    ) -> RemoteExecutor:
        """Make the executor that sends requests over the grid.

        Args:
            method: Method of the run.
            task: Task of the run.
            training: Settings of local training.
            seed: Seed of the run.
            rounds: Number of rounds of the run.

        Returns:
            The executor.
        """
        make: Callable[..., RemoteExecutor] = RemoteExecutor
        if self.settings.timing.carries_stale_updates:
            make = partial(AsyncRemoteExecutor, timing=self.settings.timing)
        agreed = self.agreed
        self.executor = make(
            method,
            task,
            training,
            seed,
            rounds,
            wire=self.wire(task.info.num_clients),
            run=_run_id(self.folder, agreed.upload_bytes if agreed else 0),
            time_limit=self.deployment.time_limit,
            min_replies=self.deployment.min_replies,
            preparation=agreed.preprocessor.to_json() if agreed else "",
            journal=RequestJournal(self.folder.requests),
            verdict=self.deployment.verdict,
        )
        return self.executor

    def on_round_end(self, record: RoundRecord) -> None:
        """Log a round.

        Raises:
            TooFewReplies: If the round was skipped and the options ask to stop then.
        """
        executor = self.executor
        assert executor is not None
        names = self.wire(executor.task.info.num_clients).names
        self.say(describe_round(record, self.settings.run.rounds, names, executor.note))
        if record.privacy:
            self.say(f"round {record.round}: {describe_spent(record.privacy)}")
        self.audit.record("round", round=record.round, **outcome(record))
        if record.skipped and self.deployment.below == "stop":
            raise TooFewReplies(record.skipped)

    def conclude(self, executor: RemoteExecutor) -> None:
        """Describe the clients' results and offer the model to guests."""
        info = executor.task.info
        wire = self.wire(info.num_clients)
        for line in describe_clients(self.folder, info.metric, wire.names):
            self.say(line)
        limit = self.deployment.time_limit
        for line in offer_model(wire, self.folder, executor.run_id, info.metric, limit):
            self.say(line)
        folder = f"<state-dir>/{executor.run_id}/client-<number>"
        self.say(f"each client's own model is on its machine: equipoise predict {folder} new.csv")


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


def _run_id(folder: RunFolder, statistics_bytes: int) -> str:
    """Return the name under which clients keep their state; it stays when the run is resumed.

    Args:
        folder: Folder of the run.
        statistics_bytes: Bytes that clients sent before round 1, which a resumed run counts too.
    """
    file = folder.flower
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
