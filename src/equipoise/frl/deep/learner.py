"""Double DQN of K agents as one batched computation: acting, memory, target nets and Adam along one leading axis.

A step: every agent acts in its E copies, remembers E transitions, and takes one gradient step. What differs between
agents (exploration, how full a memory is, Adam's step count) follows from their own step counts, so that agents that
were absent go on where they stood. All randomness comes in as uniform draws.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from equipoise.contract import State, Tree
from equipoise.control.learning import adam_in_place
from equipoise.frl.deep.net import Net
from equipoise.frl.deep.physics import Flags, Floats, Ints
from equipoise.frl.deep.worlds import Moved, Seen, World

TOGETHER = -1  # no rhythm: both blocks move in every gradient step
SMOOTH = 0.9  # of the running mean of returns, at each end of an episode


@dataclass(frozen=True)
class Settings:
    """What an agent is beside its net."""

    copies: int
    discount: float
    capacity: int
    warmup: int
    explore: int
    last_epsilon: float
    target_rate: float
    batch: int


@dataclass(frozen=True)
class Rhythm:
    """Which block moves when, and how fast: K steps of the head under a frozen body, one of the body under it."""

    lr: Tensor
    """``[K, 1]``: of the head, or of everything."""
    body_lr: Tensor
    head_steps: int = TOGETHER
    moves: tuple[bool, bool] = (True, True)
    """Whether backbone and head may move at all."""

    def blocks(self, step: int) -> tuple[bool, bool]:
        """Whether (backbone, head) move in this gradient step of the call."""
        if self.head_steps == TOGETHER:
            return self.moves
        body = step % (self.head_steps + 1) == self.head_steps
        return self.moves[0] and body, self.moves[1] and not body


def columns(net: Net) -> int:
    """Numbers of a transition: what is seen before and after, reward, whether it goes on, action."""
    return 2 * net.inputs + 2 + net.action_size


def fresh(net: Net, settings: Settings, agents: int, dtype: torch.dtype) -> State:
    """What K agents that never acted remember."""
    zeros = torch.zeros
    return {
        "target": zeros(agents, net.size, dtype=dtype),
        "adam": {"m": zeros(agents, net.size, dtype=dtype), "v": zeros(agents, net.size, dtype=dtype)},
        "updates": zeros(agents, 2, dtype=torch.int64),  # of backbone and head
        "replay": zeros(agents, settings.capacity, columns(net), dtype=dtype),
        "acted": zeros(agents, dtype=torch.int64),  # steps in each copy
        "episodes": zeros(agents, dtype=torch.int64),
        "running": zeros(agents, settings.copies, dtype=torch.float64),  # return of the episode under way
        "return": zeros(agents, dtype=torch.float64),  # running mean of the last episodes' returns
    }


def draws_a_step(net: Net, settings: Settings, world: World) -> int:
    """Uniform numbers that one agent uses in one step."""
    return settings.copies * (net.action_draws + world.resets) + settings.batch


def train(
    world: World, net: Net, settings: Settings, rhythm: Rhythm, ids: Tensor, params: Tensor, kept: State, u: Floats
) -> tuple[Tensor, State]:
    """As many steps as ``u`` ``[K, steps, draws_a_step]`` has draws for; ``params`` ``[K, P]`` is not changed."""
    agents, steps, _ = u.shape
    e, n = settings.copies, net.action_draws
    starts = u[:, :, n * e : e * (n + world.resets)].reshape(agents, steps, e, world.resets)
    play = world.open(ids, kept["env"], starts[:, 0])
    learner = LEARNERS[type(net)](net, settings, rhythm, params, kept, u)
    for step in range(steps):
        before = play.seen
        action = learner.act(step, before)
        learner.remember(step, before, action, play.step(action, starts[:, step]))
        learner.learn(step)
    return learner.params, {**learner.state(), "env": play.kept()}


class Learner:
    """Working copies of a call, so that nothing handed in changes, and all that can be said of its steps in advance."""

    def __init__(self, net: Net, settings: Settings, rhythm: Rhythm, params: Tensor, kept: State, u: Floats) -> None:
        self.net, self.settings, self.rhythm = net, settings, rhythm
        self.params = params.clone()
        self.views = net.views(self.params)
        # An agent that never learned starts with the net that it received as its target too.
        self.target = torch.where((kept["acted"] == 0)[:, None], params, kept["target"])
        self.target_views = net.views(self.target)
        self.m, self.v = (kept["adam"][name].clone() for name in ("m", "v"))
        self.slope = torch.zeros_like(self.params)
        self.slope_views = net.views(self.slope)
        self.updates: Tensor = kept["updates"].clone()
        self.alike = rhythm.body_lr is rhythm.lr and bool((self.updates[:, 0] == self.updates[:, 1]).all())
        self.replay: Tensor = kept["replay"].clone()
        self.rows = self.replay.view(-1, self.replay.shape[-1])
        self.new = self.rows.new_zeros(len(params), settings.copies, self.rows.shape[1])
        self.episodes, self.running, self.recent = (kept[n].numpy().copy() for n in ("episodes", "running", "return"))
        self.acted: Ints = kept["acted"].numpy()
        self._plan(u)

    def _plan(self, u: Floats) -> None:
        """Exploration, places in the memory and batches of every step: they follow from counts and draws."""
        s, e = self.settings, self.settings.copies
        before = (self.acted[:, None] + np.arange(u.shape[1])) * e  # transitions, [K, steps]
        self._plan_exploration(before, u)
        first = np.arange(len(u))[:, None, None] * s.capacity  # of each agent's rows
        places = first + (before[..., None] + np.arange(e)) % s.capacity
        after = before + e
        batches = first + (u[..., -s.batch :] * np.minimum(after, s.capacity)[..., None]).astype(np.int64)
        self.places, self.batches = (_by_step(rows) for rows in (places, batches))
        self.ready = torch.from_numpy(after >= s.warmup)
        self.anybody, self.everybody = self.ready.any(0).tolist(), self.ready.all(0).tolist()
        self.acted = self.acted + u.shape[1]

    def _plan_exploration(self, before: Ints, u: Floats) -> None:
        s, e = self.settings, self.settings.copies
        gone = before / s.explore if s.explore else np.ones(before.shape)
        epsilon = np.maximum(1.0 + (s.last_epsilon - 1.0) * gone, s.last_epsilon)
        self.explores = u[..., :e] < epsilon[..., None]
        self.anything: npt.NDArray[Any] = (u[..., e : 2 * e] * self.net.outputs).astype(np.int64)

    def state(self) -> State:
        counts = {"acted": self.acted, "episodes": self.episodes, "running": self.running, "return": self.recent}
        return {
            "target": self.target,
            "adam": {"m": self.m, "v": self.v},
            "updates": self.updates,
            "replay": self.replay,
            **{name: torch.from_numpy(value) for name, value in counts.items()},
        }

    def act(self, step: int, seen: Seen) -> npt.NDArray[Any]:
        """Epsilon-greedy ``[K, E]``; epsilon falls linearly over ``explore`` environment steps."""
        greedy = self.net.greedy(self.views, torch.from_numpy(seen).to(self.params.dtype))
        return np.where(self.explores[:, step], self.anything[:, step], greedy.numpy())

    def gradient(self, batch: Tensor, body: bool) -> None:
        """Into :attr:`slope`; of the head alone without ``body``."""
        td_slope(self.net, self.views, self.target_views, batch, self.settings.discount, self.slope_views, body)

    def remember(self, step: int, before: Seen, action: npt.NDArray[Any], moved: Moved) -> None:
        """A cut episode could have gone on, so only one that ended by itself has no future."""
        new, o = self.new.numpy(), before.shape[-1]
        new[..., :o], new[..., o : 2 * o] = before, moved.following
        new[..., 2 * o], new[..., 2 * o + 1] = moved.reward, ~moved.terminated
        new[..., 2 * o + 2 :] = action.reshape(*moved.reward.shape, -1)
        self.rows.index_copy_(0, self.places[step], self.new.view(-1, new.shape[-1]))
        self.running += moved.reward
        over = moved.terminated | moved.truncated
        if over.any():
            self.count(over)

    def count(self, over: Flags) -> None:
        """Returns of the episodes that ended: an agent's first is taken as it is, the others are smoothed in."""
        ends = over.sum(1)
        mean = (self.running * over).sum(1) / np.maximum(ends, 1)
        kept = np.where(ends > 0, np.where(self.episodes > 0, SMOOTH**ends, 0.0), 1.0)
        self.recent = kept * self.recent + (1 - kept) * mean
        self.episodes += ends
        self.running[over] = 0.0

    def learn(self, step: int) -> None:
        """One gradient step of every agent whose memory holds ``warmup`` transitions."""
        body, head = self.rhythm.blocks(step)
        if not self.anybody[step] or not (body or head):
            return
        batch = self.rows.index_select(0, self.batches[step]).view(len(self.params), -1, self.rows.shape[1])
        self.gradient(batch, body)
        only = None if self.everybody[step] else self.ready[:, step, None]
        border, rates = self.net.border, (self.rhythm.body_lr, self.rhythm.lr)
        if body and head and self.alike:  # blocks that always moved together are one to Adam
            self._move(slice(None), 0, rates[0], only)
        else:
            self.alike = False
            for block, where in enumerate((slice(border), slice(border, None))):
                if (body, head)[block]:
                    self._move(where, block, rates[block], only)
        self.updates += torch.tensor([body, head]) * (1 if only is None else only)
        follow = self.settings.target_rate
        self.target.lerp_(self.params, follow if only is None else follow * only.to(self.params.dtype))

    def _move(self, where: slice, block: int, rate: Tensor, only: Tensor | None) -> None:
        """Adam's step of these parameters, of all agents or of ``only`` those that are ready."""
        moving = {"params": self.params[:, where], "m": self.m[:, where], "v": self.v[:, where]}
        before = {name: value.clone() for name, value in moving.items()} if only is not None else {}
        adam_in_place(moving["params"], self.slope[:, where], moving, self.updates[:, block, None] + 1, rate)
        for name, value in before.items():
            moving[name].copy_(torch.where(only, moving[name], value))  # type: ignore[arg-type]


def _by_step(rows: Ints) -> Tensor:
    """``[steps, K * n]`` from ``[K, steps, n]``."""
    steps = rows.shape[1]
    return torch.from_numpy(np.ascontiguousarray(rows.swapaxes(0, 1)).reshape(steps, -1))


def td_slope(net: Net, views: Tree, target: Tree, batch: Tensor, discount: float, out: Tree, body: bool = True) -> None:
    """Into ``out``: gradient of the batch's mean (Q(s, a) - y)^2 / 2, y = r + discount Q'(s', argmax Q(s', .))."""
    o, size = net.inputs, batch.shape[1]
    state, following = batch[..., :o], batch[..., o : 2 * o]
    reward, goes_on, action = batch[..., -3:-2], batch[..., -2:-1], batch[..., -1:].long()
    one, two = net.features(views, state)
    # Double DQN: the net chooses the next action, the target net judges it.
    ahead = net.values(views, following).argmax(-1, keepdim=True)
    goal = reward + discount * goes_on * net.values(target, following).gather(-1, ahead)
    error = net.head(views, two).gather(-1, action) - goal
    d3 = batch.new_zeros(len(batch), size, net.outputs).scatter_(-1, action, error.div_(size))
    net.slope(views, state, one, two, d3, out, body)


LEARNERS: dict[type[Net], type[Learner]] = {Net: Learner}
"""Who learns with which kind of net."""
