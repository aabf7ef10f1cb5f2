"""State that is infinite on purpose is no reason to skip a round; what
becomes infinite or NaN is.
"""

import math

import pytest
import torch

from equipoise.methods import find_method
from equipoise.simulation.aggregation_guard import _state_is_finite
from helpers import simulate, small_task

INF, ONE = torch.tensor([math.inf, 1.0]), torch.tensor([1.0, 1.0])


@pytest.mark.parametrize(
    ("before", "after", "sound"),
    [
        ({"a": INF}, {"a": INF}, True),
        ({"a": INF}, {"a": ONE}, True),
        ({"a": ONE}, {"a": INF}, False),
        ({"a": ONE}, {"a": ONE * math.nan}, False),
        ({}, {"a": {"b": INF}}, True),
        ({}, {"a": {"b": ONE * math.nan}}, False),
        ({"a": ONE}, {"a": torch.tensor([3, 4])}, True),
    ],
)
def test_what_becomes_infinite(before, after, sound):
    assert _state_is_finite(before, after) is sound


@pytest.mark.parametrize("name", ["fedpolicy", "joint", "autopilot"])
def test_records_that_start_at_infinity_do_not_stop_a_run(name):
    """They did: FedPolicy's and autopilot's servers begin with records that nobody has set."""
    run = simulate(find_method(name)(), small_task("mlp"), 2)
    assert [log.skipped for log in run.logs] == [None, None]
