"""Any method, made private: clients clip and noise what they upload, the server sees no more of it than its mean.

The bound may follow a quantile of the changes' lengths (Andrew et al. 2021). The rest of a method stays as it is: what
it does with noised uploads cannot weaken the promise (post-processing).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from equipoise.contract import (
    Around,
    Client,
    Down,
    Fit,
    Method,
    Range,
    Reply,
    Server,
    State,
    Task,
    Train,
    Training,
    Tree,
    Up,
    When,
)
from equipoise.core import streams
from equipoise.core.errors import UsageError
from equipoise.core.trees import row
from equipoise.privacy.options import Privacy
from equipoise.runtime.client import RunningClient
from equipoise.runtime.executors import fresh_clients

CLIP, UNCLIPPED = "dp_clip", "dp_unclipped"
FAR = 6.0  # standard deviations beyond which nobody's noise reaches
RATE = 0.2  # eta_C of Andrew et al.: how fast the bound follows
Draw = Callable[[Client, torch.Size, int], Tensor]
"""Independent standard normal numbers of this shape, for the parameter of this number."""


def private(method: Method, privacy: Privacy, draw: Draw | None = None) -> Method:
    """The method under these options; itself when they are off. Noise is drawn from the run's seed by default."""
    return Private(method, privacy, draw or seeded) if privacy.on else method


def seeded(c: Client, shape: torch.Size, number: int) -> Tensor:
    """For simulations: the same on every executor, and known to whoever knows the seed."""
    return _normal(c.uniform(*shape, stream=streams.PRIVACY[number]))


def secret(c: Client, shape: torch.Size, number: int) -> Tensor:
    """For deployments: from the operating system's entropy, so that nobody can draw it again."""
    words = np.frombuffer(os.urandom(8 * shape.numel()), np.uint64)
    return _normal(torch.from_numpy((words >> np.uint64(11)).astype(np.float64) * 2.0**-53).reshape(shape))


def _normal(u: Tensor) -> Tensor:
    normal: Tensor = torch.special.ndtri(u.clamp(2.0**-54, 1 - 2.0**-53))
    return normal


@dataclass(frozen=True)
class Private(Around):
    """w_i reaches the server as w + clip(w_i - w, C) + N(0, (sigma C)^2), and the method below sees the mean."""

    privacy: Privacy
    draw: Draw

    def check(self, task: Task, training: Training) -> None:
        super().check(task, training)
        if self.privacy.noisy and "select" in self.decides:
            raise UsageError(
                f"{self.name} is not offered with dp_noise: it chooses who takes part, and epsilon is counted for "
                "cohorts drawn by chance alone; choose another method"
            )
        if self.privacy.noisy and self.privacy.dp_delta >= 1 / task.clients:
            raise UsageError(
                f"dp_delta is {self.privacy.dp_delta:g}: must be below 1/{task.clients}, one over the clients, else it "
                "allows to give one of them away"
            )
        if set(task.statistics) & set(self.shared_names(task)):
            raise UsageError(
                f"{self.name} is not offered with dp_clip on batch normalisation whose running statistics travel: "
                "noise would make variances negative; keep them at the clients (fedbn), or use GroupNorm"
            )
        if self.one_start:
            raise UsageError(
                f"{self.name} is not offered with dp_clip: clients and server each keep a memory of the uploads, and "
                "clipping or noise would part the two; choose another method"
            )
        up, sent = rehearse(self.below, task, training)
        if up.extra or up.metrics:
            raise UsageError(
                f"{self.name} is not offered with dp_clip: beside its model a client uploads "
                f"'{next(iter([*up.extra, *up.metrics]))}', which would leave it unprotected; choose another method"
            )
        if any(sent[block] is not True for block, names in task.blocks.items() if set(names) & set(up.params)):
            raise UsageError(
                f"{self.name} is not offered with dp_clip: a client that was not sent a block knows nothing to clip "
                "its change of it against; choose a method that sends all the blocks that it collects"
            )

    def server_init(self, task: Task, params: Tree) -> State:
        state = super().server_init(task, params)
        return state | {CLIP: torch.tensor(self.privacy.dp_clip, dtype=torch.float64)} if self._adapts else state

    def give(self, s: Server, ids: Tensor) -> tuple[Down, State]:
        down, state = super().give(s, ids)
        return replace(down, extra={**down.extra, CLIP: s.state[CLIP]}) if self._adapts else down, state

    def upload(self, c: Client) -> tuple[Up, State]:
        up, state = super().upload(c)
        params, within = self._protected(c, up.params)
        if not self._adapts:
            return replace(up, params=params), state
        bit = within.double()
        if self.privacy.noisy:
            bit = bit + self.privacy.bit_noise * self.draw(c, torch.Size([1]), len(params))[0]
        return replace(up, params=params, metrics={UNCLIPPED: bit}), state

    def weigh(self, s: Server, ids: Tensor, up: Up) -> tuple[Tensor | Tree, State]:
        weights, state = super().weigh(s, ids, self._mean(up))
        return weights, self._adapted(s, state, up)

    def aggregate(self, s: Server, ids: Tensor, up: Up, weights: Tensor | Tree) -> tuple[Tree, State]:
        return super().aggregate(s, ids, self._mean(up), weights)

    @property
    def reports(self) -> Mapping[str, Range]:  # type: ignore[override]
        """A noised bit lies within six standard deviations, or its client is left out."""
        if not self._adapts:
            return super().reports
        room = FAR * self.privacy.bit_noise
        return {**super().reports, UNCLIPPED: Range(-room, 1 + room)}

    @property
    def _adapts(self) -> bool:
        return self.privacy.dp_quantile > 0

    def _adapted(self, s: Server, state: State, up: Up) -> State:
        """C <- C exp(-eta_C (b - gamma)), with b the noised share of changes that were within C."""
        if not self._adapts:
            return state
        share = up.metrics[UNCLIPPED].mean()
        clip = s.state[CLIP] * torch.exp(-RATE * (share - self.privacy.dp_quantile))
        s.notes |= {CLIP: float(s.state[CLIP]), UNCLIPPED: float(share)}
        return {**state, CLIP: clip}

    def _protected(self, c: Client, params: Tree) -> tuple[Tree, Tensor]:
        """w + clip(w_i - w, C) + N(0, (sigma C)^2), with w as it was sent; to the bit w_i if nothing is to be done.

        And whether the change was within the bound.
        """
        if not params:
            return params, torch.tensor(True)
        sent = c.down.params
        clip = c.down.extra[CLIP] if self._adapts else self.privacy.dp_clip
        change = {name: value.double() - sent[name].double() for name, value in params.items()}
        norm = torch.stack([value.square().sum() for value in change.values()]).sum().sqrt()
        out: Tree = {}
        for number, (name, value) in enumerate(params.items()):
            clipped = sent[name].double() + change[name] * (clip / norm)
            kept = torch.where(norm <= clip, value.double(), clipped)
            if self.privacy.noisy:
                kept = kept + self.privacy.change_noise * clip * self.draw(c, value.shape, number)
            out[name] = kept.to(value.dtype)
        return out, norm <= clip

    def _mean(self, up: Up) -> Up:
        """Under noise every client counts alike, whatever a method would weigh by: all it is shown is the mean."""
        if not self.privacy.noisy:
            return up
        return replace(
            up, params={name: value.mean(0, keepdim=True).expand_as(value) for name, value in up.params.items()}
        )


class _Idle(RunningClient):
    """A client that does everything but train."""

    def _fit(
        self, fit: Fit, train: Train, blocks: tuple[str, ...] | None, training: Training | None = None
    ) -> tuple[Tree, Tree]:
        return fit.params, fit.pull.anchor if fit.pull else {}


def rehearse(method: Method, task: Task, training: Training) -> tuple[Up, Mapping[str, bool | Tensor]]:
    """What a client of this method would upload, and what it is sent: known without training."""
    ids, initial = torch.zeros(1, dtype=torch.int64), task.init_params(0)
    with torch.no_grad():
        server = Server(task, training, initial, method.server_init(task, initial), 0, 1, 1)
        down, _ = method.give(server, ids)
        held = row(fresh_clients(method, task, ids, initial, keeps_local=True), 0)
        c = _Idle(task, training, When(0, 1, training), 1, ids[0], down.row(0), held)
        c.start, c.state = method.install(c)
        c.train, c.state = method.decide(c)
        c.trained, c.state = method.update(c)
        up, _ = method.upload(c)
    return up, down.sent


def withheld(method: Method, reply: Reply) -> Reply:
    """A client's reply without what noise does not protect: scores, decisions, notes."""
    return Reply(reply.up, reply.held) if is_noisy(method) else reply


def is_noisy(method: Method) -> bool:
    """Whether what clients upload under this method is noised, at whatever depth."""
    if isinstance(method, Private):
        return method.privacy.noisy
    return isinstance(method, Around) and is_noisy(method.below)
