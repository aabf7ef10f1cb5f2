"""FedPolicy's data: parts of a model, weights per block, and the server's records of clients.

A *part* is a set of blocks of the model, for example `full` (all), `backbone`, `head` or `none`. A
client installs the blocks of one part from the global model and keeps its own values of the others.
Parts are numbered: 0 is always `full`, the last one is always `none`.

Symbols: N clients in all, K clients in a round, P parts, B blocks (or roles of blocks).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from equipoise.core import Params, State, Task
from equipoise.core.messages import ROLES, head_of
from equipoise.utils.errors import UsageError, did_you_mean

FULL = "full"
NONE = "none"
PAPER_PARTS = (FULL, *ROLES, NONE)
FULL_STEP_WEIGHT = 0.25  # mean staleness weight from which a block moves all the way to its mean
BASE_MOMENTUM = 0.8  # of the server's step, where the base is fedavgm and has no options
TINY = 1e-12


# --- parts of a model -----------------------------------------------------------------------------


@dataclass(frozen=True)
class BlockSets:
    """The parts among which a policy chooses, as sets of blocks.

    Attributes:
        names: Names of the parts: `full` first, then sets that the user names, such as
            `shared+head`, and `none` last. The default are the paper's four parts, made of the two
            roles `backbone` and `head` that every model has.
    """

    names: tuple[str, ...] = PAPER_PARTS

    @classmethod
    def parse(cls, text: str) -> BlockSets:
        """Return the parts for the user's choices; the paper's four if no other is named."""
        choices = parse_names(text)
        if all(name in PAPER_PARTS for name in choices):
            return cls()
        return cls((FULL, *(name for name in choices if name not in (FULL, NONE)), NONE))

    @cached_property
    def blocks(self) -> tuple[str, ...]:
        """The B blocks, or roles of blocks, that parts are made of."""
        return tuple(dict.fromkeys(block for name in self.names[1:-1] for block in name.split("+")))

    @cached_property
    def membership(self) -> Tensor:
        """Booleans `[P, B]`: which blocks each part consists of."""
        sets = [set(self.blocks)]
        sets += [set(name.split("+")) for name in self.names[1:-1]]
        sets += [set()]
        return torch.tensor([[block in blocks for block in self.blocks] for blocks in sets])

    def membership_of(self, part: Tensor) -> Tensor:
        """Return the row `[B]` of :attr:`membership` for one client's part.

        Indexing by a tensor cannot be vectorised over clients (`vmap`); a comparison can.
        """
        is_part = torch.arange(len(self)) == part
        return (is_part[:, None] & self.membership).any(0)

    def index(self, name: str) -> int:
        """Return the number of a part."""
        return self.names.index(name)

    def __len__(self) -> int:
        """Return the number of parts."""
        return len(self.names)

    def check(self, task: Task) -> None:
        """Raise a UsageError if the sets do not fit the blocks of the task's model.

        Args:
            task: The task of the run.

        Raises:
            UsageError: If the sets do not fit the blocks of the task's model.
        """
        if self.names != PAPER_PARTS:
            for block in self.blocks:
                if block not in task.info.blocks:
                    raise UsageError(
                        f"parts names block '{block}', and the model's blocks are "
                        f"{', '.join(task.info.blocks)}{did_you_mean(block, task.info.blocks)}"
                    )
        for block, params in task.info.blocks.items():
            if params and self.column(task, block) is None:
                raise UsageError(f"parts leaves out block '{block}': name it in one of the sets")
        if len(set(map(tuple, self.membership.tolist()))) < len(self):
            raise UsageError(
                f"parts names one set of blocks twice among {', '.join(self.names)}: leave one out"
            )

    def column(self, task: Task, block: str) -> int | None:
        """Return the column of a model's block in :attr:`membership`; None if it is in no part."""
        name = block
        if self.names == PAPER_PARTS:
            name = ROLES[block == head_of(task.info.blocks)]
        return self.blocks.index(name) if name in self.blocks else None

    def param_names(self, task: Task) -> tuple[tuple[str, ...], ...]:
        """Return the parameter names of each of the B columns of :attr:`membership`."""
        if self.names == PAPER_PARTS:
            return tuple(task.info.param_names(role) for role in ROLES)
        return tuple(task.info.blocks[block] for block in self.blocks)

    def sent_blocks(self, task: Task, installs: Tensor) -> dict[str, bool | Tensor]:
        """Translate columns into `ServerMessage.sent_blocks`.

        Args:
            task: The task, whose model has the blocks.
            installs: Booleans `[K, B]`, or `[B]` for one client.

        Returns:
            For each block of the model booleans `[K]`, or one boolean tensor for one client.
        """
        sent: dict[str, bool | Tensor] = {}
        for block in task.info.blocks:
            column = self.column(task, block)
            sent[block] = False if column is None else installs[..., column]
        return sent

    def sent_blocks_of_all(self, task: Task, part: str) -> dict[str, bool | Tensor]:
        """Return `ServerMessage.sent_blocks` if all clients install one part: plain booleans."""
        row = self.membership[self.index(part)]
        return {block: bool(sent) for block, sent in self.sent_blocks(task, row).items()}

    def block_weights(
        self, task: Task, weights: Tensor | Params, staleness_weights: Tensor
    ) -> Params:
        """Return aggregation weights p_ib ~ w_i s_ib that sum to one over clients in each block b.

        Args:
            task: The task.
            weights: The base method's weights w `[K]`, or by parameter name `[K, ...]`.
            staleness_weights: s `[K, B]`.

        Returns:
            Weights by parameter name, of the shapes of `weights`.
        """
        # Every client may be stale: then the least stale ones count fully.
        relative = staleness_weights / staleness_weights.max(0).values
        by_name: Params = {}
        for column, names in enumerate(self.param_names(task)):
            for name in names:
                base = weights[name] if isinstance(weights, dict) else weights
                product = base * relative[:, column].reshape(-1, *[1] * (base.dim() - 1))
                by_name[name] = product / product.sum(0)
        return by_name

    def damp_stale_blocks(
        self, task: Task, before: Params, after: Params, staleness_weights: Tensor
    ) -> Params:
        """Move a block that few clients installed lately only part of the way.

        Its uploads say much about personal models and little about the shared one. A block moves by
        min(1, mean_i s_ib / FULL_STEP_WEIGHT) of the way from `before` to `after`.

        Args:
            task: The task.
            before: The global model before the round.
            after: The aggregate.
            staleness_weights: s `[K, B]`.

        Returns:
            The next global model.
        """
        steps = (staleness_weights.mean(0) / FULL_STEP_WEIGHT).clamp(max=1.0).tolist()
        damped = dict(after)
        for step, names in zip(steps, self.param_names(task), strict=True):
            if step < 1.0:
                for name in names:
                    damped[name] = torch.lerp(before[name], after[name], step)
        return damped


def parse_names(text: str) -> tuple[str, ...]:
    """Split names of parts at commas."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


def staleness_weight(age: Tensor, staleness_decay: float) -> Tensor:
    """Return rho^age, the weight of an upload whose client installed the block `age` rounds ago."""
    return staleness_decay ** age.double()


# --- what the server records of its clients -------------------------------------------------------


def init_client_table(num_clients: int, parts: BlockSets) -> State:
    """Return the table of a run's begin; round 0 stands for never, or for the common start."""

    def zeros(*shape: int) -> Tensor:
        return torch.zeros(num_clients, *shape, dtype=torch.int64)

    return {
        "reply_round": zeros(),  # round of the client's last reply; 0: none yet
        "installed_round": zeros(len(parts.blocks)),  # when it last installed each block
        "installed_part": zeros(),  # the part that it installed last
        "assigned_part": zeros(),  # the part that the server assigned last
    }


def write_rows(table: State, ids: Tensor, rows: State) -> State:
    """Return the table with new rows `[K, ...]` for these clients in some of its columns.

    Args:
        table: Columns with one row per client of the federation.
        ids: The clients `[K]`.
        rows: Their new rows by column.
    """
    columns = {name: table[name].index_copy(0, ids, values) for name, values in rows.items()}
    return {**table, **columns}


def block_ages(client_table: State, ids: Tensor, round: int) -> Tensor:
    """Return `[K, B]`: rounds since each client installed each block.

    Args:
        client_table: What is recorded of all clients.
        ids: The clients `[K]`.
        round: The current round.
    """
    ages: Tensor = round - client_table["installed_round"][ids]
    return ages


def record_parts(
    client_table: State, ids: Tensor, parts: BlockSets, installed: Tensor, round: int
) -> State:
    """Record that these clients replied, having installed these parts `[K]`.

    Args:
        client_table: What is recorded of all clients.
        ids: The clients `[K]`.
        parts: The sets of blocks.
        installed: The part that each installed `[K]`.
        round: The current round.

    Returns:
        The new table.
    """
    now = torch.full_like(ids, round)
    old_rounds = client_table["installed_round"][ids]
    rows = {
        "reply_round": now,
        "installed_round": torch.where(parts.membership[installed], now[:, None], old_rounds),
        "installed_part": installed,
    }
    return write_rows(client_table, ids, rows)
