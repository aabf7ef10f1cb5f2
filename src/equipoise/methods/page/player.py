"""A player of the repeated game: one DDPG agent that moves once per round and sees one transition per round.

A transition closes a round later: (state, action, reward) of round t wait until round t+1 shows the next state.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from equipoise.contract import Client, Server, State
from equipoise.core import random, streams
from equipoise.core.streams import Stream
from equipoise.learners import ddpg
from equipoise.learners.ddpg import Config
from equipoise.learners.learning import DTYPE

NETS = ("actor", "critic", "actor_target", "critic_target")


def empty(config: Config, state_dim: int, action_dim: int) -> State:
    """A player before its first round, when nobody knows yet who it is: its nets are drawn in :func:`seat`."""
    return {
        "agent": ddpg.init(config, state_dim, action_dim, torch.zeros(ddpg.init_draws(config, state_dim, action_dim))),
        "state": torch.zeros(state_dim, dtype=DTYPE),
        "action": torch.zeros(action_dim, dtype=DTYPE),
        "reward": torch.zeros((), dtype=DTYPE),
        "turns": torch.zeros((), dtype=torch.int64),
    }


def seat(client: Client, config: Config, player: State) -> State:
    """Draw the nets of a client that plays for the first time."""
    new = player["turns"] == 0
    if not client.any_client(new):
        return player
    sizes = player["state"].shape[-1], player["action"].shape[-1]
    drawn = ddpg.init(config, *sizes, client.uniform(ddpg.init_draws(config, *sizes), stream=streams.AGENT[0]))
    nets = pytree.tree_map(
        lambda fresh, held: torch.where(new, fresh, held),
        {name: drawn[name] for name in NETS},
        {name: player["agent"][name] for name in NETS},
    )
    return {**player, "agent": {**player["agent"], **nets}}


def client_turn(client: Client, config: Config, player: State, observed: Tensor, learning: bool) -> tuple[Tensor, State]:
    """The client's next action, after learning from its last one unless it is too early for that."""
    player = seat(client, config, player)
    u = client.uniform(_draws(config, player), stream=streams.AGENT[1])
    return _turn(config, player, observed, u, learning)


def server_turn(server: Server, config: Config, player: State, observed: Tensor, learning: bool) -> tuple[Tensor, State]:
    """The same for the server's one player."""
    if int(player["turns"]) == 0:
        sizes = len(player["state"]), len(player["action"])
        drawn = ddpg.init(config, *sizes, server_uniform(server, ddpg.init_draws(config, *sizes), streams.AGENT[0]))
        player = {**player, "agent": {**player["agent"], **{name: drawn[name] for name in NETS}}}
    u = server_uniform(server, _draws(config, player), streams.AGENT[1])
    return _turn(config, player, observed, u, learning)


def told(state: State, who: str, **what: Tensor) -> State:
    """A state in which a player's last move has this action or reward; as it is where nobody plays."""
    return {**state, who: {**state[who], **what}} if who in state else state


def server_uniform(server: Server, count: int, stream: Stream) -> Tensor:
    """Random numbers of the server: those of a client that does not exist."""
    key = random.keys(server.seed, np.array([-1]), server.round, stream)
    return torch.from_numpy(random.uniform(key, count)[0])


def _turn(config: Config, player: State, observed: Tensor, u: Tensor, learning: bool) -> tuple[Tensor, State]:
    observed = observed.to(DTYPE)
    agent = ddpg.store(
        player["agent"], player["state"], player["action"], player["reward"], observed, player["turns"] > 0
    )
    width = player["action"].shape[-1]
    if learning:
        agent = ddpg.learn(config, agent, u[width:].reshape(config.steps, config.batch))
    action, agent = ddpg.act(config, agent, observed, u[:width])
    return action, {**player, "agent": agent, "state": observed, "action": action, "turns": player["turns"] + 1}


def _draws(config: Config, player: State) -> int:
    return int(player["action"].shape[-1]) + config.steps * config.batch
