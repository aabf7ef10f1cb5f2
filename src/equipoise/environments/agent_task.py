"""What all tasks of agents share: epochs are steps, every agent counts alike, and one agent is a stack of one."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from equipoise.core import LocalTrainRequest, Params, RngContext, State, Task, TrainingConfig
from equipoise.utils.pytree import index


class Agents(Task):
    """Clients are agents that learn in environments; subclasses say how a stack of them trains and scores."""

    def num_examples(self, ids: Tensor) -> Tensor:
        return torch.ones_like(ids)

    def num_steps(
        self,
        ids: Tensor,
        epochs: Tensor,
        training: TrainingConfig,
        part: tuple[float, float] = (0.0, 1.0),
    ) -> Tensor:
        return epochs

    def fit(
        self, ids: Tensor, request: LocalTrainRequest, source: State, rng: RngContext
    ) -> tuple[Params, Params, State]:
        one = replace(
            request,
            params=_lift(request.params),
            epochs=request.epochs[None],
            lr=request.lr[None],
            aux=_lift(request.aux),
        )
        params, anchor, after = self.fit_stack(ids[None], one, _lift(source), rng)
        return index(params, 0), anchor, index(after, 0)

    def evaluate(self, ids: Tensor, params: Params, split: str) -> Params:
        return index(self.evaluate_stack(ids[None], _lift(params), split), 0)


def _lift(tree: State) -> State:
    lifted: State = pytree.tree_map(lambda value: value[None], tree)
    return lifted
