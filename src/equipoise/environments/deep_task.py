"""Deep Q-learning and actor-critic agents as a task: every client is an agent in its environment.

`fit` takes `epochs` as steps (every agent acts once in each of its parallel copies, then takes one
gradient step) and `lr` as Adam's rate. Environments, replay buffer, target network and Adam's
moments are the client's data state: they stay with the client, and episodes continue across rounds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from equipoise.core import (
    DelegatingMethod,
    LocalTrainRequest,
    Method,
    Options,
    Params,
    RngContext,
    State,
    TaskInfo,
    TrainingConfig,
    option,
)
from equipoise.environments import dqn_agent, vec_env
from equipoise.environments.agent_task import RLTask
from equipoise.environments.classic_control import Physics
from equipoise.environments.heterogeneity import (
    INTERFACE_TRAITS,
    PHYSICS_TRAITS,
    Floats,
    Ints,
    parse_traits,
)
from equipoise.environments.obs_encoding import ConvNet
from equipoise.environments.q_network import EVERY_STEP, BlockSchedule, Net, clone_tree
from equipoise.environments.sac_agent import ActorCritic
from equipoise.environments.vec_env import PhysicsVecEnv, VecEnv
from equipoise.utils import rng as streams
from equipoise.utils.errors import UsageError
from equipoise.utils.pytree import map_leaves

MODELS = ("mlp", "embedded")
DISCRETE_TAU = 0.05
DISCRETE_N_STEP = 10
CONTINUOUS_TAU = 0.01
CONTINUOUS_N_STEP = 1
MAX_N_STEP = 1000
DEEP_METHODS = ("dqn", "dqnavg", "dqnavg-im", "perdqnavg", "pfeddqn-rep")


@dataclass(frozen=True)
class DeepRLConfig(Options):
    """Options of a task whose clients are deep agents."""

    agents: int = option(10, "agents (clients)", low=1)
    heterogeneity: str = option(
        "", "the agents' numbers u in (0, 1), separated by commas; empty for evenly spread ones"
    )
    parallel: int = option(
        8, "parallel copies of each agent's environment: environment steps per gradient step", low=1
    )
    width: int = option(128, "units of each of the two hidden layers", low=1)
    discount: float = option(0.99, "discount of a later reward", low=0, below=1)
    capacity: int = option(100000, "transitions in an agent's replay buffer", low=1)
    learning_starts: int = option(1000, "environment steps of an agent before it learns", low=1)
    eps_decay_steps: int = option(
        10000, "environment steps of an agent over which epsilon falls to eps_final", low=0
    )
    eps_final: float = option(0.05, "final chance of a random action", low=0, high=1)
    target_tau: float = option(
        0.0,
        "rate at which the target network follows, per gradient step; 0 for "
        f"{DISCRETE_TAU} with discrete actions, {CONTINUOUS_TAU} with continuous ones",
        low=0,
        high=1,
    )
    n_step: int = option(
        0,
        "rewards that a target sums before it bootstraps; 0 for "
        f"{DISCRETE_N_STEP} with discrete actions, {CONTINUOUS_N_STEP} with continuous ones",
        low=0,
        high=MAX_N_STEP,
    )
    weight_avg_steps: int = option(
        20, "last networks of a round whose mean an agent returns; 1 for the last alone", low=1
    )
    episodes: int = option(10, "episodes of an evaluation, of each agent", low=1)
    val_episodes: int = option(
        0, "episodes that decisions may be based on, of each agent; 0 for none", low=0
    )

    def __post_init__(self) -> None:
        """Check that the replay buffer is large enough.

        Raises:
            UsageError: If it is not.
        """
        super().__post_init__()
        # Transitions that n-step returns may still extend.
        newest = self.parallel * max(self.n_step, DISCRETE_N_STEP)
        if self.capacity < max(self.learning_starts, newest):
            raise UsageError(
                f"capacity is {self.capacity}: "
                f"must reach learning_starts ({self.learning_starts}) and {newest}"
            )

    @property
    def heterogeneity_values(self) -> Floats:
        """The heterogeneity parameter u of each agent, ``[K]``.

        Raises:
            UsageError: If the option does not hold one number in (0, 1) per agent.
        """
        text = self.heterogeneity
        if not text:
            return (np.arange(self.agents) + 0.5) / self.agents
        try:
            values = np.array([float(number) for number in text.split(",")])
        except ValueError as error:
            raise UsageError(
                f"heterogeneity is '{text}': must be numbers separated by commas"
            ) from error
        if len(values) != self.agents:
            raise UsageError(
                f"heterogeneity has {len(values)} numbers for {self.agents} agents: "
                "give one for each"
            )
        if not ((values > 0) & (values < 1)).all():
            raise UsageError(
                f"heterogeneity is '{text}': every number must lie strictly between 0 and 1"
            )
        return values


@dataclass(frozen=True)
class ClassicControlConfig(DeepRLConfig):
    """Options of agents in classic control."""

    differ: str = option(
        "length",
        "how agents differ, separated by commas: "
        f"{', '.join((*PHYSICS_TRAITS, *INTERFACE_TRAITS))}",
    )


class DeepRLTask(RLTask):
    """Deep agents, each in its own environment.

    The score `return` is the mean undiscounted return of the greedy policy over fixed episodes.
    """

    def __init__(
        self,
        name: str,
        env: VecEnv,
        config: DeepRLConfig,
        model: str,
        training: TrainingConfig,
        seed: int,
        dtype: torch.dtype = torch.float32,
        net: Net | None = None,
    ) -> None:
        """Create the task.

        Args:
            name: Name of the task.
            env: All agents' environments.
            config: Options of the agents.
            model: "mlp", "embedded" (each agent has its own input) or "cnn". Ignored with `net`.
            training: Defaults of local training.
            seed: Seed of the environments.
            dtype: Type of the parameters.
            net: The architecture, if it is already known.
        """
        self.env = env
        self.config = config
        self.seed = seed
        self.dtype = dtype
        self.net = net or _build_net(env, model, config)
        self.info = TaskInfo(
            name,
            config.agents,
            self.net.blocks,
            training,
            learner_kind="deep",
            metric="return",
        )

    def subset(self, ids: Ints) -> DeepRLTask:
        """Return the task with these agents alone and networks of the same size."""
        values = ",".join(str(value) for value in self.config.heterogeneity_values[ids])
        config = replace(self.config, agents=len(ids), heterogeneity=values)
        env = self.env.subset(ids)
        return DeepRLTask(
            self.info.name, env, config, "", self.info.training, self.seed, self.dtype, self.net
        )

    def hparams(self, batch_size: int) -> dqn_agent.AgentHParams:
        """Return the agents' hyperparameters; 0 in the options selects a default."""
        config = self.config
        continuous = self.env.continuous
        default_tau = CONTINUOUS_TAU if continuous else DISCRETE_TAU
        default_n_step = CONTINUOUS_N_STEP if continuous else DISCRETE_N_STEP
        return dqn_agent.AgentHParams(
            num_envs=config.parallel,
            discount=config.discount,
            capacity=config.capacity,
            learning_starts=config.learning_starts,
            eps_decay_steps=config.eps_decay_steps,
            eps_final=config.eps_final,
            tau=config.target_tau or default_tau,
            batch_size=batch_size,
            n_step=config.n_step or default_n_step,
            weight_avg_steps=config.weight_avg_steps,
        )

    def init_params(self, seed: int) -> Params:
        """Return random initial parameters."""
        key = streams.keys(seed, np.zeros(1, np.int64), 0, streams.ACTING[0])
        u = streams.uniform(key, self.net.size)[0]
        return self.net.init(torch.from_numpy(u).to(self.dtype))

    def init_data_state(self, ids: Tensor) -> State:
        """Return the state of agents that have not acted."""
        hparams = self.hparams(self.info.training.batch_size)
        state = dqn_agent.init_state(self.net, hparams, len(ids), self.dtype)
        return {**state, "env": self.env.init_state(ids, self.config.parallel, self.seed)}

    def check_method(self, method: Method) -> None:
        """Refuse methods that train by a loss of their own: agents learn by temporal differences.

        Raises:
            UsageError: If the method does not suit.
        """
        inner = method.inner if isinstance(method, DelegatingMethod) else method
        trains_itself = (
            method.overridden_hooks & {"train", "configure_training", "personal_model"}
            or "receive" in inner.overridden_hooks
        )
        if trains_itself and method.capabilities.learner_kind != self.info.learner_kind:
            raise UsageError(
                f"{method.name} trains in its own way, and agents of task '{self.info.name}' "
                f"learn by temporal differences: choose {', '.join(DEEP_METHODS)}"
            )

    def warnings(self) -> tuple[str, ...]:
        """Return what a user should know about these episodes."""
        steps = self.info.training.epochs
        limit = self.env.max_episode_steps
        messages = []
        if steps < limit:
            messages.append(
                f"a round has {steps} steps and an episode may have {limit}: "
                "episodes go on across rounds, under the net of the round"
            )
        if self.env.not_checkpointable:
            messages.append(
                "this simulator does not hand over its state: a resumed run is not the same to the "
                "bit, its episodes start anew"
            )
        return tuple(messages)

    def check(self) -> None:
        """Refuse a bad option `heterogeneity`."""
        self.config.heterogeneity_values  # noqa: B018 (raises)

    def num_rows(self, ids: Tensor, split: str) -> Tensor:
        """Return the number of evaluation episodes of each agent."""
        episodes = self.config.val_episodes if split == "val" else self.config.episodes
        return torch.full_like(ids, episodes)

    def fit_stack(
        self, ids: Tensor, request: LocalTrainRequest, data_state: State, rng: RngContext
    ) -> tuple[Params, Params, State]:
        """Train K agents; ``aux`` may hold ``head_steps`` and ``body_lr`` (see `BlockSchedule`).

        Raises:
            UsageError: If the request has a loss, which agents do not use.
        """
        if request.proximal or request.grad_correction or request.loss:
            raise UsageError(
                f"agents of task '{self.info.name}' learn by temporal differences, "
                "not by a loss of a method"
            )
        counts = sorted(set(request.epochs.tolist()))
        if len(counts) > 1:
            return self._fit_groups(ids, request, data_state, rng, counts)
        steps = counts[0]
        if steps == 0:
            return request.params, {}, data_state
        hparams = self.hparams(rng.training.batch_size)
        noise_dim = dqn_agent.noise_dim_per_step(self.net, hparams, self.env)
        key = streams.keys(rng.seed, ids.numpy(), rng.round, streams.ACTING[1 + request.stream])
        u = streams.uniform(key, steps * noise_dim).reshape(len(ids), steps, noise_dim)
        flat, after = dqn_agent.train(
            self.env,
            self.net,
            hparams,
            self._schedule(request),
            ids,
            self.net.pack(request.params),
            data_state,
            u,
        )
        return clone_tree(self.net.views(flat)), {}, after

    def _schedule(self, request: LocalTrainRequest) -> BlockSchedule:
        """Read when backbone and head learn from a request."""
        lr = request.lr[:, None].to(self.dtype)
        body_lr = lr
        if "body_lr" in request.aux:
            body_lr = request.aux["body_lr"][:, None].to(self.dtype)
        head_steps = EVERY_STEP
        if "head_steps" in request.aux:
            head_steps = int(request.aux["head_steps"][0])
        backbone = self.info.blocks["backbone"][0] in request.trainable
        head = self.info.blocks["head"][0] in request.trainable
        return BlockSchedule(lr, body_lr, head_steps, (backbone, head))

    def _fit_groups(
        self,
        ids: Tensor,
        request: LocalTrainRequest,
        data_state: State,
        rng: RngContext,
        counts: list[int],
    ) -> tuple[Params, Params, State]:
        """Train agents with different numbers of steps, one group per number."""
        params = dict(request.params)
        after = data_state
        for count in counts:
            rows = (request.epochs == count).nonzero()[:, 0]
            part = replace(
                request,
                params={name: value[rows] for name, value in request.params.items()},
                epochs=request.epochs[rows],
                lr=request.lr[rows],
                aux={name: value[rows] for name, value in request.aux.items()},
            )
            state = map_leaves(lambda value, rows=rows: value[rows], data_state)
            trained, _, new_state = self.fit_stack(ids[rows], part, state, rng)
            for name, value in trained.items():
                params[name] = params[name].index_copy(0, rows, value)
            after = map_leaves(
                lambda old, new, rows=rows: old.index_copy(0, rows, new), after, new_state
            )
        return params, {}, after

    def evaluate_stack(self, ids: Tensor, params: Params, split: str) -> Params:
        """Return each agent's mean return in its own environment, ``[K]``."""
        episodes = self.config.val_episodes if split == "val" else self.config.episodes
        returns = vec_env.episode_returns(
            self.env, self.net, ids, params, split, episodes, self.seed
        )
        return {"return": torch.from_numpy(returns.mean(1))}

    def evaluate_server(self, stack: Params, split: str) -> Params:
        """Return the mean return of each model ``[M, ...]`` over all agents' environments."""
        models = len(stack["w1"])
        ids = torch.arange(self.info.num_clients).repeat(models)
        repeated = {
            name: value.repeat_interleave(self.info.num_clients, 0) for name, value in stack.items()
        }
        episodes = self.config.episodes if split == "test" else self.config.val_episodes
        returns = vec_env.episode_returns(
            self.env, self.net, ids, repeated, split, episodes, self.seed
        )
        return {"return": torch.from_numpy(returns.mean(1)).view(models, -1).mean(1)}

    def has_split(self, split: str) -> bool:
        """Return True for "test", and for the others if there are validation episodes."""
        return split == "test" or self.config.val_episodes > 0

    def utility_and_loss(self, scores: Params) -> tuple[Tensor, Tensor]:
        """Return the return as a share of its range in place of accuracy; the loss is 0."""
        low = self.env.min_return
        high = self.env.max_return
        share = (scores["return"] - low) / (high - low)
        return share, torch.zeros_like(share)


def _build_net(env: VecEnv, model: str, config: DeepRLConfig) -> Net:
    """Return the architecture for an environment's observations and actions."""
    embedding = max(1, math.ceil(math.log2(config.agents))) if model == "embedded" else 0
    sizes = (env.obs_dim, config.width, env.num_actions, embedding)
    if model == "cnn" and env.image_shape:
        return ConvNet(*sizes, env.image_shape)
    return ActorCritic(*sizes) if env.continuous else Net(*sizes)


def build_classic_control(
    name: str,
    physics: Physics,
    config: ClassicControlConfig,
    model: str,
    training: TrainingConfig,
    seed: int,
) -> DeepRLTask:
    """Build a task of classic control; see `DeepRLTask` for the arguments.

    Args:
        name: Name of the task.
        physics: Physics of the environment.
        config: Options of the task.
        model: Name of the model.
        training: Settings of local training.
        seed: Seed of the run.

    Returns:
        The task.
    """
    differ = parse_traits(config.differ, (*PHYSICS_TRAITS, *INTERFACE_TRAITS))
    env = PhysicsVecEnv.from_traits(physics, config.heterogeneity_values, differ, seed)
    return DeepRLTask(name, env, config, model, training, seed)
