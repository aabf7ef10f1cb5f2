"""Hostile clients for simulations: a fixed share of the clients changes what it uploads.

Attacks that ignore the server's guards:

- `flip` sends ten times the opposite of its update, `scaled` ten times its update;
- `noise` sends a random update of ten times the honest norm;
- `constant` sends one number everywhere, `huge` the largest number of single precision;
- `broken` sends no number, and is left out: what it costs to do without the rows of these clients;
- `metrics` sends its honest model with the worst report that the declared ranges allow;
- `little` sends an update on which all hostile clients agree: the honest mean less 1.5 standard
  deviations per coordinate (Baruch et al., "A Little Is Enough", NeurIPS 2019, arXiv:1902.06156).

Attacks that adapt: hostile clients see all honest uploads, know the guards and stay within them.

- `under` points against the honest mean, just under the norm at which an update is left out;
- `cap` stays just under every bound at which an update counts less: against the honest mean by
  what is allowed, and for the rest of the norm across it, along the standard deviations;
- `steady` points to the same random side in every round, as long as `under`: lies add up in what
  a server remembers;
- `rate-lie` is `under`, ten times as long, with a false learning rate in its reply;
- `size-lie` is `under`, and claims ten times its number of examples before round 1;
- `sleeper` is honest until the last round, and then `under`;
- `measurements` sends its honest model, and false measurements as far from the median as robust
  statistics let pass.

`labels` and `backdoor` change the rows of clients instead: see `equipoise.data.poisoning`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from equipoise.core import (
    ClientResult,
    ClientState,
    ClientUpdate,
    LocalHParams,
    Method,
    Params,
    ServerMessage,
    SupervisedTask,
    Task,
    TrainingConfig,
)
from equipoise.core.report_validation import (
    DEFAULT_RANGE,
    MAX_MAD_RATIO,
    MAX_OPPOSITION,
    MAX_SIZE_RATIO,
    ValueRange,
    believed_sizes,
    like_params,
    trimmed_max,
)
from equipoise.data.poisoning import DATA_ATTACKS
from equipoise.simulation.aggregation_guard import COMMON_START_BOUNDS, update_norms
from equipoise.simulation.executors import CohortRequest, CohortResults, Executor
from equipoise.utils import rng
from equipoise.utils.errors import UsageError, did_you_mean

ATTACK_SCALE = 10.0
LITTLE_NUM_STDS = 1.5
MARGIN = 0.97  # an adaptive attacker stays this far below a bound
FALSE_RATE = 1e12
MakeExecutor = Callable[[Method, Task, TrainingConfig, int, int], Executor]


class Cohort(NamedTuple):
    """What hostile clients know when they lie.

    Attributes:
        changes: All updates less the model that was sent, `[K, ...]`.
        lying: Mask `[K]` of the hostile clients.
        norms: Norms `[K]` of the updates.
        seed: Seed of random lies in this round.
        run_seed: Seed of random lies that are the same in every round.
        is_last: Whether this is the last round.
    """

    changes: Params
    lying: Tensor
    norms: Tensor
    seed: int
    run_seed: int
    is_last: bool

    def honest(self, name: str) -> Tensor:
        """Return the honest changes of a parameter; all changes if nobody is honest."""
        change = self.changes[name]
        return change[~self.lying] if bool((~self.lying).any()) else change

    def usual_norm(self) -> float:
        """Return the trimmed maximum of the honest norms."""
        honest = self.norms[~self.lying]
        return trimmed_max(honest) if len(honest) > 1 else float(self.norms.max())


ModelAttack = Callable[[Cohort], Params]
"""Returns the hostile changes, `[K, ...]` or one for all `[...]`."""


def hostile_clients(seed: int, clients: int, share: float) -> Tensor:
    """Return the ids of the clients that lie, drawn by the seed; at least one for a share above 0.

    Args:
        seed: Seed of the run.
        clients: Number of clients.
        share: Share of hostile clients.
    """
    order = rng.generator(seed, rng.ATTACKERS).permutation(clients)
    count = max(round(share * clients), math.ceil(share))
    return torch.from_numpy(order[:count].copy()).sort().values


def with_attack(make: MakeExecutor, text: str) -> MakeExecutor:
    """Add hostile clients (`NAME:SHARE`) to an executor; data attacks leave it as it is."""
    name, share = parse_attack(text) if text else ("", 0.0)
    if name not in ATTACKS:
        return make

    def attacking(
        method: Method, task: Task, training: TrainingConfig, seed: int, rounds: int
    ) -> Executor:
        return AttackedExecutor(make(method, task, training, seed, rounds), name, share)

    return attacking


def parse_attack(text: str) -> tuple[str, float]:
    """Parse `NAME:SHARE` into the name of an attack and the share of hostile clients.

    Raises:
        UsageError: If the attack is unknown or the share is not in (0, 1).
    """
    name, _, number = text.partition(":")
    known = (*ATTACKS, *DATA_ATTACKS)
    if name not in known:
        raise UsageError(
            f"unknown attack '{name}'{did_you_mean(name, known)}: "
            f"attack must be one of {', '.join(known)}"
        )
    try:
        share = float(number)
    except ValueError:
        share = math.nan
    if not 0 < share < 1:
        raise UsageError(
            f"attack is '{text}': must be NAME:SHARE with a share in (0, 1), such as flip:0.1"
        )
    return name, share


class AttackedExecutor(Executor):
    """Another executor, some of whose clients lie. Their own models and scores stay honest."""

    def __init__(self, inner: Executor, attack: str, share: float) -> None:
        """Choose the hostile clients.

        Args:
            inner: The executor of all clients.
            attack: One of `ATTACKS`.
            share: Share of hostile clients.
        """
        super().__init__(inner.method, inner.task, inner.training, inner.seed, inner.rounds)
        self.inner = inner
        self.attack = attack
        self.hostile = hostile_clients(inner.seed, inner.task.info.num_clients, share)
        self.min_replies = inner.min_replies
        self.keeps_models = inner.keeps_models
        if attack == "size-lie":
            self._claim_sizes()

    def init_state(self, ids: Tensor, initial: Params, keeps_local: bool) -> ClientState:
        """Return the initial states of the inner executor."""
        return self.inner.init_state(ids, initial, keeps_local)

    def chunks(self, clients: int) -> list[slice]:
        """Split a cohort as the inner executor does."""
        return self.inner.chunks(clients)

    def run_clients(self, request: CohortRequest) -> CohortResults:
        """Run the clients, then change the uploads of hostile ones."""
        replies = self.inner.run_clients(request)
        if replies.stack is None:
            return replies
        lying = torch.isin(request.ids[replies.arrived], self.hostile)
        if not bool(lying.any()):
            return replies
        stack = replies.stack
        update = self._lie(stack.update, request.message, lying, request.round)
        hparams = self._false_hparams(stack, lying)
        return replace(replies, stack=replace(stack, update=update, hparams=hparams))

    def _claim_sizes(self) -> None:
        """Let hostile clients claim ten times their examples, as a server would believe them."""
        everybody = torch.arange(self.task.info.num_clients)
        claimed = dict(enumerate(self.task.num_examples(everybody).tolist()))
        for client in self.hostile.tolist():
            claimed[client] *= MAX_SIZE_RATIO
        if not isinstance(self.task, SupervisedTask):
            raise UsageError("attack size-lie is for tasks with rows: choose another attack")
        self.task.claim_sizes(believed_sizes(claimed))

    def _false_hparams(self, result: ClientResult, lying: Tensor) -> LocalHParams | None:
        """Return what clients say of their training."""
        if self.attack != "rate-lie" or result.hparams is None:
            return result.hparams
        lr = result.hparams.lr
        false_rate = torch.full_like(lr, FALSE_RATE)
        return replace(result.hparams, lr=torch.where(lying, false_rate, lr))

    def _lie(
        self, updates: ClientUpdate, message: ServerMessage, lying: Tensor, round: int
    ) -> ClientUpdate:
        """Return the uploads with those of hostile clients replaced."""
        sent = message.params
        if self.attack in REPORT_ATTACKS:
            lie = REPORT_ATTACKS[self.attack]
            ranges = self.method.report_ranges
            metrics = {
                name: _replace_rows(
                    value, lie(value, lying, ranges.get(name, DEFAULT_RANGE)), lying
                )
                for name, value in updates.metrics.items()
            }
            return replace(updates, metrics=metrics)
        cohort = Cohort(
            {name: value - sent[name] for name, value in updates.params.items()},
            lying,
            update_norms(sent, updates.params, len(lying)),
            self.seed * 1_000_003 + round * 1009,
            self.seed,
            round == self.rounds,
        )
        sums = updates.extra.get("sums")
        if not updates.params and isinstance(sums, Tensor):
            # An upload without a model is its sums: histograms of trees, in whole numbers.
            honest = sums.double()
            norms = torch.linalg.vector_norm(honest.flatten(1), dim=1)
            cohort = cohort._replace(changes={"sums": honest}, norms=norms)
            lies = MODEL_ATTACKS[self.attack](cohort)
            extra = {**updates.extra, "sums": _replace_rows(sums, lies["sums"], lying)}
            return replace(updates, extra=extra)
        changes = MODEL_ATTACKS[self.attack](cohort)
        params = {
            name: _replace_rows(value, sent[name] + changes[name], lying)
            for name, value in updates.params.items()
        }
        extra = dict(updates.extra)
        for name, tree in like_params(updates).items():
            if name in message.broadcast:
                lies = _consistent_memory(message, name, updates, params)
                extra[name] = {key: _replace_rows(tree[key], lies[key], lying) for key in tree}
        return replace(updates, params=params, extra=extra)


def _consistent_memory(
    message: ServerMessage, name: str, updates: ClientUpdate, params: Params
) -> Params:
    """Return changes of a memory `[K, ...]` that agree with a false model.

    SCAFFOLD's server refuses others: the change plus what was sent is a multiple of the model's
    change, see `Scaffold.check_updates`. The multiple is that of the honest upload.

    Args:
        message: What the server sent.
        name: Of the memory in `broadcast` and in `extra`.
        updates: The honest uploads.
        params: The models that will be uploaded.
    """
    honest = {key: value - message.params[key] for key, value in updates.params.items()}
    gradients = {
        key: change + message.broadcast[name][key] for key, change in updates.extra[name].items()
    }
    dots = torch.stack([(gradients[key] * honest[key]).flatten(1).sum(1) for key in honest]).sum(0)
    squares = torch.stack([value.square().flatten(1).sum(1) for value in honest.values()]).sum(0)
    ratio = dots / squares.clamp(min=1e-30)
    return {
        key: (value - message.params[key]) * ratio.view(-1, *[1] * (value.dim() - 1))
        - message.broadcast[name][key]
        for key, value in params.items()
    }


def _replace_rows(value: Tensor, lie: Tensor, lying: Tensor) -> Tensor:
    """Return `value` `[K, ...]` with the rows of hostile clients taken from `lie`."""
    mask = lying.view(-1, *[1] * (value.dim() - 1))
    return torch.where(mask, lie.to(value.dtype), value)


# --- lies in the model ----------------------------------------------------------------------------


def _scale(factor: float) -> ModelAttack:
    """Multiply each change."""
    return lambda cohort: {name: factor * change for name, change in cohort.changes.items()}


def _constant(number: float) -> ModelAttack:
    """Send one number everywhere."""
    return lambda cohort: {
        name: torch.full_like(change, number) for name, change in cohort.changes.items()
    }


def _noise(cohort: Cohort) -> Params:
    """Send noise of ten times the median norm of each parameter."""
    lies: Params = {}
    for number, (name, change) in enumerate(cohort.changes.items()):
        draw = torch.Generator().manual_seed(cohort.seed + number)
        noise = torch.randn(change.shape, generator=draw, dtype=change.dtype)
        norms = torch.linalg.vector_norm(change.flatten(1), dim=1)
        typical = norms.median() / math.sqrt(max(change[0].numel(), 1))
        lies[name] = ATTACK_SCALE * typical * noise
    return lies


def _little(cohort: Cohort) -> Params:
    """Send the honest mean less some standard deviations."""
    lies: Params = {}
    for name in cohort.changes:
        honest = cohort.honest(name)
        lies[name] = honest.mean(0) - LITTLE_NUM_STDS * honest.std(0, correction=0)
    return lies


def _against_the_mean(cohort: Cohort, norm: float) -> Params:
    """Send a change of a given norm against the mean of the honest changes."""
    means = {name: cohort.honest(name).mean(0) for name in cohort.changes}
    length = math.sqrt(sum(float(mean.double().square().sum()) for mean in means.values()))
    return {name: mean * (-norm / max(length, 1e-30)) for name, mean in means.items()}


def _norm_under_the_bound(cohort: Cohort) -> float:
    """Return the norm just under that at which an update is left out."""
    return MARGIN * COMMON_START_BOUNDS.norm_ratio * cohort.usual_norm()


def _under(cohort: Cohort) -> Params:
    """Stay just under the norm at which an update is left out."""
    return _against_the_mean(cohort, _norm_under_the_bound(cohort))


def _steady(cohort: Cohort) -> Params:
    """Send the same random direction in every round, as long as `under`."""
    draw = torch.Generator().manual_seed(cohort.run_seed)
    side = {
        name: torch.randn(change.shape[1:], generator=draw, dtype=change.dtype)
        for name, change in cohort.changes.items()
    }
    factor = _norm_under_the_bound(cohort) / max(math.sqrt(_dot(side, side)), 1e-30)
    return {name: factor * value for name, value in side.items()}


def _cap(cohort: Cohort) -> Params:
    """Stay just under the bounds on opposition and norm, so that no guard acts.

    The part across the mean follows the standard deviations of the honest changes, as in `little`:
    it points to the same side in every round.
    """
    ratio = COMMON_START_BOUNDS.influence_ratio_of(len(cohort.lying))
    norm = MARGIN * ratio * cohort.usual_norm()
    means = {name: cohort.honest(name).mean(0).double() for name in cohort.changes}
    mean_norm = math.sqrt(_dot(means, means))
    against = min(MARGIN * MAX_OPPOSITION * mean_norm, norm)
    unit = {name: mean / max(mean_norm, 1e-30) for name, mean in means.items()}
    stds = {name: cohort.honest(name).std(0, correction=0).double() for name in means}
    along = _dot(stds, unit)
    across = {name: std - along * unit[name] for name, std in stds.items()}
    length = math.sqrt(norm**2 - against**2) / max(math.sqrt(_dot(across, across)), 1e-30)
    return {
        name: (-against * unit[name] - length * across[name]).to(cohort.changes[name].dtype)
        for name in means
    }


def _dot(one: Params, other: Params) -> float:
    """Return the inner product of two changes of a model."""
    return sum(float((value * other[name]).sum()) for name, value in one.items())


def _long(cohort: Cohort) -> Params:
    """Send ten times what `under` does."""
    return {name: ATTACK_SCALE * lie for name, lie in _under(cohort).items()}


def _sleeper(cohort: Cohort) -> Params:
    """Be honest until the last round."""
    return _under(cohort) if cohort.is_last else cohort.changes


MODEL_ATTACKS: dict[str, ModelAttack] = {
    "flip": _scale(-ATTACK_SCALE),
    "scaled": _scale(ATTACK_SCALE),
    "noise": _noise,
    "constant": _constant(1.0),
    "huge": _constant(3e38),
    "broken": _constant(math.nan),
    "little": _little,
    "under": _under,
    "cap": _cap,
    "steady": _steady,
    "rate-lie": _long,
    "size-lie": _under,
    "sleeper": _sleeper,
}


# --- lies in what is reported ---------------------------------------------------------------------


def _largest(values: Tensor, lying: Tensor, allowed: ValueRange) -> Tensor:
    """Return the top of the declared range."""
    return torch.tensor(allowed.high, dtype=torch.float64).expand(values.shape)


def _far_but_usual(values: Tensor, lying: Tensor, allowed: ValueRange) -> Tensor:
    """Return values as far above the median as `winsorize` lets pass."""
    honest = values[~lying].double()
    if len(honest) < 2:
        return values
    median = honest.median(0).values
    deviations = (honest - median).abs()
    usual = deviations.sort(0).values[max(0, len(honest) - 1 - max(1, len(honest) // 10))]
    lie = median + MARGIN * MAX_MAD_RATIO * usual
    low = torch.tensor(allowed.low, dtype=torch.float64)
    high = torch.tensor(allowed.high, dtype=torch.float64)
    return torch.minimum(torch.maximum(lie, low), high).expand(values.shape)


ReportAttack = Callable[[Tensor, Tensor, ValueRange], Tensor]
REPORT_ATTACKS: dict[str, ReportAttack] = {"metrics": _largest, "measurements": _far_but_usual}
ATTACKS = (*MODEL_ATTACKS, *REPORT_ATTACKS)
