"""One agent for all clients: the server trains it on everybody's transitions, each client asks it for its own moves.

The actor travels down with the model, transitions travel up; all of it is billed. Who uses the agent says what an
action means, what a client is paid and how widely it explores; a newcomer asks the same actor as everybody.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from equipoise.contract import Client, Server, State, Params
from equipoise.contract.ranges import FRACTION, ValueRange, winsorize
from equipoise.core import streams
from equipoise.core.streams import Streams
from equipoise.learners import ddpg
from equipoise.learners.ddpg import Config
from equipoise.learners.learning import DTYPE, remember
from equipoise.methods.page.player import NETS, server_uniform

LEAST = 1e-3

REPORTS = {
    "agent_state": ValueRange(-100.0, 100.0),  # logarithms of losses
    "agent_next": ValueRange(-100.0, 100.0),
    "agent_action": ValueRange(-1.0, 1.0),
    "agent_reward": ValueRange(-200.0, 200.0),  # their differences, or one over a loss of at least a hundredth
    "agent_closed": FRACTION,
}
"""What :func:`report` uploads."""


# --- client ---------------------------------------------------------------------------------------------------------


def busy(agent: Config) -> Config:
    """The same agent where all clients share it: more to remember and to learn from each round, in smaller steps."""
    return replace(
        agent,
        critic_lr=agent.critic_lr / 10,
        actor_lr=agent.actor_lr / 10,
        batch=64,
        steps=16,
        capacity=10_000,
        warmup=64,
    )


def client_init(features: int, actions: int) -> State:
    state, action = torch.zeros(features, dtype=DTYPE), torch.zeros(actions, dtype=DTYPE)
    zero = torch.zeros((), dtype=DTYPE)
    return {
        "state": state,
        "action": action,
        "reward": zero,
        "turns": torch.zeros((), dtype=torch.int64),
        "transition": {
            "state": state,
            "action": action,
            "reward": zero,
            "next": state,
            "closed": torch.zeros((), dtype=torch.bool),
        },
    }


def anything(client: Client, actions: int) -> Tensor:
    """A random action."""
    return 2.0 * _draws(client, actions) - 1.0


def turn(client: Client, config: Config, player: State, observed: Tensor, spread: float) -> tuple[Tensor, State]:
    """The next action; and the last one's transition, which what is observed now closes.

    The actor came down with the model, and whether it decides already, or chance does.
    """
    actions = player["action"].shape[-1]
    noise = spread * torch.special.ndtri(_draws(client, actions).clamp(1e-12, 1 - 1e-12))
    action = (ddpg.apply(config, client.message.broadcast["policy"], observed, actions) + noise).clamp(-1, 1)
    action = torch.where(client.message.broadcast["ready"], action, anything(client, actions))
    transition = {
        "state": player["state"],
        "action": player["action"],
        "reward": player["reward"],
        "next": observed,
        "closed": player["turns"] > 0,
    }
    new = {"state": observed, "action": action, "turns": player["turns"] + 1, "transition": transition}
    return action, {**player, **new}


def report(player: State) -> Params:
    """What travels up: the transition that closed this round."""
    return {f"agent_{name}": value for name, value in player["transition"].items()}


def log_loss(loss: Tensor) -> Tensor:
    return loss.to(DTYPE).clamp(min=LEAST).log()


def _draws(client: Client, actions: int) -> Tensor:
    return client.uniform(actions, stream=streams.RESIDUAL[0])


# --- server ---------------------------------------------------------------------------------------------------------


def server_init(config: Config, features: int, actions: int) -> State:
    return ddpg.init(config, features, actions, torch.zeros(ddpg.init_draws(config, features, actions)))


def seat(server: Server, config: Config, agent: State, stream: Streams = streams.AGENT) -> State:
    """Draw the nets in the first round, when the seed is known."""
    if server.round > 1:
        return agent
    sizes = agent["replay"]["state"].shape[-1], agent["replay"]["action"].shape[-1]
    drawn = ddpg.init(config, *sizes, server_uniform(server, ddpg.init_draws(config, *sizes), stream[0]))
    return {**agent, **{name: drawn[name] for name in NETS}}


def closed(server: Server, metrics: Params, logarithms: bool = True) -> Params:
    """The transitions among what came up; the first round can have closed none.

    Where all of their numbers are ``logarithms`` of losses, or differences of such, nobody's are far from all others'.
    """
    which = metrics["agent_closed"] & (server.round > 1)
    rows = {name: metrics[f"agent_{name}"][which] for name in ("state", "action", "reward", "next")}
    return {name: winsorize(value) for name, value in rows.items()} if logarithms else rows


def learn(
    server: Server, config: Config, agent: State, rows: Params, stream: Streams = streams.AGENT, learning: bool = True
) -> State:
    """Remember these transitions; and learn, unless it is too early."""
    agent = remember(agent, rows)
    if not learning:
        return agent
    u = server_uniform(server, config.steps * config.batch, stream[1])
    return ddpg.learn(config, agent, u.reshape(config.steps, config.batch))
