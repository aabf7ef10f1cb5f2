"""Tasks of deep reinforcement learning: clients are agents, each in its own environment.

See `equipoise.environments.deep_task` for how agents learn.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from equipoise.config.schema import with_default
from equipoise.core import ExperimentTask, TrainingConfig, option
from equipoise.environments.classic_control import Acrobot, CartPole, Pendulum, Physics
from equipoise.environments.deep_task import (
    MODELS,
    ClassicControlConfig,
    DeepRLConfig,
    DeepRLTask,
    build_classic_control,
)
from equipoise.environments.gym_env import (
    GymVecEnv,
    checked_factories,
    env_factories,
    kwargs_of_agents,
    parse_env_kwargs,
)
from equipoise.environments.heterogeneity import INTERFACE_TRAITS, AgentInterface, parse_traits
from equipoise.environments.obs_encoding import NORMALISATION_STEPS, obs_mean_std
from equipoise.tasks import TaskSpec
from equipoise.utils.errors import UsageError

FLOAT32_BYTES = 4


@dataclass(frozen=True)
class PendulumConfig(ClassicControlConfig):
    """Options of agents in Pendulum, which learn after every step of one environment."""

    parallel: int = with_default(ClassicControlConfig, "parallel", 1)
    width: int = with_default(ClassicControlConfig, "width", 64)


@dataclass(frozen=True)
class GymConfig(DeepRLConfig):
    """Options of agents in a Gymnasium environment."""

    env_id: str = option(
        "",
        "Gymnasium's name of the environment, such as LunarLander-v3, or your own as file.py:Class",
    )
    env_kwargs: str = option(
        "", "its arguments, as JSON or a .json file: an object, or a list with one for each agent"
    )
    differ: str = option(
        "", f"how agents differ besides that, separated by commas: {', '.join(INTERFACE_TRAITS)}"
    )
    frames: int = option(1, "newest observations that an agent sees at once", low=1)
    normalise: bool = option(
        False,
        "normalise observations by mean and standard deviation, "
        f"as found in {NORMALISATION_STEPS} random steps before training",
    )
    return_low: float = option(0.0, "a poor return: FedPolicy counts returns from here")
    return_high: float = option(1.0, "a good return: FedPolicy counts returns up to here")

    def __post_init__(self) -> None:
        """Check the range of returns.

        Raises:
            UsageError: If it is empty.
        """
        super().__post_init__()
        if self.return_low >= self.return_high:
            raise UsageError(
                f"return_low is {self.return_low}: must be below return_high ({self.return_high})"
            )


def build_gym(config: GymConfig, model: str, training: TrainingConfig, seed: int) -> ExperimentTask:
    """Build the task gym.

    Args:
        config: Options of the task.
        model: Name of the model.
        training: Settings of local training.
        seed: Seed of the run.

    Returns:
        The task.

    Raises:
        UsageError: If the options do not suit the environment.
    """
    factories = env_factories(config.env_id, parse_env_kwargs(config.env_kwargs, config.agents))
    return _task_of_factories("gym", config.env_id, factories, config, model, training, seed)


def environment_spec(
    make: Callable[..., Any],
    env_kwargs: Mapping[str, object] | Sequence[Mapping[str, object]] | None,
    name: str,
) -> TaskSpec:
    """See :meth:`equipoise.Task.from_environment`.

    Args:
        make: A class, or a function that makes an environment.
        env_kwargs: Keyword arguments of all environments, or of each agent's.
        name: Name of the task.

    Returns:
        The task as a value, which runs build.

    Raises:
        UsageError: If `make` is an environment instead of a way to make one.
    """
    if not callable(make):
        raise UsageError(
            f"environment is a {type(make).__name__}: must be a class or a function that makes "
            "one, so that every agent gets its own"
        )
    label = getattr(make, "__name__", name)

    def build(config: GymConfig, model: str, training: TrainingConfig, seed: int) -> ExperimentTask:
        kwargs = kwargs_of_agents(_to_plain_dicts(env_kwargs), config.agents)
        factories = checked_factories(make, label, kwargs)
        return _task_of_factories(name, label, factories, config, model, training, seed)

    return TaskSpec(
        name,
        "an environment given in Python",
        GymConfig,
        GYM.training,
        GYM.models,
        build,
        in_python=True,
    )


def env_kwargs_text(
    env_kwargs: Mapping[str, object] | Sequence[Mapping[str, object]] | None,
) -> str:
    """Return keyword arguments of environments as the option `env_kwargs` takes them.

    Raises:
        UsageError: If JSON cannot write one of them.
    """
    try:
        return json.dumps(_to_plain_dicts(env_kwargs)) if env_kwargs else ""
    except TypeError as error:
        raise UsageError(
            f"env_kwargs cannot be written as JSON ({error}): give the class itself to "
            "Task.from_environment"
        ) from error


def _to_plain_dicts(
    env_kwargs: Mapping[str, object] | Sequence[Mapping[str, object]] | None,
) -> dict[str, object] | list[dict[str, object]]:
    """Return keyword arguments as a dictionary, or a list of them."""
    if env_kwargs is None:
        return {}
    if isinstance(env_kwargs, Mapping):
        return dict(env_kwargs)
    return [dict(one) for one in env_kwargs]


def _task_of_factories(
    name: str,
    env_id: str,
    factories: Sequence[Callable[..., Any]],
    config: GymConfig,
    model: str,
    training: TrainingConfig,
    seed: int,
) -> ExperimentTask:
    """Build the task of agents in environments that factories make.

    Args:
        name: Name of the task.
        env_id: Name of the environment in errors.
        factories: Factory of each agent's environment.
        config: Options of the task.
        model: Name of the model.
        training: Settings of local training.
        seed: Seed of the run.
    """
    differ = parse_traits(config.differ, tuple(INTERFACE_TRAITS))
    env = GymVecEnv(factories, config.return_low, config.return_high, frames=config.frames)
    _check_gym_options(config, env_id, model, env)
    if config.normalise:
        env.obs_stats = [
            obs_mean_std(make, env.encoder, agent) for agent, make in enumerate(factories)
        ]
    if not env.continuous and "motor" in differ:
        raise UsageError(
            f"differ is '{config.differ}', but numbered actions of '{env_id}' have no strength"
        )
    values = config.heterogeneity_values
    env.interface = AgentInterface.from_traits(differ, values, env.obs_dim, seed)
    return DeepRLTask(name, env, config, model, training, seed)


def _check_gym_options(config: GymConfig, env_id: str, model: str, env: GymVecEnv) -> None:
    """Refuse options that do not suit the environment or this machine's memory."""
    if env.continuous and model != "mlp":
        raise UsageError(
            f"'{env_id}' takes a vector as its action, and such agents have no model '{model}'"
        )
    if model == "cnn" and not env.image_shape:
        raise UsageError(
            f"'{env_id}' shows no image, and model 'cnn' sees nothing else: give --model mlp"
        )
    if config.normalise and (env.image_shape or env.encoder.num_states):
        raise UsageError(
            f"normalise is for vectors, and '{env_id}' shows images or numbered states"
        )
    transition_bytes = config.agents * FLOAT32_BYTES * (2 * env.obs_dim + 3)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    max_capacity = memory // transition_bytes
    if config.capacity > max_capacity:
        raise UsageError(
            f"capacity is {config.capacity}: this machine's memory holds {max_capacity} "
            f"transitions of {config.agents} agents that see {env.obs_dim} numbers"
        )


def _classic_control_task(
    name: str,
    help: str,
    physics: Physics,
    config: type[ClassicControlConfig] = ClassicControlConfig,
    epochs: int = 100,
    models: tuple[str, ...] = MODELS,
) -> TaskSpec:
    """Declare the task of agents in one environment of classic control."""

    def build(
        config: ClassicControlConfig, model: str, training: TrainingConfig, seed: int
    ) -> ExperimentTask:
        return build_classic_control(name, physics, config, model, training, seed)

    training = TrainingConfig(epochs=epochs, lr=1e-3, batch_size=64)
    return TaskSpec(name, help, config, training, models, build)


CARTPOLE = _classic_control_task(
    "cartpole", "deep agents in CartPole, each with poles of its own length", CartPole()
)
ACROBOT = _classic_control_task(
    "acrobot", "deep agents in Acrobot, each with links of its own length", Acrobot()
)
PENDULUM = _classic_control_task(
    "pendulum",
    "actor-critic agents in Pendulum, each with a rod of its own length",
    Pendulum(),
    PendulumConfig,
    epochs=200,
    models=("mlp",),
)
GYM = TaskSpec(
    name="gym",
    help="deep agents in any Gymnasium environment (--env-id)",
    config=GymConfig,
    training=TrainingConfig(epochs=100, lr=1e-3, batch_size=64),
    models=(*MODELS, "cnn"),
    build=build_gym,
)
