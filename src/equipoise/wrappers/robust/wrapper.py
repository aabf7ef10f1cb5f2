"""Any method under a robust rule: what its server meets is shortened, chosen, or replaced by a centre.

``bound:L`` and ``adaptive:M`` shorten changes of the model to length L, or to M times the median length; ``krum:S``,
``multikrum:S`` and ``trust`` leave clients out; ``median``, ``trimmed:S``, ``geometric`` and ``centred:M`` put one
centre in the place of every upload. S is the share of clients that may lie.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from equipoise.contract import MethodWrapper, Method, Server, State, Task, TrainingConfig, Params, ClientUpdate
from equipoise.contract.supervised import SupervisedTask
from equipoise.core import trees
from equipoise.core.errors import UsageError, nearest
from equipoise.wrappers.robust import rules

SHORTEN = ("bound", "adaptive")
CHOOSE = ("krum", "multikrum", "trust")
CENTRE = ("median", "trimmed", "geometric", "centred")
DEFAULTS = {"bound": 1.0, "adaptive": 2.0, "krum": 0.2, "multikrum": 0.2, "trimmed": 0.2, "centred": 1.0}
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
        raise UsageError(f"unknown rule '{name}'{nearest(name, RULES)}: robust must be one of {', '.join(RULES)}")
    try:
        value = float(number) if number else DEFAULTS.get(name, 0.0)
    except ValueError:
        value = math.nan
    top = 0.5 if name in ("krum", "multikrum", "trimmed") else math.inf
    if (number and name not in DEFAULTS) or not 0 <= value < top or (not value and name in (*SHORTEN, "centred")):
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
        return state | {"trust": torch.full((task.num_clients,), FIRST_TRUST)} if self.rule == "trust" else state

    def aggregation_weights(self, server: Server, ids: Tensor, updates: ClientUpdate) -> tuple[Tensor | Params, State]:
        kept, seen, state = self._judged(server, ids, updates)
        weights, below = self.inner.aggregation_weights(server.scoped("base"), ids[kept], seen)
        if self.rule == "trust":
            belief = (state["trust"][ids[kept]].double() - BELIEVED) / (1 - BELIEVED)
            weights = trees.map_leaves(partial(rules.believed, belief=belief), weights)
        server.logged["kept"] = int(kept.sum())
        return weights, {**state, "base": below, "seen": trees.to_dict(seen), "kept": kept}

    def aggregate(self, server: Server, ids: Tensor, updates: ClientUpdate, weights: Tensor | Params) -> tuple[Params, State]:
        seen, kept = trees.from_dict(ClientUpdate, server.state["seen"]), server.state["kept"]
        state = {key: value for key, value in server.state.items() if key not in ("seen", "kept")}
        params, below = self.inner.aggregate(server.scoped("base"), ids[kept], seen, weights)
        return params, {**state, "base": below}

    def _judged(self, server: Server, ids: Tensor, updates: ClientUpdate) -> tuple[Tensor, ClientUpdate, State]:
        """Who counts, what of them the method below sees, and the state."""
        everybody = torch.ones(len(ids), dtype=torch.bool)
        changes = {name: value - server.params[name] for name, value in updates.params.items()}
        if self.rule in CENTRE:
            one, extra = self._one(server.params, changes), _everywhere(self._centre, updates.extra)
            return everybody, replace(updates, params=one, extra=extra), server.state
        if self.rule in SHORTEN:
            return everybody, replace(updates, params=self._shortened(server, updates.params, changes)), server.state
        scaled, state, liars = _by_blocks(server.task, changes), server.state, math.floor(self.value * len(ids))
        if self.rule == "trust":
            judges = isinstance(server.task, SupervisedTask) and self.has_global(server.task)
            gain = self._gain(server, changes) if judges else None
            trust = rules.trust(scaled, gain, server.state["trust"][ids].double())
            state = {**state, "trust": server.state["trust"].index_copy(0, ids, trust.to(server.state["trust"].dtype))}
            kept = trust >= min(BELIEVED, float(trust.max()))
        else:
            kept = rules.krum(scaled, liars) if self.rule == "krum" else rules.multi_krum(scaled, liars)
        return kept, trees.index(updates, kept), state

    def _gain(self, server: Server, changes: Params) -> Tensor:
        """``[K]``: by how much a small step along each change, all of one length, lowers the loss on public data."""
        long = rules.lengths(changes)
        usual = long.median().clamp(min=1e-30)
        factor = STEP * usual / long.clamp(min=rules.CLOSE * usual)
        stepped = {
            name: server.params[name] + change * factor.to(change.dtype).view(-1, *[1] * (change.dim() - 1))
            for name, change in changes.items()
        }
        before = server.evaluate({name: value[None] for name, value in server.params.items()})["loss"]
        return before.double() - server.evaluate(stepped)["loss"].double()

    def _one(self, params: Params, changes: Params) -> Params:
        """Everybody's model is the global one, moved by the centre of the changes."""
        centre, count = self._centre(changes), len(next(iter(changes.values())))
        return {name: (params[name] + move).expand(count, *move.shape) for name, move in centre.items()}

    def _centre(self, stack: Params) -> Params:
        if self.rule == "geometric":
            weights = rules.geometric(rules.products(stack))
            return {name: torch.tensordot(weights.to(value.dtype), value, 1) for name, value in stack.items()}
        if self.rule == "centred":
            return rules.centred(stack, self.value * rules.lengths(stack).median())
        return rules.median(stack) if self.rule == "median" else rules.trimmed(stack, self.value)

    def _shortened(self, server: Server, params: Params, changes: Params) -> Params:
        result: Params = {}
        for block in _blocks(server.task, changes):
            most = self.value if self.rule == "bound" else self.value * rules.lengths(block).median()
            short = rules.clipped(block, most)
            for name, move in short.items():
                result[name] = params[name] if move is block[name] else server.params[name] + move
        return {name: result[name] for name in params}


def _everywhere(centre: Callable[[Params], Params], tree: State) -> State:
    """What clients send beside their models and is summed like them (SCAFFOLD's c), each replaced by its centre."""
    flat = {name: value for name, value in tree.items() if isinstance(value, Tensor) and value.is_floating_point()}
    one = {name: value.expand_as(flat[name]) for name, value in centre(flat).items()} if flat else {}
    inner = {name: _everywhere(centre, value) for name, value in tree.items() if isinstance(value, dict)}
    return {**tree, **one, **inner}


def _blocks(task: Task, stack: Params) -> list[Params]:
    blocks = [{name: stack[name] for name in names if name in stack} for names in task.blocks.values()]
    return [block for block in blocks if block]


def _by_blocks(task: Task, stack: Params) -> Params:
    """Each block in units of its own median length: a head does not vanish behind a backbone."""
    scaled: Params = {}
    for block in _blocks(task, stack):
        unit = rules.lengths(block).median().clamp(min=1e-300)
        scaled |= {name: value.double() / unit for name, value in block.items()}
    return scaled
