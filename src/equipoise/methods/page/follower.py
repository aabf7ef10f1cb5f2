"""The server's moves in three forms: one exponent for all, a weight for each client, a score for whoever replied."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from equipoise.contract import Server, State, Task, ClientUpdate
from equipoise.core import streams
from equipoise.learners.ddpg import Config
from equipoise.learners.learning import DTYPE
from equipoise.methods.page import cohort, player
from equipoise.methods.page.game import Game

STEPS = 4  # updates per round of a player that sees one transition per round


@dataclass(frozen=True)
class Follower:
    """A player of the server, if it learns; else zero, where agents start, or random actions of the same range."""

    game: Game

    def server_init(self, task: Task) -> State:
        learns = self.game.control == "learned" and "p" in self.game.factors
        return {"follower": self.empty(self.config(self.game.agent(task)), task.num_clients)} if learns else {}

    def act(self, server: Server, state: State, ids: Tensor, updates: ClientUpdate) -> tuple[Tensor, State]:
        """a_CS(t) from s_CS(t)."""
        if "follower" not in state:
            drawn = player.server_uniform(server, self.width(ids), streams.AGENT[1])
            return (2 * drawn - 1) * (self.game.control == "random"), state
        config, learning = self.game.agent(server.task, server.num_rounds), server.round > self.game.waits(server.num_rounds)
        action, held = self.turn(server, self.config(config), state["follower"], ids, updates, learning)
        return action, {**state, "follower": held}

    def config(self, agent: Config) -> Config:
        raise NotImplementedError

    def empty(self, config: Config, clients: int) -> State:
        raise NotImplementedError

    def turn(self, server: Server, config: Config, held: State, ids: Tensor, updates: ClientUpdate, learning: bool) -> tuple[Tensor, State]:
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
        return player.empty(config, 4, 1)

    def turn(self, server: Server, config: Config, held: State, ids: Tensor, updates: ClientUpdate, learning: bool) -> tuple[Tensor, State]:
        acc, error = (updates.metrics[name].to(DTYPE) for name in ("trained_acc", "error"))
        left = torch.full_like(acc[0], 1 - server.round / server.num_rounds)
        seen = torch.stack([acc.mean(), acc.std(correction=0), error.mean(), left])
        return player.server_turn(server, config, held, seen, learning)

    def width(self, ids: Tensor) -> int:
        return 1


@dataclass(frozen=True)
class Each(Follower):
    """s_CS(t): accuracy of every upload on public data; absent clients count as last seen. The authors' code shows the
    agent those of the last round."""

    def config(self, agent: Config) -> Config:
        if self.game.read.published:
            return replace(agent, noise="none")
        return replace(agent, noise="gaussian", steps=STEPS if self.game.read.around else 1)

    def empty(self, config: Config, clients: int) -> State:
        return player.empty(config, clients, clients) | {"accs": torch.zeros(clients, dtype=DTYPE)}

    def turn(self, server: Server, config: Config, held: State, ids: Tensor, updates: ClientUpdate, learning: bool) -> tuple[Tensor, State]:
        published = self.game.read.published
        scores = server.evaluate(updates.params, "test" if published else "public")
        accs = held["accs"].index_copy(0, ids, server.task.utility_and_loss(scores)[0].to(DTYPE))
        action, held = player.server_turn(server, config, held, held["accs"] if published else accs, learning)
        return action[ids], {**held, "accs": accs}


@dataclass(frozen=True)
class Cohort(Follower):
    """One net scores each client from its features and the cohort's mean (cohort.py)."""

    def config(self, agent: Config) -> Config:
        return replace(agent, steps=STEPS, members=cohort.MEMBERS, noise="gaussian")

    def empty(self, config: Config, clients: int) -> State:
        return cohort.empty(config)

    def turn(self, server: Server, config: Config, held: State, ids: Tensor, updates: ClientUpdate, learning: bool) -> tuple[Tensor, State]:
        acc, received, trained = (updates.metrics[name] for name in ("trained_acc", "received_loss", "trained_loss"))
        seen = cohort.features(acc, received, trained, server.task.num_examples(ids))
        return cohort.turn(server, config, held, ids, seen, learning)


def chosen(game: Game) -> Follower:
    if game.read.exponent:
        return Exponent(game)
    return Cohort(game) if game.agents == "shared" else Each(game)
