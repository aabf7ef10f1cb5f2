"""Soft actor-critic (Haarnoja et al., 2018, arXiv 1812.05905) of K agents at once, for actions in [-1, 1].

Actor and both critics have two hidden layers each: these are the body that may be shared. Their last layers and the
temperature are the head. All lie in the one vector of the stack, so memory, Adam, target nets and rhythm are those of
the double DQN.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import softplus

from equipoise.contract import Blocks, Tree
from equipoise.frl.deep.learner import LEARNERS, Learner
from equipoise.frl.deep.net import Net
from equipoise.frl.deep.traits import Floats, Ints, Seen

LAST = 0.003  # last layers start in U(-LAST, LAST): first actions and values are near zero
ALPHA = 0.01  # the temperature at first; values are in units of one step's reward
NARROWEST, WIDEST = -5.0, 2.0  # logarithm of the policy's standard deviation
LOG_2PI = math.log(2 * math.pi)


@dataclass(frozen=True)
class ActorCritic(Net):
    """``w`` is the actor (means, then widths), ``c`` the two critics, which see the action beside the observation."""

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        h, a = self.width, self.outputs
        actor = {"w1": (self.inputs, h), "b1": (h,), "w2": (h, h), "b2": (h,)}
        critics = {"c1": (2, self.inputs + a, h), "d1": (2, 1, h), "c2": (2, h, h), "d2": (2, 1, h)}
        heads = {"w3": (2 * a, h), "b3": (2 * a,), "c3": (2, h, 1), "d3": (2, 1, 1)}
        return {**actor, **critics, **heads, "log_alpha": (1,)}

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

    @property
    def learning_draws(self) -> int:
        return 2 * self.outputs

    def init(self, u: Tensor) -> Tree:
        fan = {"w1": self.inputs, "b1": self.inputs, "c1": self.inputs + self.outputs, "d1": self.inputs + self.outputs}
        bound = {n: LAST if n.endswith("3") else 1 / math.sqrt(fan.get(n, self.width)) for n in self.shapes}
        drawn = {n: ((2 * u[self.places[n]] - 1) * bound[n]).view(shape) for n, shape in self.shapes.items()}
        return {**drawn, "log_alpha": torch.full_like(drawn["log_alpha"], math.log(ALPHA))}

    def greedy(self, net: Tree, x: Tensor) -> Tensor:
        """tanh of the policy's mean, ``[K, B, actions]``."""
        return torch.tanh(self.values(net, x)[..., : self.outputs])

    def policy(self, net: Tree, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log of the standard deviation, before tanh."""
        mean, wide = self.values(net, x).chunk(2, -1)
        return mean, NARROWEST + (WIDEST - NARROWEST) / 2 * (torch.tanh(wide) + 1)

    def sample(self, net: Tree, x: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """a = tanh(mean + std noise) and log pi(a | x) ``[K, B, 1]``."""
        mean, log_std = self.policy(net, x)
        before = mean + log_std.exp() * noise
        slope = 2 * (math.log(2) - before - softplus(-2 * before))  # log of tanh's derivative, without overflow
        log_pi = -0.5 * noise.square() - log_std - 0.5 * LOG_2PI - slope
        return torch.tanh(before), log_pi.sum(-1, keepdim=True)

    def judge(self, net: Tree, x: Tensor, action: Tensor) -> Tensor:
        """Q_1 and Q_2 at (x, a), ``[K, 2, B, 1]``."""
        pair = torch.cat([x, action], -1).unsqueeze(1)
        one = (pair @ net["c1"] + net["d1"]).relu()
        two = (one @ net["c2"] + net["d2"]).relu()
        return two @ net["c3"] + net["d3"]


class SoftActorCritic(Learner):
    """Acts at random until warm, then by its policy; actor, critics and temperature learn from the same batch."""

    net: ActorCritic

    def _plan_exploration(self, before: Ints, u: Floats) -> None:
        s, a = self.settings, self.net.outputs
        draws = u[..., : s.copies * a].reshape(*before.shape, s.copies, a)
        self.explores = np.broadcast_to((before < s.warmup)[..., None, None], draws.shape)
        self.anything = 2.0 * draws - 1.0
        self.noise = _normal(draws).to(self.params.dtype)
        behind = u[..., -s.batch * (1 + 2 * a) : -s.batch].reshape(*before.shape, 2, s.batch, a)
        self.batch_noise = _normal(behind).to(self.params.dtype)

    def act(self, step: int, seen: Seen) -> npt.NDArray[Any]:
        x = torch.from_numpy(seen).to(self.params.dtype)
        chosen, _ = self.net.sample(self.views, x, self.noise[:, step])
        return np.where(self.explores[:, step], self.anything[:, step], chosen.numpy())

    def gradient(self, step: int, body: bool) -> None:
        """By autograd on the sum of the agents' losses: each has its own parameters, so each gets its own gradient."""
        self.three_losses(self.draw(step), self.batch_noise[:, step])

    def three_losses(self, batch: Tensor, noise: Tensor) -> None:
        """Into :attr:`slope`, of each agent:

        critics: mean of (Q_j(s, a) - y)^2 / 2, y = R + future (min_j Q'_j(s', a') - alpha log pi(a' | s'));
        actor: mean of alpha log pi(b | s) - min_j Q_j(s, b); temperature: mean of -log alpha (log pi(b | s) + H), with
        a', b drawn from pi by ``noise`` ``[K, 2, B, actions]`` and H = -actions.
        """
        net, o = self.net, self.net.inputs
        state, following, action = batch[..., :o], batch[..., o : 2 * o], batch[..., 2 * o + 2 :]
        reward, future = batch[..., 2 * o : 2 * o + 1], batch[..., 2 * o + 1 : 2 * o + 2]
        alpha = self.views["log_alpha"].exp().unsqueeze(1)
        ahead, log_ahead = net.sample(self.views, following, noise[:, 0])
        goal = reward + future * (net.judge(self.target_views, following, ahead).amin(1) - alpha * log_ahead)
        with torch.enable_grad():
            free = self.params.detach().requires_grad_()
            views = net.views(free)
            error = (net.judge(views, state, action) - goal.unsqueeze(1)).square().mean(2).sum() / 2
            chosen, log_pi = net.sample(views, state, noise[:, 1])
            value = net.judge(self.views, state, chosen).amin(1)  # of critics that stand still
            actor = (alpha * log_pi - value).mean(1).sum()
            heat = (views["log_alpha"] * (log_pi.detach() - net.outputs).mean(1)).sum()
            (slope,) = torch.autograd.grad(error + actor - heat, free)
        self.slope.copy_(slope)


def _normal(draws: Floats) -> Tensor:
    found: Tensor = torch.special.ndtri(torch.from_numpy(draws.clip(1e-12, 1 - 1e-12)))
    return found


LEARNERS[ActorCritic] = SoftActorCritic
