"""The relay of a rehearsal: bytes pass, wait, are dropped and pass again."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from equipoise.flower.rehearsal_network import Relay


@pytest.fixture
def echo() -> Iterator[tuple[str, int]]:
    """A server that sends back what it gets."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=answer, args=[connection], daemon=True).start()

    def answer(connection: socket.socket) -> None:
        with connection:
            while data := connection.recv(1000):
                connection.sendall(data)

    threading.Thread(target=serve, daemon=True).start()
    yield listener.getsockname()
    listener.close()


@pytest.fixture
def relay(echo: tuple[str, int]) -> Iterator[Relay]:
    made = Relay("127.0.0.1", echo)
    yield made
    made.close()


def ask(relay: Relay, text: bytes = b"hello") -> bytes:
    with socket.create_connection(("127.0.0.1", relay.port), timeout=20) as connection:
        try:
            connection.sendall(text)
            return connection.recv(1000)
        except (ConnectionResetError, BrokenPipeError):
            return b""


def test_bytes_pass_with_a_delay_in_both_directions(relay: Relay) -> None:
    assert ask(relay) == b"hello"
    relay.delay = 0.1
    began = time.monotonic()
    assert ask(relay) == b"hello"
    assert time.monotonic() - began >= 0.2


def test_a_cut_drops_old_and_new_connections_until_it_is_healed(relay: Relay) -> None:
    with socket.create_connection(("127.0.0.1", relay.port), timeout=20) as connection:
        connection.sendall(b"hello")
        assert connection.recv(1000) == b"hello"
        relay.disconnect()
        with contextlib.suppress(ConnectionResetError):
            assert connection.recv(1000) == b""
    assert ask(relay) == b""
    relay.heal()
    assert ask(relay) == b"hello"


def test_loss_drops_connections(relay: Relay) -> None:
    relay.loss = 1.0
    assert ask(relay) == b""
    relay.loss = 0.5
    answers = [ask(relay) for _ in range(20)]
    assert 0 < answers.count(b"") < 20
