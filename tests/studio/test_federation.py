"""The live page of a federation, with a test client: what it counts, and who may see it."""

import json
from pathlib import Path

import pytest

from equipoise.cli import main
from equipoise.records.rounds import Bytes, PrivacySpent, RoundRecord
from equipoise.records.run_dir import RunFolder, log_line
from equipoise.studio.federation import count_replies, create_app, read_federation
from equipoise.studio.security import Secrets
from studio.conftest import HOST, TestClient


def record(round: int, **more: object) -> RoundRecord:
    given = {"clients": 3, "seen": 3, "bytes": Bytes(0, 0), "train": {}, "dropped": []}
    return RoundRecord(round=round, seconds=2.0, **{**given, **more})


def test_replies_lateness_absence_and_refusals_are_counted() -> None:
    records = [
        record(1),
        record(2, ids=[0, 1], absent={2: "no reply in time"}),
        record(3, ids=[0, 1], absent={2: "not connected"}),
        record(4, dropped=[1], rejected={1: "far too long"}),
        record(5, dropped=[0]),
    ]
    first, second, third = count_replies(records, {2: "ms"})
    assert (first.name, first.replied, first.refused, first.last_reply) == ("client 0", 4, 1, 4)
    assert first.note == "round 5: left out, its numbers are not finite"
    assert (second.replied, second.refused, second.note) == (4, 1, "")
    assert (third.name, third.replied, third.late, third.absent) == ("ms", 3, 1, 1)
    assert third.last_reply == 5


@pytest.fixture
def run(tmp_path: Path) -> Path:
    out = tmp_path / "run"
    given = ["run", "--task", "synthetic", "--clients", "3", "--rounds", "3", "--quiet"]
    assert main([*given, "--model", "linear", "--out", str(out)]) == 0
    events = [
        {"event": "joined", "client": 2, "name": "<b>ms</b>"},
        {"event": "joined", "client": 9, "name": "va", "role": "validate"},
        {"event": "refused", "node": 77, "reason": "its key is registered for no client"},
    ]
    lines = [*map(json.dumps, events), "no json", "[1]", '{"event": "jo']
    (tmp_path / "run-audit.jsonl").write_text("\n".join(lines))
    (out / "progress.log").write_text("round 1 of 3: all is well\nround 2")
    return out


def opened(folder: Path) -> TestClient:
    secrets = Secrets()
    app = create_app(folder, secrets)
    client = TestClient(app, base_url=HOST, follow_redirects=False)
    assert client.get("/federation").status_code == 403
    there = client.get("/", params={"token": secrets.token})
    assert there.headers["location"] == "/federation"
    return client


def test_the_page_shows_rounds_names_scores_and_refusals(run: Path) -> None:
    client = opened(run)
    page = client.get("/federation").text
    assert "Round 3 of 3" in page
    assert "&lt;b&gt;ms&lt;/b&gt;" in page
    assert "<b>ms</b>" not in page
    assert "node 77: its key is registered for no client" in page
    assert "all is well" in page
    assert "personal acc" in page
    assert 'href="/data"' not in page
    live = client.get("/federation/live").text
    assert "Round 3 of 3" in live
    assert "<html" not in live
    assert client.get("/static/htmx.min.js").status_code == 200
    assert client.get("/static/shared/style.css").status_code == 200
    assert client.get("/static/shared/secret").status_code == 404


def test_states_and_a_budget(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_federation(run.with_name("none")).state == "waiting"
    assert read_federation(run).state == "finished"
    folder = RunFolder(run)
    config = {**folder.read_config(), "max_epsilon": 4.0}
    monkeypatch.setattr(RunFolder, "read_config", lambda self: config)
    spent = PrivacySpent(1.0, 2.0, 1e-5, 3)
    last = record(1, privacy=spent, stop="another round would pass it")
    monkeypatch.setattr(RunFolder, "records", lambda self: [last])
    view = read_federation(run)
    assert view.epsilon_share == 0.25
    assert "epsilon 1 for the global models" in view.budgets[0]
    assert view.budgets[-1] == "stopped: another round would pass it"


def test_a_damaged_log_is_a_sentence_on_the_page(run: Path) -> None:
    client = opened(run)
    with open(run / "rounds.jsonl", "ab") as file:
        file.write(log_line(record(9)))
    (run / "rounds.jsonl").write_text("nonsense\n")
    page = client.get("/federation")
    assert page.status_code == 200
    assert "damaged" in page.text or "changed" in page.text


def test_a_port_in_use_is_named(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["watch", str(run), "--serve", "--port", "70000", "--no-browser"]) == 2
    assert "port 70000 on 127.0.0.1 cannot be used" in capsys.readouterr().err
