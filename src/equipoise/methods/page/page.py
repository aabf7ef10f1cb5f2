"""PAGE (WWW 2024): clients lead with epochs and rate, the server follows with weights; the players are DDPG agents."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor

from equipoise.contract import Client, Down, Range, Server, State, Task, Train, Training, Tree, Up, option
from equipoise.contract.ranges import LOSS, SHARE, within_reach
from equipoise.core import streams
from equipoise.core.errors import UsageError
from equipoise.learners import ddpg
from equipoise.learners.ddpg import Config
from equipoise.methods import safe
from equipoise.methods.over import Over
from equipoise.methods.page import actions, energy, follower, leaning, player, settle, shared
from equipoise.methods.page.readings import READINGS, Reading

TABLE_7 = {"synthetic": 0.01, "cifar100": 0.05, "tinyimagenet": 0.001, "shakespeare": 0.005}
"""The critics' rate by task. In every column the actors take a tenth of it, and the target nets follow at it."""
FACTORS = ("alpha", "eta", "p")
CONTROLS = ("learned", "zero", "random")
FADE = 500  # rounds over which the paper's agents cease to explore
LEAST = 0.01  # losses below count as this: validation sets are small, and 1/f would have no bound
SCORES = {"received_loss": LOSS, "trained_loss": LOSS, "trained_acc": SHARE, "error": SHARE}
"""What clients tell of their models."""


@dataclass(frozen=True)
class Page(Over):
    """Client i sees the received model and chooses alpha_i and eta_i; the server sees the uploads and chooses p.

    What an action means and what it is paid is the ``reading``'s (readings.py).
    """

    name: ClassVar[str] = "page"
    family: ClassVar[str] = "controller"
    prompt: ClassVar[bool] = True
    reading: str = option(
        "around", "how the paper's game is read: what actions mean and what is paid", choices=tuple(READINGS)
    )
    agents: str = option("shared", "one agent that all clients share, or one for each", choices=("shared", "each"))
    control: str = option(
        "learned", "who decides: agents that learn; to compare, zero (where they start) or random", choices=CONTROLS
    )
    safe: bool = option(False, "try moves on a share of the clients, and keep them if validation data say so")
    adapt: str = option("alpha,eta,p", "what agents decide: any of alpha (epochs), eta (rate), p (weights)")
    epochs_most: int = option(20, "largest number of epochs that an agent may choose", low=1)
    lr_low: float = option(0.001, "smallest rate that an agent may choose", above=0)
    lr_high: float = option(0.1, "largest rate that an agent may choose", above=0)
    agent_rate: float = option(
        0.0, "rate of the critics, ten times that of the actors; 0 for the paper's (table 7)", low=0
    )
    warmup: int = option(
        35, "rounds before agents learn, a tenth of the run at most; of random actions where they span the box", low=0
    )
    window: int = option(
        50, "rounds in each of the two windows that must agree for the game to end; 0 for never", low=0
    )
    tolerance: float = option(0.01, "relative change of the utilities between the windows that counts as none", low=0)
    bias: str = option("1:1", "weight of the global against the local model, as 10:1 or 1:10")
    resources: str = option(
        "",
        "energy budget of the clients: 'default', 'devices' (by the profiles of the run's devices) or a TOML file of "
        "ranges; empty for none",
    )
    multiplier_rate: float = option(0.5, "rate of the Lagrangian multipliers under an energy budget", above=0)

    @property
    def reports(self) -> Mapping[str, Range]:  # type: ignore[override]
        return {**super().reports, **SCORES, **shared.REPORTS, **safe.REPORTS}

    @cached_property
    def read(self) -> Reading:
        return READINGS[self.reading]

    @cached_property
    def factors(self) -> tuple[str, ...]:
        return tuple(name.strip() for name in self.adapt.split(",") if name.strip())

    @cached_property
    def own(self) -> tuple[str, ...]:
        """What a client's agent decides."""
        return tuple(name for name in FACTORS[:2] if name in self.factors)

    @cached_property
    def limits(self) -> energy.Resources:
        return energy.read(self.resources)

    @cached_property
    def lean(self) -> float:
        return leaning.lean(self.bias)

    @property
    def learns(self) -> bool:
        return self.control == "learned"

    @property
    def one_leader(self) -> bool:
        """Whether the clients' agent is the server's to keep."""
        return bool(self.own) and self.learns and self.agents == "shared"

    @property
    def features(self) -> int:
        """What a client's agent sees: see :meth:`decide`."""
        return (3 if self.read.around else 1) + bool(self.resources)

    @property
    def tilts(self) -> bool:
        """Whether a bias to the server's side tilts the weights; in the authors' code it scales rewards."""
        return self.lean > 0 and not self.read.published

    @property
    def weighs_errors(self) -> bool:
        return "p" in self.factors and (self.read.exponent or self.tilts)

    @property
    def split(self) -> str:
        """The clients' data on which states and rewards are measured."""
        return "test" if self.read.published else "val"

    def check(self, task: Task, training: Training) -> None:
        unknown = [name for name in self.factors if name not in FACTORS]
        if unknown or not self.factors:
            raise UsageError(f"adapt is '{self.adapt}': must be a list of {', '.join(FACTORS)}")
        if not self.lr_low < self.lr_high:
            raise UsageError(f"lr_low is {self.lr_low}: must be below lr_high ({self.lr_high})")
        if self.agents == "shared" and self.read.published:
            raise UsageError("the reading published has one agent for each client: add --agents each")
        if self.safe and not self.read.around:
            raise UsageError(
                f"safe compares moves with what is configured, and the reading {self.reading} knows no such rule: "
                "choose around, levels or free-weights"
            )
        if self.split == "val" and not task.has("val"):
            raise UsageError(
                f"{self.name} rewards its agents on validation data, and task '{task.name}' has none: set val_share"
            )
        super().check(task, training)
        if "p" in self.factors or self.safe:
            self.needs_free_weights(task)
        leaning.check(self.bias, self.factors, self.below, self.read.published)
        energy.check(self.resources, self.own)

    # --- the agents -------------------------------------------------------------------------------------------------

    def agent(self, task: Task, rounds: int = 0, **more: Any) -> Config:
        """A player's agent at the rates of table 7. Around what is configured it starts there, else at random."""
        rate = self.agent_rate or TABLE_7.get(task.name, TABLE_7["synthetic"])
        how: dict[str, Any] = {"gamma": self.read.gamma, "warmup": self.warmup, "fade": FADE}
        if self.read.around:
            how |= {"warmup": 0, "fade": rounds, "sigma": 0.1}
        if self.read.published:
            how |= {"normalise": False, "restraint": 0.0}
        return replace(Config(critic_lr=rate, actor_lr=rate / 10, target_rate=rate, **how), **more)

    def leader(self, task: Task, rounds: int = 0) -> Config:
        """Of the clients. One that all share sees as many transitions per round as there are clients."""
        return shared.busy(self.agent(task, rounds)) if self.one_leader else self.agent(task, rounds)

    def spread(self, round: int, rounds: int) -> float:
        """Of the noise on the actions of a shared agent."""
        left = 1 - round / rounds if self.read.around else 1 - (round - self.warmup) / FADE
        return Config.sigma * min(1.0, max(0.0, left))

    def waits(self, rounds: int) -> int:
        """Rounds before the agents learn; where they start from the configured values, few are enough."""
        return min(self.warmup, rounds // 10) if self.read.around else self.warmup

    @cached_property
    def follows(self) -> follower.Follower:
        return follower.chosen(self.read, self.agents)

    # --- client: the leaders ----------------------------------------------------------------------------------------

    def client_init(self, task: Task, params: Tree) -> State:
        zero = torch.zeros((), dtype=torch.float64)
        state = super().client_init(task, params) | {"received": zero, "error": zero}
        if self.own and self.learns:
            sizes = self.features, len(self.own)
            new = shared.client_init(*sizes) if self.one_leader else player.empty(self.leader(task), *sizes)
            state["player"] = new
        if self.resources:
            state["energy"] = energy.client_init()
        return state

    def decide(self, c: Client) -> tuple[Train, State]:
        """s_i(t): accuracy of the received model, and around what is configured its log loss and the time left."""
        merit, loss = (value.double() for value in c.task.merit(c.evaluate(c.start, self.split)))
        state, seen = {**c.state, "received": loss, "error": 1 - merit}, [merit]
        if self.read.exponent and self.weighs_errors:
            state["error"] = 1 - c.task.merit(c.evaluate(c.start, "train"))[0].double()
        if not self.own:
            return c.train, state
        if self.read.around:
            seen += [loss.clamp(min=LEAST).log(), torch.full_like(loss, 1 - c.round / c.rounds)]
        if self.resources:  # the agent also sees how many epochs it can pay for
            state["energy"] = energy.forecast(c, self.limits, state["energy"], self.resources == energy.DEVICES)
            seen.append(energy.affordable(state["energy"]) / self.epochs_most)
        if not self.learns:
            action = shared.anything(c, len(self.own)) * (self.control == "random")
        elif self.one_leader:
            spread = self.spread(c.round, c.rounds)
            action, state["player"] = shared.turn(c, self.leader(c.task), state["player"], torch.stack(seen), spread)
        else:
            config, learning = self.leader(c.task, c.rounds), c.round > self.waits(c.rounds)
            action, state["player"] = player.client_turn(c, config, state["player"], torch.stack(seen), learning)
        if self.safe:
            action = action * c.down.each["tried"]
        if self.learns:
            state["player"] = {**state["player"], "action": self.kept(action)}
        return self.meaning(action, c.train), state

    def kept(self, action: Tensor) -> Tensor:
        """The action as its agent remembers it: the authors' code keeps it clipped, and feeds unclipped ones."""
        return actions.published(action, self.lr_low, self.lr_high) if self.read.published else action

    def meaning(self, action: Tensor, train: Train) -> Train:
        """a_i(t) = (alpha_i, eta_i); what an agent does not decide stays as configured."""
        chosen = dict(zip(self.own, self.kept(action), strict=True))
        epochs, lr = train.epochs, train.lr
        if "alpha" in chosen:
            epochs = self.read.epochs(chosen["alpha"], epochs, self.epochs_most, self.lr_high)
        if "eta" in chosen:
            lr = self.read.rate(chosen["eta"], lr, self.lr_low, self.lr_high)
        return Train(epochs, lr)

    def upload(self, c: Client) -> tuple[Up, State]:
        """r_i(t): by how much training lowered log f_i, or u_i = 1 / f_i(trained model)."""
        up, state = super().upload(c)
        merit, trained = (value.double() for value in c.task.merit(c.evaluate(c.trained, self.split)))
        metrics = {**up.metrics, "received_loss": state["received"], "trained_loss": trained}
        if self.one_leader:
            metrics |= shared.report(state["player"])
        if "p" in self.factors and not isinstance(self.follows, follower.Each):  # which scores uploads itself
            metrics["trained_acc"] = merit
        if self.weighs_errors:
            metrics["error"] = state["error"]
        if self.safe:
            metrics["tried"] = c.down.each["tried"]
        reward = self.paid(state["received"], trained)
        if self.resources:
            penalty, state["energy"] = energy.bill(c, state["energy"], self.multiplier_rate)
            reward = reward - penalty
        if self.own and self.learns:
            state["player"] = {**state["player"], "reward": reward}
        return Up(up.params, up.extra, metrics), state

    def paid(self, received: Tensor, trained: Tensor) -> Tensor:
        if self.read.difference:
            return received.clamp(min=LEAST).log() - trained.clamp(min=LEAST).log()
        scale = 10.0 ** max(0.0, -self.lean) if self.read.published else 1.0
        return scale / trained.clamp(min=LEAST)

    def personal(self, c: Client) -> Tree:
        biased_to_clients = self.lean < 0 and not self.read.published
        return leaning.last_touch(c, self.lean) if biased_to_clients else super().personal(c)

    # --- server: the follower ---------------------------------------------------------------------------------------

    def server_init(self, task: Task, params: Tree) -> State:
        state = super().server_init(task, params) | {"history": settle.empty(self.window)}
        if self.one_leader:
            state["leader"] = shared.server_init(self.leader(task), self.features, len(self.own))
        if "p" in self.factors and self.learns:
            state["follower"] = self.follows.init(self.agent(task), task.clients)
        return state | {"safe": safe.opened()} if self.safe else state

    def give(self, s: Server, ids: Tensor) -> tuple[Down, State]:
        """The clients' actor, and whether it decides: in the whole box chance does until it has learned."""
        down, state = super().give(s, ids)
        if self.one_leader:
            config = self.leader(s.task)
            state["leader"] = agent = shared.seat(s, config, state["leader"])
            ready = (agent["updates"] > 0) | self.read.around
            down = replace(down, extra={**down.extra, "policy": ddpg.export(config, agent), "ready": ready})
        if self.safe:
            tried, state["safe"] = safe.choose(s, state["safe"], ids)
            down = replace(down, each={**down.each, "tried": tried})
        return down, state

    def weigh(self, s: Server, ids: Tensor, up: Up) -> tuple[Tensor | Tree, State]:
        """a_CS(t) = p. Its reward: u_CS = 1 / sum p_i f_i, or what the aggregate improved (:meth:`aggregate`)."""
        near = {name: within_reach(up.metrics[name]) for name in SCORES if name in up.metrics}
        up = replace(up, metrics={**up.metrics, **near})
        weights, state = super().weigh(s, ids, up)
        state["history"] = self.utilities(s, up)
        if self.one_leader:  # it acts next in the round to come
            rows = shared.closed(s, up.metrics, logarithms=self.read.difference)
            learning = s.round >= self.waits(s.rounds)
            if self.read.difference:  # what all gained in a round tells of the round, not of what somebody chose in it
                rows["reward"] = rows["reward"] - rows["reward"].mean()
            state["leader"] = shared.learn(s, self.leader(s.task), state["leader"], rows, learning=learning)
        if self.safe:
            weights, state["safe"] = safe.judge(s, state["safe"], up.metrics, weights)
        return self.follow(s, ids, up, weights, state) if "p" in self.factors else (weights, state)

    def follow(
        self, s: Server, ids: Tensor, up: Up, weights: Tensor | Tree, state: State
    ) -> tuple[Tensor | Tree, State]:
        """p of the server's move; if that shall be safe, it must do no worse on public data than no move."""
        assert isinstance(weights, Tensor)
        if self.learns:
            config, learning = self.agent(s.task, s.rounds), s.round > self.waits(s.rounds)
            action, held = self.follows.turn(s, config, state["follower"], ids, up, learning)
        else:
            drawn = player.server_uniform(s, self.follows.width(ids), streams.AGENT[1])
            action, held = (2 * drawn - 1) * (self.control == "random"), {}
        p = self.weights_of(action, weights, up)
        if self.safe:
            rule = self.weights_of(torch.zeros_like(action), weights, up)
            if not safe.no_worse(s, up, p, rule):
                p, held = rule, held | {"action": torch.zeros_like(held["action"])} if held else held
        s.notes["p"] = p
        if self.learns:
            state["follower"] = held | {"reward": 1 / (p @ up.metrics["trained_loss"]).clamp(min=LEAST)}
        return p, state

    def weights_of(self, action: Tensor, weights: Tensor, up: Up) -> Tensor:
        """p that an action stands for; ``weights``: those of the base, by data size."""
        p, exponent = self.read.weights(action, weights)
        if not self.weighs_errors:
            return p
        p = p * (up.metrics["error"] + leaning.LEAST_ERROR) ** (exponent + max(0.0, self.lean))
        return p / p.sum()

    def aggregate(self, s: Server, ids: Tensor, up: Up, weights: Tensor | Tree) -> tuple[Tree, State]:
        """Paid on the server's own data: differences on public ones, in the authors' code the level on test data."""
        params, state = super().aggregate(s, ids, up, weights)
        if not self.learns or "p" not in self.factors or not (self.read.difference or self.read.published):
            return params, state
        if self.read.difference:
            both = {name: torch.stack([s.params[name], new]) for name, new in params.items()}
            reward = self.paid(*s.evaluate(both)["loss"].double())
        else:
            loss = s.evaluate({name: new.unsqueeze(0) for name, new in params.items()}, "test")["loss"]
            reward = 10.0 ** max(0.0, self.lean) / loss[0].double().clamp(min=LEAST)
        return params, {**state, "follower": {**state["follower"], "reward": reward}}

    def utilities(self, s: Server, up: Up) -> State:
        """The history with this round's utilities, global and local."""
        newest, history = settle.record(
            s.state["history"], up.metrics["received_loss"], up.metrics["trained_loss"], LEAST
        )
        s.notes |= {"log_utility_global": newest[0], "log_utility_local": newest[1]}
        return history

    def stop(self, s: Server) -> str | None:
        if settle.settled(s.state["history"], self.tolerance, self.waits(s.rounds)):
            return "equilibrium: global and local utility stopped evolving"
        return super().stop(s)
