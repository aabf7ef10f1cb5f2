"""One agent for all clients: the server trains it on everybody's transitions, each client asks it for its own moves.

An action is a bounded residual around a rule: 0 is the rule itself, 1 and -1 are three times and a third of its rate,
twice and half of its epochs. The actor travels down with the model, transitions travel up; all of it is billed.
"""

from __future__ import annotations

import torch
from torch import Tensor

from equipoise.contract import Client, Server, State, Tree
from equipoise.control import ddpg
from equipoise.control.ddpg import Config
from equipoise.control.learning import DTYPE, remember
from equipoise.control.player import NETS, STREAM, server_uniform

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
FEATURES, ACTIONS = 7, 2
NOISE = 0.3  # spread of exploration in the first round; it vanishes with the rounds
SPAN_RATE, SPAN_EPOCHS = 3.0, 2.0
LEAST = 1e-3


def epochs_around(rule: Tensor, action: Tensor) -> Tensor:
    return (rule * SPAN_EPOCHS**action).round().clamp(min=1).long()


def rate_around(rule: Tensor, action: Tensor) -> Tensor:
    return rule * SPAN_RATE**action


# --- client ---------------------------------------------------------------------------------------------------------


def client_init() -> State:
    return {
        "state": torch.zeros(FEATURES, dtype=DTYPE),
        "action": torch.zeros(ACTIONS, dtype=DTYPE),
        "trained": torch.zeros((), dtype=DTYPE),
        "received": torch.zeros((), dtype=DTYPE),
        "turns": torch.zeros((), dtype=torch.int64),
        "transition": {
            "state": torch.zeros(FEATURES, dtype=DTYPE),
            "action": torch.zeros(ACTIONS, dtype=DTYPE),
            "reward": torch.zeros((), dtype=DTYPE),
            "next": torch.zeros(FEATURES, dtype=DTYPE),
            "closed": torch.zeros((), dtype=torch.bool),
        },
    }


def move(c: Client, player: State, train_loss: Tensor, learned: bool) -> tuple[Tensor, State]:
    """The next action; and the last one's transition, which this round's received model closes."""
    u = c.uniform(ACTIONS, stream=STREAM + 2)
    if not learned:
        return 2.0 * u - 1.0, player
    received = _log(c.evaluate(c.start)["loss"])
    known = player["turns"] > 0
    change = torch.where(known, received - player["received"], torch.zeros_like(received))
    gained = torch.where(known, player["received"] - player["trained"], torch.zeros_like(received))
    left = torch.full_like(received, 1 - c.round / c.rounds)
    state = torch.stack([_log(train_loss), received, change, gained, left, *player["action"]])
    noise = NOISE * left * torch.special.ndtri(u.clamp(1e-12, 1 - 1e-12))
    action = (ddpg.apply(CONFIG, c.down.extra["policy"], state, ACTIONS) + noise).clamp(-1, 1)
    transition = {
        "state": player["state"],
        "action": player["action"],
        # How much the last training lowered the loss of the model in hand, and of the one that came back.
        "reward": gained - change,
        "next": state,
        "closed": known,
    }
    return action, {**player, "state": state, "action": action, "received": received, "transition": transition}


def report(player: State) -> Tree:
    """What travels up: the transition that closed this round."""
    return {f"agent_{name}": value for name, value in player["transition"].items()}


def close(c: Client, player: State) -> State:
    return {**player, "trained": _log(c.evaluate(c.trained)["loss"]), "turns": player["turns"] + 1}


def _log(loss: Tensor) -> Tensor:
    return loss.to(DTYPE).clamp(min=LEAST).log()


# --- server ---------------------------------------------------------------------------------------------------------


def server_init() -> State:
    return ddpg.init(CONFIG, FEATURES, ACTIONS, torch.zeros(ddpg.init_draws(CONFIG, FEATURES, ACTIONS)))


def seat(s: Server, agent: State) -> State:
    """Draw the nets in the first round, when the seed is known."""
    if s.round > 1:
        return agent
    drawn = ddpg.init(CONFIG, FEATURES, ACTIONS, server_uniform(s, ddpg.init_draws(CONFIG, FEATURES, ACTIONS), STREAM))
    return {**agent, **{name: drawn[name] for name in NETS}}


def policy(agent: State) -> Tree:
    return ddpg.export(CONFIG, agent)


def learn(s: Server, agent: State, metrics: Tree) -> State:
    closed = metrics["agent_closed"]
    if bool(closed.any()):
        rows = {name: metrics[f"agent_{name}"][closed] for name in ("state", "action", "reward", "next")}
        agent = remember(agent, rows)
    u = server_uniform(s, CONFIG.steps * CONFIG.batch, STREAM + 1)
    return ddpg.learn(CONFIG, agent, u.reshape(CONFIG.steps, CONFIG.batch))
