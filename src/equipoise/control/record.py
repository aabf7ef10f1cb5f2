"""What the server knows of every client: who installed what and when, and the features and rewards that follow."""

from __future__ import annotations

from collections.abc import Iterable

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
        "replies": zeros(dtype=torch.int64),
    }


def init_reports(clients: int) -> State:
    """What a learning policy needs to know beyond it."""
    zeros = torch.zeros
    return {
        "report": zeros(clients, 5, dtype=DTYPE),
        "gain": zeros(clients, 2, dtype=DTYPE),
        "near": zeros(clients, 4, dtype=DTYPE),
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
    new = {"round": now, "installed": installed, "full": full, "part": parts, "replies": record["replies"][ids] + 1}
    return {**record, **{name: record[name].index_copy(0, ids, value) for name, value in new.items()}}


def report(c: Client) -> Tensor:
    """What a client tells: validation loss and accuracy after and before training, and the entropy of its labels."""
    (acc, loss), (acc_before, loss_before) = (c.task.merit(c.evaluate(model)) for model in (c.trained, c.start))
    entropy = torch.zeros_like(acc)
    if isinstance(c.task, Supervised):
        share = c.label_counts().to(DTYPE)
        share = share / share.sum()
        entropy = -(share * share.clamp(min=LEAST).log()).sum()
    values = (loss, acc, loss_before, acc_before, entropy)
    return torch.stack([value.to(DTYPE) for value in values])


def note_reports(record: State, ids: Tensor, reports: Tensor, price: Tensor) -> State:
    """Gains since each client's last reply, and rewards: gains less the price of the bytes, less the round's mean."""
    loss, acc = record["report"][ids, 0] - reports[:, 0], reports[:, 1] - record["report"][ids, 1]
    known = record["replies"][ids] > 1
    gain = torch.where(known[:, None], torch.stack([loss, acc], 1), torch.zeros(len(ids), 2, dtype=DTYPE))
    reward = gain[:, 1] + LOSS_PART * gain[:, 0].clamp(-LOSS_MOST, LOSS_MOST) - price
    mean = reward[known].mean() if bool(known.any()) else reward.new_zeros(())
    new = {"report": reports, "gain": gain, "reward": torch.where(known, reward - mean, torch.zeros_like(reward))}
    return {**record, **{name: record[name].index_copy(0, ids, value) for name, value in new.items()}}


def note_models(record: State, ids: Tensor, task: Task, before: Tree, stack: Tree, after: Tree) -> State:
    """Per block: |w_i - W| / |W| of the upload and the new aggregate, and the cosine of w_i - W_old with its mean."""
    columns: list[Tensor] = []
    for measure in (_divergence, _cosine):
        columns += [measure(task.blocks[block], before, stack, after) for block in BLOCKS]
    return {**record, "near": record["near"].index_copy(0, ids, torch.stack(columns, 1))}


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


def _divergence(names: tuple[str, ...], before: Tree, stack: Tree, after: Tree) -> Tensor:
    apart = _sum((stack[name] - after[name]).square() for name in names)
    whole = _sum(after[name].square()[None] for name in names)
    return (apart / whole.clamp(min=LEAST)).sqrt()


def _cosine(names: tuple[str, ...], before: Tree, stack: Tree, after: Tree) -> Tensor:
    moves = {name: stack[name] - before[name] for name in names}
    means = {name: move.mean(0, keepdim=True) for name, move in moves.items()}
    dot = _sum(moves[name] * means[name] for name in names)
    length = _sum(moves[name].square() for name in names) * _sum(means[name].square() for name in names)
    return dot / length.sqrt().clamp(min=LEAST)


def _sum(terms: Iterable[Tensor]) -> Tensor:
    """Over everything but the leading axis, in float64."""
    return torch.stack([term.double().flatten(1).sum(1) for term in terms]).sum(0)
