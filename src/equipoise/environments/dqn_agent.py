"""Adam of K agents where their parameters lie, and the rhythm in which body and head move."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from equipoise.core import Params, State
from equipoise.environments.heterogeneity import Flags, Floats, Ints, Seen
from equipoise.environments.q_network import Net, Rhythm, StackedAdam, copies_of
from equipoise.environments.vec_env import Moved, World


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
    returns: int = 1
    """Rewards that a target adds up before it asks the target net."""
    averaged: int = 1
    """Newest nets of which an agent hands over the mean."""


def columns(net: Net) -> int:
    """Numbers of a transition: what is seen before and after, sum of rewards, what a later value counts, action."""
    return 2 * net.inputs + 2 + net.action_size


def fresh(net: Net, settings: Settings, agents: int, dtype: torch.dtype) -> State:
    """What K agents that never acted remember."""
    zeros = torch.zeros
    return {
        "target": net.views(zeros(agents * net.size, dtype=dtype)),
        "adam": {name: net.views(zeros(agents * net.size, dtype=dtype)) for name in ("m", "v")},
        "updates": zeros(agents, 2, dtype=torch.int64),  # of backbone and head
        "replay": zeros(agents, settings.capacity, columns(net), dtype=dtype),
        "acted": zeros(agents, dtype=torch.int64),  # steps in each copy
        "run": zeros(
            agents, settings.copies, dtype=torch.int64
        ),  # newest transitions that are of one episode
    }


def draws_a_step(net: Net, settings: Settings, world: World) -> int:
    """Uniform numbers that one agent uses in one step."""
    return settings.copies * (net.action_draws + world.resets) + settings.batch * (
        1 + net.learning_draws
    )


def train(
    world: World,
    net: Net,
    settings: Settings,
    rhythm: Rhythm,
    ids: Tensor,
    params: Tensor,
    kept: State,
    u: Floats,
) -> tuple[Tensor, State]:
    """As many steps as ``u`` ``[K, steps, draws_a_step]`` has draws for; ``params`` (as :meth:`Net.pack` lays
    them out) is not changed.

    The nets of single steps vary more in what they earn than in what they know: an agent hands over the mean of its
    last ones, of at most half of the steps.
    """
    agents, steps, _ = u.shape
    e, n = settings.copies, net.action_draws
    starts = u[:, :, n * e : e * (n + world.resets)].reshape(agents, steps, e, world.resets)
    play = world.open(ids, kept["env"], starts[:, 0])
    learner = LEARNERS[type(net)](net, settings, rhythm, params, kept, u)
    last = max(1, min(settings.averaged, steps // 2))
    moved_by = torch.zeros_like(
        params
    )  # sums of these, for what stands still is then handed over as it was
    for step in range(steps):
        before = play.seen
        action = learner.act(step, before)
        moved = play.step(action, starts[:, step])
        learner.learn(step)
        learner.remember(step, before, action, moved)
        if step >= steps - last:
            moved_by += learner.params - params
    return params + moved_by.div_(last) if last > 1 else learner.params, {
        **learner.state(),
        "env": play.kept(),
    }


class Learner:
    """Working copies of a call, so that nothing handed in changes, and all that can be said of its steps in advance."""

    def __init__(
        self, net: Net, settings: Settings, rhythm: Rhythm, params: Tensor, kept: State, u: Floats
    ) -> None:
        self.net, self.settings, self.rhythm, self.agents = net, settings, rhythm, len(u)
        self.params = params.clone()
        self.views = net.views(self.params)
        # An agent that never learned starts with the net that it received as its target too.
        self.owners = net.owners(self.agents)
        self.target = torch.where(
            (kept["acted"] == 0)[self.owners], params, net.pack(kept["target"])
        )
        self.target_views = net.views(self.target)
        self.slope = torch.zeros_like(self.params)
        self.adam = StackedAdam(net, rhythm, self.params, self.slope, kept)
        self.slope_views = net.views(self.slope)
        held = kept["replay"].numpy()
        filled = min(int(kept["acted"].max()) * settings.copies, settings.capacity)
        self.replay = torch.from_numpy(
            np.zeros(held.shape, held.dtype)
        )  # NumPy's zeros cost nothing until touched
        self.replay.numpy()[:, :filled] = held[:, :filled]
        self.rows = self.replay.view(-1, self.replay.shape[-1])
        self.new = self.rows.new_zeros(self.agents, settings.copies, self.rows.shape[1])
        self.acted: Ints = kept["acted"].numpy()
        self.run: Ints = kept["run"].numpy()
        self._plan(u)

    def _plan(self, u: Floats) -> None:
        """Exploration, places in the memory and batches of every step: they follow from counts and draws."""
        s, e = self.settings, self.settings.copies
        before = (self.acted[:, None] + np.arange(u.shape[1])) * e  # transitions, [K, steps]
        self._plan_exploration(before, u)
        first = np.arange(len(u))[:, None, None] * s.capacity  # of each agent's rows
        places = first + (before[..., None] + np.arange(e)) % s.capacity
        back = np.arange(1, s.returns)
        earlier = (
            first + (before[..., None] - e * back[:, None, None, None] + np.arange(e)) % s.capacity
        )
        self.earlier = earlier.transpose(2, 0, 1, 3).reshape(
            u.shape[1], -1
        )  # [steps, (returns - 1) K E]
        self.falls = np.repeat(s.discount**back, len(u) * e)
        batches = first + (u[..., -s.batch :] * np.minimum(before, s.capacity)[..., None]).astype(
            np.int64
        )
        self.places, self.batches = (_by_step(rows) for rows in (places, batches))
        self.ready: Flags = before >= s.warmup
        self.everybody: list[bool] = np.all(self.ready, 0).tolist()
        self.moving = [
            self.rhythm.blocks(step) if some else (False, False)
            for step, some in enumerate(np.any(self.ready, 0))
        ]
        self.acted = self.acted + u.shape[1]

    def _plan_exploration(self, before: Ints, u: Floats) -> None:
        s, e = self.settings, self.settings.copies
        gone = before / s.explore if s.explore else np.ones(before.shape)
        epsilon = np.maximum(1.0 + (s.last_epsilon - 1.0) * gone, s.last_epsilon)
        self.explores = u[..., :e] < epsilon[..., None]
        self.anything: npt.NDArray[Any] = (u[..., e : 2 * e] * self.net.outputs).astype(np.int64)

    def state(self) -> State:
        return {
            "target": copies_of(self.target_views),
            **self.adam.state(),
            "replay": self.replay,
            "acted": torch.from_numpy(self.acted),
            "run": torch.from_numpy(self.run),
        }

    def act(self, step: int, seen: Seen) -> npt.NDArray[Any]:
        """Epsilon-greedy ``[K, E]``; epsilon falls linearly over ``explore`` environment steps.

        The same pass of the net looks at the batch that :meth:`learn` will need: one pass is faster than two.
        """
        x, e = torch.from_numpy(seen).to(self.params.dtype), seen.shape[1]
        if any(self.moving[step]):
            x = torch.cat([x, *both_ends(self.net, self.draw(step))], 1)
        looked = self.net.look(self.views, x)
        self.looked = tuple(layer[:, e:] for layer in looked)
        greedy = looked[-1][:, :e].argmax(-1).numpy()
        return np.where(self.explores[:, step], self.anything[:, step], greedy)

    def draw(self, step: int) -> Tensor:
        """The batch of a step, ``[K, batch, columns]``; it stays in :attr:`batch`."""
        self.batch = self.rows.index_select(0, self.batches[step]).view(
            self.agents, -1, self.rows.shape[1]
        )
        return self.batch

    def gradient(self, step: int, body: bool) -> None:
        """Into :attr:`slope`; of the head alone without ``body``."""
        td_slope(
            self.net, self.views, self.target_views, self.batch, self.slope_views, body, self.looked
        )

    def remember(self, step: int, before: Seen, action: npt.NDArray[Any], moved: Moved) -> None:
        """A cut episode could have gone on, so only one that ended by itself has no future."""
        new, o = self.new.numpy(), before.shape[-1]
        new[..., :o], new[..., o : 2 * o] = before, moved.following
        reward: Floats = moved.reward * (1.0 - self.settings.discount)
        future: Floats = self.settings.discount * (~moved.terminated).astype(np.float64)
        new[..., 2 * o], new[..., 2 * o + 1] = reward, future
        new[..., 2 * o + 2 :] = action.reshape(*moved.reward.shape, -1)
        self.rows.index_copy_(0, self.places[step], self.new.view(-1, new.shape[-1]))
        if self.settings.returns > 1:
            self._lengthen(step, moved, reward, future)

    def _lengthen(self, step: int, moved: Moved, reward: Floats, future: Floats) -> None:
        """The newest transitions of the same episode reach one step further, up to ``returns`` steps."""
        rows, o = self.rows.numpy(), self.net.inputs
        longer = np.flatnonzero(
            self.run.reshape(-1) >= np.arange(1, self.settings.returns)[:, None]
        )
        which, copy, fall = self.earlier[step][longer], longer % self.run.size, self.falls[longer]
        some = rows.take(which, 0)
        some[:, o : 2 * o] = moved.following.reshape(-1, o).take(copy, 0)
        some[:, 2 * o] += fall * reward.reshape(-1).take(copy)
        some[:, 2 * o + 1] = fall * future.reshape(-1).take(copy)
        rows[which] = some
        over = moved.terminated | moved.truncated
        self.run = np.where(over, 0, np.minimum(self.run + 1, self.settings.returns - 1))

    def learn(self, step: int) -> None:
        """One gradient step of every agent whose memory holds ``warmup`` transitions."""
        moving = self.moving[step]
        if not any(moving):
            return
        self.gradient(step, moving[0])
        only = None if self.everybody[step] else self.ready[:, step]
        self.adam.move(moving, only)
        follow = self.settings.target_rate
        if only is None:
            self.target.lerp_(self.params, follow)
        else:
            self.target.lerp_(
                self.params, follow * torch.from_numpy(only)[self.owners].to(self.params.dtype)
            )


def _by_step(rows: Ints) -> Tensor:
    """``[steps, K * n]`` from ``[K, steps, n]``."""
    steps = rows.shape[1]
    return torch.from_numpy(np.ascontiguousarray(rows.swapaxes(0, 1)).reshape(steps, -1))


def both_ends(net: Net, batch: Tensor) -> tuple[Tensor, Tensor]:
    """What was seen before the transitions, and after them."""
    return batch[..., : net.inputs], batch[..., net.inputs : 2 * net.inputs]


def td_slope(
    net: Net,
    views: Params,
    target: Params,
    batch: Tensor,
    out: Params,
    body: bool = True,
    looked: tuple[Tensor, ...] | None = None,
) -> None:
    """Into ``out``: gradient of the batch's mean (Q(s, a) - y)^2 / 2, y = R + future Q'(s', argmax Q(s', .)).

    ``looked``: both hidden layers and values at s and then s', where they are known already.
    """
    size, (state, following) = batch.shape[1], both_ends(net, batch)
    reward, future, action = batch[..., -3:-2], batch[..., -2:-1], batch[..., -1:].long()
    one, two, values = looked or net.look(views, torch.cat([state, following], 1))
    # Double DQN: the net chooses the next action, the target net judges it.
    ahead = values[:, size:].argmax(-1, keepdim=True)
    goal = net.values(target, following).gather(-1, ahead).mul_(future).add_(reward)
    error = values[:, :size].gather(-1, action).sub_(goal).div_(size)
    d3 = batch.new_zeros(len(batch), size, net.outputs).scatter_(-1, action, error)
    net.slope(views, state, one[:, :size], two[:, :size], d3, out, body)


LEARNERS: dict[type[Net], type[Learner]] = {Net: Learner}
"""Who learns with which kind of net."""
