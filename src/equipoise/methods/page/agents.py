"""From an agent's action in [-1, 1] to what it means: in the whole box of the paper, or around what is configured."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from equipoise.core import Client, ClientUpdate, Params, Server, State, Task
from equipoise.core.report_validation import FRACTION, ValueRange, winsorize
from equipoise.methods.page.config import (
    FADE,
    Game,
)
from equipoise.rl import ddpg
from equipoise.rl.ddpg import Config
from equipoise.rl.nn import DTYPE, remember
from equipoise.utils import rng
from equipoise.utils.rng import Streams

NEAR_EPOCHS, NEAR_RATE, NEAR_WEIGHT = (
    2.0,
    10.0,
    1.5,
)  # the largest factor by which an action moves what is configured


NETS = ("actor", "critic", "actor_target", "critic_target")


def empty(config: Config, state_dim: int, action_dim: int) -> State:
    """A player before its first round, when nobody knows yet who it is: its nets are drawn in :func:`seat`."""
    return {
        "agent": ddpg.init(
            config,
            state_dim,
            action_dim,
            torch.zeros(ddpg.init_draws(config, state_dim, action_dim)),
        ),
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
    drawn = ddpg.init(
        config, *sizes, client.uniform(ddpg.init_draws(config, *sizes), stream=rng.AGENT[0])
    )
    nets = pytree.tree_map(
        lambda fresh, held: torch.where(new, fresh, held),
        {name: drawn[name] for name in NETS},
        {name: player["agent"][name] for name in NETS},
    )
    return {**player, "agent": {**player["agent"], **nets}}


def client_turn(
    client: Client, config: Config, player: State, observed: Tensor, learning: bool
) -> tuple[Tensor, State]:
    """The client's next action, after learning from its last one unless it is too early for that."""
    player = seat(client, config, player)
    u = client.uniform(_draws(config, player), stream=rng.AGENT[1])
    return _turn(config, player, observed, u, learning)


def server_turn(
    server: Server, config: Config, player: State, observed: Tensor, learning: bool
) -> tuple[Tensor, State]:
    """The same for the server's one player."""
    if int(player["turns"]) == 0:
        sizes = len(player["state"]), len(player["action"])
        drawn = ddpg.init(
            config, *sizes, server.uniform(ddpg.init_draws(config, *sizes), rng.AGENT[0])
        )
        player = {**player, "agent": {**player["agent"], **{name: drawn[name] for name in NETS}}}
    u = server.uniform(_draws(config, player), rng.AGENT[1])
    return _turn(config, player, observed, u, learning)


def told(state: State, who: str, **what: Tensor) -> State:
    """A state in which a player's last move has this action or reward; as it is where nobody plays."""
    return {**state, who: {**state[who], **what}} if who in state else state


def _turn(
    config: Config, player: State, observed: Tensor, u: Tensor, learning: bool
) -> tuple[Tensor, State]:
    observed = observed.to(DTYPE)
    agent = ddpg.store(
        player["agent"],
        player["state"],
        player["action"],
        player["reward"],
        observed,
        player["turns"] > 0,
    )
    width = player["action"].shape[-1]
    if learning:
        agent = ddpg.learn(config, agent, u[width:].reshape(config.steps, config.batch))
    action, agent = ddpg.act(config, agent, observed, u[:width])
    return action, {
        **player,
        "agent": agent,
        "state": observed,
        "action": action,
        "turns": player["turns"] + 1,
    }


def _draws(config: Config, player: State) -> int:
    return int(player["action"].shape[-1]) + config.steps * config.batch


LEAST_SHARED = 1e-3

REPORTS = {
    "agent_state": ValueRange(-100.0, 100.0),  # logarithms of losses
    "agent_next": ValueRange(-100.0, 100.0),
    "agent_action": ValueRange(-1.0, 1.0),
    "agent_reward": ValueRange(
        -200.0, 200.0
    ),  # their differences, or one over a loss of at least a hundredth
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
    return 2.0 * _draws_shared(client, actions) - 1.0


def turn(
    client: Client, config: Config, player: State, observed: Tensor, spread: float
) -> tuple[Tensor, State]:
    """The next action; and the last one's transition, which what is observed now closes.

    The actor came down with the model, and whether it decides already, or chance does.
    """
    actions = player["action"].shape[-1]
    noise = spread * torch.special.ndtri(_draws_shared(client, actions).clamp(1e-12, 1 - 1e-12))
    action = (
        ddpg.apply(config, client.message.broadcast["policy"], observed, actions) + noise
    ).clamp(-1, 1)
    action = torch.where(client.message.broadcast["ready"], action, anything(client, actions))
    transition = {
        "state": player["state"],
        "action": player["action"],
        "reward": player["reward"],
        "next": observed,
        "closed": player["turns"] > 0,
    }
    new = {
        "state": observed,
        "action": action,
        "turns": player["turns"] + 1,
        "transition": transition,
    }
    return action, {**player, **new}


def report(player: State) -> Params:
    """What travels up: the transition that closed this round."""
    return {f"agent_{name}": value for name, value in player["transition"].items()}


def log_loss(loss: Tensor) -> Tensor:
    return loss.to(DTYPE).clamp(min=LEAST_SHARED).log()


def _draws_shared(client: Client, actions: int) -> Tensor:
    return client.uniform(actions, stream=rng.RESIDUAL[0])


# --- server ---------------------------------------------------------------------------------------------------------


def server_init(config: Config, features: int, actions: int) -> State:
    return ddpg.init(
        config, features, actions, torch.zeros(ddpg.init_draws(config, features, actions))
    )


def seat_shared(server: Server, config: Config, agent: State, stream: Streams = rng.AGENT) -> State:
    """Draw the nets in the first round, when the seed is known."""
    if server.round > 1:
        return agent
    sizes = agent["replay"]["state"].shape[-1], agent["replay"]["action"].shape[-1]
    drawn = ddpg.init(config, *sizes, server.uniform(ddpg.init_draws(config, *sizes), stream[0]))
    return {**agent, **{name: drawn[name] for name in NETS}}


def closed(server: Server, metrics: Params, logarithms: bool = True) -> Params:
    """The transitions among what came up; the first round can have closed none.

    Where all of their numbers are ``logarithms`` of losses, or differences of such, nobody's are far from all others'.
    """
    which = metrics["agent_closed"] & (server.round > 1)
    rows = {name: metrics[f"agent_{name}"][which] for name in ("state", "action", "reward", "next")}
    return {name: winsorize(value) for name, value in rows.items()} if logarithms else rows


def learn(
    server: Server,
    config: Config,
    agent: State,
    rows: Params,
    stream: Streams = rng.AGENT,
    learning: bool = True,
) -> State:
    """Remember these transitions; and learn, unless it is too early."""
    agent = remember(agent, rows)
    if not learning:
        return agent
    u = server.uniform(config.steps * config.batch, stream[1])
    return ddpg.learn(config, agent, u.reshape(config.steps, config.batch))


FEATURES = 4
MEMBERS = 32  # of a cohort that are remembered
KEPT = 1000  # cohorts that are remembered


def empty_cohort(config: Config) -> State:
    """The player before its first round."""
    return {
        "agent": server_init(config, 2 * FEATURES, 1),
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
    each = torch.stack(
        [acc.to(DTYPE), log_loss(received_loss), log_loss(trained_loss), sizes.to(DTYPE).log()], -1
    )
    return torch.cat([each, each.mean(0).expand_as(each)], -1)


def scores(config: Config, agent: State, seen: Tensor) -> Tensor:
    """mu(s) for each client of a cohort of any size: ``[K]`` in [-1, 1]."""
    return ddpg.apply(config, ddpg.export(config, agent), seen, 1).squeeze(-1)


def turn_cohort(
    server: Server, config: Config, player: State, ids: Tensor, seen: Tensor, learning: bool
) -> tuple[Tensor, State]:
    """An action for each client, after learning from the last cohort's, whose transition this cohort closes.

    Chance decides until the agent has learned, if it has a warm-up.
    """
    agent = seat_shared(server, config, player["agent"], rng.COHORT_AGENT)
    members = evenly(len(ids), config.members, server.uniform(1, rng.COHORT_MEMBERS[0]))
    last = {name: player[name].unsqueeze(0) for name in ("state", "action", "reward")}
    rows = {**last, "next": seen[members].unsqueeze(0)}
    if int(player["turns"]) == 0:
        rows = {name: value[:0] for name, value in rows.items()}
    agent = learn(server, config, agent, rows, rng.COHORT_AGENT, learning)
    u = server.uniform_per_client(ids, 1, rng.COHORT_NOISE[0]).squeeze(-1)
    if int(agent["updates"]) > 0 or config.warmup == 0:
        left = 1.0 - (server.round - config.warmup) / config.fade
        noise = (
            config.sigma * min(1.0, max(0.0, left)) * torch.special.ndtri(u.clamp(1e-12, 1 - 1e-12))
        )
        action = (scores(config, agent, seen) + noise).clamp(-1.0, 1.0)
    else:
        action = 2.0 * u - 1.0
    chosen = action[members].unsqueeze(-1)
    return action, {
        **player,
        "agent": agent,
        "state": seen[members],
        "action": chosen,
        "turns": player["turns"] + 1,
    }


def evenly(cohort: int, members: int, u: Tensor) -> Tensor:
    """Places of ``members`` clients, each as often as any other to within one, from one random offset."""
    return (
        ((torch.arange(members, dtype=DTYPE) + u) * (cohort / members)).long().clamp(max=cohort - 1)
    )


@dataclass(frozen=True)
class Control:
    """Nobody learns: actions are zero, where agents start, or random in the same range. Nothing is kept or told."""

    game: Game

    @property
    def sizes(self) -> tuple[int, int]:
        """How much an agent sees (:meth:`Page.decide`), and how much it decides."""
        return (3 if self.game.read.around else 1) + bool(self.game.resources), len(self.game.own)

    def client_init(self, task: Task) -> State:
        return {}

    def act(self, client: Client, state: State, seen: Tensor) -> tuple[Tensor, State]:
        """a_i(t) from s_i(t)."""
        return anything(client, len(self.game.own)) * (self.game.control == "random"), state

    def report(self, state: State) -> Params:
        """What a client tells of its game."""
        return {}

    def server_init(self, task: Task) -> State:
        return {}

    def give(self, server: Server, state: State) -> tuple[Params, State]:
        """What clients are told to act with."""
        return {}, state

    def learn(self, server: Server, state: State, metrics: Params) -> State:
        return state


@dataclass(frozen=True)
class Each(Control):
    """One agent at each client."""

    def config(self, task: Task, rounds: int = 0) -> Config:
        return self.game.agent(task, rounds)

    def client_init(self, task: Task) -> State:
        return {"player": empty(self.config(task), *self.sizes)}

    def act(self, client: Client, state: State, seen: Tensor) -> tuple[Tensor, State]:
        config, learning = (
            self.config(client.task, client.num_rounds),
            client.round > self.game.waits(client.num_rounds),
        )
        action, held = client_turn(client, config, state["player"], seen, learning)
        return action, {**state, "player": held}


@dataclass(frozen=True)
class Shared(Control):
    """One agent at the server, which sees as many transitions per round as there are clients."""

    def config(self, task: Task) -> Config:
        return busy(self.game.agent(task))

    def spread(self, round: int, rounds: int) -> float:
        """Of the noise on its actions."""
        left = (
            1 - round / rounds if self.game.read.around else 1 - (round - self.game.warmup) / FADE
        )
        return Config.sigma * min(1.0, max(0.0, left))

    def client_init(self, task: Task) -> State:
        return {"player": client_init(*self.sizes)}

    def act(self, client: Client, state: State, seen: Tensor) -> tuple[Tensor, State]:
        spread = self.spread(client.round, client.num_rounds)
        action, held = turn(client, self.config(client.task), state["player"], seen, spread)
        return action, {**state, "player": held}

    def report(self, state: State) -> Params:
        return report(state["player"])

    def server_init(self, task: Task) -> State:
        return {"leader": server_init(self.config(task), *self.sizes)}

    def give(self, server: Server, state: State) -> tuple[Params, State]:
        """The actor, and whether it decides: in the whole box chance does until it has learned."""
        config = self.config(server.task)
        agent = seat_shared(server, config, state["leader"])
        ready = (agent["updates"] > 0) | self.game.read.around
        return {"policy": ddpg.export(config, agent), "ready": ready}, {**state, "leader": agent}

    def learn(self, server: Server, state: State, metrics: Params) -> State:
        """What all gained in a round tells of the round, not of what somebody chose in it: only the rest is paid."""
        relative = self.game.read.difference
        rows = closed(server, metrics, logarithms=relative)
        if relative:
            rows["reward"] = rows["reward"] - rows["reward"].mean()
        learning = server.round >= self.game.waits(server.num_rounds)
        return {
            **state,
            "leader": learn(
                server, self.config(server.task), state["leader"], rows, learning=learning
            ),
        }


def chosen(game: Game) -> Control:
    if game.control != "learned" or not game.own:
        return Control(game)
    return Shared(game) if game.agents == "shared" else Each(game)


STEPS = 4  # updates per round of a player that sees one transition per round


@dataclass(frozen=True)
class Follower:
    """A player of the server, if it learns; else zero, where agents start, or random actions of the same range."""

    game: Game

    def server_init(self, task: Task) -> State:
        learns = self.game.control == "learned" and "p" in self.game.factors
        return (
            {"follower": self.empty(self.config(self.game.agent(task)), task.num_clients)}
            if learns
            else {}
        )

    def act(
        self, server: Server, state: State, ids: Tensor, updates: ClientUpdate
    ) -> tuple[Tensor, State]:
        """a_CS(t) from s_CS(t)."""
        if "follower" not in state:
            drawn = server.uniform(self.width(ids), rng.AGENT[1])
            return (2 * drawn - 1) * (self.game.control == "random"), state
        config, learning = (
            self.game.agent(server.task, server.num_rounds),
            server.round > self.game.waits(server.num_rounds),
        )
        action, held = self.turn(
            server, self.config(config), state["follower"], ids, updates, learning
        )
        return action, {**state, "follower": held}

    def config(self, agent: Config) -> Config:
        raise NotImplementedError

    def empty(self, config: Config, clients: int) -> State:
        raise NotImplementedError

    def turn(
        self,
        server: Server,
        config: Config,
        held: State,
        ids: Tensor,
        updates: ClientUpdate,
        learning: bool,
    ) -> tuple[Tensor, State]:
        raise NotImplementedError

    def width(self, ids: Tensor) -> int:
        """How many numbers an action has."""
        return len(ids)


@dataclass(frozen=True)
class Exponent(Follower):
    """State: mean and spread of the uploads' accuracy, mean error of the received model, time left."""

    def config(self, agent: Config) -> Config:
        return replace(agent, steps=STEPS)

    def empty(self, config: Config, clients: int) -> State:
        return empty(config, 4, 1)

    def turn(
        self,
        server: Server,
        config: Config,
        held: State,
        ids: Tensor,
        updates: ClientUpdate,
        learning: bool,
    ) -> tuple[Tensor, State]:
        acc, error = (updates.metrics[name].to(DTYPE) for name in ("trained_acc", "error"))
        left = torch.full_like(acc[0], 1 - server.round / server.num_rounds)
        seen = torch.stack([acc.mean(), acc.std(correction=0), error.mean(), left])
        return server_turn(server, config, held, seen, learning)

    def width(self, ids: Tensor) -> int:
        return 1


@dataclass(frozen=True)
class FollowerEach(Follower):
    """s_CS(t): accuracy of every upload on public data; absent clients count as last seen. The authors' code shows the
    agent those of the last round."""

    def config(self, agent: Config) -> Config:
        if self.game.read.published:
            return replace(agent, noise="none")
        return replace(agent, noise="gaussian", steps=STEPS if self.game.read.around else 1)

    def empty(self, config: Config, clients: int) -> State:
        return empty(config, clients, clients) | {"accs": torch.zeros(clients, dtype=DTYPE)}

    def turn(
        self,
        server: Server,
        config: Config,
        held: State,
        ids: Tensor,
        updates: ClientUpdate,
        learning: bool,
    ) -> tuple[Tensor, State]:
        published = self.game.read.published
        scores = server.evaluate(updates.params, "test" if published else "public")
        accs = held["accs"].index_copy(0, ids, server.task.utility_and_loss(scores)[0].to(DTYPE))
        action, held = server_turn(
            server, config, held, held["accs"] if published else accs, learning
        )
        return action[ids], {**held, "accs": accs}


@dataclass(frozen=True)
class Cohort(Follower):
    """One net scores each client from its features and the cohort's mean (cohort.py)."""

    def config(self, agent: Config) -> Config:
        return replace(agent, steps=STEPS, members=MEMBERS, noise="gaussian")

    def empty(self, config: Config, clients: int) -> State:
        return empty_cohort(config)

    def turn(
        self,
        server: Server,
        config: Config,
        held: State,
        ids: Tensor,
        updates: ClientUpdate,
        learning: bool,
    ) -> tuple[Tensor, State]:
        acc, received, trained = (
            updates.metrics[name] for name in ("trained_acc", "received_loss", "trained_loss")
        )
        seen = features(acc, received, trained, server.task.num_examples(ids))
        return turn_cohort(server, config, held, ids, seen, learning)


def chosen_follower(game: Game) -> Follower:
    if game.read.exponent:
        return Exponent(game)
    return Cohort(game) if game.agents == "shared" else FollowerEach(game)
