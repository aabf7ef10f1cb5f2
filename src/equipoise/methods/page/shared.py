"""One agent for all clients: the server trains it on everybody's transitions, each client asks it for its own moves.

The actor travels down with the model, transitions travel up; all of it is billed. Who uses the agent says what an
action means, what a client is paid and how widely it explores; a newcomer asks the same actor as everybody.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from equipoise.contract import Client, Server, State, Tree
from equipoise.contract.ranges import SHARE, Range, within_reach
from equipoise.core import streams
from equipoise.core.streams import Streams
from equipoise.learners import ddpg
from equipoise.learners.ddpg import Config
from equipoise.learners.learning import DTYPE, remember
from equipoise.methods.page.player import NETS, server_uniform

FEATURES = 5  # of a client's state, besides its last action
LEAST = 1e-3

# --- a bounded residual around a rule: 0 is the rule itself, 1 and -1 are three times and a third of its rate, --------
# --- twice and half of its epochs -----------------------------------------------------------------------------------

CONFIG = Config(
    critic_lr=1e-3,
    actor_lr=1e-4,
    gamma=0.9,
    batch=64,
    steps=16,
    capacity=10_000,
    warmup=1000,
    noise="none",
)
ACTIONS = 2
NOISE = 0.3  # spread of exploration in the first round; it vanishes with the rounds
SPAN_RATE, SPAN_EPOCHS = 3.0, 2.0

REPORTS = {
    "agent_state": Range(-100.0, 100.0),  # logarithms of losses
    "agent_next": Range(-100.0, 100.0),
    "agent_action": Range(-1.0, 1.0),
    "agent_reward": Range(-200.0, 200.0),  # their differences, or one over a loss of at least a hundredth
    "agent_closed": SHARE,
}
"""What :func:`report` uploads."""


def epochs_around(rule: Tensor, action: Tensor) -> Tensor:
    return (rule * SPAN_EPOCHS**action).round().clamp(min=1).long()


def rate_around(rule: Tensor, action: Tensor) -> Tensor:
    return rule * SPAN_RATE**action


def residual_init(actions: int) -> State:
    """The player of a client that moves around a rule, with the log losses of the last models it saw."""
    zero = torch.zeros((), dtype=DTYPE)
    return client_init(FEATURES + actions, actions) | {"received": zero, "trained": zero}


def move(c: Client, config: Config, player: State, view: Tensor, loss: Tensor, spread: float) -> tuple[Tensor, State]:
    """The next action around a rule, paid by how much the last one lowered the log loss of the model in hand, and of
    the one that came back.

    ``view``: what the method shows the agent first; ``loss``: of the received model, on validation data.
    """
    received = log_loss(loss)
    known = player["turns"] > 0
    change = torch.where(known, received - player["received"], torch.zeros_like(received))
    gained = torch.where(known, player["received"] - player["trained"], torch.zeros_like(received))
    left = torch.full_like(received, 1 - c.round / c.rounds)
    observed = torch.stack([view, received, change, gained, left, *player["action"]])
    player = {**player, "reward": gained - change, "received": received}
    return turn(c, config, player, observed, spread)


def close(player: State, loss: Tensor) -> State:
    """``loss``: of the trained model, on validation data."""
    return {**player, "trained": log_loss(loss)}


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


def anything(c: Client, actions: int) -> Tensor:
    """A random action."""
    return 2.0 * _draws(c, actions) - 1.0


def turn(c: Client, config: Config, player: State, observed: Tensor, spread: float) -> tuple[Tensor, State]:
    """The next action; and the last one's transition, which what is observed now closes.

    The actor came down with the model, and perhaps whether it decides already, or chance does.
    """
    actions = player["action"].shape[-1]
    noise = spread * torch.special.ndtri(_draws(c, actions).clamp(1e-12, 1 - 1e-12))
    action = (ddpg.apply(config, c.down.extra["policy"], observed, actions) + noise).clamp(-1, 1)
    if "ready" in c.down.extra:
        action = torch.where(c.down.extra["ready"], action, anything(c, actions))
    transition = {
        "state": player["state"],
        "action": player["action"],
        "reward": player["reward"],
        "next": observed,
        "closed": player["turns"] > 0,
    }
    new = {"state": observed, "action": action, "turns": player["turns"] + 1, "transition": transition}
    return action, {**player, **new}


def report(player: State) -> Tree:
    """What travels up: the transition that closed this round."""
    return {f"agent_{name}": value for name, value in player["transition"].items()}


def log_loss(loss: Tensor) -> Tensor:
    return loss.to(DTYPE).clamp(min=LEAST).log()


def _draws(c: Client, actions: int) -> Tensor:
    return c.uniform(actions, stream=streams.RESIDUAL[0])


# --- server ---------------------------------------------------------------------------------------------------------


def server_init(config: Config, features: int, actions: int) -> State:
    return ddpg.init(config, features, actions, torch.zeros(ddpg.init_draws(config, features, actions)))


def seat(s: Server, config: Config, agent: State, stream: Streams = streams.AGENT) -> State:
    """Draw the nets in the first round, when the seed is known."""
    if s.round > 1:
        return agent
    sizes = agent["replay"]["state"].shape[-1], agent["replay"]["action"].shape[-1]
    drawn = ddpg.init(config, *sizes, server_uniform(s, ddpg.init_draws(config, *sizes), stream[0]))
    return {**agent, **{name: drawn[name] for name in NETS}}


def closed(s: Server, metrics: Tree, logarithms: bool = True) -> Tree:
    """The transitions among what came up; the first round can have closed none.

    Where all of their numbers are ``logarithms`` of losses, or differences of such, nobody's are far from all others'.
    """
    which = metrics["agent_closed"] & (s.round > 1)
    rows = {name: metrics[f"agent_{name}"][which] for name in ("state", "action", "reward", "next")}
    return {name: within_reach(value) for name, value in rows.items()} if logarithms else rows


def learn(
    s: Server, config: Config, agent: State, rows: Tree, stream: Streams = streams.AGENT, learning: bool = True
) -> State:
    """Remember these transitions; and learn, unless it is too early."""
    agent = remember(agent, rows)
    if not learning:
        return agent
    u = server_uniform(s, config.steps * config.batch, stream[1])
    return ddpg.learn(config, agent, u.reshape(config.steps, config.batch))
