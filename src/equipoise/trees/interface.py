"""What the methods that grow trees need of a task."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from equipoise.core import Method, Task
from equipoise.trees.arrays import Ints
from equipoise.trees.config import TreeOptions
from equipoise.trees.objectives import BoostingObjective
from equipoise.utils.errors import UsageError

LEARNER_KIND = "trees"
BIN_STAGES = (0, 1)
"""Stages of `progress`: clients count their values in cells, twice."""
GROW = 2
OWN_TREES = 3
DONE = 4
"""Later stages: trees of all clients, trees of single clients, nothing more."""
MAX_OWN_TREES = 50
"""Trees that a client may add to the common ones."""


@runtime_checkable
class TreeTask(Protocol):
    """A task whose model is an ensemble of trees.

    Its `fit` returns statistics instead of a model if the request has `aux`:

    - `statistics` with `grid`: `cells` `[F, 1024]`, counts in the cells of the grid, and `target`,
      sums of the targets (stages 0 and 1);
    - `statistics`: `sums` `[C, 2^level, cells, 3]` of the open nodes, and at the first level of
      a tree `val` `[2]`, the sum of the validation losses and their number (stage 2);
    - `own_trees`: the client's own trees, as parameters (stage 3).
    """

    tree_options: TreeOptions
    """Options of boosting."""
    num_categories: Ints
    """Categories of each input `[F]`; 0 for numbers."""
    boosting: BoostingObjective
    """Gradients and losses of the target."""


def require_trees(method: Method, task: Task) -> TreeTask:
    """Return the task if its model is made of trees.

    Args:
        method: The method, named in the error.
        task: The task of the run.

    Raises:
        UsageError: If the model is no ensemble of trees.
    """
    if not isinstance(task, TreeTask):
        raise UsageError(
            f"{method.name} grows trees, and the model of task '{task.info.name}' has none: "
            "choose --task tables --model trees"
        )
    return task
