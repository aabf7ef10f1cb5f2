"""What the server knows of every client: who installed what and when, and the features and rewards that follow."""

from __future__ import annotations

import torch
from torch import Tensor

from equipoise.contract import Client, ValueRange, Server, State, Task, Params
from equipoise.contract.ranges import MAX_LOSS
from equipoise.contract.supervised import SupervisedTask
from equipoise.learners.learning import DTYPE
from equipoise.methods.fedpolicy.parts import Parts

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
        "installed": zeros(len(parts.blocks), dtype=torch.int64),  # all start from one model: installed in round 0
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
    return {**record, **{name: record[name].index_copy(0, ids, value) for name, value in new.items()}}


def report(client: Client) -> Tensor:
    """What a client tells: validation loss and accuracy after and before training, and the entropy of its labels."""
    (acc, loss), (acc_before, loss_before) = (client.task.utility_and_loss(client.evaluate(model)) for model in (client.trained, client.start))
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
    record = {**record, **{name: record[name].index_copy(0, ids, value) for name, value in new.items()}}
    rated = record["reports"] > 1
    mean = record["plain"][rated].mean() if bool(rated.any()) else plain.new_zeros(())
    return {**record, "reward": record["reward"].index_copy(0, ids, torch.where(known, plain - mean, 0.0))}


def note_models(record: State, ids: Tensor, parts: Parts, task: Task, before: Params, stack: Params, after: Params) -> State:
    """Per block: |w_i - W| / |W| of the upload and the new aggregate, and the cosine of w_i - W_old with its mean."""
    columns = [_near(names, before, stack, after) for names in parts.params(task)]
    near = torch.stack([*(divergence for divergence, _ in columns), *(cosine for _, cosine in columns)], 1)
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


def _near(names: tuple[str, ...], before: Params, stack: Params, after: Params) -> tuple[Tensor, Tensor]:
    """In few passes over the models of all clients: |w_i - W|^2 = |move_i|^2 - 2 move_i . step + |step|^2."""
    terms = []
    for name in names:
        moves, step = (stack[name] - before[name]).flatten(1), (after[name] - before[name]).flatten()
        mean = moves.mean(0)
        fixed = torch.stack([vector.double().square().sum() for vector in (step, mean, after[name].flatten())])
        own = torch.stack([torch.linalg.vector_norm(moves, dim=1).square(), moves @ step, moves @ mean]).double()
        terms.append(torch.cat([own, fixed[:, None].expand(-1, len(moves))]))
    length, along, beside, step, mean, whole = torch.stack(terms).sum(0)
    apart = (length - 2 * along + step).clamp(min=0)
    return (apart / whole.clamp(min=LEAST)).sqrt(), beside / (length * mean).sqrt().clamp(min=LEAST)
