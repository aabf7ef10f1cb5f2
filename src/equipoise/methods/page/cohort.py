"""The server's player for whoever replied: one small net scores each client from its features and the cohort's mean.

Permuting the clients permutes their scores; absence, newcomers and numbers make no difference to the net. The critic is
the mean of one net over members, so a cohort's value knows neither order nor size either. The memory keeps a fixed
number of members per round, drawn evenly over the cohort.
"""

from __future__ import annotations

import torch
from torch import Tensor

from equipoise.contract import Server, State
from equipoise.core import streams
from equipoise.learners import ddpg
from equipoise.learners.ddpg import Config
from equipoise.learners.learning import DTYPE
from equipoise.methods.fedpolicy.policies import draws
from equipoise.methods.page import shared
from equipoise.methods.page.player import server_uniform
from equipoise.methods.page.shared import log_loss

FEATURES = 4
MEMBERS = 32  # of a cohort that are remembered
KEPT = 1000  # cohorts that are remembered


def empty(config: Config) -> State:
    """The player before its first round."""
    return {
        "agent": shared.server_init(config, 2 * FEATURES, 1),
        "state": torch.zeros(config.members, 2 * FEATURES, dtype=DTYPE),
        "action": torch.zeros(config.members, 1, dtype=DTYPE),
        "reward": torch.zeros((), dtype=DTYPE),
        "turns": torch.zeros((), dtype=torch.int64),
    }


def features(acc: Tensor, received_loss: Tensor, trained_loss: Tensor, sizes: Tensor) -> Tensor:
    """``[K, 8]``: accuracy of the trained model, log losses, log size; and the cohort's mean of each.

    All of it comes up with the models: scoring K uploads on public data, as PAGE does, would cost the server more than
    the training of a thousand clients.
    """
    each = torch.stack([acc.to(DTYPE), log_loss(received_loss), log_loss(trained_loss), sizes.to(DTYPE).log()], -1)
    return torch.cat([each, each.mean(0).expand_as(each)], -1)


def scores(config: Config, agent: State, seen: Tensor) -> Tensor:
    """mu(s) for each client of a cohort of any size: ``[K]`` in [-1, 1]."""
    return ddpg.apply(config, ddpg.export(config, agent), seen, 1).squeeze(-1)


def turn(server: Server, config: Config, player: State, ids: Tensor, seen: Tensor, learning: bool) -> tuple[Tensor, State]:
    """An action for each client, after learning from the last cohort's, whose transition this cohort closes.

    Chance decides until the agent has learned, if it has a warm-up.
    """
    agent = shared.seat(server, config, player["agent"], streams.COHORT_AGENT)
    members = evenly(len(ids), config.members, server_uniform(server, 1, streams.COHORT_MEMBERS[0]))
    last = {name: player[name].unsqueeze(0) for name in ("state", "action", "reward")}
    rows = {**last, "next": seen[members].unsqueeze(0)}
    if int(player["turns"]) == 0:
        rows = {name: value[:0] for name, value in rows.items()}
    agent = shared.learn(server, config, agent, rows, streams.COHORT_AGENT, learning)
    u = draws(server, ids, 1, streams.COHORT_NOISE[0]).squeeze(-1)
    if int(agent["updates"]) > 0 or config.warmup == 0:
        left = 1.0 - (server.round - config.warmup) / config.fade
        noise = config.sigma * min(1.0, max(0.0, left)) * torch.special.ndtri(u.clamp(1e-12, 1 - 1e-12))
        action = (scores(config, agent, seen) + noise).clamp(-1.0, 1.0)
    else:
        action = 2.0 * u - 1.0
    chosen = action[members].unsqueeze(-1)
    return action, {**player, "agent": agent, "state": seen[members], "action": chosen, "turns": player["turns"] + 1}


def evenly(cohort: int, members: int, u: Tensor) -> Tensor:
    """Places of ``members`` clients, each as often as any other to within one, from one random offset."""
    return ((torch.arange(members, dtype=DTYPE) + u) * (cohort / members)).long().clamp(max=cohort - 1)
