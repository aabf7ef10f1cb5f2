"""Agents that were not there: in environments of their own they start from what training left, and learn on."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from equipoise.core import Method, Params, Task
from equipoise.environments import dqn_agent, vec_env
from equipoise.environments.deep_task import AgentTask
from equipoise.environments.heterogeneity import Floats
from equipoise.environments.q_network import Rhythm
from equipoise.environments.vec_env import World
from equipoise.utils import rng

NEWCOMERS = 10**6  # their ids among the random streams begin here
MARKS = (1000, 5000, 20000)  # environment steps of a newcomer after which it is judged
WARMUP = 200  # environment steps of a newcomer before it learns


def returns_of_newcomers(
    task: AgentTask, there: AgentTask, method: Method, params: Params, seed: int
) -> dict[str, dict[str, float]]:
    """Mean return and spread of the agents held out of ``task``, ``there``, before and after steps of their own."""
    start = {name: value.expand(there.num_clients, *value.shape) for name, value in params.items()}
    found = adapt(there, there.world, start, MARKS, what_learns(method, task), WARMUP, seed).mean(2)
    return {
        str(mark): {task.metric: float(each.mean()), "std": float(each.std())}
        for mark, each in zip((0, *MARKS), found, strict=True)
    }


def what_learns(method: Method, task: Task) -> tuple[bool, bool]:
    """Whether a newcomer's (backbone, head) learn: beside a shared block that is frozen the personal one, else both."""
    shared = set(method.shared_param_names(task))
    backbone, head = (bool(shared & set(task.blocks[block])) for block in ("backbone", "head"))
    return (True, True) if backbone == head else (not backbone, not head)


def adapt(
    task: AgentTask,
    world: World,
    start: Params,
    marks: tuple[int, ...],
    moves: tuple[bool, bool],
    warmup: int,
    seed: int,
) -> Floats:
    """Returns ``[1 + marks, newcomers, episodes]`` at the start and after so many environment steps of each.

    ``start``: a stack of their first models; ``moves``: whether backbone and head learn, after ``warmup`` steps. The
    rest is as in ``task``.
    """
    count, settings = (
        len(start["w1"]),
        replace(task.settings(task.training.batch_size), warmup=warmup),
    )
    ids = torch.arange(count)
    if task.net.embedding:  # it starts at each newcomer's own draw, as those of agents do
        key = rng.keys(seed, ids.numpy() + NEWCOMERS, 0, rng.ACTING[0])
        own = 2.0 * rng.uniform(key, task.net.embedding) - 1.0
        start = {**start, "e": torch.from_numpy(own).to(task.dtype)}
    params = task.net.pack(start)
    kept = {
        **dqn_agent.fresh(task.net, settings, count, task.dtype),
        "env": world.fresh(ids, settings.copies, seed),
    }
    rate = torch.full((count, 1), task.training.lr, dtype=task.dtype)
    rhythm = Rhythm(rate, rate, moves=moves)
    each = dqn_agent.draws_a_step(task.net, settings, world)
    taken, found = 0, []
    for number, mark in enumerate((0, *marks)):
        steps = mark // settings.copies - taken
        if steps:
            key = rng.keys(seed, ids.numpy() + NEWCOMERS, number, rng.ACTING[0])
            u = rng.uniform(key, steps * each).reshape(count, steps, each)
            params, kept = dqn_agent.train(world, task.net, settings, rhythm, ids, params, kept, u)
            taken += steps
        views = task.net.views(params)
        found.append(
            vec_env.returns(world, task.net, ids, views, "test", task.config.episodes, seed)
        )
    return np.stack(found)
