"""Methods made of sums: chunks of a cohort add up to the whole, and who needs every upload is
known.
"""

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import ClassVar

import pytest
import torch

from equipoise.core import Capabilities, ClientUpdate, Method, equal_weights
from equipoise.methods import find_method
from equipoise.methods.scaffold import Scaffold
from equipoise.simulation.aggregation_guard import SumRequest
from equipoise.simulation.executors import add_chunk_sums, split_into_chunks, sum_chunk
from helpers import largest_difference, simulate, small_task
from helpers_own import BY_ERROR


@pytest.mark.parametrize(
    "name", ["fedavg", "fedavgm", "fedprox", "scaffold", "feddyn", "pfedme", BY_ERROR]
)
def test_made_of_sums(name):
    assert find_method(name)().capabilities.aggregates_by_sum


@pytest.mark.parametrize("name", ["page", "autopilot", "joint", "fedsynq"])
def test_every_upload_is_needed(name):
    assert not find_method(name)().capabilities.aggregates_by_sum


def test_a_class_that_says_nothing_is_taken_for_one_that_needs_every_upload():
    @dataclass(frozen=True)
    class Own(Scaffold):
        capabilities: ClassVar[Capabilities] = replace(
            Scaffold.capabilities, aggregates_by_sum=False
        )

        def aggregation_weights(self, server, ids, up):
            return equal_weights(ids), server.state

    assert not Own().capabilities.aggregates_by_sum


@pytest.mark.parametrize("clients", [1, 49, 50, 99, 100, 127, 1000, 5000, 200_000])
@pytest.mark.parametrize("least", [1, 50])
def test_chunks_are_even_and_whole(clients, least):
    chunks = split_into_chunks(clients, least)
    assert chunks[0].start == 0
    assert chunks[-1].stop == clients
    assert all(a.stop == b.start for a, b in pairwise(chunks))
    sizes = {chunk.stop - chunk.start for chunk in chunks}
    assert max(sizes) - min(sizes) <= 1
    assert max(sizes) <= 1024
    assert min(sizes) >= least or len(chunks) == 1 or clients > 64 * least


def test_chunks_of_a_hundred():
    assert split_into_chunks(99, 50) == [slice(0, 99)]
    assert split_into_chunks(100, 50) == [slice(0, 50), slice(50, 100)]
    assert [chunk.stop for chunk in split_into_chunks(10, 1)] == list(range(1, 11))


def test_sums_of_chunks_add_up_by_hand():
    up = ClientUpdate({"w": torch.tensor([[1.0], [2.0], [4.0]])})
    weights = torch.tensor([0.5, 0.25, 0.25])
    yes, no = torch.tensor([True, True]), torch.tensor([False])
    last_update = ClientUpdate({"w": up.params["w"][2:]})
    first = sum_chunk(
        SumRequest(Method(), {}, yes, weights[:2]), ClientUpdate({"w": up.params["w"][:2]})
    )
    last = sum_chunk(SumRequest(Method(), {}, ~no, weights[2:]), last_update)
    assert first["mean"]["w"].tolist() == [1.0]
    assert add_chunk_sums([first, last])["mean"]["w"].tolist() == [2.0]
    assert sum_chunk(SumRequest(Method(), {}, no, weights[:0]), last_update) is None
    assert add_chunk_sums([None, first, None])["mean"]["w"].tolist() == [1.0]


@pytest.mark.parametrize("name", ["fedavg", "fedavgm", "scaffold", "feddyn", "pfedme", BY_ERROR])
def test_by_sums_as_with_every_upload(name):
    """The same method, once in chunks by its sums and once by its aggregate of everything."""
    method, task = find_method(name)(), small_task("linear", clients=130)

    @dataclass(frozen=True)
    class Whole(type(method)):
        summed = False

    parts, whole = simulate(method, task, 3), simulate(Whole(), task, 3)
    assert len(parts.executor.chunks(130)) == 2
    assert largest_difference(parts.state_dict(), whole.state_dict()) < 1e-12
