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

from equipoise.core import Client, Params, Server, State, Task, ValueRange
from equipoise.core.messages import ROLES, head_of
from equipoise.core.report_validation import MAX_LOSS
from equipoise.core.task import SupervisedTask
from equipoise.rl.nn import DTYPE
from equipoise.utils.errors import UsageError, did_you_mean
from equipoise.utils.pytree import tree_bytes

FULL = "full"
NONE = "none"
PAPER_PARTS = (FULL, *ROLES, NONE)
FULL_STEP_WEIGHT = 0.25  # mean staleness weight from which a block moves all the way to its mean
REWARD_LOSS_WEIGHT = 0.1  # of a gain in loss beside a gain in accuracy, in a reward
MAX_LOSS_GAIN = 1.0  # a larger change of the loss counts as this one
TINY = 1e-12
REPORT_RANGE = ValueRange(0.0, (MAX_LOSS, 1.0, MAX_LOSS, 1.0, 100.0))  # of :func:`client_report`


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
        """Raise a UsageError if the sets do not fit the blocks of the task's model."""
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

    def relative_bytes(self, task: Task, params: Params) -> Tensor:
        """Return `[P]`: bytes of each part as a share of the whole model's."""
        sizes = torch.tensor(
            [tree_bytes({name: params[name] for name in names}) for names in self.param_names(task)]
        )
        return self.membership.double() @ sizes.double() / sizes.sum()

    def download_costs(self, task: Task, params: Params, ids: Tensor) -> Tensor:
        """Return `[K, P]`: relative bytes times each client's relative time per byte."""
        waits = torch.from_numpy(task.info.devices.relative_download_time(ids.numpy()))
        return waits[:, None] * self.relative_bytes(task, params)

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
        "full_round": zeros(),  # when it last installed the whole model
        "installed_part": zeros(),  # the part that it installed last
        "assigned_part": zeros(),  # the part that the server assigned last
    }


def init_report_table(num_clients: int, parts: BlockSets) -> State:
    """Return the further columns of the table that learning policies need."""
    return {
        "num_reports": torch.zeros(num_clients, dtype=torch.int64),
        "report_round": torch.zeros(num_clients, dtype=torch.int64),  # of the last report
        "report": torch.zeros(num_clients, 5, dtype=DTYPE),  # see :func:`client_report`
        # Fall of the loss and rise of the accuracy per round, between the last two reports.
        "gain": torch.zeros(num_clients, 2, dtype=DTYPE),
        # Per block: relative distance of the upload to the aggregate, then cosine of the updates.
        "similarity": torch.zeros(num_clients, 2 * len(parts.blocks), dtype=DTYPE),
        "raw_reward": torch.zeros(num_clients, dtype=DTYPE),  # before the mean is subtracted
        "reward": torch.zeros(num_clients, dtype=DTYPE),
    }


def write_rows(table: State, ids: Tensor, rows: State) -> State:
    """Return the table with new rows `[K, ...]` for these clients in some of its columns."""
    columns = {name: table[name].index_copy(0, ids, values) for name, values in rows.items()}
    return {**table, **columns}


def block_ages(client_table: State, ids: Tensor, round: int) -> Tensor:
    """Return `[K, B]`: rounds since each client installed each block."""
    ages: Tensor = round - client_table["installed_round"][ids]
    return ages


def record_parts(
    client_table: State, ids: Tensor, parts: BlockSets, installed: Tensor, round: int
) -> State:
    """Record that these clients replied, having installed these parts `[K]`."""
    now = torch.full_like(ids, round)
    old_rounds = client_table["installed_round"][ids]
    rows = {
        "reply_round": now,
        "installed_round": torch.where(parts.membership[installed], now[:, None], old_rounds),
        "full_round": torch.where(installed == 0, now, client_table["full_round"][ids]),
        "installed_part": installed,
    }
    return write_rows(client_table, ids, rows)


def record_reports(
    client_table: State, ids: Tensor, reports: Tensor, costs: Tensor, round: int
) -> State:
    """Record reports, gains per round since each client's previous report, and rewards.

        reward = accuracy gain + 0.1 clip(loss gain, -1, 1) - download cost - mean

    The mean is over all clients' latest rewards, since few clients may report in one round.

    Args:
        client_table: The server's table.
        ids: Clients `[K]`.
        reports: Their reports `[K, 5]`.
        costs: The accuracy that each one's download costs `[K]`.
        round: The current round.

    Returns:
        The new table.
    """
    gap = (round - client_table["report_round"][ids]).to(DTYPE)
    loss_gain = client_table["report"][ids, 0] - reports[:, 0]
    accuracy_gain = reports[:, 1] - client_table["report"][ids, 1]
    has_previous = client_table["num_reports"][ids] > 0
    gains = torch.stack([loss_gain, accuracy_gain], 1) / gap[:, None]
    gain = torch.where(has_previous[:, None], gains, 0.0)
    bounded_loss_gain = gain[:, 0].clamp(-MAX_LOSS_GAIN, MAX_LOSS_GAIN)
    raw_reward = gain[:, 1] + REWARD_LOSS_WEIGHT * bounded_loss_gain - costs
    rows = {
        "num_reports": client_table["num_reports"][ids] + 1,
        "report_round": torch.full_like(ids, round),
        "report": reports,
        "gain": gain,
        "raw_reward": torch.where(has_previous, raw_reward, 0.0),
    }
    client_table = write_rows(client_table, ids, rows)
    rated = client_table["num_reports"] > 1
    mean = raw_reward.new_zeros(())
    if bool(rated.any()):
        mean = client_table["raw_reward"][rated].mean()
    reward = torch.where(has_previous, raw_reward - mean, 0.0)
    return write_rows(client_table, ids, {"reward": reward})


def record_similarity(
    client_table: State,
    ids: Tensor,
    parts: BlockSets,
    task: Task,
    before: Params,
    stack: Params,
    after: Params,
) -> State:
    """Record per block |w_i - W| / |W| and the cosine of w_i - W_old with the clients' mean.

    Args:
        client_table: The server's table.
        ids: Clients `[K]`.
        parts: The parts, which name the blocks.
        task: The task.
        before: The global model W_old that was sent.
        stack: The uploads w_i, `[K, ...]`.
        after: The next global model W.

    Returns:
        The new table.
    """
    columns = [
        _distance_and_cosine(names, before, stack, after) for names in parts.param_names(task)
    ]
    distances = [distance for distance, _ in columns]
    cosines = [cosine for _, cosine in columns]
    return write_rows(client_table, ids, {"similarity": torch.stack([*distances, *cosines], 1)})


def _distance_and_cosine(
    names: tuple[str, ...], before: Params, stack: Params, after: Params
) -> tuple[Tensor, Tensor]:
    """Return both `[K]` for one block, in few passes over the uploads.

    With u_i = w_i - W_old and s = W - W_old: |w_i - W|^2 = |u_i|^2 - 2 u_i . s + |s|^2.
    """
    terms = []
    for name in names:
        updates = (stack[name] - before[name]).flatten(1)
        step = (after[name] - before[name]).flatten()
        mean = updates.mean(0)
        of_all = torch.stack(
            [vector.double().square().sum() for vector in (step, mean, after[name].flatten())]
        )
        of_each = torch.stack(
            [
                torch.linalg.vector_norm(updates, dim=1).square(),
                updates @ step,
                updates @ mean,
            ]
        ).double()
        terms.append(torch.cat([of_each, of_all[:, None].expand(-1, len(updates))]))
    sums = torch.stack(terms).sum(0)
    update_sq, dot_step, dot_mean, step_sq, mean_sq, model_sq = sums
    distance_sq = (update_sq - 2 * dot_step + step_sq).clamp(min=0)
    distance = (distance_sq / model_sq.clamp(min=TINY)).sqrt()
    cosine = dot_mean / (update_sq * mean_sq).sqrt().clamp(min=TINY)
    return distance, cosine


# --- what a client reports, and the features that a learning policy observes ----------------------


def client_report(client: Client) -> Tensor:
    """Return a client's report `[5]` after training.

    Its entries are validation loss and accuracy after training, loss and accuracy before training
    (of the installed model), and the entropy of the client's labels.
    """
    utility_after, loss_after = client.task.utility_and_loss(client.evaluate(client.trained))
    utility_before, loss_before = client.task.utility_and_loss(client.evaluate(client.start))
    scores = (loss_after, utility_after, loss_before, utility_before)
    return torch.cat([torch.stack([value.to(DTYPE) for value in scores]), label_entropy(client)])


def label_entropy(client: Client) -> Tensor:
    """Return the entropy `[1]` of the client's labels; 0 where the task has none."""
    if not isinstance(client.task, SupervisedTask):
        return torch.zeros(1, dtype=DTYPE)
    share = client.label_counts().to(DTYPE)
    share = share / share.sum()
    return -(share * share.clamp(min=TINY).log()).sum()[None]


def num_features(parts: BlockSets) -> int:
    """Return the number of columns of :func:`features`."""
    return 10 + 3 * len(parts.blocks)


def features(client_table: State, ids: Tensor, parts: BlockSets, server: Server) -> Tensor:
    """Return `[K, F]`: the state of each client that a learning policy observes before a download.

    Columns: loss, accuracy, their gains, accuracy change caused by the last installation, distance
    and cosine per block, label entropy, log n_i, share of the run since the last full installation,
    t/T, the last part (one boolean per block) and the last reward.
    """
    loss, accuracy, _, accuracy_before, entropy = client_table["report"][ids].T
    loss_gain, accuracy_gain = client_table["gain"][ids].T
    installation_shock = accuracy_before - (accuracy - accuracy_gain)
    since_full = (server.round - client_table["full_round"][ids]).to(DTYPE) / server.num_rounds
    last_part = parts.membership[client_table["installed_part"][ids]].to(DTYPE)
    progress = torch.full_like(loss, server.round / server.num_rounds)
    log_size = server.task.num_examples(ids).to(DTYPE).log()
    columns = [
        loss,
        accuracy,
        loss_gain,
        accuracy_gain,
        installation_shock,
        *client_table["similarity"][ids].T,
        entropy,
        log_size,
        since_full,
        progress,
        *last_part.T,
        client_table["reward"][ids],
    ]
    return torch.stack(columns, 1)
