"""Agree on the preprocessing of raw tables before round 1.

Clients send sums and counts of their columns. The messages are those of ``equipoise data
summarise``, and the result is that of ``equipoise data merge`` and of a simulation. The
preprocessing is sent to a client with its first round.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from equipoise.data.tabular.exchange import fit_on_server_rows, merge_messages, summarise_site
from equipoise.data.tabular.preprocessing import Preprocessor
from equipoise.data.tabular.statistics import ClientStatistics
from equipoise.flower import codec
from equipoise.flower.codec import InvalidMessage, Metadata
from equipoise.privacy.config import PrivacyConfig
from equipoise.records.run_dir import RunFolder
from equipoise.settings.experiment_config import ExperimentConfig
from equipoise.tasks.remote_tables import RemoteTablesConfig, spec_with_preprocessor
from equipoise.utils.errors import UsageError
from equipoise.utils.record import from_json

if TYPE_CHECKING:
    from equipoise.flower.remote_executor import Wire

LOG = logging.getLogger("equipoise")
MAX_STATISTICS_BYTES = 2**24  # of one client's message


@dataclass(frozen=True)
class PreprocessingAgreement:
    """The preprocessing that all clients use.

    Attributes:
        preprocessor: Preprocessing of raw tables.
        upload_bytes: Bytes of the statistics that clients sent.
    """

    preprocessor: Preprocessor
    upload_bytes: int

    def settings(self, before: ExperimentConfig) -> ExperimentConfig:
        """Return the run's settings with a task that preprocesses raw tables in this way."""
        down = len(self.preprocessor.to_json().encode()) * len(self.preprocessor.clients)
        spec = spec_with_preprocessor(self.preprocessor, (self.upload_bytes, down))
        return replace(before, task_spec=spec)


def raw_table_config(settings: ExperimentConfig) -> RemoteTablesConfig | None:
    """Return the options of raw tables at remote clients; ``None`` if a run has none."""
    config = settings.task_config
    return config if isinstance(config, RemoteTablesConfig) and config.target else None


def agree_on_preprocessing(
    config: RemoteTablesConfig, privacy: PrivacyConfig, wire: Wire, limit: float
) -> PreprocessingAgreement:
    """Collect the clients' statistics on the server and fit the preprocessing.

    Every client must be connected, because a category that no client reported is in no model.

    Args:
        config: Options of the tables.
        privacy: Options of differential privacy, under which no statistics are sent.
        wire: Connection to the clients.
        limit: Seconds to wait for replies.

    Returns:
        The preprocessing.

    Raises:
        UsageError: If a client is absent or its statistics are unusable.
    """
    if config.preprocess_from == "server":
        return PreprocessingAgreement(fit_on_server_rows(config.folder, config.clients, config), 0)
    privacy.refuse_column_statistics()
    present = wire.present()
    question = codec.encode({}, {"kind": "statistics"})
    answers = wire.exchange(dict.fromkeys(present, question), limit)
    texts: dict[str, str] = {}
    problems: list[str] = []
    for client in range(config.clients):
        answer = answers.get(client) if client in present else "not connected"
        try:
            texts[f"what client {client} tells"] = _read_statistics(answer, client)
        except InvalidMessage as error:
            problems.append(f"client {client}: {error}")
    if problems:
        raise UsageError(
            f"before round 1 every client must tell of its columns, but {'; '.join(problems)}"
        )
    preprocessor, notes = merge_messages(texts, config)
    for note in notes:
        LOG.info(note)
    return PreprocessingAgreement(preprocessor, sum(len(text.encode()) for text in texts.values()))


def client_statistics(settings: ExperimentConfig, client: int, name: str) -> Metadata:
    """Return a client's message: sums and counts of its columns, as ``data summarise`` writes them.

    Args:
        settings: Options of the run.
        client: Id of the client.
        name: Name of the client; its number if empty.

    Returns:
        The message.

    Raises:
        InvalidMessage: If the run has no raw tables, or its clients send no statistics.
    """
    config = raw_table_config(settings)
    if config is None:
        raise InvalidMessage("the run has no raw tables: there is nothing to tell")
    if settings.privacy.has_noise or config.preprocess_from == "server":
        raise InvalidMessage(
            "under dp_noise or preprocess_from server this client tells nothing of its columns"
        )
    statistics = summarise_site(config.folder, name or str(client), config)
    return {"client": client, "statistics": statistics}


def load_agreement(folder: RunFolder) -> PreprocessingAgreement:
    """Return the preprocessing of a run that is resumed."""
    file = folder.flower  # missing if the run was killed before its first round
    upload_bytes = json.loads(file.read_text())["statistics_bytes"] if file.exists() else 0
    text = folder.preparation.read_text()
    preprocessor = Preprocessor.from_json(text, f"'{folder.preparation}'")
    return PreprocessingAgreement(preprocessor, upload_bytes)


def _read_statistics(answer: bytes | str | None, client: int) -> str:
    """Decode and check the statistics of a client's columns."""
    _, metadata = codec.decode_reply(answer, MAX_STATISTICS_BYTES, client=client)
    text = metadata.get("statistics")
    if not isinstance(text, str):
        raise InvalidMessage("it answers another message")
    try:
        from_json(ClientStatistics, text, "its message")
    except UsageError as error:
        raise InvalidMessage(str(error)[:500]) from error
    return text
