"""Deep Q-learning as a task: clients are agents in environments of their own, their model is a Q-network.

`fit` takes `epochs` as steps (every agent acts once in each of its parallel copies, then takes one gradient step) and
`lr` as Adam's rate. Environment, memory, target net and Adam are state of the client's source: they stay with it, and
trajectories go on across rounds.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from equipoise.config.schema import with_default
from equipoise.core import (
    Task,
    TrainingConfig,
    option,
)
from equipoise.environments.classic_control import Acrobot, CartPole, Pendulum
from equipoise.environments.deep_task import MODELS, AgentConfig, AgentTask, ClassicConfig, classic
from equipoise.environments.gym_env import GymWorld, keyword_arguments, makers
from equipoise.environments.heterogeneity import SENSES, Senses, traits_named
from equipoise.environments.obs_encoding import TRIED, usual_sizes
from equipoise.tasks import TaskSpec
from equipoise.utils.errors import UsageError


def build(config: ClassicConfig, model: str, training: TrainingConfig, seed: int) -> Task:
    return classic("cartpole", CartPole(), config, model, training, seed)


SPEC = TaskSpec(
    name="cartpole",
    help="deep agents in CartPole, each with poles of its own length",
    config=ClassicConfig,
    training=TrainingConfig(epochs=100, lr=1e-3, batch_size=64),
    models=MODELS,
    build=build,
)


def build_acrobot(config: ClassicConfig, model: str, training: TrainingConfig, seed: int) -> Task:
    return classic("acrobot", Acrobot(), config, model, training, seed)


SPEC_ACROBOT = TaskSpec(
    name="acrobot",
    help="deep agents in Acrobot, each with links of its own length",
    config=ClassicConfig,
    training=TrainingConfig(epochs=100, lr=1e-3, batch_size=64),
    models=MODELS,
    build=build_acrobot,
)


@dataclass(frozen=True)
class PendulumConfig(ClassicConfig):
    """Options of agents in Pendulum, who learn after every step of one environment."""

    parallel: int = with_default(ClassicConfig, "parallel", 1)
    width: int = with_default(ClassicConfig, "width", 64)


def build_pendulum(config: PendulumConfig, model: str, training: TrainingConfig, seed: int) -> Task:
    return classic("pendulum", Pendulum(), config, model, training, seed)


SPEC_PENDULUM = TaskSpec(
    name="pendulum",
    help="actor-critic agents in Pendulum, each with a rod of its own length",
    config=PendulumConfig,
    training=TrainingConfig(epochs=200, lr=1e-3, batch_size=64),
    models=("mlp",),
    build=build_pendulum,
)


NUMBER = 4  # bytes of a number that is remembered


@dataclass(frozen=True)
class GymConfig(AgentConfig):
    """Options of agents in an environment that Gymnasium makes."""

    env_id: str = option(
        "",
        "Gymnasium's name of the environment, such as LunarLander-v3, or your own as file.py:Class",
    )
    env_kwargs: str = option(
        "", "its arguments, as JSON or a .json file: an object, or a list with one for each agent"
    )
    differ: str = option(
        "", f"how agents differ beside that, separated by commas: {', '.join(SENSES)}"
    )
    frames: int = option(1, "newest observations that an agent sees at once", low=1)
    normalise: bool = option(
        False,
        f"take mean and spread out of an agent's observations, as found in {TRIED} random steps before training",
    )
    return_low: float = option(0.0, "a poor return: FedPolicy counts returns from here")
    return_high: float = option(1.0, "a good return: FedPolicy counts returns up to here")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.return_low >= self.return_high:
            raise UsageError(
                f"return_low is {self.return_low}: must be below return_high ({self.return_high})"
            )


def build_gym(config: GymConfig, model: str, training: TrainingConfig, seed: int) -> Task:
    differ = traits_named(config.differ, tuple(SENSES))
    made = makers(config.env_id, keyword_arguments(config.env_kwargs, config.agents))
    world = GymWorld(made, config.return_low, config.return_high, frames=config.frames)
    _check(config, model, world)
    if config.normalise:
        world.usual = [usual_sizes(make, world.sight, agent) for agent, make in enumerate(made)]
    if not world.continuous and "motor" in differ:
        raise UsageError(
            f"differ is '{config.differ}', but numbered actions of '{config.env_id}' have no strength"
        )
    world.senses = Senses.of(differ, config.numbers, world.observations, seed)
    return AgentTask("gym", world, config, model, training, seed)


def _check(config: GymConfig, model: str, world: GymWorld) -> None:
    """Refuse what the environment, once it is known, does not go with."""
    if world.continuous and model != "mlp":
        raise UsageError(
            f"'{config.env_id}' takes a vector as its action, and such agents have no model '{model}'"
        )
    if model == "cnn" and not world.image:
        raise UsageError(
            f"'{config.env_id}' shows no image, and model 'cnn' sees nothing else: give --model mlp"
        )
    if config.normalise and (world.image or world.sight.kinds):
        raise UsageError(
            f"normalise is for vectors, and '{config.env_id}' shows images or numbered states"
        )
    each = (
        config.agents * NUMBER * (2 * world.observations + 3)
    )  # bytes of a transition of every agent
    most = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // each
    if config.capacity > most:
        raise UsageError(
            f"capacity is {config.capacity}: this machine's memory holds {most} transitions of {config.agents} agents "
            f"that see {world.observations} numbers"
        )


SPEC_GYM = TaskSpec(
    name="gym",
    help="deep agents in any Gymnasium environment (--env-id)",
    config=GymConfig,
    training=TrainingConfig(epochs=100, lr=1e-3, batch_size=64),
    models=(*MODELS, "cnn"),
    build=build_gym,
)
