"""Random streams: no two users share one, and the draws of a method's own are apart from all others."""

import numpy as np
import pytest
import torch

from equipoise.contract import ServerMessage, ClientState, RngContext
from equipoise.core import random, streams
from equipoise.runtime.client import ClientRuntime
from helpers import small_task


def test_what_is_taken_cannot_be_registered_again():
    with pytest.raises(ValueError, match="belong to 'orders of batches"):
        streams.Streams("something new", 999, 2)
    with pytest.raises(ValueError, match="belongs to 'clients that are held out'"):
        streams.Tag(0x4E77, "something new")
    with pytest.raises(IndexError, match="has streams 0 to 9999, not 10000"):
        streams.OWN[10_000]


def test_a_methods_own_draws_are_not_those_of_the_batch_order():
    """They were: the default stream of uniform had the key of fit's batches."""
    task = small_task()
    client = ClientRuntime(task, task.training, RngContext(3, 1, task.training), 9, torch.tensor(2), ServerMessage({}, {}), ClientState())
    drawn = client.uniform(5).numpy()
    batches = random.uniform(random.keys(3, np.array([2]), 1, streams.BATCHES[0]), 5)[0]
    own = random.uniform(random.keys(3, np.array([2]), 1, streams.OWN[0]), 5)[0]
    assert not np.isin(drawn, batches).any()
    assert (drawn == own).all()
    assert (client.uniform(5, stream=streams.BATCHES[0]).numpy() == batches).all()
