"""PAGE at scale: all clients share one agent, the server scores whoever replied; cohorts may be sampled, new, large."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from equipoise.contract import Client, Down, Server, State, Task, Train, Tree, Up, option
from equipoise.learners import ddpg
from equipoise.learners.ddpg import Config
from equipoise.methods.page import cohort, shared
from equipoise.methods.page.actions import simplex
from equipoise.methods.page.game import LEAST, Game

STEPS = 16  # updates per round of the clients' agent, which sees as many transitions as there are clients
SERVER_STEPS = 4  # of the server's, which sees one


@dataclass(frozen=True)
class PageShared(Game):
    """Client i: state (acc_i, ..), action (alpha_i, eta_i), reward 1/f_i, one actor for all.

    Server: score_i = mu(x_i, mean x), p = softmax over the cohort that replied, reward 1 / sum p_i f_i.
    """

    name: ClassVar[str] = "page-shared"
    family: ClassVar[str] = "controller"
    replay: int = option(
        10_000, "transitions that the clients' agent remembers; it sees one per client and round", low=1
    )

    def leader(self, task: Task) -> Config:
        return self.agent(task, steps=STEPS, warmup=self.agent_batch)

    def follower(self, task: Task) -> Config:
        kept = min(self.replay, cohort.KEPT)
        return self.agent(task, steps=SERVER_STEPS, warmup=self.agent_batch, capacity=kept, members=cohort.MEMBERS)

    def spread(self, round: int) -> float:
        """Of the noise on actions: it fades after the warm-up."""
        left = 1 - (round - self.warmup) / self.explore if self.explore else 1.0
        return Config.sigma * min(1.0, max(0.0, left))

    # --- client: the leaders ----------------------------------------------------------------------------------------

    def client_init(self, task: Task, params: Tree) -> State:
        state = super().client_init(task, params) | {"received": torch.zeros((), dtype=torch.float64)}
        return state | {"player": shared.client_init(len(self.own))} if self.own else state

    def decide(self, c: Client) -> tuple[Train, State]:
        """s_i(t): accuracy and loss of the received model, what is known of the last turn, rounds left."""
        merit, loss = c.task.merit(c.evaluate(c.start))
        state = {**c.state, "received": loss.double()}
        if not self.own:
            return c.train, state
        action, state["player"] = shared.move(
            c,
            self.leader(c.task),
            state["player"],
            view=merit.double(),
            loss=loss,
            spread=self.spread(c.round),
            pay=_utility,
            ready=c.down.extra["ready"],
        )
        return self.train_of(action, c.train), state

    def upload(self, c: Client) -> tuple[Up, State]:
        up, state = super().upload(c)
        merit, loss = c.task.merit(c.evaluate(c.trained))
        metrics = {**up.metrics, "received_loss": state["received"], "trained_loss": loss.double()}
        if "p" in self.factors:
            metrics["trained_acc"] = merit.double()
        if self.own:
            metrics |= shared.report(state["player"])
            state["player"] = shared.close(state["player"], loss)
        return Up(up.params, up.extra, metrics), state

    # --- server: the follower ---------------------------------------------------------------------------------------

    def server_init(self, task: Task, params: Tree) -> State:
        state, actions = super().server_init(task, params), len(self.own)
        if self.own:
            state["leader"] = shared.server_init(self.leader(task), shared.FEATURES + actions, actions)
        if "p" in self.factors:
            state["follower"] = cohort.empty(self.follower(task))
        return state

    def give(self, s: Server, ids: Tensor) -> tuple[Down, State]:
        """The clients' actor, and whether it decides: chance does until it has learned."""
        down, state = super().give(s, ids)
        if not self.own:
            return down, state
        config = self.leader(s.task)
        agent = shared.seat(s, config, state["leader"])
        extra = {**down.extra, "policy": ddpg.export(config, agent), "ready": agent["updates"] > 0}
        return replace(down, extra=extra), {**state, "leader": agent}

    def weigh(self, s: Server, ids: Tensor, up: Up) -> tuple[Tensor | Tree, State]:
        weights, state = super().weigh(s, ids, up)
        state["history"] = self.utilities(s, up)
        if self.own:  # it acts next in the round to come
            rows, learning = shared.closed(up.metrics), s.round >= self.warmup
            state["leader"] = shared.learn(s, self.leader(s.task), state["leader"], rows, learning=learning)
        if "p" not in self.factors:
            return weights, state
        f = up.metrics["trained_loss"]
        seen = cohort.features(up.metrics["trained_acc"], up.metrics["received_loss"], f, s.task.sizes(ids))
        action, player = cohort.turn(
            s, self.follower(s.task), state["follower"], ids, seen, self.spread(s.round), s.round > self.warmup
        )
        p = simplex(action)
        s.notes["p"] = p
        return p, {**state, "follower": {**player, "reward": 1 / (p @ f).clamp(min=LEAST)}}


def _utility(gained: Tensor, change: Tensor, trained: Tensor) -> Tensor:
    """r_i = 1 / f_i(trained)."""
    return 1 / trained.exp().clamp(min=LEAST)
