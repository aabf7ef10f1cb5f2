"""Robust rules as functions of stacks ``[K, ...]`` of changes: lengths, distances, centres, and who is believed.

Blanchard et al. 2017 (Krum), Yin et al. 2018 (coordinate median, trimmed mean), Pillutla et al. 2022 (geometric
median), Karimireddy et al. 2021 (centred clipping).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from equipoise.contract import Params, weighted_mean

STEPS = 50  # of Weiszfeld's iteration
TWIN = 0.01  # of a change's own length: two honest clients are never so near to each other
CLOSE = 1e-6  # of the mean distance: points nearer than this to the geometric median count as that far


def lengths(stack: Params) -> Tensor:
    """``[K]``: the Euclidean length of each client's change over all parameters."""
    each = [torch.linalg.vector_norm(value.flatten(1), dim=1, dtype=torch.float64) for value in stack.values()]
    return torch.stack(each).square().sum(0).sqrt()


def products(stack: Params) -> Tensor:
    """``[K, K]``: inner products of the changes of all pairs of clients; distances and iterations need no more."""
    flat = [value.flatten(1).double() for value in stack.values()]
    return torch.stack([rows @ rows.T for rows in flat]).sum(0)


def distances(gram: Tensor) -> Tensor:
    """``[K, K]``: squared distances, from :func:`products`."""
    own = gram.diagonal()
    return (own[:, None] + own - 2 * gram).clamp(min=0)


def median(stack: Params) -> Params:
    """Coordinate by coordinate; of an even number, the mean of the middle two."""
    return trimmed(stack, 0.5)


def trimmed(stack: Params, share: float) -> Params:
    """Coordinate by coordinate, the mean without this share of the clients at either end; at least one or two stay."""
    clients = len(next(iter(stack.values())))
    cut = min(math.floor(share * clients), (clients - 1) // 2)
    return {name: value.sort(0).values[cut : clients - cut].mean(0) for name, value in stack.items()}


def geometric(gram: Tensor, counts: Tensor | None = None) -> Tensor:
    """``[K]``: weights under which the mean of the changes has the least sum of distances to them (Weiszfeld).

    The median is a mean of the points, so that the iteration needs only their inner products, :func:`products`.
    ``counts``: how much each point counts; by default all alike.
    """
    own, weights = gram.diagonal(), torch.full((len(gram),), 1 / len(gram), dtype=torch.float64)
    for _ in range(STEPS):
        along = gram @ weights
        away = (own - 2 * along + weights @ along).clamp(min=0).sqrt()
        inverse = (1 if counts is None else counts) / away.clamp(min=max(CLOSE * float(away.mean()), 1e-300))
        weights = inverse / inverse.sum()
    return weights


def krum_scores(stack: Params, liars: int) -> Tensor:
    """``[K]``: the sum of squared distances to a client's K - f - 2 nearest others; low is believable."""
    apart = distances(products(stack))
    near = max(len(apart) - liars - 2, 1)
    return apart.sort(1).values[:, 1 : near + 1].sum(1)


def krum(stack: Params, liars: int) -> Tensor:
    """``[K]`` booleans: the one client with the lowest score."""
    scores = krum_scores(stack, liars)
    return torch.arange(len(scores)) == scores.argmin()


def multi_krum(stack: Params, liars: int) -> Tensor:
    """``[K]`` booleans: the K - f clients with the lowest scores."""
    scores = krum_scores(stack, liars)
    kept = torch.zeros(len(scores), dtype=torch.bool)
    kept[scores.argsort(stable=True)[: max(len(scores) - liars, 1)]] = True
    return kept


def clipped(stack: Params, most: float | Tensor, centre: Params | None = None) -> Params:
    """Changes no longer than ``most``, measured from ``centre`` (by default from no change); the others stay."""
    from_centre = stack if centre is None else {name: value - centre[name] for name, value in stack.items()}
    long = lengths(from_centre)
    factor = (most / long.clamp(min=1e-300)).clamp(max=1.0)
    if bool((factor == 1).all()):
        return stack
    result = {}
    for name, value in stack.items():
        shape = (-1, *[1] * (value.dim() - 1))
        nearer = from_centre[name] * factor.to(value.dtype).view(shape)
        nearer = nearer if centre is None else nearer + centre[name]
        result[name] = torch.where((factor == 1).view(shape), value, nearer)
    return result


def centred(stack: Params, most: float | Tensor, steps: int = 3) -> Params:
    """v <- v + mean of clip(x_i - v, tau), from v = 0: the last global model."""
    centre = {name: torch.zeros_like(value[0]) for name, value in stack.items()}
    equal = torch.full((len(next(iter(stack.values()))),), 1.0)
    for _ in range(steps):
        centre = weighted_mean(clipped(stack, most, centre), equal / equal.sum())
    return centre


def trust(stack: Params, gain: Tensor | None, before: Tensor, kept: float = 0.7) -> Tensor:
    """``[K]`` in [0, 1]: belief in each client, learned over rounds from how its changes lie to the others'.

    What is seen of a client is what our agents see of it. As FedPolicy's: how far it is from the others' centre, here
    the geometric median, and the cosine between the two. As PAGE's: ``gain``, by how much a small step along its change
    lowers the loss on the server's own data. And whether another sends nearly the same. From twice the median distance
    on belief falls, to none at four times; from half the median cosine on, to none at the opposite; from no gain on, to
    none at a loss of twice what is usual. A client that has a twin is not believed in this round. Beliefs of the rounds
    before count ``kept``.
    """
    gram = products(stack)
    weights = geometric(gram, before)
    along = gram @ weights
    middle = (weights @ along).clamp(min=0)
    away = (gram.diagonal() - 2 * along + middle).clamp(min=0).sqrt()
    cosine = along / (gram.diagonal() * middle).sqrt().clamp(min=1e-300)
    now = (2 - away / _usual(away) / 2).clamp(0, 1) * (0.5 + cosine / _usual(cosine)).clamp(0, 1)
    if gain is not None:
        now = now * (1 + gain / _usual(gain) / 3).clamp(0, 1)
    apart = distances(gram).fill_diagonal_(torch.inf).min(1).values.sqrt()
    return kept * before + (1 - kept) * torch.where(apart < TWIN * gram.diagonal().sqrt(), 0.0, now)


def believed(weights: Tensor, belief: Tensor) -> Tensor:
    """The method's weights ``[K, ...]``, each at most twice the median times the client's belief (0 to 1).

    A method may weigh by what clients report of themselves, and liars with false labels report, truly, that the model
    serves them ill. Who weighs nothing does not count in the median. The sum of the weights stays; where none of those
    who weigh is believed, the weights stay.
    """
    usual = torch.where(weights > 0, weights, torch.nan).nanmedian(0).values.nan_to_num()
    most = 2 * usual * belief.clamp(min=0).to(weights.dtype).view(-1, *[1] * (weights.dim() - 1))
    bounded = weights.minimum(most)
    left = bounded.sum(0)
    return torch.where(left > 0, bounded * (weights.sum(0) / left), weights)


def _usual(values: Tensor) -> Tensor:
    """The median size."""
    return values.abs().median().clamp(min=1e-300)
