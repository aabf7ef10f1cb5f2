"""Tabular Q-learning as a task: clients are agents in an MDP, their model is a table of Q-values per simulation.

`fit` takes `epochs` as local steps and `lr` as the rate eta. All simulations of a run go side by side in one model
q [sims, S, A], in float64; they share nothing but the settings.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from equipoise.core import (
    TrainingConfig,
    option,
)
from equipoise.environments.tabular_task import TabularConfig, TabularTask
from equipoise.utils.errors import UsageError

if TYPE_CHECKING:
    pass
from equipoise.config.schema import with_default
from equipoise.core import Task
from equipoise.environments.linear_task import MODELS, LinearConfig, LinearTask
from equipoise.environments.tabular_mdp import (
    from_file,
    garnet,
    soft_greedy,
    spread,
    toy_text,
    two_state,
    under_policy,
    windy_cliff,
)
from equipoise.tasks import TaskSpec


def build(config: TabularConfig, model: str, training: TrainingConfig, seed: int) -> Task:
    return TabularTask(
        "cliff-walking", toy_text("cliff-walking", config.gamma), config, training, seed
    )


SPEC = TaskSpec(
    name="cliff-walking",
    help="agents in Gymnasium's CliffWalking, by its transition table",
    config=TabularConfig,
    training=TrainingConfig(epochs=50, lr=0.1),
    models=(),
    build=build,
)


def build_frozen_lake(
    config: TabularConfig, model: str, training: TrainingConfig, seed: int
) -> Task:
    return TabularTask("frozen-lake", toy_text("frozen-lake", config.gamma), config, training, seed)


SPEC_FROZEN_LAKE = TaskSpec(
    name="frozen-lake",
    help="agents in Gymnasium's FrozenLake, by its transition table",
    config=TabularConfig,
    training=TrainingConfig(epochs=50, lr=0.1),
    models=(),
    build=build_frozen_lake,
)


def build_taxi(config: TabularConfig, model: str, training: TrainingConfig, seed: int) -> Task:
    return TabularTask("taxi", toy_text("taxi", config.gamma), config, training, seed)


SPEC_TAXI = TaskSpec(
    name="taxi",
    help="agents in Gymnasium's Taxi, by its transition table",
    config=TabularConfig,
    training=TrainingConfig(epochs=50, lr=0.1),
    models=(),
    build=build_taxi,
)


@dataclass(frozen=True)
class TwoStateConfig(TabularConfig):
    actions: int = option(20, "actions", low=1)
    behaviour: str = with_default(TabularConfig, "behaviour", "fixed")
    random_q0: bool = with_default(TabularConfig, "random_q0", True)


def build_two_state(
    config: TwoStateConfig, model: str, training: TrainingConfig, seed: int
) -> Task:
    mdp = two_state(seed, config.actions, config.gamma)
    return TabularTask("two-state", mdp, config, training, seed)


SPEC_TWO_STATE = TaskSpec(
    name="two-state",
    help="agents in the two-state MDP of federated Q-learning, one fixed action each",
    config=TwoStateConfig,
    training=TrainingConfig(epochs=50, lr=0.2),
    models=(),
    build=build_two_state,
)


@dataclass(frozen=True)
class GarnetConfig(TabularConfig):
    states: int = option(10, "states", low=1)
    actions: int = option(5, "actions", low=1)
    branching: int = option(3, "states that follow each state-action pair", low=1)


def build_garnet(config: GarnetConfig, model: str, training: TrainingConfig, seed: int) -> Task:
    mdp = garnet(seed, config.states, config.actions, config.branching, config.gamma)
    return TabularTask("garnet", mdp, config, training, seed)


SPEC_GARNET = TaskSpec(
    name="garnet",
    help="agents in a random MDP: states, actions and branching to choose",
    config=GarnetConfig,
    training=TrainingConfig(epochs=50, lr=0.1),
    models=(),
    build=build_garnet,
)


@dataclass(frozen=True)
class OwnConfig(TabularConfig):
    file: str = option(
        "", ".npz file with P [S, A, S] and R [S, A], optionally start [S] and terminal [S]"
    )


def build_mdp(config: OwnConfig, model: str, training: TrainingConfig, seed: int) -> Task:
    if not config.file:
        raise UsageError(
            "task 'mdp' needs --file with your transition and reward arrays (numpy.savez(path, P=P, R=R))"
        )
    return TabularTask("mdp", from_file(config.file, config.gamma), config, training, seed)


SPEC_MDP = TaskSpec(
    name="mdp",
    help="agents in your own MDP: arrays from a NumPy file",
    config=OwnConfig,
    training=TrainingConfig(epochs=50, lr=0.1),
    models=(),
    build=build_mdp,
)


@dataclass(frozen=True)
class WindyCliffConfig(LinearConfig):
    rank: int = with_default(LinearConfig, "rank", 2)
    wind: float = option(
        0.2,
        "chance of a gust towards the cliff for the agent with u = 1; others have wind * u",
        low=0,
        high=1,
    )
    goal: float = option(1.0, "reward for reaching the goal, in units of what a fall costs", low=0)


def build_windy_cliff(
    config: WindyCliffConfig, model: str, training: TrainingConfig, seed: int
) -> Task:
    """Model v: the values of one policy for everybody, the best one without wind, with chance epsilon of any action."""
    mdps = windy_cliff(spread(config.agents), config.wind, config.gamma, config.goal)
    if model == "v":
        policy = soft_greedy(
            windy_cliff(np.zeros(1), config.wind, config.gamma, config.goal)[0], config.epsilon
        )
        mdps = [under_policy(mdp, policy) for mdp in mdps]
    return LinearTask("windy-cliff", mdps, config, model, training, seed)


SPEC_WINDY_CLIFF = TaskSpec(
    name="windy-cliff",
    help="agents in CliffWalking, each with its own chance of a gust towards the cliff",
    config=WindyCliffConfig,
    training=TrainingConfig(epochs=10, lr=0.1),
    models=MODELS,
    build=build_windy_cliff,
)
