"""A node's own records: a damaged or deleted one stops the node."""

import json
import os
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import pytest

from equipoise.flower import codec, supernode
from equipoise.flower.client_state import RevealedUpdates
from equipoise.flower.egress import EgressCounter, EgressRules
from equipoise.flower.request_journal import RequestJournal
from equipoise.methods.fedavg import FedAvg
from equipoise.privacy.budget import PrivacyBudget
from equipoise.privacy.config import PrivacyConfig
from equipoise.records.run_dir import RunFolder
from equipoise.utils import io
from equipoise.utils.errors import UsageError
from equipoise.utils.sealed_json import INDEX, read_sealed, write_sealed
from flower.test_remote import Here
from helpers import small_task


def spend(folder):
    PrivacyBudget(folder / "privacy.json", PrivacyConfig(dp_clip=1.0, dp_noise=1.0), 8.0).spend()


def reveal(folder):
    revealed = RevealedUpdates(folder / "secure-sums.json")
    revealed.check_round("run", 1)
    revealed.record("run", 1, "digest")


def count(folder):
    EgressCounter(folder / "egress.json", EgressRules(rounds_per_day=5)).count_round("run")


RECORDS = {"privacy.json": spend, "secure-sums.json": reveal, "egress.json": count}


@pytest.mark.parametrize("name", RECORDS)
def test_a_deleted_record_stops_the_node(name, tmp_path):
    for write in RECORDS.values():
        write(tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(UsageError, match=f"{name}' was deleted"):
        RECORDS[name](tmp_path)
    assert not (tmp_path / name).exists()


@pytest.mark.parametrize("name", [*RECORDS, INDEX])
@pytest.mark.parametrize("damage", [lambda text: text[:-5], lambda text: text.replace(":", ";")])
def test_a_damaged_record_stops_the_node(name, damage, tmp_path):
    for write in RECORDS.values():
        write(tmp_path)
    file = tmp_path / name
    file.write_text(damage(file.read_text()))
    with pytest.raises(UsageError, match="is damaged"):
        RECORDS.get(name, lambda folder: write_sealed(folder / "another.json", {}))(tmp_path)


def test_a_deleted_journal_of_requests_is_noticed(tmp_path):
    """Without it, a resumed server would count too little epsilon."""
    journal = RequestJournal(RunFolder(tmp_path).requests)
    journal.record_request(1, [0, 1])
    (tmp_path / "requests.json").unlink()
    with pytest.raises(UsageError, match=r"requests\.json"):
        RequestJournal(RunFolder(tmp_path).requests).read()


def test_a_record_that_a_crash_kept_out_of_the_index_is_added_to_it(tmp_path):
    spend(tmp_path)
    (tmp_path / INDEX).unlink()
    spend(tmp_path)
    assert json.loads((tmp_path / INDEX).read_text())["records"] == ["privacy.json"]
    assert read_sealed(tmp_path / "egress.json", "") is None


def test_folders_of_killed_nodes_are_removed_and_those_of_living_ones_stay(tmp_path, monkeypatch):
    monkeypatch.setattr(supernode.tempfile, "gettempdir", lambda: str(tmp_path))
    long_ago = datetime(2020, 1, 1, tzinfo=UTC).timestamp()
    for name in ("dead", "alive", "young"):
        folder = tmp_path / f"{supernode.FOLDER_PREFIX}{name}"
        folder.mkdir()
        (folder / "flwr-clientapp").touch()
        if name == "alive":
            lock = io.DISK.lock(folder / io.LOCK_FILE)
        if name != "young":
            os.utime(folder, (long_ago, long_ago))
    supernode._remove_folders_of_killed_nodes()
    left = sorted(path.name.removeprefix(supernode.FOLDER_PREFIX) for path in tmp_path.iterdir())
    assert left == ["alive", "young"]
    os.close(lock)


def test_messages_that_come_at_once_do_not_share_what_is_left_of_a_budget(tmp_path, monkeypatch):
    """Four messages at once, and a day's limit of two rounds: two are answered."""
    wire = Here(FedAvg(), small_task("linear"), tmp_path)
    node = wire.nodes[0]
    counter = EgressCounter(node.config.state_dir / "egress.json", EgressRules(rounds_per_day=2))
    read_today = counter._read_today

    def slow():
        found = read_today()
        time.sleep(0.1)
        return found

    monkeypatch.setattr(counter, "_read_today", slow)

    def round(tree, metadata):
        counter.count_round("run")
        return {}, {}

    monkeypatch.setattr(node, "_round", round)
    message = codec.encode({}, {"kind": "round", "client": 0})
    with ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(node.answer, [message] * 4))
    refused = [answer for answer in answers if b"2 rounds per day" in answer]
    assert len(refused) == 2
