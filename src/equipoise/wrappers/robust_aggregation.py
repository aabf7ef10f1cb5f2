"""Robust rules as functions of stacks ``[K, ...]`` of changes: lengths, distances, centres, and who is believed.

Blanchard et al. 2017 (Krum), Yin et al. 2018 (coordinate median, trimmed mean), Pillutla et al. 2022 (geometric
median), Karimireddy et al. 2021 (centred clipping).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from equipoise.core import (
    ClientUpdate,
    Method,
    MethodWrapper,
    Params,
    Server,
    State,
    Task,
    TrainingConfig,
    weighted_mean,
)
from equipoise.core.task import SupervisedTask
from equipoise.utils import pytree
from equipoise.utils.errors import UsageError, nearest

STEPS = 50  # of Weiszfeld's iteration
TWIN = 0.01  # of a change's own length: two honest clients are never so near to each other
CLOSE = (
    1e-6  # of the mean distance: points nearer than this to the geometric median count as that far
)


def lengths(stack: Params) -> Tensor:
    """``[K]``: the Euclidean length of each client's change over all parameters."""
    each = [
        torch.linalg.vector_norm(value.flatten(1), dim=1, dtype=torch.float64)
        for value in stack.values()
    ]
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
    return {
        name: value.sort(0).values[cut : clients - cut].mean(0) for name, value in stack.items()
    }


def geometric(gram: Tensor, counts: Tensor | None = None) -> Tensor:
    """``[K]``: weights under which the mean of the changes has the least sum of distances to them (Weiszfeld).

    The median is a mean of the points, so that the iteration needs only their inner products, :func:`products`.
    ``counts``: how much each point counts; by default all alike.
    """
    own, weights = gram.diagonal(), torch.full((len(gram),), 1 / len(gram), dtype=torch.float64)
    for _ in range(STEPS):
        along = gram @ weights
        away = (own - 2 * along + weights @ along).clamp(min=0).sqrt()
        inverse = (1 if counts is None else counts) / away.clamp(
            min=max(CLOSE * float(away.mean()), 1e-300)
        )
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
    from_centre = (
        stack if centre is None else {name: value - centre[name] for name, value in stack.items()}
    )
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


def rules_trust(stack: Params, gain: Tensor | None, before: Tensor, kept: float = 0.7) -> Tensor:
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


SHORTEN = ("bound", "adaptive")
CHOOSE = ("krum", "multikrum", "trust")
CENTRE = ("median", "trimmed", "geometric", "centred")
DEFAULTS = {
    "bound": 1.0,
    "adaptive": 2.0,
    "krum": 0.2,
    "multikrum": 0.2,
    "trimmed": 0.2,
    "centred": 1.0,
}
"""Rules that take a number, and the number without one."""
RULES = (*SHORTEN, *CHOOSE, *CENTRE)
BELIEVED = 0.3  # trust below which a client is left out
STEP = 0.2  # of the median length, along a change
FIRST_TRUST = 0.4  # who begins with a lie falls below that at once


def robust(method: Method, text: str) -> Method:
    """The method under the rule ``NAME`` or ``NAME:NUMBER``; itself under none."""
    if not text:
        return method
    name, _, number = text.partition(":")
    if name not in RULES:
        raise UsageError(
            f"unknown rule '{name}'{nearest(name, RULES)}: robust must be one of {', '.join(RULES)}"
        )
    try:
        value = float(number) if number else DEFAULTS.get(name, 0.0)
    except ValueError:
        value = math.nan
    top = 0.5 if name in ("krum", "multikrum", "trimmed") else math.inf
    if (
        (number and name not in DEFAULTS)
        or not 0 <= value < top
        or (not value and name in (*SHORTEN, "centred"))
    ):
        wanted = f"a number in [0, {top:g})" if name in DEFAULTS else "no number"
        raise UsageError(f"robust is '{text}': {name} takes {wanted}")
    return Robust(method, name, value)


@dataclass(frozen=True)
class Robust(MethodWrapper):
    """Decision 3 of the method below, on what the rule makes of the changes w_i - w; block by block where it scales."""

    rule: str
    value: float

    def check(self, task: Task, training: TrainingConfig) -> None:
        super().check(task, training)
        reason = ""
        if not self.shared_param_names(task):
            reason = "its clients upload no model"
        elif self.needs_common_start and self.rule not in CENTRE:
            reason = (
                "its server and its clients each keep a memory of every upload, and a rule that shortens some or "
                f"leaves them out parts the two: choose {', '.join(CENTRE)}"
            )
        elif self.needs_same_round_replies and self.rule in CENTRE:
            reason = (
                "its agents learn from every upload, and this rule leaves one centre for all of them: choose "
                f"{', '.join((*SHORTEN, *CHOOSE))}"
            )
        if reason:
            raise UsageError(f"{self.name} is not offered with --robust {self.rule}: {reason}")

    def init_server(self, task: Task, params: Params) -> State:
        state = super().init_server(task, params)
        return (
            state | {"trust": torch.full((task.num_clients,), FIRST_TRUST)}
            if self.rule == "trust"
            else state
        )

    def aggregation_weights(
        self, server: Server, ids: Tensor, updates: ClientUpdate
    ) -> tuple[Tensor | Params, State]:
        kept, seen, state = self._judged(server, ids, updates)
        weights, below = self.inner.aggregation_weights(server.scoped("base"), ids[kept], seen)
        if self.rule == "trust":
            belief = (state["trust"][ids[kept]].double() - BELIEVED) / (1 - BELIEVED)
            weights = pytree.map_leaves(partial(believed, belief=belief), weights)
        server.logged["kept"] = int(kept.sum())
        return weights, {**state, "base": below, "seen": pytree.to_dict(seen), "kept": kept}

    def aggregate(
        self, server: Server, ids: Tensor, updates: ClientUpdate, weights: Tensor | Params
    ) -> tuple[Params, State]:
        seen, kept = pytree.from_dict(ClientUpdate, server.state["seen"]), server.state["kept"]
        params, below = self.inner.aggregate(server.scoped("base"), ids[kept], seen, weights)
        return params, {**server.state, "base": below}

    def learn(self, server: Server, ids: Tensor, updates: ClientUpdate) -> State:
        """Let the inner method learn from the replies that it aggregated, and forget them."""
        seen, kept = pytree.from_dict(ClientUpdate, server.state["seen"]), server.state["kept"]
        state = {key: value for key, value in server.state.items() if key not in ("seen", "kept")}
        below = self.inner.learn(server.scoped("base"), ids[kept], seen)
        return {**state, "base": below}

    def _judged(
        self, server: Server, ids: Tensor, updates: ClientUpdate
    ) -> tuple[Tensor, ClientUpdate, State]:
        """Who counts, what of them the method below sees, and the state."""
        everybody = torch.ones(len(ids), dtype=torch.bool)
        changes = {name: value - server.params[name] for name, value in updates.params.items()}
        if self.rule in CENTRE:
            one, extra = self._one(server.params, changes), _everywhere(self._centre, updates.extra)
            return everybody, replace(updates, params=one, extra=extra), server.state
        if self.rule in SHORTEN:
            return (
                everybody,
                replace(updates, params=self._shortened(server, updates.params, changes)),
                server.state,
            )
        scaled, state, liars = (
            _by_blocks(server.task, changes),
            server.state,
            math.floor(self.value * len(ids)),
        )
        if self.rule == "trust":
            judges = isinstance(server.task, SupervisedTask) and self.has_global(server.task)
            gain = self._gain(server, changes) if judges else None
            trust = rules_trust(scaled, gain, server.state["trust"][ids].double())
            state = {
                **state,
                "trust": server.state["trust"].index_copy(
                    0, ids, trust.to(server.state["trust"].dtype)
                ),
            }
            kept = trust >= min(BELIEVED, float(trust.max()))
        else:
            kept = krum(scaled, liars) if self.rule == "krum" else multi_krum(scaled, liars)
        return kept, pytree.index(updates, kept), state

    def _gain(self, server: Server, changes: Params) -> Tensor:
        """``[K]``: by how much a small step along each change, all of one length, lowers the loss on public data."""
        long = lengths(changes)
        usual = long.median().clamp(min=1e-30)
        factor = STEP * usual / long.clamp(min=CLOSE * usual)
        stepped = {
            name: server.params[name]
            + change * factor.to(change.dtype).view(-1, *[1] * (change.dim() - 1))
            for name, change in changes.items()
        }
        before = server.evaluate({name: value[None] for name, value in server.params.items()})[
            "loss"
        ]
        return before.double() - server.evaluate(stepped)["loss"].double()

    def _one(self, params: Params, changes: Params) -> Params:
        """Everybody's model is the global one, moved by the centre of the changes."""
        centre, count = self._centre(changes), len(next(iter(changes.values())))
        return {
            name: (params[name] + move).expand(count, *move.shape) for name, move in centre.items()
        }

    def _centre(self, stack: Params) -> Params:
        if self.rule == "geometric":
            weights = geometric(products(stack))
            return {
                name: torch.tensordot(weights.to(value.dtype), value, 1)
                for name, value in stack.items()
            }
        if self.rule == "centred":
            return centred(stack, self.value * lengths(stack).median())
        return median(stack) if self.rule == "median" else trimmed(stack, self.value)

    def _shortened(self, server: Server, params: Params, changes: Params) -> Params:
        result: Params = {}
        for block in _blocks(server.task, changes):
            most = self.value if self.rule == "bound" else self.value * lengths(block).median()
            short = clipped(block, most)
            for name, move in short.items():
                result[name] = params[name] if move is block[name] else server.params[name] + move
        return {name: result[name] for name in params}


def _everywhere(centre: Callable[[Params], Params], tree: State) -> State:
    """What clients send beside their models and is summed like them (SCAFFOLD's c), each replaced by its centre."""
    flat = {
        name: value
        for name, value in tree.items()
        if isinstance(value, Tensor) and value.is_floating_point()
    }
    one = (
        {name: value.expand_as(flat[name]) for name, value in centre(flat).items()} if flat else {}
    )
    inner = {
        name: _everywhere(centre, value) for name, value in tree.items() if isinstance(value, dict)
    }
    return {**tree, **one, **inner}


def _blocks(task: Task, stack: Params) -> list[Params]:
    blocks = [
        {name: stack[name] for name in names if name in stack} for names in task.blocks.values()
    ]
    return [block for block in blocks if block]


def _by_blocks(task: Task, stack: Params) -> Params:
    """Each block in units of its own median length: a head does not vanish behind a backbone."""
    scaled: Params = {}
    for block in _blocks(task, stack):
        unit = lengths(block).median().clamp(min=1e-300)
        scaled |= {name: value.double() / unit for name, value in block.items()}
    return scaled
