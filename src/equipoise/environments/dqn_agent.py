"""Double DQN agents with n-step returns: K agents learn at once, each in its own environment.

Mnih et al., "Human-level control through deep reinforcement learning", Nature 2015; van Hasselt et
al., "Deep Reinforcement Learning with Double Q-learning", AAAI 2016 (arXiv:1509.06461).

One step of an agent is one environment step in each of its E copies, followed by one gradient step.
Rewards are scaled by (1 - discount), so that Q-values are in units of one step's reward.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from equipoise.core import Params, State
from equipoise.environments.heterogeneity import Bools, Floats, Ints, Obs
from equipoise.environments.q_network import BatchedAdam, BlockSchedule, Net, clone_tree
from equipoise.environments.vec_env import StepResult, VecEnv


@dataclass(frozen=True)
class AgentHParams:
    """Hyperparameters of an agent, besides its network."""

    num_envs: int
    """Parallel copies E of the agent's environment."""
    discount: float
    capacity: int
    """Size of the replay buffer, in transitions."""
    learning_starts: int
    """Environment steps before the first gradient step."""
    eps_decay_steps: int
    """Environment steps over which epsilon falls linearly from 1 to `eps_final`."""
    eps_final: float
    tau: float
    """Rate at which the target network follows, per gradient step."""
    batch_size: int
    n_step: int = 1
    """Rewards that a target sums before it bootstraps."""
    weight_avg_steps: int = 1
    """Number of last networks of a call whose mean is returned."""


def transition_dim(net: Net) -> int:
    """Return the size of a stored transition: obs, next_obs, return, bootstrap factor, action."""
    return 2 * net.inputs + 2 + net.action_size


def init_state(net: Net, hparams: AgentHParams, agents: int, dtype: torch.dtype) -> State:
    """Return the state of K agents that have not acted; without the environments'.

    Args:
        net: Layout of the Q-network.
        hparams: Hyper-parameters of the agents.
        agents: Number K of agents.
        dtype: Floating-point type of the networks.
    """
    zeros = torch.zeros
    return {
        "target": net.views(zeros(agents * net.size, dtype=dtype)),
        "adam": {name: net.views(zeros(agents * net.size, dtype=dtype)) for name in ("m", "v")},
        "updates": zeros(agents, 2, dtype=torch.int64),  # gradient steps of (backbone, head)
        "replay": zeros(agents, hparams.capacity, transition_dim(net), dtype=dtype),
        "num_steps": zeros(agents, dtype=torch.int64),  # steps taken in each copy
        # Newest transitions of the running episode that n-step returns still extend.
        "open_steps": zeros(agents, hparams.num_envs, dtype=torch.int64),
    }


def noise_dim_per_step(net: Net, hparams: AgentHParams, env: VecEnv) -> int:
    """Return how many uniform numbers one agent consumes in one step.

    Args:
        net: Layout of the Q-network.
        hparams: Hyper-parameters of the agents.
        env: The environments.
    """
    acting = hparams.num_envs * (net.action_noise_dim + env.reset_noise_dim)
    return acting + hparams.batch_size * (1 + net.update_noise_dim)


def train(
    env: VecEnv,
    net: Net,
    hparams: AgentHParams,
    schedule: BlockSchedule,
    ids: Tensor,
    params: Tensor,
    state: State,
    u: Floats,
) -> tuple[Tensor, State]:
    """Run K agents for some steps.

    Networks of single steps vary more in their return than in what they know. So the mean of the
    last `weight_avg_steps` networks is returned, but of at most half of the steps.

    Args:
        env: All agents' environments.
        net: The architecture.
        hparams: The agents' hyperparameters.
        schedule: When backbone and head learn.
        ids: ``[K]``, the agents.
        params: Initial parameters, ``[K size]`` as `Net.pack` arranges them; not changed.
        state: Agents' state of `init_state` with the environments' under "env"; not changed.
        u: Uniform numbers, ``[K, steps, noise_dim_per_step]``.

    Returns:
        New parameters ``[K size]`` and the new state.
    """
    agents, steps, _ = u.shape
    e = hparams.num_envs
    n = net.action_noise_dim
    reset_draws = u[:, :, n * e : e * (n + env.reset_noise_dim)]
    reset_draws = reset_draws.reshape(agents, steps, e, env.reset_noise_dim)
    env_state = env.resume(ids, state["env"], reset_draws[:, 0])
    learner = LEARNERS[type(net)](net, hparams, schedule, params, state, u)
    averaged = max(1, min(hparams.weight_avg_steps, steps // 2))
    # Changes are summed, not parameters: a frozen parameter is then returned without rounding.
    total_change = torch.zeros_like(params)
    for step in range(steps):
        obs = env_state.obs
        action = learner.act(step, obs)
        result = env_state.step(action, reset_draws[:, step])
        learner.learn(step)
        learner.add_to_buffer(step, obs, action, result)
        if step >= steps - averaged:
            total_change += learner.params - params
    new_params = learner.params
    if averaged > 1:
        new_params = params + total_change.div_(averaged)
    return new_params, {**learner.state_dict(), "env": env_state.state_dict()}


class Learner:
    """Double DQN of K agents during one call of `train`; inputs are copied, never changed.

    Exploration, buffer rows and batches depend only on counts and draws, so they are computed for
    all steps at the start.
    """

    def __init__(
        self,
        net: Net,
        hparams: AgentHParams,
        schedule: BlockSchedule,
        params: Tensor,
        state: State,
        u: Floats,
    ) -> None:
        """Copy the state and plan all steps; see `train` for the arguments."""
        self.net = net
        self.hparams = hparams
        self.schedule = schedule
        self.agents = len(u)
        self.params = params.clone()
        self.views = net.views(self.params)
        # The target of an agent that never learned is the network that it received.
        self.owners = net.agent_of_entry(self.agents)
        never_acted = (state["num_steps"] == 0)[self.owners]
        self.target = torch.where(never_acted, params, net.pack(state["target"]))
        self.target_views = net.views(self.target)
        self.grad = torch.zeros_like(self.params)
        self.grad_views = net.views(self.grad)
        self.adam = BatchedAdam(net, schedule, self.params, self.grad, state)
        self.replay = self._copy_replay(state)
        self.rows = self.replay.view(-1, self.replay.shape[-1])
        self.new_rows = self.rows.new_zeros(self.agents, hparams.num_envs, self.rows.shape[1])
        self.num_steps: Ints = state["num_steps"].numpy()
        self.open_steps: Ints = state["open_steps"].numpy()
        self._plan(u)

    def _copy_replay(self, state: State) -> Tensor:
        """Copy the filled part of the buffer; NumPy's zeros cost nothing until touched."""
        source = state["replay"].numpy()
        stored = int(state["num_steps"].max()) * self.hparams.num_envs
        filled = min(stored, self.hparams.capacity)
        copy = np.zeros(source.shape, source.dtype)
        copy[:, :filled] = source[:, :filled]
        return torch.from_numpy(copy)

    def _plan(self, u: Floats) -> None:
        """Compute exploration, buffer rows and batches of every step."""
        hp = self.hparams
        e = hp.num_envs
        copies = np.arange(e)
        steps = u.shape[1]
        # Transitions stored before each step, [K, steps].
        before = (self.num_steps[:, None] + np.arange(steps)) * e
        self._plan_exploration(before, u)
        first_row = np.arange(len(u))[:, None, None] * hp.capacity
        new_rows = first_row + (before[..., None] + copies) % hp.capacity
        self.rows_of_step = _by_step(new_rows)
        batches = u[..., -hp.batch_size :] * np.minimum(before, hp.capacity)[..., None]
        self.batch_of_step = _by_step(first_row + batches.astype(np.int64))
        # Rows of the transitions that are 1, ..., n_step - 1 steps old: [steps, (n_step - 1) K E].
        age = np.arange(1, hp.n_step)
        older = before[..., None] - e * age[:, None, None, None] + copies
        older_rows = first_row + older % hp.capacity
        self.older_rows = older_rows.transpose(2, 0, 1, 3).reshape(steps, -1)
        self.older_discount = np.repeat(hp.discount**age, len(u) * e)
        self.ready: Bools = before >= hp.learning_starts
        self.all_ready: list[bool] = np.all(self.ready, 0).tolist()
        self.trained_blocks = [
            self.schedule.trained_blocks(step) if any_ready else (False, False)
            for step, any_ready in enumerate(np.any(self.ready, 0))
        ]
        self.num_steps = self.num_steps + steps

    def _plan_exploration(self, before: Ints, u: Floats) -> None:
        """Compute when agents explore, and their random actions, ``[K, steps, E]``."""
        hp = self.hparams
        e = hp.num_envs
        progress = before / hp.eps_decay_steps if hp.eps_decay_steps else np.ones(before.shape)
        epsilon = np.maximum(1.0 + (hp.eps_final - 1.0) * progress, hp.eps_final)
        self.explores = u[..., :e] < epsilon[..., None]
        random_action: npt.NDArray[Any] = (u[..., e : 2 * e] * self.net.outputs).astype(np.int64)
        self.random_action = random_action

    def state_dict(self) -> State:
        """Return the agents' state, without the environments'."""
        return {
            "target": clone_tree(self.target_views),
            **self.adam.state_dict(),
            "replay": self.replay,
            "num_steps": torch.from_numpy(self.num_steps),
            "open_steps": torch.from_numpy(self.open_steps),
        }

    def act(self, step: int, obs: Obs) -> npt.NDArray[Any]:
        """Choose epsilon-greedy actions ``[K, E]``.

        The same forward pass covers the batch that `learn` needs: one pass is faster than two.
        """
        x = torch.from_numpy(obs).to(self.params.dtype)
        e = obs.shape[1]
        if any(self.trained_blocks[step]):
            x = torch.cat([x, *obs_and_next_obs(self.net, self.sample_batch(step))], 1)
        layers = self.net.forward_all(self.views, x)
        self.batch_layers = tuple(layer[:, e:] for layer in layers)
        greedy = layers[-1][:, :e].argmax(-1).numpy()
        return np.where(self.explores[:, step], self.random_action[:, step], greedy)

    def sample_batch(self, step: int) -> Tensor:
        """Read the batch of a step, ``[K, batch, transition_dim]``, into :attr:`batch`."""
        rows = self.rows.index_select(0, self.batch_of_step[step])
        self.batch = rows.view(self.agents, -1, self.rows.shape[1])
        return self.batch

    def learn(self, step: int) -> None:
        """Take one gradient step of every agent that has taken `learning_starts` steps."""
        trained = self.trained_blocks[step]
        if not any(trained):
            return
        self.compute_gradient(step, trained[0])
        only = None if self.all_ready[step] else self.ready[:, step]
        self.adam.step(trained, only)
        tau = self.hparams.tau
        if only is None:
            self.target.lerp_(self.params, tau)
        else:
            mask = torch.from_numpy(only)[self.owners].to(self.params.dtype)
            self.target.lerp_(self.params, tau * mask)

    def compute_gradient(self, step: int, body: bool) -> None:
        """Write the gradient to :attr:`grad`; of the head alone if `body` is False."""
        td_gradient(
            self.net,
            self.views,
            self.target_views,
            self.batch,
            self.grad_views,
            body,
            self.batch_layers,
        )

    def add_to_buffer(
        self, step: int, obs: Obs, action: npt.NDArray[Any], result: StepResult
    ) -> None:
        """Store the transitions of a step.

        A truncated episode could have continued, so only termination stops the bootstrap.
        """
        new = self.new_rows.numpy()
        o = obs.shape[-1]
        reward: Floats = result.reward * (1.0 - self.hparams.discount)
        bootstrap: Floats = self.hparams.discount * (~result.terminated).astype(np.float64)
        new[..., :o] = obs
        new[..., o : 2 * o] = result.next_obs
        new[..., 2 * o] = reward
        new[..., 2 * o + 1] = bootstrap
        new[..., 2 * o + 2 :] = action.reshape(*result.reward.shape, -1)
        self.rows.index_copy_(0, self.rows_of_step[step], self.new_rows.view(-1, new.shape[-1]))
        if self.hparams.n_step > 1:
            self._extend_n_step(step, result, reward, bootstrap)

    def _extend_n_step(
        self, step: int, result: StepResult, reward: Floats, bootstrap: Floats
    ) -> None:
        """Extend the newest transitions of the same episode by one step, up to `n_step` steps."""
        rows = self.rows.numpy()
        o = self.net.inputs
        age = np.arange(1, self.hparams.n_step)[:, None]
        extended = np.flatnonzero(self.open_steps.reshape(-1) >= age)
        which = self.older_rows[step][extended]
        copy = extended % self.open_steps.size
        discount = self.older_discount[extended]
        old = rows.take(which, 0)
        old[:, o : 2 * o] = result.next_obs.reshape(-1, o).take(copy, 0)
        old[:, 2 * o] += discount * reward.reshape(-1).take(copy)
        old[:, 2 * o + 1] = discount * bootstrap.reshape(-1).take(copy)
        rows[which] = old
        done = result.terminated | result.truncated
        grown = np.minimum(self.open_steps + 1, self.hparams.n_step - 1)
        self.open_steps = np.where(done, 0, grown)


def _by_step(rows: Ints) -> Tensor:
    """Return ``[steps, K * n]`` from ``[K, steps, n]``."""
    steps = rows.shape[1]
    return torch.from_numpy(np.ascontiguousarray(rows.swapaxes(0, 1)).reshape(steps, -1))


def obs_and_next_obs(net: Net, batch: Tensor) -> tuple[Tensor, Tensor]:
    """Return the observations before and after the transitions of a batch."""
    return batch[..., : net.inputs], batch[..., net.inputs : 2 * net.inputs]


def td_gradient(
    net: Net,
    views: Params,
    target: Params,
    batch: Tensor,
    out: Params,
    body: bool = True,
    layers: tuple[Tensor, ...] | None = None,
) -> None:
    """Compute the gradient of the batch's mean (Q(s, a) - y)^2 / 2.

    Double DQN with n-step return R: y = R + bootstrap Q'(s', argmax_a Q(s', a)).

    Args:
        net: The architecture.
        views: Parameters of Q, ``[K, ...]``.
        target: Parameters of Q'.
        batch: Transitions, ``[K, batch, transition_dim]``.
        out: Where the gradient is written.
        body: If False, only the head's gradient.
        layers: Both hidden layers and outputs at s and then s', if already known.
    """
    size = batch.shape[1]
    obs, next_obs = obs_and_next_obs(net, batch)
    reward = batch[..., -3:-2]
    bootstrap = batch[..., -2:-1]
    action = batch[..., -1:].long()
    one, two, values = layers or net.forward_all(views, torch.cat([obs, next_obs], 1))
    next_action = values[:, size:].argmax(-1, keepdim=True)
    target_value = net.forward(target, next_obs).gather(-1, next_action)
    y = target_value.mul_(bootstrap).add_(reward)
    error = values[:, :size].gather(-1, action).sub_(y).div_(size)
    d3 = batch.new_zeros(len(batch), size, net.outputs).scatter_(-1, action, error)
    net.backward(views, obs, one[:, :size], two[:, :size], d3, out, body)


LEARNERS: dict[type[Net], type[Learner]] = {Net: Learner}
"""The learner of each kind of network."""
