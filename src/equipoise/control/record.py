"""What the server knows of every client: who installed what and when, and the features and rewards that follow."""

from __future__ import annotations

import torch
from torch import Tensor

from equipoise.contract import Client, Server, State, Task, Tree
from equipoise.control.learning import DTYPE
from equipoise.control.parts import BLOCKS, PARTS, TAKES
from equipoise.tasks.supervised import Supervised

FEATURES = 16
LOSS_PART, LOSS_MOST = 0.1, 1.0  # of a change of the loss, in a reward
LEAST = 1e-12


def init(clients: int) -> State:
    def zeros(*shape: int, dtype: torch.dtype = DTYPE) -> Tensor:
        return torch.zeros(clients, *shape, dtype=dtype)

    return {
        "round": zeros(dtype=torch.int64),  # of its last reply; 0 for none
        "installed": zeros(len(BLOCKS), dtype=torch.int64),  # all start from one model: installed in round 0
        "full": zeros(dtype=torch.int64),
        "part": zeros(dtype=torch.int64),
        "offered": zeros(dtype=torch.int64),
    }


def init_reports(clients: int) -> State:
    """What a learning policy needs to know beyond it."""
    zeros = torch.zeros
    return {
        "reports": zeros(clients, dtype=torch.int64),
        "told": zeros(clients, dtype=torch.int64),  # the round of its last report
        "report": zeros(clients, 5, dtype=DTYPE),
        "gain": zeros(clients, 2, dtype=DTYPE),
        "near": zeros(clients, 4, dtype=DTYPE),
        "plain": zeros(clients, dtype=DTYPE),
        "reward": zeros(clients, dtype=DTYPE),
    }


def age(record: State, ids: Tensor, round: int) -> Tensor:
    """``[K, blocks]``: rounds since each of these clients installed each block."""
    ages: Tensor = round - record["installed"][ids]
    return ages


def note_parts(record: State, ids: Tensor, parts: Tensor, round: int) -> State:
    """These clients replied, having installed these parts."""
    now = torch.full_like(ids, round)
    installed = torch.where(TAKES[parts], now[:, None], record["installed"][ids])
    full = torch.where(parts == PARTS.index("full"), now, record["full"][ids])
    new = {"round": now, "installed": installed, "full": full, "part": parts}
    return {**record, **{name: record[name].index_copy(0, ids, value) for name, value in new.items()}}


def merits(c: Client) -> Tensor:
    """Loss and accuracy on the validation rows, after training and before it."""
    (acc, loss), (acc_before, loss_before) = (c.task.merit(c.evaluate(model)) for model in (c.trained, c.start))
    return torch.stack([value.to(DTYPE) for value in (loss, acc, loss_before, acc_before)])


def entropy(c: Client) -> Tensor:
    """Of the client's labels; 0 where the task has none."""
    if not isinstance(c.task, Supervised):
        return torch.zeros(1, dtype=DTYPE)
    share = c.label_counts().to(DTYPE)
    share = share / share.sum()
    return -(share * share.clamp(min=LEAST).log()).sum()[None]


def note_reports(record: State, ids: Tensor, reports: Tensor, price: Tensor, round: int) -> State:
    """Gains a round since each client's last report, and rewards: gains less the price of the bytes, less their mean.

    The mean is that of everybody's latest, since only a few clients may have reported in this round.
    """
    gap = (round - record["told"][ids]).clamp(min=1).to(DTYPE)
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
    record = {**record, **{name: record[name].index_copy(0, ids, value) for name, value in new.items()}}
    rated = record["reports"] > 1
    mean = record["plain"][rated].mean() if bool(rated.any()) else plain.new_zeros(())
    return {**record, "reward": record["reward"].index_copy(0, ids, torch.where(known, plain - mean, 0.0))}


def note_models(record: State, ids: Tensor, task: Task, before: Tree, stack: Tree, after: Tree) -> State:
    """Per block: |w_i - W| / |W| of the upload and the new aggregate, and the cosine of w_i - W_old with its mean."""
    columns = [_near(task.blocks[block], before, stack, after) for block in BLOCKS]
    near = torch.stack([*(divergence for divergence, _ in columns), *(cosine for _, cosine in columns)], 1)
    return {**record, "near": record["near"].index_copy(0, ids, near)}


def features(record: State, ids: Tensor, s: Server) -> Tensor:
    """``[K, FEATURES]``: what an agent sees of each client before the download."""
    loss, acc, _, shock, entropy = record["report"][ids].T
    loss_gain, acc_gain = record["gain"][ids].T
    shock = shock - (acc - acc_gain)  # accuracy after the last installation less that before it
    since_full = (s.round - record["full"][ids]).to(DTYPE) / s.rounds
    took = TAKES[record["part"][ids]].to(DTYPE)
    now = torch.full_like(loss, s.round / s.rounds)
    size = s.task.sizes(ids).to(DTYPE).log()
    scores = [loss, acc, loss_gain, acc_gain, shock, *record["near"][ids].T, entropy, size]
    return torch.stack([*scores, since_full, now, *took.T, record["reward"][ids]], 1)


def _near(names: tuple[str, ...], before: Tree, stack: Tree, after: Tree) -> tuple[Tensor, Tensor]:
    """By two products of the moves: the models of all clients are large, and passes over them cost time."""
    moves = torch.cat([(stack[name] - before[name]).flatten(1) for name in names], 1)
    old, new = (torch.cat([tree[name].flatten() for name in names]) for tree in (before, after))
    step = new - old
    mean = moves.mean(0)
    length = torch.linalg.vector_norm(moves, dim=1).double()
    along, beside = (moves @ torch.stack([step, mean], 1)).double().T
    apart = (length.square() - 2 * along + step.double().square().sum()).clamp(min=0)
    cosine = beside / (length * torch.linalg.vector_norm(mean).double()).clamp(min=LEAST)
    return apart.sqrt() / torch.linalg.vector_norm(new).double().clamp(min=LEAST), cosine
