"""Agree on the preprocessing of raw tables before round 1.

Clients send sums and counts of their columns. The messages are those of ``equipoise data
summarise``, and the result is that of ``equipoise data merge`` and of a simulation. The
preprocessing is sent to a client with its first round.
"""

from __future__ import annotations

import dataclasses
import json
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from equipoise.data.tabular.exchange import fit_on_server_rows, merge_messages, summarise_site
from equipoise.data.tabular.preprocessing import Preprocessor
from equipoise.data.tabular.statistics import ClientStatistics
from equipoise.flower import codec
from equipoise.flower.codec import InvalidMessage, Metadata
from equipoise.privacy.config import PrivacyConfig
from equipoise.records.run_dir import Folder
from equipoise.settings.run_settings import RunSettings
from equipoise.tasks.remote_tables import RemoteTablesConfig, spec_with_preprocessor
from equipoise.utils.errors import UsageError
from equipoise.utils.record import from_json

if TYPE_CHECKING:
    from equipoise.flower.remote_executor import Wire

LOG = logging.getLogger("equipoise")
TOLD = 2**24  # bytes of one client's message, at most


@dataclass(frozen=True)
class PreprocessingAgreement:
    """One preparation for all, and the bytes that clients took to tell."""

    preprocessor: Preprocessor
    upload_bytes: int

    def settings(self, before: RunSettings) -> RunSettings:
        """The run's settings, whose task prepares raw tables so."""
        down = len(self.preprocessor.to_json().encode()) * len(self.preprocessor.clients)
        return dataclasses.replace(
            before, task_spec=spec_with_preprocessor(self.preprocessor, (self.upload_bytes, down))
        )


def raw_table_config(settings: RunSettings) -> RemoteTablesConfig | None:
    """What is said about raw tables that stay apart; ``None`` where a run has no such."""
    config = settings.task_config
    return config if isinstance(config, RemoteTablesConfig) and config.target else None


def agree_on_preprocessing(
    config: RemoteTablesConfig, privacy: PrivacyConfig, wire: Wire, limit: float
) -> PreprocessingAgreement:
    """The server's side; everybody must be there, for what nobody told is in no model."""
    if config.preprocess_from == "server":
        return PreprocessingAgreement(fit_on_server_rows(config.folder, config.clients, config), 0)
    privacy.refuse_column_statistics()
    present = wire.present()
    answers = wire.exchange(
        {client: codec.encode({}, {"kind": "tell"}) for client in present}, limit
    )
    texts, problems = {}, []
    for client in range(config.clients):
        try:
            if client not in present:
                raise InvalidMessage("not connected")
            texts[f"what client {client} tells"] = _read(
                answers.get(client, "no reply in time"), client
            )
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


def client_statistics(settings: RunSettings, client: int, name: str) -> Metadata:
    """The client's side: one message of sums and counts, as its owner could have read it in a file."""
    config = raw_table_config(settings)
    if config is None:
        raise InvalidMessage("the run has no raw tables: there is nothing to tell")
    if settings.privacy.has_noise or config.preprocess_from == "server":
        raise InvalidMessage(
            "under dp_noise or preprocess_from server this client tells nothing of its columns"
        )
    return {
        "client": client,
        "statistics": summarise_site(config.folder, name or str(client), config),
    }


def load_agreement(folder: Folder) -> PreprocessingAgreement:
    """That of a run which is resumed."""
    told = folder.path / "flower.json"  # not there yet if the run was killed before its first round
    up = json.loads(told.read_text())["told"] if told.is_file() else 0
    return PreprocessingAgreement(Preprocessor.load(folder.preparation), up)


def _read(answer: bytes | str, client: int) -> str:
    if isinstance(answer, str):
        raise InvalidMessage(answer)
    about = codec.decode(answer, TOLD)[1]
    if "error" in about:
        raise InvalidMessage(f"it reports {str(about['error'])[:500]!r}")
    text = about.get("statistics")
    if codec.read_int(about, "client", 0) != client or not isinstance(text, str):
        raise InvalidMessage("it answers another message")
    try:
        from_json(ClientStatistics, text, "its message")
    except UsageError as error:
        raise InvalidMessage(str(error)[:500]) from error
    return text
