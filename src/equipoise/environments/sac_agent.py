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

from equipoise.core import Blocks, Params
from equipoise.environments.dqn_agent import LEARNERS, Learner
from equipoise.environments.heterogeneity import Floats, Ints, Seen
from equipoise.environments.q_network import Net, through_relu

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

    def init(self, u: Tensor) -> Params:
        fan = {
            "w1": self.inputs,
            "b1": self.inputs,
            "c1": self.inputs + self.outputs,
            "d1": self.inputs + self.outputs,
        }
        bound = {
            n: LAST if n.endswith("3") else 1 / math.sqrt(fan.get(n, self.width))
            for n in self.shapes
        }
        drawn = {
            n: ((2 * u[self.places[n]] - 1) * bound[n]).view(shape)
            for n, shape in self.shapes.items()
        }
        return {**drawn, "log_alpha": torch.full_like(drawn["log_alpha"], math.log(ALPHA))}

    def greedy(self, net: Params, x: Tensor) -> Tensor:
        """tanh of the policy's mean, ``[K, B, actions]``."""
        return torch.tanh(self.values(net, x)[..., : self.outputs])

    def policy(self, net: Params, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log of the standard deviation, before tanh."""
        return _policy(self.values(net, x))

    def sample(self, net: Params, x: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """a = tanh(mean + std noise) and log pi(a | x) ``[K, B, 1]``."""
        return squashed(self.values(net, x), noise)

    def look_at(self, net: Params, pair: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Both hidden layers of both critics at pairs (x, a), and Q_1 and Q_2, ``[2 K, B, ...]``."""
        c1, d1, c2, d2, c3, d3 = (
            net[name].flatten(0, 1) for name in ("c1", "d1", "c2", "d2", "c3", "d3")
        )
        one = torch.baddbmm(d1, pair.repeat_interleave(2, 0), c1).relu_()
        two = torch.baddbmm(d2, one, c2).relu_()
        return one, two, torch.baddbmm(d3, two, c3)

    def judge(self, net: Params, x: Tensor, action: Tensor) -> Tensor:
        """Q_1 and Q_2 at (x, a), ``[K, 2, B, 1]``."""
        return _of_each(self.look_at(net, torch.cat([x, action], -1))[2])


def _of_each(critics: Tensor) -> Tensor:
    """``[2 K, B, ...]`` as ``[K, 2, B, ...]``."""
    return critics.view(-1, 2, *critics.shape[1:])


def _policy(out: Tensor) -> tuple[Tensor, Tensor]:
    mean, wide = out.chunk(2, -1)
    return mean, NARROWEST + (WIDEST - NARROWEST) / 2 * (torch.tanh(wide) + 1)


def squashed(out: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """a and log pi(a) of what the actor puts out."""
    mean, log_std = _policy(out)
    before = mean + log_std.exp() * noise
    slope = 2 * (
        math.log(2) - before - softplus(-2 * before)
    )  # log of tanh's derivative, without overflow
    log_pi = -0.5 * noise.square() - log_std - 0.5 * LOG_2PI - slope
    return torch.tanh(before), log_pi.sum(-1, keepdim=True)


def squashed_slope(
    out: Tensor, noise: Tensor, action: Tensor, by_action: Tensor, by_log_pi: Tensor
) -> Tensor:
    """Derivative by ``out`` of a loss that has these by a and by log pi(a)."""
    log_std, tanh = _policy(out)[1], torch.tanh(out.chunk(2, -1)[1])
    by_before = by_action * (1 - action.square()) + 2 * by_log_pi * action
    by_log_std = by_before * log_std.exp() * noise - by_log_pi
    return torch.cat([by_before, (WIDEST - NARROWEST) / 2 * by_log_std * (1 - tanh.square())], -1)


class SoftActorCritic(Learner):
    """Acts at random until warm, then by its policy; actor, critics and temperature learn from the same batch."""

    net: ActorCritic

    def _plan_exploration(self, before: Ints, u: Floats) -> None:
        s, a = self.settings, self.net.outputs
        draws = u[..., : s.copies * a].reshape(*before.shape, s.copies, a)
        self.explores = np.broadcast_to((before < s.warmup)[..., None, None], draws.shape)
        self.anything = 2.0 * draws - 1.0
        self.noise = normal(draws).to(self.params.dtype)
        behind = u[..., -s.batch * (1 + 2 * a) : -s.batch].reshape(*before.shape, 2, s.batch, a)
        self.batch_noise = normal(behind).to(self.params.dtype)

    def act(self, step: int, seen: Seen) -> npt.NDArray[Any]:
        x = torch.from_numpy(seen).to(self.params.dtype)
        chosen, _ = self.net.sample(self.views, x, self.noise[:, step])
        return np.where(self.explores[:, step], self.anything[:, step], chosen.numpy())

    def gradient(self, step: int, body: bool) -> None:
        self.three_losses(self.draw(step), self.batch_noise[:, step])

    def three_losses(self, batch: Tensor, noise: Tensor) -> None:
        """Into :attr:`slope`, of each agent, written out (autograd takes twice the time):

        critics: mean of (Q_j(s, a) - y)^2 / 2, y = R + future (min_j Q'_j(s', a') - alpha log pi(a' | s'));
        actor: mean of alpha log pi(b | s) - min_j Q_j(s, b); temperature: mean of -log alpha (log pi(b | s) + H), with
        a', b drawn from pi by ``noise`` ``[K, 2, B, actions]`` and H = -actions.
        """
        net, o, size, out = self.net, self.net.inputs, batch.shape[1], self.slope_views
        state, following, action = batch[..., :o], batch[..., o : 2 * o], batch[..., 2 * o + 2 :]
        reward, future = batch[..., 2 * o : 2 * o + 1], batch[..., 2 * o + 1 : 2 * o + 2]
        alpha = self.views["log_alpha"].exp().unsqueeze(1)
        one, two, policy = net.look(self.views, torch.cat([state, following], 1))
        chosen, log_pi = squashed(policy[:, :size], noise[:, 1])
        ahead, log_ahead = squashed(policy[:, size:], noise[:, 0])
        goal = reward + future * (
            net.judge(self.target_views, following, ahead).amin(1) - alpha * log_ahead
        )
        pairs = torch.cat([torch.cat([state, state], 1), torch.cat([action, chosen], 1)], -1)
        by_chosen = self._critics(pairs, goal)
        by_policy = squashed_slope(policy[:, :size], noise[:, 1], chosen, by_chosen, alpha / size)
        net.slope(self.views, state, one[:, :size], two[:, :size], by_policy, out)
        out["log_alpha"].copy_(net.outputs - log_pi.mean(1))

    def _critics(self, pairs: Tensor, goal: Tensor) -> Tensor:
        """Their slopes at the remembered pairs (the first half), and the derivative of the actor's loss by b there."""
        size, c2, c3 = goal.shape[1], *(self.views[name].flatten(0, 1).mT for name in ("c2", "c3"))
        one, two, value = self.net.look_at(self.views, pairs)
        both = _of_each(value)
        error = both[:, :, :size] - goal.unsqueeze(1)
        least = torch.zeros_like(error).scatter_(1, both[:, :, size:].argmin(1, keepdim=True), -1.0)
        by_value = torch.cat([error, least], 2).flatten(0, 1) / size
        by_two = through_relu(torch.bmm(by_value, c3), two)
        by_one = through_relu(torch.bmm(by_two, c2), one)
        inputs = pairs.repeat_interleave(2, 0)
        for weight, bias, before, slope in (
            ("c1", "d1", inputs, by_one),
            ("c2", "d2", one, by_two),
            ("c3", "d3", two, by_value),
        ):
            torch.bmm(
                before[:, :size].mT, slope[:, :size], out=self.slope_views[weight].flatten(0, 1)
            )
            torch.sum(slope[:, :size], 1, keepdim=True, out=self.slope_views[bias].flatten(0, 1))
        to_action = self.views["c1"].flatten(0, 1)[:, self.net.inputs :].mT
        return _of_each(torch.bmm(by_one[:, size:], to_action)).sum(1)


def normal(draws: Floats) -> Tensor:
    """Standard normal numbers from uniform ones."""
    found: Tensor = torch.special.ndtri(torch.from_numpy(draws.clip(1e-12, 1 - 1e-12)))
    return found


LEARNERS[ActorCritic] = SoftActorCritic
