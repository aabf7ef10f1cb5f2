"""A small dose of spoiled messages."""

from trust.fuzz import Fuzz, fuzz


def test_spoiled_messages_are_refused_or_sound() -> None:
    found = fuzz(messages=1500, minutes=5.0, seed=12345)
    assert found.messages == 1500
    assert not found.wrong
    assert found.refused > 750


def test_messages_that_nobody_spoiled_are_taken() -> None:
    here = Fuzz(0)
    here._read_up(here.up)
    here._read_down(here.down)
