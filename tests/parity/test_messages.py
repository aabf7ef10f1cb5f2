"""What processes of a run say to each other arrives whole and in order, and a process that has
ended is noticed.
"""

import multiprocessing

import pytest
import torch

from equipoise.simulation.ipc import (
    MAX_SHORT_BYTES,
    ForkedGroup,
    WorkerLost,
    channels,
    pack,
    unpack,
)
from helpers import largest_difference


def test_trees_survive_the_wire():
    tree = {
        "a": {"value": torch.arange(5), "dtype": torch.randn(2, 3).double()},
        "yes": True,
        "none": None,
        "t": [1, "x"],
    }
    back = unpack(pack({**tree, "empty": {}, "zero": torch.zeros(3, 0), "one": torch.tensor(2.5)}))
    assert torch.equal(back["a"]["value"], tree["a"]["value"])
    assert torch.equal(back["a"]["dtype"], tree["a"]["dtype"])
    assert (back["yes"], back["none"], back["t"], back["empty"]) == (True, None, [1, "x"], {})
    assert back["zero"].shape == (3, 0)
    assert back["one"].item() == 2.5


@pytest.fixture
def ends():
    """The lines of two processes, which one can play alone."""
    one, other = channels(2, multiprocessing.get_context("fork"))
    both = ForkedGroup(0, [one, {}]), ForkedGroup(1, [{}, other])
    yield *both, other[0]
    for end in both:
        end.leave()


def test_messages_of_any_length_cross_and_keep_their_order(ends):
    one, other, _ = ends
    long = {"rows": torch.arange(40 * MAX_SHORT_BYTES)}
    under_way = [
        (one, one.send(1, long)),
        (one, one.send(1, {"short": 1})),
        (other, other.send(0, long)),
    ]
    assert largest_difference(one.receive(1), long) == 0.0
    assert largest_difference(other.receive(0), long) == 0.0
    assert other.receive(0) == {"short": 1}
    for sender, work in under_way:
        sender.wait_sent(work, 1 - sender.rank)


def test_a_message_counts_although_its_sender_ended_before_it_rang(ends):
    one, other, line = ends
    one.send(1, {"last": True})
    assert line.incoming.acquire(timeout=1)
    one.leave()
    assert other.receive(0) == {"last": True}
    with pytest.raises(WorkerLost, match="process 1 of 2 has ended"):
        other.receive(0)
    for message in ({}, {"long": torch.zeros(40 * MAX_SHORT_BYTES)}):
        with pytest.raises(WorkerLost, match="process 1 of 2 has ended"):
            other.wait_sent(other.send(0, message), 0)
