"""Random streams: no two users share one, and the draws of a method's own are apart from all
others.
"""

import numpy as np
import pytest
import torch

from equipoise.core import ClientState, RngContext, ServerMessage
from equipoise.simulation.client_runtime import ClientRuntime
from equipoise.utils import rng
from helpers import small_task


def test_what_is_taken_cannot_be_registered_again():
    with pytest.raises(ValueError, match="belong to 'orders of batches"):
        rng.Streams("something new", 999, 2)
    with pytest.raises(ValueError, match="belongs to 'clients that are held out'"):
        rng.Tag(0x4E77, "something new")
    with pytest.raises(IndexError, match="has streams 0 to 9999, not 10000"):
        rng.METHOD_DRAWS[10_000]


def test_a_methods_own_draws_are_not_those_of_the_batch_order():
    """They were: the default stream of uniform had the key of fit's batches."""
    task = small_task()
    client = ClientRuntime(
        task,
        task.info.training,
        RngContext(3, 1, task.info.training),
        9,
        torch.tensor(2),
        ServerMessage({}, {}),
        ClientState(),
    )
    drawn = client.uniform(5).numpy()
    batches = rng.uniform(rng.keys(3, np.array([2]), 1, rng.BATCHES[0]), 5)[0]
    own = rng.uniform(rng.keys(3, np.array([2]), 1, rng.METHOD_DRAWS[0]), 5)[0]
    assert not np.isin(drawn, batches).any()
    assert (drawn == own).all()
    assert (client.uniform(5, stream=rng.BATCHES[0]).numpy() == batches).all()
