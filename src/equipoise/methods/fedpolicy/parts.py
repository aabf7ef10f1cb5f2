"""Parts of the aggregate that a client may be given, and block weights that know who installed what."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from equipoise.contract import Task, Params
from equipoise.contract.blocks import ROLES, head_of
from equipoise.core.errors import UsageError, nearest
from equipoise.core.trees import tree_bytes

FULL, NONE = "full", "none"
PUBLISHED = (FULL, *ROLES, NONE)
FRESH_ENOUGH = 0.25  # mean freshness from which a block moves all the way to its new mean


@dataclass(frozen=True)
class Parts:
    """Sets of blocks: ``full`` first, then those that the user names (``shared+head``), ``none`` last.

    Without sets of the user's own they are the published four, on the roles of a model's blocks.
    """

    names: tuple[str, ...] = PUBLISHED

    @classmethod
    def of(cls, text: str) -> Parts:
        """The parts among which are those that the user allows."""
        choices = choices_of(text)
        own = tuple(name for name in choices if name not in PUBLISHED)
        return cls((FULL, *(name for name in choices if name not in (FULL, NONE)), NONE)) if own else cls()

    @cached_property
    def blocks(self) -> tuple[str, ...]:
        """The blocks, or roles of blocks, that sets are made of."""
        return tuple(dict.fromkeys(block for name in self.names[1:-1] for block in name.split("+")))

    @cached_property
    def takes(self) -> Tensor:
        """``[parts, blocks]``: which blocks a part consists of."""
        sets = [set(self.blocks), *({*name.split("+")} for name in self.names[1:-1]), set[str]()]
        return torch.tensor([[block in own for block in self.blocks] for own in sets])

    def index(self, name: str) -> int:
        return self.names.index(name)

    def __len__(self) -> int:
        return len(self.names)

    def check(self, task: Task) -> None:
        """Refuse sets that do not fit the blocks of the model."""
        for block in self.blocks if self.names != PUBLISHED else ():
            if block not in task.blocks:
                raise UsageError(
                    f"parts names block '{block}', and the model's blocks are {', '.join(task.blocks)}"
                    f"{nearest(block, task.blocks)}"
                )
        if missing := [block for block, own in task.blocks.items() if own and self.column(task, block) is None]:
            raise UsageError(f"parts leaves out block '{missing[0]}': name it in one of the sets")
        if len(set(map(tuple, self.takes.tolist()))) < len(self):
            raise UsageError(f"parts names one set of blocks twice among {', '.join(self.names)}: leave one out")

    def column(self, task: Task, block: str) -> int | None:
        """Where a block of the model stands in :attr:`takes`."""
        name = ROLES[block == head_of(task.blocks)] if self.names == PUBLISHED else block
        return self.blocks.index(name) if name in self.blocks else None

    def params(self, task: Task) -> tuple[tuple[str, ...], ...]:
        """Per column of :attr:`takes`: the names of its parameters."""
        if self.names == PUBLISHED:
            return tuple(task.param_names(role) for role in ROLES)
        return tuple(task.blocks[block] for block in self.blocks)

    def sent(self, task: Task, takes: Tensor) -> dict[str, bool | Tensor]:
        """``Down.sent`` from booleans ``[K, columns]`` (or ``[columns]`` for one client)."""
        columns = {block: self.column(task, block) for block in task.blocks}
        return {block: False if column is None else takes[..., column] for block, column in columns.items()}

    def taken(self, part: Tensor) -> Tensor:
        """``takes[part]`` for one client's number: indexing by it cannot be mapped over clients."""
        mine = torch.arange(len(self)) == part
        return (mine[:, None] & self.takes).any(0)

    def cost(self, task: Task, params: Params) -> Tensor:
        """``[parts]``: bytes of each part, as a share of the whole model's."""
        sizes = torch.tensor([tree_bytes({name: params[name] for name in own}) for own in self.params(task)])
        return self.takes.double() @ sizes.double() / sizes.sum()

    def costs(self, task: Task, params: Params, ids: Tensor) -> Tensor:
        """``[K, parts]``: the same for each of these clients, times how long it waits for a download beside others."""
        waits = torch.from_numpy(task.devices.waits_for_downloads(ids.numpy()))
        return waits[:, None] * self.cost(task, params)

    def block_weights(self, task: Task, stack: Params, weights: Tensor | Params, fresh: Tensor) -> Params:
        """Weights times freshness ``[K, columns]``, summing to one over K again; by name, for the weighted mean."""
        fresh = fresh / fresh.max(0).values  # all may be old: then the youngest count
        by_name: Params = {}
        for column, names in enumerate(self.params(task)):
            for name in names:
                like = [-1, *[1] * (stack[name].dim() - 1)]
                given = weights[name] if isinstance(weights, dict) else weights.reshape(like)
                product = given * fresh[:, column].reshape(like)
                by_name[name] = (product / product.sum(0)).to(stack[name].dtype)
        return by_name

    def keep_stale(self, task: Task, before: Params, after: Params, fresh: Tensor) -> Params:
        """A block that hardly anybody installed lately hardly moves: its uploads tell of personal models only."""
        step = (fresh.mean(0) / FRESH_ENOUGH).clamp(max=1.0).tolist()
        moved = dict(after)
        for column, names in enumerate(self.params(task)):
            if step[column] < 1.0:
                moved |= {name: torch.lerp(before[name], after[name], step[column]) for name in names}
        return moved


def choices_of(text: str) -> tuple[str, ...]:
    """Names of parts as the user writes them, with commas between."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


def freshness(age: Tensor, rho: float) -> Tensor:
    """rho^age: what an upload is worth whose client last installed this block ``age`` rounds ago."""
    return rho ** age.double()
