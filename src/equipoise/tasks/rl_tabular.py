"""Tasks of tabular Q-learning: clients are agents in an MDP, each with its own table.

See `equipoise.environments.tabular_task` for how agents learn.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from equipoise.config.schema import with_default
from equipoise.core import ExperimentTask, TrainingConfig, option
from equipoise.environments.tabular_mdp import (
    TabularMDP,
    garnet,
    gymnasium_mdp,
    load_mdp,
    two_state,
)
from equipoise.environments.tabular_task import TabularConfig, TabularTask
from equipoise.tasks import TaskSpec
from equipoise.utils.errors import UsageError

Config = TypeVar("Config", bound=TabularConfig)


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


def _load_mdp_file(config: MDPFileConfig, seed: int) -> TabularMDP:
    """Load the user's MDP.

    Raises:
        UsageError: If no file is given, or it does not hold an MDP.
    """
    if not config.file:
        raise UsageError(
            "task 'mdp' needs --file with your transition and reward arrays "
            "(numpy.savez(path, P=P, R=R))"
        )
    return load_mdp(config.file, config.gamma)


def _tabular_task(
    name: str,
    help: str,
    make_mdp: Callable[[Config, int], TabularMDP],
    config: type[Config],
    lr: float = 0.1,
) -> TaskSpec:
    """Declare the task of agents in one MDP, made from the options and the seed."""

    def build(config: Config, model: str, training: TrainingConfig, seed: int) -> ExperimentTask:
        return TabularTask(name, make_mdp(config, seed), config, training, seed)

    return TaskSpec(name, help, config, TrainingConfig(epochs=50, lr=lr), (), build)


CLIFF_WALKING = _tabular_task(
    "cliff-walking",
    "agents in Gymnasium's CliffWalking, by its transition table",
    lambda config, seed: gymnasium_mdp("cliff-walking", config.gamma),
    TabularConfig,
)
FROZEN_LAKE = _tabular_task(
    "frozen-lake",
    "agents in Gymnasium's FrozenLake, by its transition table",
    lambda config, seed: gymnasium_mdp("frozen-lake", config.gamma),
    TabularConfig,
)
TAXI = _tabular_task(
    "taxi",
    "agents in Gymnasium's Taxi, by its transition table",
    lambda config, seed: gymnasium_mdp("taxi", config.gamma),
    TabularConfig,
)
TWO_STATE = _tabular_task(
    "two-state",
    "agents in the two-state MDP of federated Q-learning, one fixed action each",
    lambda config, seed: two_state(seed, config.actions, config.gamma),
    TwoStateConfig,
    lr=0.2,
)
GARNET = _tabular_task(
    "garnet",
    "agents in a random MDP: states, actions and branching to choose",
    lambda config, seed: garnet(
        seed, config.states, config.actions, config.branching, config.gamma
    ),
    GarnetConfig,
)
MDP = _tabular_task(
    "mdp", "agents in your own MDP: arrays from a NumPy file", _load_mdp_file, MDPFileConfig
)
