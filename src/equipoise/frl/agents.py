"""What all tasks of agents share: epochs are steps, every agent counts alike, and one agent is a stack of one."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from equipoise.contract import Fit, State, Task, Training, Tree, When
from equipoise.core.trees import row


class Agents(Task):
    """Clients are agents that learn in environments; subclasses say how a stack of them trains and scores."""

    def sizes(self, ids: Tensor) -> Tensor:
        return torch.ones_like(ids)

    def steps(self, ids: Tensor, epochs: Tensor, training: Training, part: tuple[float, float] = (0.0, 1.0)) -> Tensor:
        return epochs

    def fit(self, ids: Tensor, fit: Fit, source: State, when: When) -> tuple[Tree, Tree, State]:
        one = replace(fit, params=_lift(fit.params), epochs=fit.epochs[None], lr=fit.lr[None], aux=_lift(fit.aux))
        params, anchor, after = self.fit_stack(ids[None], one, _lift(source), when)
        return row(params, 0), anchor, row(after, 0)

    def evaluate(self, ids: Tensor, params: Tree, split: str) -> Tree:
        return row(self.evaluate_stack(ids[None], _lift(params), split), 0)


def _lift(tree: State) -> State:
    lifted: State = pytree.tree_map(lambda value: value[None], tree)
    return lifted
