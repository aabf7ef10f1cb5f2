"""Messages over a grid that is not there: limits by a clock of our own, seats, and replies that say
nonsense.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("flwr", reason="Flower has an environment of its own: make test-flower")

from flwr.app import RecordDict

from equipoise.flower import codec, wire
from equipoise.flower.audit import AuditLog, digest
from equipoise.flower.wire import GridWire, to_record


class Clock:
    """Time passes only by sleeping."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(wire, "time", clock)
    monkeypatch.setattr(wire, "Message", _message)  # Flower's own wants to know the run's number
    return clock


def _message(content: Any, node: int, kind: str, ttl: float) -> Any:
    return SimpleNamespace(content=content, metadata=SimpleNamespace(dst_node_id=node))


class Grid:
    """Nodes by id: ``answers`` gives what each replies to a message, or ``None`` for silence."""

    def __init__(self, answers: dict[int, Any]) -> None:
        self.answers, self.pushed = answers, []

    def get_node_ids(self) -> list[int]:
        return list(self.answers)

    def push_messages(self, messages: Any) -> list[str]:
        self.pushed += [message.metadata.dst_node_id for message in messages]
        return [f"{len(self.pushed)}-{message.metadata.dst_node_id}" for message in messages]

    def pull_messages(self, ids: Any) -> list[Any]:
        replies = []
        for id in ids:
            answer = self.answers[int(id.split("-")[1])]
            if answer is not None:
                error = isinstance(answer, SimpleNamespace)
                about = SimpleNamespace(reply_to_message_id=id, src_node_id=1)
                replies.append(
                    SimpleNamespace(
                        metadata=about,
                        has_error=lambda error=error: error,
                        error=answer,
                        content=None if error else answer,
                    )
                )
        return replies


def hello(client: Any, samples: Any = 5) -> Any:
    return to_record(codec.encode({}, {"client": client, "samples": samples}))


def test_a_round_waits_its_limit_and_not_longer(clock: Clock) -> None:
    grid = Grid({7: hello(0), 8: hello(1)})
    over = GridWire(grid, 2, 1, 300.0)  # type: ignore[arg-type]
    assert over.present() == {0: 5, 1: 5}
    grid.answers[8] = None
    before = clock.now
    answers = over.exchange({0: b"x", 1: b"y"}, 40.0)
    assert set(answers) == {0}
    assert clock.now - before == pytest.approx(40.0)


def test_a_quick_reply_is_not_waited_for_in_vain(clock: Clock) -> None:
    over = GridWire(Grid({7: hello(0)}), 1, 1, 300.0)  # type: ignore[arg-type]
    over.present()
    over.exchange({0: b"x"}, 40.0)
    assert clock.now < 0.1


def test_what_is_posted_may_be_answered_later(clock: Clock) -> None:
    """The first reply ends the waiting; the other is heard by whoever gathers next, and nobody
    twice.
    """
    grid = Grid({7: hello(0), 8: hello(1)})
    over = GridWire(grid, 2, 1, 300.0)  # type: ignore[arg-type]
    over.present()
    grid.answers[8] = None
    over.post({0: b"x", 1: b"y"}, 40.0)
    assert set(over.gather(1, 40.0)) == {0}
    assert clock.now < 0.1
    assert over.gather(1, 5.0) == {}
    assert clock.now == pytest.approx(5.0, abs=0.1)
    grid.answers[8] = hello(1)
    assert set(over.gather(1, 40.0)) == {1}
    assert over.gather(1, 5.0) == {}


def test_waiting_for_clients_ends_too(clock: Clock) -> None:
    over = GridWire(Grid({7: hello(0), 8: None}), 2, 2, 30.0)  # type: ignore[arg-type]
    assert over.present() == {0: 5}
    assert clock.now == pytest.approx(30.0)


@pytest.mark.parametrize(
    ("introduction", "why"),
    [
        (hello(-1), "its client is -1"),
        (hello(2), "the run has clients 0 to 1"),
        (hello("0"), "its client is 0"),
        (hello(0, -3), "its samples is -3"),
        (hello(0, 0), "its samples is 0"),
        (hello(0, 1.5), "its samples is 1.5"),
        (to_record(b"\x80\x04pickle"), "cannot be read"),
        (to_record(codec.encode({}, {"error": "disk full"})), "disk full"),
        (to_record(b"x" * 5000), "at most 4096"),
        (RecordDict(), "the message has no content"),
        (SimpleNamespace(code=1, reason="no such app"), "error 1: no such app"),
        (SimpleNamespace(code=3, reason="it may have expired"), "no reply in time"),
    ],
)
def test_an_introduction_that_is_none_leaves_the_node_out(
    introduction: Any, why: str, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    over = GridWire(Grid({7: introduction, 8: hello(1)}), 2, 1, 1.0)  # type: ignore[arg-type]
    assert over.present() == {1: 5}
    assert "node 7 is left out" in caplog.text
    assert why in caplog.text


def test_a_taken_place_stays_with_who_has_it_and_both_are_named(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    grid = Grid({9: hello(0)})
    over = GridWire(grid, 1, 1, 1.0)  # type: ignore[arg-type]
    over.present()
    grid.answers[3] = hello(0, 999)
    over._wanted = 2
    assert over.present() == {0: 5}
    assert "node 3 says it is client 0 too, which node 9 is" in caplog.text
    del grid.answers[9]
    assert over.present() == {0: 999}


def test_a_node_may_only_be_the_client_of_its_key(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    grid = Grid({7: hello(0), 8: hello(0), 9: hello(1)})
    over = GridWire(grid, 2, 2, 1.0, bound={7: 0, 8: 1})  # type: ignore[arg-type]
    assert over.present() == {0: 5}
    assert (
        "node 8 is left out: it says that it is client 0, its key is registered for client 1"
        in caplog.text
    )
    assert (
        "node 9 is left out: it says that it is client 1, its key is registered for no client"
        in caplog.text
    )


def test_a_reply_that_comes_twice_counts_once(clock: Clock) -> None:
    """The first is taken; the second, and one that nobody asked for, are not looked at."""

    class Echo(Grid):
        def pull_messages(self, ids: Any) -> list[Any]:
            first, *others = super().pull_messages(ids)
            if not self.doubled:
                return [first, *others]
            second = SimpleNamespace(**{**vars(first), "content": to_record(b"replayed")})
            stray = SimpleNamespace(
                **{**vars(first), "metadata": SimpleNamespace(reply_to_message_id="99-7")}
            )
            return [first, second, stray, *others]

        doubled = False

    grid = Echo({7: hello(0)})
    over = GridWire(grid, 1, 1, 30.0)  # type: ignore[arg-type]
    over.present()
    grid.doubled, grid.answers[7] = True, to_record(b"mine")
    assert over.exchange({0: b"x"}, 5.0) == {0: b"mine"}


def test_the_audit_says_who_joined_was_refused_and_sent_what(clock: Clock, tmp_path: Path) -> None:
    audit = AuditLog(tmp_path / "run-audit.jsonl")
    grid = Grid({7: hello(0), 8: hello("\x1b[2J")})
    over = GridWire(grid, 1, 1, 30.0, audit=audit)  # type: ignore[arg-type]
    over.present()
    grid.answers[7] = to_record(b"reply")
    over.exchange({0: b"question"}, 5.0)
    text = audit.file.read_text()  # type: ignore[union-attr]
    assert "\x1b" not in text
    lines = {line["event"]: line for line in map(json.loads, text.splitlines())}
    assert (lines["joined"]["client"], lines["joined"]["node"]) == (0, 7)
    assert lines["refused"]["node"] == 8
    assert lines["exchange"]["sent"] == "sha256:" + hashlib.sha256(b"question").hexdigest()
    assert (lines["exchange"]["reply"], lines["exchange"]["bytes"]) == (digest(b"reply"), 5)
    assert (tmp_path / "run-audit.jsonl").stat().st_mode & 0o777 == 0o600


def test_sites_outside_training_are_no_clients_and_are_asked_by_themselves(clock: Clock) -> None:
    about = {"client": 9, "samples": 1, "name": "ky", "role": "validate"}
    strange = {**about, "role": "look"}
    grid = Grid(
        {
            7: hello(0),
            8: to_record(codec.encode({}, about)),
            9: to_record(codec.encode({}, strange)),
        }
    )
    over = GridWire(grid, 1, 1, 300.0)  # type: ignore[arg-type]
    assert over.present() == {0: 5}
    (guest,) = over.guests()
    assert (guest.node, guest.client, guest.label, guest.role) == (8, 9, "ky", "validate")
    grid.answers[8] = to_record(b"scores")
    assert over.ask_guests({guest: b"model"}, 5.0) == {guest: b"scores"}
    grid.answers[8] = None
    assert over.ask_guests({guest: b"model"}, 5.0) == {}
    del grid.answers[8]
    assert over.guests() == []


def test_a_refused_introduction_is_read_once(clock: Clock, tmp_path: Path) -> None:
    audit = AuditLog(tmp_path / "audit.jsonl")
    over = GridWire(Grid({7: hello(0), 8: hello(5)}), 2, 1, 60.0, None, audit)  # type: ignore[arg-type]
    assert over.present() == {0: 5}
    assert over.present() == {0: 5}
    events = [json.loads(line)["event"] for line in audit.file.read_text().splitlines()]
    assert sorted(events) == ["joined", "refused"]
    assert (tmp_path / "audit.jsonl").stat().st_mode & 0o777 == 0o600
