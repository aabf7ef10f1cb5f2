"""Double DQN of K agents as one batched computation: acting, memory, target nets and Adam along one leading axis.

A step: every agent acts in its E copies, remembers E transitions, and takes one gradient step. What differs between
agents (exploration, how full a memory is, Adam's step count) follows from their own step counts, so that agents that
were absent go on where they stood. All randomness comes in as uniform draws.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from equipoise.contract import State, Tree
from equipoise.control.learning import adam
from equipoise.frl.deep.net import Net
from equipoise.frl.deep.physics import Floats
from equipoise.frl.deep.worlds import Moved, World

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

    def width(self, observations: int) -> int:
        """Numbers of a transition: what is seen before and after, reward, whether it goes on, action."""
        return 2 * observations + 3


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


def fresh(net: Net, settings: Settings, agents: int, dtype: torch.dtype) -> State:
    """What K agents that never acted remember."""
    zeros = torch.zeros
    return {
        "target": zeros(agents, net.size, dtype=dtype),
        "adam": {"m": zeros(agents, net.size, dtype=dtype), "v": zeros(agents, net.size, dtype=dtype)},
        "updates": zeros(agents, 2, dtype=torch.int64),  # of backbone and head
        "replay": zeros(agents, settings.capacity, settings.width(net.inputs), dtype=dtype),
        "acted": zeros(agents, dtype=torch.int64),  # steps in each copy
        "episodes": zeros(agents, dtype=torch.int64),
        "running": zeros(agents, settings.copies, dtype=torch.float64),  # return of the episode under way
        "return": zeros(agents, dtype=torch.float64),  # running mean of the last episodes' returns
    }


def draws_a_step(settings: Settings, world: World) -> int:
    """Uniform numbers that one agent uses in one step."""
    return settings.copies * (2 + world.resets) + settings.batch


def train(
    world: World, net: Net, settings: Settings, rhythm: Rhythm, ids: Tensor, params: Tensor, kept: State, u: Floats
) -> tuple[Tensor, State]:
    """As many steps as ``u`` ``[K, steps, draws_a_step]`` has draws for; ``params`` ``[K, P]`` is not changed."""
    agents, steps, _ = u.shape
    e, resets = settings.copies, world.resets
    play = world.open(ids, kept["env"], u[:, 0, 2 * e : 2 * e + e * resets].reshape(agents, e, resets))
    learner = _Learner(net, settings, rhythm, params, kept)
    for step in range(steps):
        now = u[:, step]
        action = learner.act(torch.from_numpy(play.seen), torch.from_numpy(now[:, : 2 * e]).view(agents, 2, e))
        before = play.seen
        moved = play.step(action.numpy(), now[:, 2 * e : 2 * e + e * resets].reshape(agents, e, resets))
        learner.remember(torch.from_numpy(before), action, moved)
        learner.learn(step, torch.from_numpy(now[:, -settings.batch :]))
    return learner.params, {**learner.state(), "env": play.kept()}


class _Learner:
    """Working copies of a call; nothing that was handed in changes."""

    def __init__(self, net: Net, settings: Settings, rhythm: Rhythm, params: Tensor, kept: State) -> None:
        self.net, self.settings, self.rhythm = net, settings, rhythm
        self.params = params.clone()
        self.views = net.views(self.params)
        self.acted: Tensor = kept["acted"].clone()
        # An agent that never learned starts with the net that it received as its target too.
        self.target = torch.where((kept["acted"] == 0)[:, None], params, kept["target"])
        self.target_views = net.views(self.target)
        self.m, self.v = (kept["adam"][name].clone() for name in ("m", "v"))
        self.updates: Tensor = kept["updates"].clone()
        self.replay: Tensor = kept["replay"].clone()
        self.rows = self.replay.view(-1, self.replay.shape[-1])
        self.first = torch.arange(len(params))[:, None] * settings.capacity  # of each agent's rows
        self.episodes, self.running, self.recent = (kept[n].clone() for n in ("episodes", "running", "return"))

    def state(self) -> State:
        return {
            "target": self.target,
            "adam": {"m": self.m, "v": self.v},
            "updates": self.updates,
            "replay": self.replay,
            "acted": self.acted,
            "episodes": self.episodes,
            "running": self.running,
            "return": self.recent,
        }

    def act(self, seen: Tensor, u: Tensor) -> Tensor:
        """Epsilon-greedy ``[K, E]``; epsilon falls linearly over ``explore`` environment steps."""
        s = self.settings
        greedy = self.net.values(self.views, seen.to(self.params.dtype)).argmax(-1)
        gone = (self.acted * s.copies).double() / s.explore if s.explore else torch.ones(len(seen), dtype=torch.float64)
        epsilon = (1.0 + (s.last_epsilon - 1.0) * gone).clamp(min=s.last_epsilon)
        return torch.where(u[:, 0] < epsilon[:, None], (u[:, 1] * self.net.outputs).long(), greedy)

    def remember(self, before: Tensor, action: Tensor, moved: Moved) -> None:
        """A cut episode could have gone on, so only one that ended by itself has no future."""
        s, o = self.settings, before.shape[-1]
        rows = self.rows.new_empty(*action.shape, s.width(o))
        rows[..., :o], rows[..., o : 2 * o] = before, torch.from_numpy(moved.following)
        reward = torch.from_numpy(moved.reward)
        rows[..., -3], rows[..., -2], rows[..., -1] = reward, torch.from_numpy(~moved.terminated), action
        place = (self.acted[:, None] * s.copies + torch.arange(s.copies)) % s.capacity
        self.rows.index_copy_(0, (self.first + place).view(-1), rows.view(-1, rows.shape[-1]))
        self.acted += 1
        self.running += reward
        over = moved.terminated | moved.truncated
        if over.any():
            self._count(torch.from_numpy(over))

    def _count(self, over: Tensor) -> None:
        """Returns of the episodes that ended: the first is taken as it is, the others are smoothed in."""
        ended = over.any(1)
        mean = (self.running * over).sum(1) / over.sum(1).clamp(min=1)
        kept = torch.where(self.episodes > 0, SMOOTH ** over.sum(1).double(), 0.0)
        self.recent = torch.where(ended, kept * self.recent + (1 - kept) * mean, self.recent)
        self.episodes += over.sum(1)
        self.running.masked_fill_(over, 0.0)

    def learn(self, step: int, u: Tensor) -> None:
        """One gradient step of every agent whose memory holds ``warmup`` transitions."""
        s, net = self.settings, self.net
        held = (self.acted * s.copies).clamp(max=s.capacity)
        ready = self.acted * s.copies >= s.warmup
        body, head = self.rhythm.blocks(step)
        if not bool(ready.any()) or not (body or head):
            return
        batch = self.rows.index_select(0, (self.first + (u * held[:, None]).long()).view(-1))
        batch = batch.view(len(u), -1, batch.shape[-1])
        slope = td_slope(net, self.views, self.target_views, batch, s.discount, body)
        everybody = bool(ready.all())
        for block, (moves, rate) in enumerate(((body, self.rhythm.body_lr), (head, self.rhythm.lr))):
            if moves:
                self._move(block, slope, rate, None if everybody else ready[:, None])
        follow = s.target_rate if everybody else s.target_rate * ready[:, None].to(slope.dtype)
        self.target.lerp_(self.params, follow)

    def _move(self, block: int, slope: Tensor, rate: Tensor, only: Tensor | None) -> None:
        """Adam's step of one block, of all agents or of those that are ready."""
        where = slice(self.net.border, None) if block else slice(self.net.border)
        old = {"params": self.params[:, where], "m": self.m[:, where], "v": self.v[:, where]}
        count = self.updates[:, block, None] + 1
        params, moments = adam(old["params"], slope[:, where], old, count, rate)
        for name, value in {"params": params, **moments}.items():
            old[name].copy_(value if only is None else torch.where(only, value, old[name]))
        self.updates[:, block] += 1 if only is None else only[:, 0]


def td_slope(net: Net, views: Tree, target: Tree, batch: Tensor, discount: float, body: bool = True) -> Tensor:
    """Gradient of the mean over the batch of huber(Q(s, a) - y), y = r + discount Q'(s', argmax Q(s', .))."""
    o, size = net.inputs, batch.shape[1]
    state, following = batch[..., :o], batch[..., o : 2 * o]
    reward, goes_on, action = batch[..., -3:-2], batch[..., -2:-1], batch[..., -1:].long()
    one, two = net.features(views, state)
    # Double DQN: the net chooses the next action, the target net judges it.
    ahead = net.values(views, following).argmax(-1, keepdim=True)
    goal = reward + discount * goes_on * net.values(target, following).gather(-1, ahead)
    error = net.head(views, two).gather(-1, action) - goal
    d3 = batch.new_zeros(len(batch), size, net.outputs).scatter_(-1, action, error.clamp_(-1.0, 1.0).div_(size))
    return net.slope(views, state, one, two, d3, body)
