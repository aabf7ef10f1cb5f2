"""Deep Q-learning and actor-critic agents as a task: every client is an agent in its own environment."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

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
    TrainingConfig,
    option,
)
from equipoise.environments import dqn_agent, vec_env
from equipoise.environments.agent_task import Agents
from equipoise.environments.classic_control import Physics
from equipoise.environments.heterogeneity import BODIES, SENSES, Floats, Ints, traits_named
from equipoise.environments.obs_encoding import ImageNet
from equipoise.environments.q_network import TOGETHER, Net, Rhythm, copies_of
from equipoise.environments.sac_agent import ActorCritic
from equipoise.environments.vec_env import PhysicsWorld, World
from equipoise.utils import rng as random
from equipoise.utils import rng as streams
from equipoise.utils.errors import UsageError

MODELS = ("mlp", "embedded")


NUMBERED, VECTORS = (
    (0.05, 10),
    (0.01, 1),
)  # target_rate and returns that suit actions of either kind


SUITABLE = [
    f"0 for {own} with numbered actions, {other} with vectors"
    for own, other in zip(NUMBERED, VECTORS, strict=True)
]


LONGEST_RETURN = 1000


ALLOWED = ("dqn", "dqnavg", "dqnavg-im", "perdqnavg", "pfeddqn-rep")


@dataclass(frozen=True)
class AgentConfig(Options):
    """Options of a task whose clients are deep agents."""

    agents: int = option(10, "agents (clients)", low=1)
    u: str = option(
        "", "the agents' numbers in (0, 1), separated by commas; empty for evenly spread ones"
    )
    parallel: int = option(
        8, "parallel copies of each agent's environment: environment steps per gradient step", low=1
    )
    width: int = option(128, "units of each of the two hidden layers", low=1)
    discount: float = option(0.99, "discount of a later reward", low=0, below=1)
    capacity: int = option(100000, "transitions that an agent remembers", low=1)
    learn_after: int = option(1000, "environment steps of an agent before it learns", low=1)
    explore_steps: int = option(
        10000, "environment steps of an agent over which exploration falls to its last value", low=0
    )
    last_epsilon: float = option(0.05, "chance of a random action at last", low=0, high=1)
    target_rate: float = option(
        0.0, f"how far the target net follows in one gradient step; {SUITABLE[0]}", low=0, high=1
    )
    returns: int = option(
        0,
        f"rewards that a target adds up before it asks the target net; {SUITABLE[1]}",
        low=0,
        high=LONGEST_RETURN,
    )
    averaged: int = option(
        20,
        "newest nets of a round of which an agent hands over the mean; 1 for the last alone",
        low=1,
    )
    episodes: int = option(10, "episodes of an evaluation, of each agent", low=1)
    val_episodes: int = option(
        0, "episodes that decisions may be based on, of each agent; 0 for none", low=0
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        newest = self.parallel * max(
            self.returns, NUMBERED[1]
        )  # transitions that may still reach further
        if self.capacity < max(self.learn_after, newest):
            raise UsageError(
                f"capacity is {self.capacity}: must reach learn_after ({self.learn_after}) and {newest}"
            )

    @property
    def numbers(self) -> Floats:
        """u of each agent."""
        if not self.u:
            return (np.arange(self.agents) + 0.5) / self.agents
        try:
            numbers = np.array([float(text) for text in self.u.split(",")])
        except ValueError as error:
            raise UsageError(f"u is '{self.u}': must be numbers separated by commas") from error
        if len(numbers) != self.agents:
            raise UsageError(
                f"u has {len(numbers)} numbers for {self.agents} agents: give one for each"
            )
        if not ((numbers > 0) & (numbers < 1)).all():
            raise UsageError(f"u is '{self.u}': every number must lie strictly between 0 and 1")
        return numbers


@dataclass(frozen=True)
class ClassicConfig(AgentConfig):
    """Options of agents in an environment whose physics we compute."""

    differ: str = option(
        "length", f"how agents differ, separated by commas: {', '.join((*BODIES, *SENSES))}"
    )


class AgentTask(Agents):
    """Scores are `return`: the mean undiscounted return of the greedy policy over fixed episodes."""

    learner_kind: ClassVar[str] = "deep"
    metric = "return"

    def __init__(
        self,
        name: str,
        world: World,
        config: AgentConfig,
        model: str,
        training: TrainingConfig,
        seed: int,
        dtype: torch.dtype = torch.float32,
        net: Net | None = None,
    ) -> None:
        self.name, self.world, self.config, self.training, self.seed, self.dtype = (
            *(name, world, config),
            *(training, seed, dtype),
        )
        embedding = max(1, math.ceil(math.log2(config.agents))) if model == "embedded" else 0
        self.num_clients = config.agents
        sizes = (world.observations, config.width, world.actions, embedding)
        self.net = net or _net(world, model, sizes)
        self.blocks = self.net.blocks

    def subset(self, ids: Ints) -> AgentTask:
        """The task with these agents alone; nets are of the same size."""
        numbers = ",".join(str(number) for number in self.config.numbers[ids])
        config = replace(self.config, agents=len(ids), u=numbers)
        world = self.world.subset(ids)
        return AgentTask(
            self.name, world, config, "", self.training, self.seed, self.dtype, self.net
        )

    def settings(self, batch: int) -> dqn_agent.Settings:
        c, (rate, returns) = self.config, VECTORS if self.world.continuous else NUMBERED
        how = (c.parallel, c.discount, c.capacity, c.learn_after, c.explore_steps, c.last_epsilon)
        return dqn_agent.Settings(
            *how, c.target_rate or rate, batch, c.returns or returns, c.averaged
        )

    def init_params(self, seed: int) -> Params:
        u = random.uniform(
            random.keys(seed, np.zeros(1, np.int64), 0, streams.ACTING[0]), self.net.size
        )[0]
        return self.net.init(torch.from_numpy(u).to(self.dtype))

    def init_data_state(self, ids: Tensor) -> State:
        kept = dqn_agent.fresh(
            self.net, self.settings(self.training.batch_size), len(ids), self.dtype
        )
        return {**kept, "env": self.world.fresh(ids, self.config.parallel, self.seed)}

    def adaptation_scores(
        self, method: Method, params: Params, seed: int
    ) -> Mapping[str, Mapping[str, float]]:
        from equipoise.environments.heldout import returns_of_newcomers

        assert isinstance(self.heldout_clients, AgentTask)
        return returns_of_newcomers(self, self.heldout_clients, method, params, seed)

    def check_method(self, method: Method) -> None:
        """Agents learn by temporal differences: a method that trains by a loss of its own cannot work."""
        below = method.inner if isinstance(method, DelegatingMethod) else method
        own = (
            method.overridden_hooks & {"train", "configure_training", "personal_model"}
            or "receive" in below.overridden_hooks
        )
        if own and method.learner_kind != self.learner_kind:
            raise UsageError(
                f"{method.name} trains in its own way, and agents of task '{self.name}' learn by temporal differences: "
                f"choose {', '.join(ALLOWED)}"
            )

    def warnings(self) -> tuple[str, ...]:
        steps, found = self.training.epochs, []
        if steps < self.world.limit:
            found.append(
                f"a round has {steps} steps and an episode may have {self.world.limit}: episodes go on across rounds, "
                "under the net of the round"
            )
        if self.world.forgets:
            found.append(
                "this simulator does not hand over its state: a resumed run is not the same to the bit, its episodes "
                "start anew"
            )
        return tuple(found)

    def check(self) -> None:
        self.config.numbers  # noqa: B018 (refuses bad ones)

    def num_rows(self, ids: Tensor, split: str) -> Tensor:
        return torch.full_like(
            ids, self.config.val_episodes if split == "val" else self.config.episodes
        )

    def fit_stack(
        self, ids: Tensor, request: LocalTrainRequest, source: State, rng: RngContext
    ) -> tuple[Params, Params, State]:
        """``aux`` may hold ``head_steps`` and ``body_lr``: the rhythm of the two blocks."""
        if request.proximal or request.grad_correction or request.loss:
            raise UsageError(
                f"agents of task '{self.name}' learn by temporal differences, not by a loss of a method"
            )
        counts = sorted(set(request.epochs.tolist()))
        if len(counts) > 1:
            return self._fit_groups(ids, request, source, rng, counts)
        settings = self.settings(rng.training.batch_size)
        lr = request.lr[:, None].to(self.dtype)
        rhythm = Rhythm(
            lr,
            request.aux["body_lr"][:, None].to(self.dtype) if "body_lr" in request.aux else lr,
            int(request.aux["head_steps"][0]) if "head_steps" in request.aux else TOGETHER,
            (
                self.blocks["backbone"][0] in request.trainable,
                self.blocks["head"][0] in request.trainable,
            ),
        )
        if counts[0] == 0:
            return request.params, {}, source
        each = dqn_agent.draws_a_step(self.net, settings, self.world)
        key = random.keys(rng.seed, ids.numpy(), rng.round, streams.ACTING[1 + request.stream])
        u = random.uniform(key, counts[0] * each).reshape(len(ids), counts[0], each)
        flat, after = dqn_agent.train(
            self.world, self.net, settings, rhythm, ids, self.net.pack(request.params), source, u
        )
        return copies_of(self.net.views(flat)), {}, after

    def _fit_groups(
        self,
        ids: Tensor,
        request: LocalTrainRequest,
        source: State,
        rng: RngContext,
        counts: list[int],
    ) -> tuple[Params, Params, State]:
        """Agents with different numbers of steps, those with the same number together."""
        from torch.utils import _pytree as pytree

        params, after = dict(request.params), source
        for count in counts:
            who = (request.epochs == count).nonzero()[:, 0]
            part = replace(
                request,
                params={name: value[who] for name, value in request.params.items()},
                epochs=request.epochs[who],
                lr=request.lr[who],
                aux={name: value[who] for name, value in request.aux.items()},
            )
            held = pytree.tree_map(lambda value, who=who: value[who], source)
            trained, _, moved = self.fit_stack(ids[who], part, held, rng)
            params = {
                name: params[name].index_copy(0, who, value) for name, value in trained.items()
            }
            after = pytree.tree_map(
                lambda old, new, who=who: old.index_copy(0, who, new), after, moved
            )
        return params, {}, after

    def evaluate_stack(self, ids: Tensor, params: Params, split: str) -> Params:
        count = self.config.val_episodes if split == "val" else self.config.episodes
        found = vec_env.returns(self.world, self.net, ids, params, split, count, self.seed)
        return {"return": torch.from_numpy(found.mean(1))}

    def evaluate_server(self, stack: Params, split: str) -> Params:
        """The mean over all agents' environments: each model in each of them."""
        ids, models = torch.arange(self.num_clients), len(stack["w1"])
        wide = {name: value.repeat_interleave(self.num_clients, 0) for name, value in stack.items()}
        count = self.config.episodes if split == "test" else self.config.val_episodes
        found = vec_env.returns(
            self.world, self.net, ids.repeat(models), wide, split, count, self.seed
        )
        return {"return": torch.from_numpy(found.mean(1)).view(models, -1).mean(1)}

    def has_split(self, split: str) -> bool:
        return split == "test" or self.config.val_episodes > 0

    def utility_and_loss(self, scores: Params) -> tuple[Tensor, Tensor]:
        """The return as a share of its range stands for accuracy; there is no loss."""
        low, high = self.world.lowest, self.world.highest
        share = (scores["return"] - low) / (high - low)
        return share, torch.zeros_like(share)


def _net(world: World, model: str, sizes: tuple[int, int, int, int]) -> Net:
    if model == "cnn" and world.image:
        return ImageNet(*sizes, world.image)
    return ActorCritic(*sizes) if world.continuous else Net(*sizes)


def classic(
    name: str,
    physics: Physics,
    config: ClassicConfig,
    model: str,
    training: TrainingConfig,
    seed: int,
) -> AgentTask:
    """A task of classic control."""
    differ = traits_named(config.differ, (*BODIES, *SENSES))
    world = PhysicsWorld.of(physics, config.numbers, differ, seed)
    return AgentTask(name, world, config, model, training, seed)
