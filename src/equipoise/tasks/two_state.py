"""The two-state MDP of federated Q-learning (arXiv 2305.10697): 20 actions, each agent always plays its own one."""

from __future__ import annotations

from dataclasses import dataclass

from equipoise.contract import Task, TrainingConfig, option
from equipoise.core.options import with_default
from equipoise.frl.mdp import two_state
from equipoise.frl.task import TabularConfig, TabularTask
from equipoise.tasks import TaskSpec


@dataclass(frozen=True)
class TwoStateConfig(TabularConfig):
    actions: int = option(20, "actions", low=1)
    behaviour: str = with_default(TabularConfig, "behaviour", "fixed")
    random_q0: bool = with_default(TabularConfig, "random_q0", True)


def build(config: TwoStateConfig, model: str, training: TrainingConfig, seed: int) -> Task:
    mdp = two_state(seed, config.actions, config.gamma)
    return TabularTask("two-state", mdp, config, training, seed)


SPEC = TaskSpec(
    name="two-state",
    help="agents in the two-state MDP of federated Q-learning, one fixed action each",
    config=TwoStateConfig,
    training=TrainingConfig(epochs=50, lr=0.2),
    models=(),
    build=build,
)
