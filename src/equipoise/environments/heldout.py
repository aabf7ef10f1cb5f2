"""Held-out agents: they start from the trained model in new environments, and learn on."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from equipoise.core import Method, Params, Task
from equipoise.environments import dqn_agent, vec_env
from equipoise.environments.deep_task import DeepRLTask
from equipoise.environments.heterogeneity import Floats
from equipoise.environments.q_network import BlockSchedule
from equipoise.environments.vec_env import VecEnv
from equipoise.utils import rng

HELDOUT_ID_OFFSET = 10**6  # ids of held-out agents among the random streams begin here
EVAL_STEPS = (1000, 5000, 20000)  # environment steps of an agent after which it is evaluated
LEARNING_STARTS = 200  # environment steps of an agent before it learns


def heldout_returns(
    task: DeepRLTask, heldout: DeepRLTask, method: Method, params: Params, seed: int
) -> dict[int, dict[str, float]]:
    """Evaluate held-out agents before and after they adapt.

    Args:
        task: The task of the agents that were trained.
        heldout: The task of the held-out agents.
        method: The method that trained; it decides which blocks adapt.
        params: The trained model.
        seed: Seed of the adaptation.

    Returns:
        Mean return and its standard deviation over agents, by environment steps.
    """
    start = {
        name: value.expand(heldout.info.num_clients, *value.shape) for name, value in params.items()
    }
    blocks = trainable_blocks(method, task)
    returns = adapt(heldout, heldout.env, start, EVAL_STEPS, blocks, LEARNING_STARTS, seed)
    return {
        steps: {task.info.metric: float(scores.mean()), "std": float(scores.std())}
        for steps, scores in zip((0, *EVAL_STEPS), returns.mean(2), strict=True)
    }


def trainable_blocks(method: Method, task: Task) -> tuple[bool, bool]:
    """Return whether (backbone, head) of a held-out agent learn.

    If the method shares one of the two, the shared block is frozen and the personal one learns.
    Otherwise both learn.
    """
    shared = set(method.shared_param_names(task))
    backbone, head = (bool(shared & set(task.info.blocks[block])) for block in ("backbone", "head"))
    return (True, True) if backbone == head else (not backbone, not head)


def adapt(
    task: DeepRLTask,
    env: VecEnv,
    start: Params,
    eval_steps: tuple[int, ...],
    trainable: tuple[bool, bool],
    learning_starts: int,
    seed: int,
) -> Floats:
    """Let held-out agents learn on, and evaluate them on the way.

    Args:
        task: Hyperparameters and network.
        env: Environments of the held-out agents.
        start: Their first models, ``[K, ...]``.
        eval_steps: Environment steps of each agent after which it is evaluated.
        trainable: Whether (backbone, head) learn.
        learning_starts: Environment steps before an agent learns.
        seed: Seed of acting, learning and evaluation.

    Returns:
        Returns ``[1 + len(eval_steps), K, episodes]``, at the start and after each of `eval_steps`.
    """
    count = len(start["w1"])
    hparams = replace(task.hparams(task.info.training.batch_size), learning_starts=learning_starts)
    ids = torch.arange(count)
    stream_ids = ids.numpy() + HELDOUT_ID_OFFSET
    if task.net.embedding:  # it starts at each agent's own draw, as in training
        key = rng.keys(seed, stream_ids, 0, rng.ACTING[0])
        own = 2.0 * rng.uniform(key, task.net.embedding) - 1.0
        start = {**start, "e": torch.from_numpy(own).to(task.dtype)}
    params = task.net.pack(start)
    state = {
        **dqn_agent.init_state(task.net, hparams, count, task.dtype),
        "env": env.init_state(ids, hparams.num_envs, seed),
    }
    rate = torch.full((count, 1), task.info.training.lr, dtype=task.dtype)
    schedule = BlockSchedule(rate, rate, trainable=trainable)
    noise_dim = dqn_agent.noise_dim_per_step(task.net, hparams, env)
    num_taken = 0
    returns = []
    for number, env_steps in enumerate((0, *eval_steps)):
        steps = env_steps // hparams.num_envs - num_taken
        if steps:
            key = rng.keys(seed, stream_ids, number, rng.ACTING[0])
            u = rng.uniform(key, steps * noise_dim).reshape(count, steps, noise_dim)
            params, state = dqn_agent.train(env, task.net, hparams, schedule, ids, params, state, u)
            num_taken += steps
        views = task.net.views(params)
        returns.append(
            vec_env.episode_returns(env, task.net, ids, views, "test", task.config.episodes, seed)
        )
    return np.stack(returns)
