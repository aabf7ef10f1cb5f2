"""Tasks of tabular Q-learning: clients are agents in an MDP, each with its own table.

See `equipoise.environments.tabular_task` for how agents learn.
"""

from __future__ import annotations

from dataclasses import dataclass

from equipoise.config.schema import with_default
from equipoise.core import ExperimentTask, TrainingConfig, option
from equipoise.environments.tabular_mdp import garnet, gymnasium_mdp, load_mdp, two_state
from equipoise.environments.tabular_task import TabularConfig, TabularTask
from equipoise.tasks import TaskSpec
from equipoise.utils.errors import UsageError


@dataclass(frozen=True)
class TwoStateConfig(TabularConfig):
    """Options of the two-state MDP."""

    actions: int = option(20, "actions", low=1)
    behaviour: str = with_default(TabularConfig, "behaviour", "fixed")
    random_q0: bool = with_default(TabularConfig, "random_q0", True)


@dataclass(frozen=True)
class GarnetConfig(TabularConfig):
    """Options of a random MDP."""

    states: int = option(10, "states", low=1)
    actions: int = option(5, "actions", low=1)
    branching: int = option(3, "states that follow each state-action pair", low=1)


@dataclass(frozen=True)
class MDPFileConfig(TabularConfig):
    """Options of a user's MDP."""

    file: str = option(
        "", ".npz file with P [S, A, S] and R [S, A], optionally start [S] and terminal [S]"
    )


def build_cliff_walking(
    config: TabularConfig, model: str, training: TrainingConfig, seed: int
) -> ExperimentTask:
    """Build the task cliff-walking."""
    mdp = gymnasium_mdp("cliff-walking", config.gamma)
    return TabularTask("cliff-walking", mdp, config, training, seed)


def build_frozen_lake(
    config: TabularConfig, model: str, training: TrainingConfig, seed: int
) -> ExperimentTask:
    """Build the task frozen-lake."""
    mdp = gymnasium_mdp("frozen-lake", config.gamma)
    return TabularTask("frozen-lake", mdp, config, training, seed)


def build_taxi(
    config: TabularConfig, model: str, training: TrainingConfig, seed: int
) -> ExperimentTask:
    """Build the task taxi."""
    return TabularTask("taxi", gymnasium_mdp("taxi", config.gamma), config, training, seed)


def build_two_state(
    config: TwoStateConfig, model: str, training: TrainingConfig, seed: int
) -> ExperimentTask:
    """Build the task two-state."""
    mdp = two_state(seed, config.actions, config.gamma)
    return TabularTask("two-state", mdp, config, training, seed)


def build_garnet(
    config: GarnetConfig, model: str, training: TrainingConfig, seed: int
) -> ExperimentTask:
    """Build the task garnet."""
    mdp = garnet(seed, config.states, config.actions, config.branching, config.gamma)
    return TabularTask("garnet", mdp, config, training, seed)


def build_mdp(
    config: MDPFileConfig, model: str, training: TrainingConfig, seed: int
) -> ExperimentTask:
    """Build the task mdp.

    Raises:
        UsageError: If no file is given, or it does not hold an MDP.
    """
    if not config.file:
        raise UsageError(
            "task 'mdp' needs --file with your transition and reward arrays "
            "(numpy.savez(path, P=P, R=R))"
        )
    return TabularTask("mdp", load_mdp(config.file, config.gamma), config, training, seed)


CLIFF_WALKING = TaskSpec(
    name="cliff-walking",
    help="agents in Gymnasium's CliffWalking, by its transition table",
    config=TabularConfig,
    training=TrainingConfig(epochs=50, lr=0.1),
    models=(),
    build=build_cliff_walking,
)
FROZEN_LAKE = TaskSpec(
    name="frozen-lake",
    help="agents in Gymnasium's FrozenLake, by its transition table",
    config=TabularConfig,
    training=TrainingConfig(epochs=50, lr=0.1),
    models=(),
    build=build_frozen_lake,
)
TAXI = TaskSpec(
    name="taxi",
    help="agents in Gymnasium's Taxi, by its transition table",
    config=TabularConfig,
    training=TrainingConfig(epochs=50, lr=0.1),
    models=(),
    build=build_taxi,
)
TWO_STATE = TaskSpec(
    name="two-state",
    help="agents in the two-state MDP of federated Q-learning, one fixed action each",
    config=TwoStateConfig,
    training=TrainingConfig(epochs=50, lr=0.2),
    models=(),
    build=build_two_state,
)
GARNET = TaskSpec(
    name="garnet",
    help="agents in a random MDP: states, actions and branching to choose",
    config=GarnetConfig,
    training=TrainingConfig(epochs=50, lr=0.1),
    models=(),
    build=build_garnet,
)
MDP = TaskSpec(
    name="mdp",
    help="agents in your own MDP: arrays from a NumPy file",
    config=MDPFileConfig,
    training=TrainingConfig(epochs=50, lr=0.1),
    models=(),
    build=build_mdp,
)
