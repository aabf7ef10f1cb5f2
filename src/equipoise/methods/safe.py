"""Agents that are safe by construction: a move is tried on a share of the clients while the others follow the rule.

An agent has an account, in log loss per client. Each round it stakes a share of the clients: these try its moves, the
others keep to the rule, and both are judged by what training gained on their own validation data. The mean difference,
times the share, goes to the account. A share is never larger than the account can pay for if the move is as bad as can
be: whatever the agent does, its trials cost no more than ``START`` in all, and after a time of success no more than
``MOST`` from there on. Uploads of a trial that lost are not averaged, so that the shared model is then the rule's.

A method that uses it sends ``each["tried"]`` of :func:`choose`, lets a client move only where that is true, uploads it
with ``received_loss`` and ``trained_loss``, and takes its weights from :func:`judge`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from equipoise.contract import Server, State, Tree, Up
from equipoise.contract.method import weighted_mean
from equipoise.contract.ranges import LOSS, SHARE
from equipoise.core import streams
from equipoise.methods.fedpolicy.policies import draws

START = 0.25  # what an agent may lose in all: a quarter of the clients once, at the worst difference
MOST = 0.75  # an account holds no more, so that a quarter of the clients keeps to the rule, and to compare with
WORST = 1.0  # a difference of log losses counts as no more than this, either way
REPORTS = {"received_loss": LOSS, "trained_loss": LOSS, "tried": SHARE}


def opened() -> State:
    return {"account": torch.tensor(START, dtype=torch.float64), "stake": torch.zeros((), dtype=torch.float64)}


def choose(s: Server, held: State, ids: Tensor) -> tuple[Tensor, State]:
    """Who tries the agent's moves this round, as booleans ``[K]``: by lot, as many as the account can pay for."""
    count = int(held["account"] / WORST * len(ids))  # rounded down
    places = draws(s, ids, 1, streams.TRIAL[0])[:, 0].argsort().argsort()
    return places < count, {**held, "stake": torch.full_like(held["account"], count / max(1, len(ids)))}


def judge(s: Server, held: State, metrics: Tree, weights: Tensor | Tree) -> tuple[Tensor, State]:
    """The weights without a trial that was not better than the rule, unless nobody else replied; and the account."""
    assert isinstance(weights, Tensor)  # whoever has weights by parameter is refused before the run
    tried = metrics["tried"]
    better = difference(tried, metrics["received_loss"], metrics["trained_loss"])
    held = {**held, "account": (held["account"] + held["stake"] * better).clamp(0.0, MOST)}
    s.notes |= {"tried": tried, "better": better, "account": held["account"]}
    if bool(better > 0) or bool(tried.all()):
        return weights, held
    weights = weights.masked_fill(tried, 0.0)
    return weights / weights.sum(), held


def difference(tried: Tensor, received_loss: Tensor, trained_loss: Tensor) -> Tensor:
    """By how much training lowered log loss more with the move than with the rule; zero if one of them has nobody."""
    if not bool(tried.any()) or bool(tried.all()):
        return torch.zeros((), dtype=torch.float64)
    gain = received_loss.double().log() - trained_loss.double().log()
    gain = gain.nan_to_num(nan=-WORST, posinf=WORST, neginf=-WORST)
    return (gain[tried].mean() - gain[~tried].mean()).clamp(-WORST, WORST)


def no_worse(s: Server, up: Up, move: Tensor, rule: Tensor) -> bool:
    """Of a move of the server: whether the mean under its weights has no larger loss on public data than the rule's."""
    means = [weighted_mean(up.params, weights) for weights in (move, rule)]
    ours, theirs = s.evaluate({name: torch.stack([mean[name] for mean in means]) for name in means[0]})["loss"]
    return bool(ours <= theirs)
