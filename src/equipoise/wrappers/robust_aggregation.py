"""Robust aggregation: clip updates, drop outliers, or replace all updates by a robust mean.

Rules, by what they do with a stack `[K, ...]` of updates w_i - w:

- clip: `bound` (a fixed norm), `adaptive` (a multiple of the median norm);
- select: `krum` and `multikrum` (Blanchard et al., NeurIPS 2017, arXiv:1703.02757), `trust` (ours);
- replace by a centre: `median` and `trimmed` (coordinate-wise; Yin et al., ICML 2018,
  arXiv:1803.01498), `geometric` (geometric median; Pillutla et al., 2022, arXiv:1912.13445),
  `centred` (centered clipping; Karimireddy et al., ICML 2021, arXiv:2012.10333).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from equipoise.core import (
    Capabilities,
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
from equipoise.core.report_validation import influence_factors, scale_weights
from equipoise.core.task import SupervisedTask
from equipoise.simulation.aggregation_guard import log_shrunk
from equipoise.utils import pytree
from equipoise.utils.errors import UsageError, did_you_mean

CLIP_RULES = ("bound", "adaptive")
SELECT_RULES = ("krum", "multikrum", "trust")
CENTRE_RULES = ("median", "trimmed", "geometric", "centred")
RULES = (*CLIP_RULES, *SELECT_RULES, *CENTRE_RULES)
DEFAULT_VALUES = {
    "bound": 1.0,
    "adaptive": 2.0,
    "krum": 0.2,
    "multikrum": 0.2,
    "trimmed": 0.2,
    "centred": 1.0,
}
"""The rules that take a number, with its default."""
SHARE_RULES = ("krum", "multikrum", "trimmed")
"""The rules whose number is a share of the clients, below one half."""

MIN_TRUST = 0.3
"""Clients with less trust than this are left out."""
MIN_OBSERVED = 0.1
"""Clients whose update of this round looks worse are left out of it, whatever they did before."""
TRUST_DECAY = 0.7
"""Weight of the trust before a round."""
INITIAL_TRUST = 0.4
"""So near to MIN_TRUST that a client whose first update is hostile is left out at once."""
PROBE_STEP = 0.2
"""Length of the step whose gain is measured, relative to the median norm of the updates."""
MIN_PROBE_NORM = 1e-6
"""Updates shorter than this, relative to the median norm, count as this long in the probe."""
TWIN_DISTANCE = 0.01
"""Two updates this near, relative to their norm, are copies: honest clients never are."""
WEISZFELD_STEPS = 50
MIN_RELATIVE_DISTANCE = 1e-6
"""Lower bound of a distance to the geometric median, relative to the mean distance."""
TINY = 1e-300


def with_robust_aggregation(method: Method, text: str) -> Method:
    """Wrap a method with a robust rule.

    Args:
        method: Any method.
        text: The rule as `NAME` or `NAME:NUMBER`, or empty for none.

    Returns:
        The wrapped method, or `method` itself without a rule.

    Raises:
        UsageError: If the rule is unknown or its number is out of range.
    """
    if not text:
        return method
    name, _, number = text.partition(":")
    if name not in RULES:
        raise UsageError(
            f"unknown rule '{name}'{did_you_mean(name, RULES)}: "
            f"robust must be one of {', '.join(RULES)}"
        )
    try:
        value = float(number) if number else DEFAULT_VALUES.get(name, 0.0)
    except ValueError:
        value = math.nan
    upper = 0.5 if name in SHARE_RULES else math.inf
    is_unexpected = bool(number) and name not in DEFAULT_VALUES
    is_zero_norm = value == 0 and name in (*CLIP_RULES, "centred")
    if is_unexpected or is_zero_norm or not 0 <= value < upper:
        expected = f"a number in [0, {upper:g})" if name in DEFAULT_VALUES else "no number"
        raise UsageError(f"robust is '{text}': {name} takes {expected}")
    return RobustAggregation(method, name, value)


@dataclass(frozen=True)
class RobustAggregation(MethodWrapper):
    """Let the inner method aggregate what a robust rule makes of the updates.

    Attributes:
        rule: One of `RULES`.
        value: The rule's number; 0 for rules without one.
    """

    rule: str
    value: float

    @property
    def capabilities(self) -> Capabilities:  # type: ignore[override]
        """Return those of the inner method; rules compare uploads with each other."""
        return replace(self.inner.capabilities, aggregates_by_sum=False, bounds_influence=True)

    def check(self, task: Task, training: TrainingConfig) -> None:
        """Refuse rules that would break the inner method."""
        super().check(task, training)
        reason = self._unsupported_reason(task)
        if reason:
            raise UsageError(f"{self.name} is not offered with --robust {self.rule}: {reason}")

    def _unsupported_reason(self, task: Task) -> str:
        """Return why the inner method does not work under the rule, or an empty text."""
        if not self.shared_param_names(task):
            return "its clients upload no model"
        if task.info.learner_kind == "trees":
            return (
                "its clients upload sums of gradients and no models, and the server checks each of "
                "them by what rows can have: leave robust empty"
            )
        if self.capabilities.needs_common_start and self.rule in CLIP_RULES:
            allowed_rules = ", ".join((*SELECT_RULES, *CENTRE_RULES))
            return (
                "its server and its clients each keep a memory of every upload, and a rule that "
                f"clips some makes the two differ: choose {allowed_rules}"
            )
        if self.capabilities.needs_same_round_replies and self.rule in CENTRE_RULES:
            return (
                "its agents learn from every upload, and this rule replaces all of them by one "
                f"centre: choose {', '.join((*CLIP_RULES, *SELECT_RULES))}"
            )
        return ""

    def init_server(self, task: Task, params: Params) -> State:
        """Add the trust in every client, `[N]`, for the rule `trust`."""
        state = super().init_server(task, params)
        if self.rule != "trust":
            return state
        return state | {"trust": torch.full((task.info.num_clients,), INITIAL_TRUST)}

    def aggregation_weights(
        self, server: Server, ids: Tensor, updates: ClientUpdate
    ) -> tuple[Tensor | Params, State]:
        """Apply the rule and ask the inner method for weights of the result."""
        kept, robust, state = self._apply_rule(server, ids, updates)
        weights, inner_state = self.inner.aggregation_weights(
            server.scoped("base"), ids[kept], robust
        )
        if self.rule == "trust":
            trust = (state["trust"][ids[kept]].double() - MIN_TRUST) / (1 - MIN_TRUST)
            weights = pytree.map_leaves(partial(cap_weights_by_trust, trust=trust), weights)
        if self.capabilities.needs_common_start:
            # Their clients' memory counts on what the server added to its own.
            server.uncommitted.update(ids[~kept].tolist())
        if self.rule not in CENTRE_RULES:
            changes = {name: value - server.params[name] for name, value in robust.params.items()}
            factors = influence_factors(weights, client_norms(changes), server.influence_ratio)
            log_shrunk(server, ids[kept], factors)
            weights = scale_weights(weights, factors)
        server.logged["kept"] = int(kept.sum())
        # `aggregate` needs the result of the rule; the state carries it there.
        return weights, {
            **state,
            "base": inner_state,
            "robust_updates": pytree.to_dict(robust),
            "kept": kept,
        }

    def aggregate(
        self, server: Server, ids: Tensor, updates: ClientUpdate, weights: Tensor | Params
    ) -> tuple[Params, State]:
        """Let the inner method aggregate what the rule left."""
        robust = pytree.from_dict(ClientUpdate, server.state["robust_updates"])
        kept = server.state["kept"]
        params, inner_state = self.inner.aggregate(
            server.scoped("base"), ids[kept], robust, weights
        )
        return params, {**server.state, "base": inner_state}

    def learn(self, server: Server, ids: Tensor, updates: ClientUpdate) -> State:
        """Let the inner method learn from the replies that it aggregated, and forget them."""
        state = dict(server.state)
        robust = pytree.from_dict(ClientUpdate, state.pop("robust_updates"))
        kept = state.pop("kept")
        inner_state = self.inner.learn(server.scoped("base"), ids[kept], robust)
        return {**state, "base": inner_state}

    def _apply_rule(
        self, server: Server, ids: Tensor, updates: ClientUpdate
    ) -> tuple[Tensor, ClientUpdate, State]:
        """Return a mask `[K]` of the clients that count, their robust updates, and the state."""
        everybody = torch.ones(len(ids), dtype=torch.bool)
        changes = {name: value - server.params[name] for name, value in updates.params.items()}
        if self.rule in CENTRE_RULES:
            params = self._all_at_centre(server.params, changes)
            extra = _replace_by_centre(self._centre, updates.extra)
            return everybody, replace(updates, params=params, extra=extra), server.state
        if self.rule in CLIP_RULES:
            params = self._clip(server, updates.params, changes)
            return everybody, replace(updates, params=params), server.state

        scaled = _scale_blocks(server.task, changes)
        if self.rule == "trust":
            observed, trust = self._next_trust(server, ids, changes, scaled)
            all_trust = server.state["trust"]
            all_trust = all_trust.index_copy(0, ids, trust.to(all_trust.dtype))
            kept = trust >= min(MIN_TRUST, float(trust.max()))
            # Trust of earlier rounds does not excuse this one: a sleeper is left out at once.
            is_plausible = observed >= MIN_OBSERVED
            if bool((kept & is_plausible).any()):
                kept = kept & is_plausible
            return kept, pytree.index(updates, kept), {**server.state, "trust": all_trust}

        num_byzantine = math.floor(self.value * len(ids))
        select = krum if self.rule == "krum" else multi_krum
        kept = select(scaled, num_byzantine)
        return kept, pytree.index(updates, kept), server.state

    def _clip(self, server: Server, params: Params, changes: Params) -> Params:
        """Clip the updates block by block; models within the bound stay to the bit."""
        result: Params = {}
        for block in _split_blocks(server.task, changes):
            max_norm: float | Tensor = self.value
            if self.rule == "adaptive":
                max_norm = self.value * client_norms(block).median()
            for name, change in clip_norms(block, max_norm).items():
                is_unchanged = change is block[name]
                result[name] = params[name] if is_unchanged else server.params[name] + change
        return {name: result[name] for name in params}

    def _all_at_centre(self, params: Params, changes: Params) -> Params:
        """Replace every client's model by the global one plus the centre of the updates."""
        count = len(next(iter(changes.values())))
        return {
            name: (params[name] + change).expand(count, *change.shape)
            for name, change in self._centre(changes).items()
        }

    def _centre(self, stack: Params) -> Params:
        """Return the robust mean of a stack by the rule."""
        if self.rule == "geometric":
            weights = geometric_median_weights(gram_matrix(stack))
            return weighted_mean(stack, weights)
        if self.rule == "centred":
            return centered_clipping(stack, self.value * client_norms(stack).median())
        if self.rule == "median":
            return coordinate_median(stack)
        return trimmed_mean(stack, self.value)

    def _next_trust(
        self, server: Server, ids: Tensor, changes: Params, scaled: Params
    ) -> tuple[Tensor, Tensor]:
        """Return this round's observation of these clients and the trust after it, `[K]` each."""
        gain = None
        if isinstance(server.task, SupervisedTask) and self.has_global(server.task):
            gain = self._probe_gain(server, changes)
        trust = server.state["trust"][ids].double()
        observed = observe_updates(scaled, gain, trust)
        return observed, mix_trust(trust, observed)

    def _probe_gain(self, server: Server, changes: Params) -> Tensor:
        """Return by how much a small step along each update lowers the public loss, `[K]`.

        All steps have the same length.
        """
        assert isinstance(server.task, SupervisedTask)
        norms = client_norms(changes)
        median_norm = norms.median().clamp(min=1e-30)
        factor = PROBE_STEP * median_norm / norms.clamp(min=MIN_PROBE_NORM * median_norm)
        stepped = {
            name: server.params[name] + change * _broadcast(factor.to(change.dtype), change)
            for name, change in changes.items()
        }
        unmoved = {name: value[None] for name, value in server.params.items()}
        before = server.task.probe_losses(unmoved).double()
        after = server.task.probe_losses(stepped).double()
        return before - after


# --- rules: functions of stacks `[K, ...]` ------------------------------------------------------


def client_norms(stack: Params) -> Tensor:
    """Return the Euclidean norm of each client's update over all parameters, `[K]`."""
    norms = [
        torch.linalg.vector_norm(value.flatten(1), dim=1, dtype=torch.float64)
        for value in stack.values()
    ]
    return torch.stack(norms).square().sum(0).sqrt()


def gram_matrix(stack: Params) -> Tensor:
    """Return the inner products of the updates of all pairs of clients, `[K, K]`."""
    flat = [value.flatten(1).double() for value in stack.values()]
    return torch.stack([rows @ rows.T for rows in flat]).sum(0)


def squared_distances(gram: Tensor) -> Tensor:
    """Return the squared distances of all pairs of updates, `[K, K]`, from `gram_matrix`."""
    sq_norms = gram.diagonal()
    return (sq_norms[:, None] + sq_norms - 2 * gram).clamp(min=0)


def coordinate_median(stack: Params) -> Params:
    """Return the coordinate-wise median; for even K the mean of the middle two."""
    return trimmed_mean(stack, 0.5)


def trimmed_mean(stack: Params, share: float) -> Params:
    """Return the coordinate-wise mean without a share of the clients at either end.

    Args:
        stack: Updates `[K, ...]`.
        share: The share that is cut at each end; at least one or two clients stay.
    """
    clients = len(next(iter(stack.values())))
    cut = min(math.floor(share * clients), (clients - 1) // 2)
    return {
        name: value.sort(0).values[cut : clients - cut].mean(0) for name, value in stack.items()
    }


def geometric_median_weights(gram: Tensor, counts: Tensor | None = None) -> Tensor:
    """Find the geometric median with Weiszfeld's iteration.

    The geometric median is a weighted mean of the points, so that the iteration needs only their
    inner products.

    Args:
        gram: The inner products `[K, K]`, from `gram_matrix`.
        counts: The multiplicity of each point `[K]`; by default 1.

    Returns:
        The weights `[K]` of the points in the geometric median.
    """
    sq_norms = gram.diagonal()
    weights = torch.full((len(gram),), 1 / len(gram), dtype=torch.float64)
    for _ in range(WEISZFELD_STEPS):
        products = gram @ weights
        distance = (sq_norms - 2 * products + weights @ products).clamp(min=0).sqrt()
        min_distance = max(MIN_RELATIVE_DISTANCE * float(distance.mean()), TINY)
        inverse = (1 if counts is None else counts) / distance.clamp(min=min_distance)
        weights = inverse / inverse.sum()
    return weights


def krum_scores(stack: Params, num_byzantine: int) -> Tensor:
    """Return the sums of squared distances to the K - f - 2 nearest others, `[K]`.

    Args:
        stack: Updates `[K, ...]`.
        num_byzantine: The assumed number f of hostile clients.
    """
    distances = squared_distances(gram_matrix(stack))
    num_nearest = max(len(distances) - num_byzantine - 2, 1)
    return distances.sort(1).values[:, 1 : num_nearest + 1].sum(1)


def krum(stack: Params, num_byzantine: int) -> Tensor:
    """Return a mask `[K]` of the one client with the lowest Krum score."""
    scores = krum_scores(stack, num_byzantine)
    return torch.arange(len(scores)) == scores.argmin()


def multi_krum(stack: Params, num_byzantine: int) -> Tensor:
    """Return a mask `[K]` of the K - f clients with the lowest Krum scores."""
    scores = krum_scores(stack, num_byzantine)
    num_kept = max(len(scores) - num_byzantine, 1)
    kept = torch.zeros(len(scores), dtype=torch.bool)
    kept[scores.argsort(stable=True)[:num_kept]] = True
    return kept


def clip_norms(stack: Params, max_norm: float | Tensor, centre: Params | None = None) -> Params:
    """Clip updates to a norm; those within it stay to the bit.

    Args:
        stack: Updates `[K, ...]`.
        max_norm: The largest norm.
        centre: The point from which norms are measured; by default 0.

    Returns:
        The clipped updates; `stack` itself if all are within the norm.
    """
    from_centre = stack
    if centre is not None:
        from_centre = {name: value - centre[name] for name, value in stack.items()}
    factor = (max_norm / client_norms(from_centre).clamp(min=TINY)).clamp(max=1.0)
    is_within = factor == 1
    if bool(is_within.all()):
        return stack
    result = {}
    for name, value in stack.items():
        clipped = from_centre[name] * _broadcast(factor.to(value.dtype), value)
        if centre is not None:
            clipped = clipped + centre[name]
        result[name] = torch.where(_broadcast(is_within, value), value, clipped)
    return result


def centered_clipping(stack: Params, max_norm: float | Tensor, steps: int = 3) -> Params:
    """Iterate v <- v + mean_i clip(x_i - v, tau), from v = 0, the last global model.

    Args:
        stack: Updates x_i `[K, ...]`.
        max_norm: The clipping norm tau.
        steps: The number of iterations.

    Returns:
        The centre.
    """
    centre = {name: torch.zeros_like(value[0]) for name, value in stack.items()}
    ones = torch.full((len(next(iter(stack.values()))),), 1.0)
    for _ in range(steps):
        centre = weighted_mean(clip_norms(stack, max_norm, centre), ones / ones.sum())
    return centre


def observe_updates(stack: Params, gain: Tensor | None, trust: Tensor) -> Tensor:
    """Score how plausible each client's update is beside the others'.

    Three factors between 0 and 1 are multiplied: the distance to the geometric median (1 up to
    twice the median distance, 0 from four times on), the cosine to it (1 from half the median
    cosine on, 0 at minus half), and the gain (1 from no loss on, 0 at a loss of three times the
    median size). A client whose update is a copy of another's gets 0 in this round. Copies have no
    say in the geometric median, nor do updates with a large loss: many hostile clients that send
    the same would draw it to themselves, because honest updates lie far apart.

    Args:
        stack: Updates `[K, ...]`.
        gain: By how much a small step along each update lowers the server's loss, `[K]`, if known.
        trust: The trust before this round, `[K]` in [0, 1]; also the points' multiplicity in the
            geometric median.

    Returns:
        Scores `[K]` in [0, 1].
    """
    gram = gram_matrix(stack)
    nearest_other = squared_distances(gram).fill_diagonal_(torch.inf).min(1).values.sqrt()
    is_copy = nearest_other < TWIN_DISTANCE * gram.diagonal().sqrt()
    plausible = torch.where(is_copy, 0.0, torch.ones_like(trust))
    if gain is not None:
        plausible = plausible * (1 + gain / _median_size(gain) / 3).clamp(0, 1)
    centre_trust = torch.where(plausible >= MIN_TRUST, trust, 0.0)
    if not bool((centre_trust > 0).any()):
        centre_trust = trust
    weights = geometric_median_weights(gram, centre_trust)
    products = gram @ weights
    centre_sq_norm = (weights @ products).clamp(min=0)
    distance = (gram.diagonal() - 2 * products + centre_sq_norm).clamp(min=0).sqrt()
    cosine = products / (gram.diagonal() * centre_sq_norm).sqrt().clamp(min=TINY)
    by_distance = (2 - distance / _median_size(distance) / 2).clamp(0, 1)
    by_cosine = (0.5 + cosine / _median_size(cosine)).clamp(0, 1)
    return by_distance * by_cosine * plausible


def mix_trust(trust: Tensor, observed: Tensor, decay: float = TRUST_DECAY) -> Tensor:
    """Return the exponential moving average.

    Args:
        trust: Trust so far `[K]`.
        observed: Trust of this round `[K]`.
        decay: Weight of the trust so far.
    """
    return decay * trust + (1 - decay) * observed


def cap_weights_by_trust(weights: Tensor, trust: Tensor) -> Tensor:
    """Limit each client's weight to twice the median weight times its trust.

    Methods can weigh by what clients report, and clients with poisoned labels truthfully report a
    high loss. The sum of the weights is kept. Where no client with a positive weight is trusted,
    the weights stay as they are.

    Args:
        weights: The method's weights `[K, ...]`.
        trust: `[K]`, at most 1.

    Returns:
        The limited weights `[K, ...]`.
    """
    median = torch.where(weights > 0, weights, torch.nan).nanmedian(0).values.nan_to_num()
    max_weight = 2 * median * _broadcast(trust.clamp(min=0).to(weights.dtype), weights)
    capped = weights.minimum(max_weight)
    total = capped.sum(0)
    return torch.where(total > 0, capped * (weights.sum(0) / total), weights)


def _median_size(values: Tensor) -> Tensor:
    """Return the median absolute value."""
    return values.abs().median().clamp(min=TINY)


def _broadcast(per_client: Tensor, like: Tensor) -> Tensor:
    """Reshape `[K]` so that it broadcasts against `[K, ...]`."""
    return per_client.view(-1, *[1] * (like.dim() - 1))


def _replace_by_centre(centre: Callable[[Params], Params], tree: State) -> State:
    """Replace what clients upload beside their models (such as SCAFFOLD's c) by its centre."""
    result = dict(tree)
    stacks = {
        name: value
        for name, value in tree.items()
        if isinstance(value, Tensor) and value.is_floating_point()
    }
    if stacks:
        for name, value in centre(stacks).items():
            result[name] = value.expand_as(stacks[name])
    for name, value in tree.items():
        if isinstance(value, dict):
            result[name] = _replace_by_centre(centre, value)
    return result


def _split_blocks(task: Task, stack: Params) -> list[Params]:
    """Return the parts of a stack by the blocks of the model, without empty ones."""
    blocks = [
        {name: stack[name] for name in names if name in stack}
        for names in task.info.blocks.values()
    ]
    return [block for block in blocks if block]


def _scale_blocks(task: Task, stack: Params) -> Params:
    """Divide each block by its median norm, so that a head counts beside a large backbone."""
    scaled: Params = {}
    for block in _split_blocks(task, stack):
        median_norm = client_norms(block).median().clamp(min=TINY)
        scaled |= {name: value.double() / median_norm for name, value in block.items()}
    return scaled
