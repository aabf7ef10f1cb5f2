"""Returns of greedy policies from fixed starts: every model of a client is judged on the same episodes."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from equipoise.contract import Params
from equipoise.core import random, streams
from equipoise.frl.deep.net import Net
from equipoise.frl.deep.traits import Floats
from equipoise.frl.deep.worlds import World

SPLITS = ("test", "val", "public")


def starts(world: World, ids: Tensor, split: str, episodes: int, seed: int) -> Floats:
    """What a split's episodes start from, ``[K, episodes, resets]``: the first ones do not depend on their number."""
    keys = random.keys(seed, ids.numpy(), 0, streams.EPISODES[SPLITS.index(split)])
    return random.uniform(keys, episodes * world.resets).reshape(len(ids), episodes, world.resets)


def returns(world: World, net: Net, ids: Tensor, params: Params, split: str, episodes: int, seed: int) -> Floats:
    """``[K, episodes]``: undiscounted returns of each agent's net in its own environment.

    A net with parameters that are no numbers has no policy, though its argmax has a place: its return is the worst.
    """
    draws = starts(world, ids, split, episodes, seed)
    play = world.begin(ids, draws)
    total, alive = np.zeros(draws.shape[:2]), np.ones(draws.shape[:2], bool)
    dtype = params["w1"].dtype
    for _ in range(world.limit):
        action = net.greedy(params, torch.from_numpy(play.seen).to(dtype))
        moved = play.step(action.numpy(), draws)
        total += moved.reward * alive
        alive &= ~(moved.terminated | moved.truncated)
        if not alive.any():
            break
    broken = torch.stack([~value.flatten(1).isfinite().all(1) for value in params.values()]).any(0)
    total[broken.numpy()] = -np.inf
    return total
