"""The clients' moves, in three forms: of one agent that all share, of one for each, or of a control without any."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from equipoise.contract import Client, Server, State, Task, Params
from equipoise.learners import ddpg
from equipoise.learners.ddpg import Config
from equipoise.methods.page import player, shared
from equipoise.methods.page.game import FADE, Game


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
        return shared.anything(client, len(self.game.own)) * (self.game.control == "random"), state

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
        return {"player": player.empty(self.config(task), *self.sizes)}

    def act(self, client: Client, state: State, seen: Tensor) -> tuple[Tensor, State]:
        config, learning = self.config(client.task, client.num_rounds), client.round > self.game.waits(client.num_rounds)
        action, held = player.client_turn(client, config, state["player"], seen, learning)
        return action, {**state, "player": held}


@dataclass(frozen=True)
class Shared(Control):
    """One agent at the server, which sees as many transitions per round as there are clients."""

    def config(self, task: Task) -> Config:
        return shared.busy(self.game.agent(task))

    def spread(self, round: int, rounds: int) -> float:
        """Of the noise on its actions."""
        left = 1 - round / rounds if self.game.read.around else 1 - (round - self.game.warmup) / FADE
        return Config.sigma * min(1.0, max(0.0, left))

    def client_init(self, task: Task) -> State:
        return {"player": shared.client_init(*self.sizes)}

    def act(self, client: Client, state: State, seen: Tensor) -> tuple[Tensor, State]:
        spread = self.spread(client.round, client.num_rounds)
        action, held = shared.turn(client, self.config(client.task), state["player"], seen, spread)
        return action, {**state, "player": held}

    def report(self, state: State) -> Params:
        return shared.report(state["player"])

    def server_init(self, task: Task) -> State:
        return {"leader": shared.server_init(self.config(task), *self.sizes)}

    def give(self, server: Server, state: State) -> tuple[Params, State]:
        """The actor, and whether it decides: in the whole box chance does until it has learned."""
        config = self.config(server.task)
        agent = shared.seat(server, config, state["leader"])
        ready = (agent["updates"] > 0) | self.game.read.around
        return {"policy": ddpg.export(config, agent), "ready": ready}, {**state, "leader": agent}

    def learn(self, server: Server, state: State, metrics: Params) -> State:
        """What all gained in a round tells of the round, not of what somebody chose in it: only the rest is paid."""
        relative = self.game.read.difference
        rows = shared.closed(server, metrics, logarithms=relative)
        if relative:
            rows["reward"] = rows["reward"] - rows["reward"].mean()
        learning = server.round >= self.game.waits(server.num_rounds)
        return {**state, "leader": shared.learn(server, self.config(server.task), state["leader"], rows, learning=learning)}


def chosen(game: Game) -> Control:
    if game.control != "learned" or not game.own:
        return Control(game)
    return Shared(game) if game.agents == "shared" else Each(game)
