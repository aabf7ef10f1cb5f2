"""Any Gymnasium environment: double DQN where actions are numbered, soft actor-critic where they are vectors."""

from __future__ import annotations

import os
from dataclasses import dataclass

from equipoise.contract import Task, TrainingConfig, option
from equipoise.core.errors import UsageError
from equipoise.frl.deep.gym_world import GymWorld, keyword_arguments, makers
from equipoise.frl.deep.sight import TRIED, usual_sizes
from equipoise.frl.deep.task import MODELS, AgentConfig, AgentTask
from equipoise.frl.deep.traits import SENSES, Senses, traits_named
from equipoise.tasks import TaskSpec

NUMBER = 4  # bytes of a number that is remembered


@dataclass(frozen=True)
class GymConfig(AgentConfig):
    """Options of agents in an environment that Gymnasium makes."""

    env_id: str = option(
        "", "Gymnasium's name of the environment, such as LunarLander-v3, or your own as file.py:Class"
    )
    env_kwargs: str = option("", "its arguments, as JSON or a .json file: an object, or a list with one for each agent")
    differ: str = option("", f"how agents differ beside that, separated by commas: {', '.join(SENSES)}")
    frames: int = option(1, "newest observations that an agent sees at once", low=1)
    normalise: bool = option(
        False, f"take mean and spread out of an agent's observations, as found in {TRIED} random steps before training"
    )
    return_low: float = option(0.0, "a poor return: FedPolicy counts returns from here")
    return_high: float = option(1.0, "a good return: FedPolicy counts returns up to here")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.return_low >= self.return_high:
            raise UsageError(f"return_low is {self.return_low}: must be below return_high ({self.return_high})")


def build(config: GymConfig, model: str, training: TrainingConfig, seed: int) -> Task:
    differ = traits_named(config.differ, tuple(SENSES))
    made = makers(config.env_id, keyword_arguments(config.env_kwargs, config.agents))
    world = GymWorld(made, config.return_low, config.return_high, frames=config.frames)
    _check(config, model, world)
    if config.normalise:
        world.usual = [usual_sizes(make, world.sight, agent) for agent, make in enumerate(made)]
    if not world.continuous and "motor" in differ:
        raise UsageError(f"differ is '{config.differ}', but numbered actions of '{config.env_id}' have no strength")
    world.senses = Senses.of(differ, config.numbers, world.observations, seed)
    return AgentTask("gym", world, config, model, training, seed)


def _check(config: GymConfig, model: str, world: GymWorld) -> None:
    """Refuse what the environment, once it is known, does not go with."""
    if world.continuous and model != "mlp":
        raise UsageError(f"'{config.env_id}' takes a vector as its action, and such agents have no model '{model}'")
    if model == "cnn" and not world.image:
        raise UsageError(f"'{config.env_id}' shows no image, and model 'cnn' sees nothing else: give --model mlp")
    if config.normalise and (world.image or world.sight.kinds):
        raise UsageError(f"normalise is for vectors, and '{config.env_id}' shows images or numbered states")
    each = config.agents * NUMBER * (2 * world.observations + 3)  # bytes of a transition of every agent
    most = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // each
    if config.capacity > most:
        raise UsageError(
            f"capacity is {config.capacity}: this machine's memory holds {most} transitions of {config.agents} agents "
            f"that see {world.observations} numbers"
        )


SPEC = TaskSpec(
    name="gym",
    help="deep agents in any Gymnasium environment (--env-id)",
    config=GymConfig,
    training=TrainingConfig(epochs=100, lr=1e-3, batch_size=64),
    models=(*MODELS, "cnn"),
    build=build,
)
