"""DDPG (Lillicrap et al., 2016) of K agents as one computation, for actions that are vectors in [-1, 1].

Actor and critic have two hidden layers each: these are the body that may be shared, their last layers are the head.
Both lie in the one tensor ``[K, P]`` of the stack, so memory, Adam, target nets and rhythm are those of the double DQN.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from equipoise.contract import Blocks, Tree
from equipoise.frl.deep.learner import LEARNERS, Learner
from equipoise.frl.deep.net import Net
from equipoise.frl.deep.physics import Floats, Ints
from equipoise.frl.deep.worlds import Seen

NOISE = 0.1  # standard deviation of exploration, in the units of an action
LAST = 0.003  # last layers start in U(-LAST, LAST): first actions and values are near zero


@dataclass(frozen=True)
class ActorCritic(Net):
    """``w`` is the actor, ``c`` the critic, which sees the action beside the observation."""

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        h, a = self.width, self.outputs
        actor = {"w1": (self.inputs, h), "b1": (h,), "w2": (h, h), "b2": (h,)}
        critic = {"c1": (self.inputs + a, h), "d1": (h,), "c2": (h, h), "d2": (h,)}
        return {**actor, **critic, "w3": (a, h), "b3": (a,), "c3": (1, h), "d3": (1,)}

    @property
    def blocks(self) -> Blocks:
        names = tuple(self.shapes)
        return {"backbone": names[:8], "head": names[8:]}

    @property
    def action_size(self) -> int:
        return self.outputs

    @property
    def action_draws(self) -> int:
        return self.outputs

    def init(self, u: Tensor) -> Tree:
        fan = {"w1": self.inputs, "b1": self.inputs, "c1": self.inputs + self.outputs, "d1": self.inputs + self.outputs}
        bound = {n: LAST if n.endswith("3") else 1 / math.sqrt(fan.get(n, self.width)) for n in self.shapes}
        return {n: ((2 * u[self.places[n]] - 1) * bound[n]).view(shape) for n, shape in self.shapes.items()}

    def greedy(self, net: Tree, x: Tensor) -> Tensor:
        """mu(x) ``[K, B, actions]``."""
        return torch.tanh(self.values(net, x))

    def judge(self, net: Tree, x: Tensor, action: Tensor) -> Tensor:
        """Q(x, a) ``[K, B, 1]``."""
        one = torch.baddbmm(net["d1"].unsqueeze(1), torch.cat([x, action], -1), net["c1"]).relu()
        two = torch.baddbmm(net["d2"].unsqueeze(1), one, net["c2"]).relu()
        return torch.baddbmm(net["d3"].unsqueeze(1), two, net["c3"].mT)


class Ddpg(Learner):
    """Acts at random until warm, then with Gaussian noise; actor and critic learn from the same batch."""

    net: ActorCritic

    def _plan_exploration(self, before: Ints, u: Floats) -> None:
        e, a = self.settings.copies, self.net.outputs
        draws = u[..., : e * a].reshape(*before.shape, e, a)
        self.explores = np.broadcast_to((before < self.settings.warmup)[..., None, None], draws.shape)
        self.anything = 2.0 * draws - 1.0
        noise = torch.special.ndtri(torch.from_numpy(draws.clip(1e-12, 1 - 1e-12))).numpy()
        self.noise = NOISE * noise

    def act(self, step: int, seen: Seen) -> npt.NDArray[Any]:
        mean = self.net.greedy(self.views, torch.from_numpy(seen).to(self.params.dtype)).numpy()
        noisy = np.clip(mean + self.noise[:, step], -1.0, 1.0)
        return np.where(self.explores[:, step], self.anything[:, step], noisy)

    def gradient(self, step: int, body: bool) -> None:
        """By autograd on the sum of the agents' losses: each has its own parameters, so each gets its own gradient."""
        self.two_losses(self.draw(step))

    def two_losses(self, batch: Tensor) -> None:
        net, o = self.net, self.net.inputs
        state, following, action = batch[..., :o], batch[..., o : 2 * o], batch[..., 2 * o + 2 :]
        reward, goes_on = batch[..., 2 * o : 2 * o + 1], batch[..., 2 * o + 1 : 2 * o + 2]
        ahead = net.judge(self.target_views, following, net.greedy(self.target_views, following))
        goal = reward + self.settings.discount * goes_on * ahead
        with torch.enable_grad():
            free = self.params.detach().requires_grad_()
            views = net.views(free)
            error = (net.judge(views, state, action) - goal).square().mean(1).sum()
            value = (
                net.judge(self.views, state, net.greedy(views, state)).mean(1).sum()
            )  # of a critic that stands still
            (slope,) = torch.autograd.grad(error - value, free)
        self.slope.copy_(slope)


LEARNERS[ActorCritic] = Ddpg
