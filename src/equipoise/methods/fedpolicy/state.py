"""Parts of the aggregate that a client may be given, and block weights that know who installed what."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from equipoise.core import Client, Params, Server, State, Task, ValueRange
from equipoise.core.blocks import ROLES, head_of
from equipoise.core.report_validation import MAX_LOSS
from equipoise.core.task import SupervisedTask
from equipoise.rl.nn import DTYPE
from equipoise.utils.errors import UsageError, nearest
from equipoise.utils.pytree import tree_bytes

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
        return (
            cls((FULL, *(name for name in choices if name not in (FULL, NONE)), NONE))
            if own
            else cls()
        )

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
        if missing := [
            block for block, own in task.blocks.items() if own and self.column(task, block) is None
        ]:
            raise UsageError(f"parts leaves out block '{missing[0]}': name it in one of the sets")
        if len(set(map(tuple, self.takes.tolist()))) < len(self):
            raise UsageError(
                f"parts names one set of blocks twice among {', '.join(self.names)}: leave one out"
            )

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
        return {
            block: False if column is None else takes[..., column]
            for block, column in columns.items()
        }

    def taken(self, part: Tensor) -> Tensor:
        """``takes[part]`` for one client's number: indexing by it cannot be mapped over clients."""
        mine = torch.arange(len(self)) == part
        return (mine[:, None] & self.takes).any(0)

    def cost(self, task: Task, params: Params) -> Tensor:
        """``[parts]``: bytes of each part, as a share of the whole model's."""
        sizes = torch.tensor(
            [tree_bytes({name: params[name] for name in own}) for own in self.params(task)]
        )
        return self.takes.double() @ sizes.double() / sizes.sum()

    def costs(self, task: Task, params: Params, ids: Tensor) -> Tensor:
        """``[K, parts]``: the same for each of these clients, times how long it waits for a download beside others."""
        waits = torch.from_numpy(task.devices.relative_download_time(ids.numpy()))
        return waits[:, None] * self.cost(task, params)

    def block_weights(
        self, task: Task, stack: Params, weights: Tensor | Params, fresh: Tensor
    ) -> Params:
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
                moved |= {
                    name: torch.lerp(before[name], after[name], step[column]) for name in names
                }
        return moved


def choices_of(text: str) -> tuple[str, ...]:
    """Names of parts as the user writes them, with commas between."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


def freshness(age: Tensor, rho: float) -> Tensor:
    """rho^age: what an upload is worth whose client last installed this block ``age`` rounds ago."""
    return rho ** age.double()


LOSS_PART, LOSS_MOST = 0.1, 1.0  # of a change of the loss, in a reward
LEAST = 1e-12
REPORT = ValueRange(0.0, (MAX_LOSS, 1.0, MAX_LOSS, 1.0, 100.0))  # what :func:`report` uploads


def features_of(parts: Parts) -> int:
    """How many features :func:`features` has."""
    return 10 + 3 * len(parts.blocks)


def init(clients: int, parts: Parts) -> State:
    def zeros(*shape: int, dtype: torch.dtype = DTYPE) -> Tensor:
        return torch.zeros(clients, *shape, dtype=dtype)

    return {
        "round": zeros(dtype=torch.int64),  # of its last reply; 0 for none
        "installed": zeros(
            len(parts.blocks), dtype=torch.int64
        ),  # all start from one model: installed in round 0
        "full": zeros(dtype=torch.int64),
        "part": zeros(dtype=torch.int64),
        "offered": zeros(dtype=torch.int64),
    }


def init_reports(clients: int, parts: Parts) -> State:
    """What a learning policy needs to know beyond it."""
    zeros = torch.zeros
    return {
        "reports": zeros(clients, dtype=torch.int64),
        "told": zeros(clients, dtype=torch.int64),  # the round of its last report
        "report": zeros(clients, 5, dtype=DTYPE),
        "gain": zeros(clients, 2, dtype=DTYPE),
        "near": zeros(clients, 2 * len(parts.blocks), dtype=DTYPE),
        "plain": zeros(clients, dtype=DTYPE),
        "reward": zeros(clients, dtype=DTYPE),
    }


def age(record: State, ids: Tensor, round: int) -> Tensor:
    """``[K, blocks]``: rounds since each of these clients installed each block."""
    ages: Tensor = round - record["installed"][ids]
    return ages


def note_parts(record: State, ids: Tensor, parts: Parts, part: Tensor, round: int) -> State:
    """These clients replied, having installed these parts."""
    now = torch.full_like(ids, round)
    installed = torch.where(parts.takes[part], now[:, None], record["installed"][ids])
    full = torch.where(part == 0, now, record["full"][ids])
    new = {"round": now, "installed": installed, "full": full, "part": part}
    return {
        **record,
        **{name: record[name].index_copy(0, ids, value) for name, value in new.items()},
    }


def report(client: Client) -> Tensor:
    """What a client tells: validation loss and accuracy after and before training, and the entropy of its labels."""
    (acc, loss), (acc_before, loss_before) = (
        client.task.utility_and_loss(client.evaluate(model))
        for model in (client.trained, client.start)
    )
    merits = torch.stack([value.to(DTYPE) for value in (loss, acc, loss_before, acc_before)])
    return torch.cat([merits, entropy(client)])


def entropy(client: Client) -> Tensor:
    """Of the client's labels; 0 where the task has none."""
    if not isinstance(client.task, SupervisedTask):
        return torch.zeros(1, dtype=DTYPE)
    share = client.label_counts().to(DTYPE)
    share = share / share.sum()
    return -(share * share.clamp(min=LEAST).log()).sum()[None]


def note_reports(record: State, ids: Tensor, reports: Tensor, price: Tensor, round: int) -> State:
    """Gains per round since each client's last report, and rewards: gains less the price of the bytes, less their mean.

    The mean is that of everybody's latest, since only a few clients may have reported in this round.
    """
    gap = (round - record["told"][ids]).to(DTYPE)
    loss, acc = record["report"][ids, 0] - reports[:, 0], reports[:, 1] - record["report"][ids, 1]
    known = record["reports"][ids] > 0
    gain = torch.where(known[:, None], torch.stack([loss, acc], 1) / gap[:, None], 0.0)
    plain = gain[:, 1] + LOSS_PART * gain[:, 0].clamp(-LOSS_MOST, LOSS_MOST) - price
    new = {
        "reports": record["reports"][ids] + 1,
        "told": torch.full_like(ids, round),
        "report": reports,
        "gain": gain,
        "plain": torch.where(known, plain, 0.0),
    }
    record = {
        **record,
        **{name: record[name].index_copy(0, ids, value) for name, value in new.items()},
    }
    rated = record["reports"] > 1
    mean = record["plain"][rated].mean() if bool(rated.any()) else plain.new_zeros(())
    return {
        **record,
        "reward": record["reward"].index_copy(0, ids, torch.where(known, plain - mean, 0.0)),
    }


def note_models(
    record: State,
    ids: Tensor,
    parts: Parts,
    task: Task,
    before: Params,
    stack: Params,
    after: Params,
) -> State:
    """Per block: |w_i - W| / |W| of the upload and the new aggregate, and the cosine of w_i - W_old with its mean."""
    columns = [_near(names, before, stack, after) for names in parts.params(task)]
    near = torch.stack(
        [*(divergence for divergence, _ in columns), *(cosine for _, cosine in columns)], 1
    )
    return {**record, "near": record["near"].index_copy(0, ids, near)}


def features(record: State, ids: Tensor, parts: Parts, server: Server) -> Tensor:
    """``[K, features]``: what an agent sees of each client before the download."""
    loss, acc, _, shock, entropy = record["report"][ids].T
    loss_gain, acc_gain = record["gain"][ids].T
    shock = shock - (acc - acc_gain)  # accuracy after the last installation less that before it
    since_full = (server.round - record["full"][ids]).to(DTYPE) / server.num_rounds
    took = parts.takes[record["part"][ids]].to(DTYPE)
    now = torch.full_like(loss, server.round / server.num_rounds)
    size = server.task.num_examples(ids).to(DTYPE).log()
    scores = [loss, acc, loss_gain, acc_gain, shock, *record["near"][ids].T, entropy, size]
    return torch.stack([*scores, since_full, now, *took.T, record["reward"][ids]], 1)


def _near(
    names: tuple[str, ...], before: Params, stack: Params, after: Params
) -> tuple[Tensor, Tensor]:
    """In few passes over the models of all clients: |w_i - W|^2 = |move_i|^2 - 2 move_i . step + |step|^2."""
    terms = []
    for name in names:
        moves, step = (
            (stack[name] - before[name]).flatten(1),
            (after[name] - before[name]).flatten(),
        )
        mean = moves.mean(0)
        fixed = torch.stack(
            [vector.double().square().sum() for vector in (step, mean, after[name].flatten())]
        )
        own = torch.stack(
            [torch.linalg.vector_norm(moves, dim=1).square(), moves @ step, moves @ mean]
        ).double()
        terms.append(torch.cat([own, fixed[:, None].expand(-1, len(moves))]))
    length, along, beside, step, mean, whole = torch.stack(terms).sum(0)
    apart = (length - 2 * along + step).clamp(min=0)
    return (apart / whole.clamp(min=LEAST)).sqrt(), beside / (length * mean).sqrt().clamp(min=LEAST)
