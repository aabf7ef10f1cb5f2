"""Soft actor-critic of K agents at once, for actions in [-1, 1].

Haarnoja et al., "Soft Actor-Critic Algorithms and Applications", 2018 (arXiv:1812.05905).

Actor and both critics have two hidden layers each: these are the backbone. Their output layers and
the temperature are the head. All lie in the one vector of `Net`, so that replay buffer, Adam,
target networks and block schedule are those of the double DQN.
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
from equipoise.environments.dqn_agent import LEARNERS, Learner, obs_and_next_obs
from equipoise.environments.heterogeneity import Floats, Ints, Obs
from equipoise.environments.q_network import Net, relu_backward

OUTPUT_INIT_BOUND = 0.003  # output layers start in U(-0.003, 0.003): first actions are near zero
INITIAL_ALPHA = 0.01  # initial temperature; values are in units of one step's reward
LOG_STD_MIN = -5.0
LOG_STD_MAX = 2.0
LOG_2PI = math.log(2 * math.pi)


@dataclass(frozen=True)
class ActorCritic(Net):
    """An actor ("w", "b": means, then log standard deviations) and two critics ("c", "d").

    The critics' input is the observation and the action.
    """

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of all parameters, in the order of the vector: backbone, then head."""
        h = self.width
        a = self.outputs
        actor = {"w1": (self.inputs, h), "b1": (h,), "w2": (h, h), "b2": (h,)}
        critics = {"c1": (2, self.inputs + a, h), "d1": (2, 1, h), "c2": (2, h, h), "d2": (2, 1, h)}
        heads = {"w3": (2 * a, h), "b3": (2 * a,), "c3": (2, h, 1), "d3": (2, 1, 1)}
        return {**actor, **critics, **heads, "log_alpha": (1,)}

    @property
    def blocks(self) -> Blocks:
        """Parameter names of backbone and head."""
        names = tuple(self.shapes)
        return {"backbone": names[:8], "head": names[8:]}

    @property
    def action_size(self) -> int:
        """Numbers per action in the replay buffer."""
        return self.outputs

    @property
    def action_noise_dim(self) -> int:
        """Uniform numbers that one action consumes."""
        return self.outputs

    @property
    def update_noise_dim(self) -> int:
        """Uniform numbers per sampled transition: one action at s and one at s'."""
        return 2 * self.outputs

    def init(self, u: Tensor) -> Params:
        """Initialise one agent's parameters from uniform numbers ``[size]``."""
        critic_inputs = self.inputs + self.outputs
        fan_in = {
            "w1": self.inputs,
            "b1": self.inputs,
            "c1": critic_inputs,
            "d1": critic_inputs,
        }
        params = {}
        for name, shape in self.shapes.items():
            bound = 1 / math.sqrt(fan_in.get(name, self.width))
            if name.endswith("3"):
                bound = OUTPUT_INIT_BOUND
            params[name] = ((2 * u[self.slices[name]] - 1) * bound).view(shape)
        params["log_alpha"] = torch.full_like(params["log_alpha"], math.log(INITIAL_ALPHA))
        return params

    def greedy(self, net: Params, x: Tensor) -> Tensor:
        """Return tanh of the policy's mean, ``[K, B, actions]``."""
        return torch.tanh(self.forward(net, x)[..., : self.outputs])

    def policy(self, net: Params, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and log standard deviation, before tanh."""
        return _mean_and_log_std(self.forward(net, x))

    def sample(self, net: Params, x: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Return a = tanh(mean + std noise) and log pi(a | x) ``[K, B, 1]``.

        Args:
            net: Parameters of K agents.
            x: Observations `[K, B, F]`.
            noise: Standard normal numbers `[K, B, A]`.
        """
        return squashed_sample(self.forward(net, x), noise)

    def critics_forward_all(self, net: Params, pair: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Compute hidden layers and outputs of both critics.

        Args:
            net: Stacked parameters.
            pair: Observations and actions, ``[K, B, inputs + actions]``.

        Returns:
            Both hidden layers and Q_1 and Q_2, ``[2 K, B, ...]``.
        """
        c1, d1, c2, d2, c3, d3 = (
            net[name].flatten(0, 1) for name in ("c1", "d1", "c2", "d2", "c3", "d3")
        )
        one = torch.baddbmm(d1, pair.repeat_interleave(2, 0), c1).relu_()
        two = torch.baddbmm(d2, one, c2).relu_()
        return one, two, torch.baddbmm(d3, two, c3)

    def critics(self, net: Params, x: Tensor, action: Tensor) -> Tensor:
        """Compute Q_1 and Q_2 at (x, action), ``[K, 2, B, 1]``.

        Args:
            net: Parameters of K agents.
            x: Observations `[K, B, F]`.
            action: Actions `[K, B, A]`.
        """
        return _split_critics(self.critics_forward_all(net, torch.cat([x, action], -1))[2])


def _split_critics(stacked: Tensor) -> Tensor:
    """Return ``[K, 2, B, ...]`` from ``[2 K, B, ...]``."""
    return stacked.view(-1, 2, *stacked.shape[1:])


def _mean_and_log_std(out: Tensor) -> tuple[Tensor, Tensor]:
    """Split the actor's output; tanh keeps the log standard deviation within its bounds."""
    mean, raw = out.chunk(2, -1)
    return mean, LOG_STD_MIN + (LOG_STD_MAX - LOG_STD_MIN) / 2 * (torch.tanh(raw) + 1)


def squashed_sample(out: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Sample actions from the tanh-Gaussian policy.

    Args:
        out: The actor's output, ``[K, B, 2 actions]``.
        noise: Standard normal numbers, ``[K, B, actions]``.

    Returns:
        The action a ``[K, B, actions]`` and log pi(a) ``[K, B, 1]``.
    """
    mean, log_std = _mean_and_log_std(out)
    before = mean + log_std.exp() * noise
    # log(1 - tanh(x)^2), without overflow
    log_derivative = 2 * (math.log(2) - before - softplus(-2 * before))
    log_pi = -0.5 * noise.square() - log_std - 0.5 * LOG_2PI - log_derivative
    return torch.tanh(before), log_pi.sum(-1, keepdim=True)


def squashed_sample_backward(
    out: Tensor, noise: Tensor, action: Tensor, d_action: Tensor, d_log_pi: Tensor
) -> Tensor:
    """Compute a loss's derivative by `out` from its derivatives by a and by log pi(a).

    Args:
        out: Outputs of the actor: means and log standard deviations.
        noise: Standard normal numbers of the sample.
        action: The sampled actions.
        d_action: Derivative of the loss by the actions.
        d_log_pi: Derivative of the loss by their log probabilities.

    Returns:
        The derivative, in the shape of `out`.
    """
    _, log_std = _mean_and_log_std(out)
    tanh = torch.tanh(out.chunk(2, -1)[1])
    d_mean = d_action * (1 - action.square()) + 2 * d_log_pi * action
    d_log_std = d_mean * log_std.exp() * noise - d_log_pi
    d_raw = (LOG_STD_MAX - LOG_STD_MIN) / 2 * d_log_std * (1 - tanh.square())
    return torch.cat([d_mean, d_raw], -1)


class SoftActorCritic(Learner):
    """Act at random until `learning_starts`, then by the policy; all parts learn from one batch."""

    net: ActorCritic

    def _plan_exploration(self, before: Ints, u: Floats) -> None:
        """Compute random actions and the noise of actions and batches."""
        hp = self.hparams
        a = self.net.outputs
        draws = u[..., : hp.num_envs * a].reshape(*before.shape, hp.num_envs, a)
        random_phase = (before < hp.learning_starts)[..., None, None]
        self.explores = np.broadcast_to(random_phase, draws.shape)
        self.random_action = 2.0 * draws - 1.0
        self.noise = standard_normal(draws).to(self.params.dtype)
        batch_draws = u[..., -hp.batch_size * (1 + 2 * a) : -hp.batch_size]
        batch_draws = batch_draws.reshape(*before.shape, 2, hp.batch_size, a)
        self.batch_noise = standard_normal(batch_draws).to(self.params.dtype)

    def act(self, step: int, obs: Obs) -> npt.NDArray[Any]:
        """Choose actions ``[K, E, actions]``."""
        x = torch.from_numpy(obs).to(self.params.dtype)
        sampled, _ = self.net.sample(self.views, x, self.noise[:, step])
        return np.where(self.explores[:, step], self.random_action[:, step], sampled.numpy())

    def compute_gradient(self, step: int, body: bool) -> None:
        """Write the gradients of critics, actor and temperature to :attr:`grad`."""
        self.compute_gradients(self.sample_batch(step), self.batch_noise[:, step])

    def compute_gradients(self, batch: Tensor, noise: Tensor) -> None:
        """Compute the gradients by hand; autograd takes twice the time.

        With a', b drawn from pi and H = -actions:

        - critics: mean of (Q_j(s, a) - y)^2 / 2,
          y = R + bootstrap (min_j Q'_j(s', a') - alpha log pi(a' | s'));
        - actor: mean of alpha log pi(b | s) - min_j Q_j(s, b);
        - temperature: mean of -log alpha (log pi(b | s) + H).

        Args:
            batch: Transitions, ``[K, B, transition_dim]``.
            noise: Standard normal numbers of a' and b, ``[K, 2, B, actions]``.
        """
        net = self.net
        o = net.inputs
        size = batch.shape[1]
        obs, next_obs = obs_and_next_obs(net, batch)
        reward = batch[..., 2 * o : 2 * o + 1]
        bootstrap = batch[..., 2 * o + 1 : 2 * o + 2]
        stored_action = batch[..., 2 * o + 2 :]
        alpha = self.views["log_alpha"].exp().unsqueeze(1)
        one, two, policy = net.forward_all(self.views, torch.cat([obs, next_obs], 1))
        action, log_pi = squashed_sample(policy[:, :size], noise[:, 1])
        next_action, next_log_pi = squashed_sample(policy[:, size:], noise[:, 0])
        next_q = net.critics(self.target_views, next_obs, next_action).amin(1)
        y = reward + bootstrap * (next_q - alpha * next_log_pi)
        actions = torch.cat([stored_action, action], 1)
        pairs = torch.cat([torch.cat([obs, obs], 1), actions], -1)
        d_action = self._critic_gradients(pairs, y)
        d_policy = squashed_sample_backward(
            policy[:, :size], noise[:, 1], action, d_action, alpha / size
        )
        net.backward(self.views, obs, one[:, :size], two[:, :size], d_policy, self.grad_views)
        self.grad_views["log_alpha"].copy_(net.outputs - log_pi.mean(1))

    def _critic_gradients(self, pairs: Tensor, y: Tensor) -> Tensor:
        """Write the critics' gradients; return the derivative of the actor's loss by b.

        Args:
            pairs: (s, a) from the buffer, then (s, b), ``[K, 2 B, inputs + actions]``.
            y: Targets, ``[K, B, 1]``.

        Returns:
            ``[K, B, actions]``.
        """
        size = y.shape[1]
        c2 = self.views["c2"].flatten(0, 1).mT
        c3 = self.views["c3"].flatten(0, 1).mT
        one, two, value = self.net.critics_forward_all(self.views, pairs)
        both = _split_critics(value)
        error = both[:, :, :size] - y.unsqueeze(1)
        # The actor's loss is -min_j Q_j: its derivative is -1 at the smaller critic.
        smaller = both[:, :, size:].argmin(1, keepdim=True)
        d_min = torch.zeros_like(error).scatter_(1, smaller, -1.0)
        d_value = torch.cat([error, d_min], 2).flatten(0, 1) / size
        d_two = relu_backward(torch.bmm(d_value, c3), two)
        d_one = relu_backward(torch.bmm(d_two, c2), one)
        inputs = pairs.repeat_interleave(2, 0)
        for weight, bias, layer_input, derivative in (
            ("c1", "d1", inputs, d_one),
            ("c2", "d2", one, d_two),
            ("c3", "d3", two, d_value),
        ):
            d_weight = self.grad_views[weight].flatten(0, 1)
            d_bias = self.grad_views[bias].flatten(0, 1)
            torch.bmm(layer_input[:, :size].mT, derivative[:, :size], out=d_weight)
            torch.sum(derivative[:, :size], 1, keepdim=True, out=d_bias)
        action_weights = self.views["c1"].flatten(0, 1)[:, self.net.inputs :].mT
        return _split_critics(torch.bmm(d_one[:, size:], action_weights)).sum(1)


def standard_normal(draws: Floats) -> Tensor:
    """Turn uniform numbers into standard normal ones (inverse distribution function)."""
    normal: Tensor = torch.special.ndtri(torch.from_numpy(draws.clip(1e-12, 1 - 1e-12)))
    return normal


LEARNERS[ActorCritic] = SoftActorCritic
