"""The server's move, in three forms: one exponent for all, a weight for each client, or a score for whoever replied."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from equipoise.contract import Server, State, Up
from equipoise.learners.ddpg import Config
from equipoise.learners.learning import DTYPE
from equipoise.methods.page import cohort, player
from equipoise.methods.page.readings import Reading

STEPS = 4  # updates per round of a player that sees one transition per round


@dataclass(frozen=True)
class Exponent:
    """State: mean and spread of the uploads' accuracy, mean error of the received model, time left."""

    reading: Reading

    def config(self, agent: Config) -> Config:
        return replace(agent, steps=STEPS)

    def init(self, agent: Config, clients: int) -> State:
        return player.empty(self.config(agent), 4, 1)

    def turn(self, s: Server, agent: Config, held: State, ids: Tensor, up: Up, learning: bool) -> tuple[Tensor, State]:
        acc, error = (up.metrics[name].to(DTYPE) for name in ("trained_acc", "error"))
        left = torch.full_like(acc[0], 1 - s.round / s.rounds)
        seen = torch.stack([acc.mean(), acc.std(correction=0), error.mean(), left])
        return player.server_turn(s, self.config(agent), held, seen, learning)

    def width(self, ids: Tensor) -> int:
        return 1


@dataclass(frozen=True)
class Each:
    """s_CS(t): accuracy of every upload on public data; absent clients count as last seen. The authors' code shows the
    agent those of the last round."""

    reading: Reading

    def config(self, agent: Config) -> Config:
        if self.reading.published:
            return replace(agent, noise="none")
        return replace(agent, noise="gaussian", steps=STEPS if self.reading.around else 1)

    def init(self, agent: Config, clients: int) -> State:
        empty = player.empty(self.config(agent), clients, clients)
        return empty | {"accs": torch.zeros(clients, dtype=DTYPE)}

    def turn(self, s: Server, agent: Config, held: State, ids: Tensor, up: Up, learning: bool) -> tuple[Tensor, State]:
        split = "test" if self.reading.published else "public"
        accs = held["accs"].index_copy(0, ids, s.task.merit(s.evaluate(up.params, split))[0].to(DTYPE))
        seen = held["accs"] if self.reading.published else accs
        action, held = player.server_turn(s, self.config(agent), held, seen, learning)
        return action[ids], {**held, "accs": accs}

    def width(self, ids: Tensor) -> int:
        return len(ids)


@dataclass(frozen=True)
class Cohort:
    """One net scores each client from its features and the cohort's mean (cohort.py)."""

    reading: Reading

    def config(self, agent: Config) -> Config:
        return replace(agent, steps=STEPS, members=cohort.MEMBERS, noise="gaussian")

    def init(self, agent: Config, clients: int) -> State:
        return cohort.empty(self.config(agent))

    def turn(self, s: Server, agent: Config, held: State, ids: Tensor, up: Up, learning: bool) -> tuple[Tensor, State]:
        acc, received, trained = (up.metrics[name] for name in ("trained_acc", "received_loss", "trained_loss"))
        seen = cohort.features(acc, received, trained, s.task.sizes(ids))
        return cohort.turn(s, self.config(agent), held, ids, seen, learning)

    def width(self, ids: Tensor) -> int:
        return len(ids)


Follower = Exponent | Each | Cohort


def chosen(reading: Reading, agents: str) -> Follower:
    if reading.exponent:
        return Exponent(reading)
    return Cohort(reading) if agents == "shared" else Each(reading)
