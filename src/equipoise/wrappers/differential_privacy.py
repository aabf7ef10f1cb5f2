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

from equipoise.core import (
    Client,
    ClientResult,
    ClientUpdate,
    LocalHParams,
    LocalTrainRequest,
    Method,
    MethodWrapper,
    Params,
    RngContext,
    Server,
    ServerMessage,
    State,
    Task,
    TrainingConfig,
    ValueRange,
)
from equipoise.privacy.config import Privacy
from equipoise.simulation.client_runtime import ClientRuntime
from equipoise.simulation.executors import init_client_states
from equipoise.utils import rng
from equipoise.utils.errors import UsageError
from equipoise.utils.pytree import index

CLIP, UNCLIPPED = "dp_clip", "dp_unclipped"
FAR = 6.0  # standard deviations beyond which nobody's noise reaches
RATE = 0.2  # eta_C of Andrew et al.: how fast the bound follows
Draw = Callable[[Client, torch.Size, int], Tensor]
"""Independent standard normal numbers of this shape, for the parameter of this number."""


def private(method: Method, privacy: Privacy, draw: Draw | None = None) -> Method:
    """The method under these options; itself when they are off. Noise is drawn from the run's seed by default."""
    return Private(method, privacy, draw or seeded) if privacy.on else method


def seeded(client: Client, shape: torch.Size, number: int) -> Tensor:
    """For simulations: the same on every executor, and known to whoever knows the seed."""
    return _normal(client.uniform(*shape, stream=rng.PRIVACY[number]))


def secret(client: Client, shape: torch.Size, number: int) -> Tensor:
    """For deployments: from the operating system's entropy, so that nobody can draw it again."""
    words = np.frombuffer(os.urandom(8 * shape.numel()), np.uint64)
    return _normal(
        torch.from_numpy((words >> np.uint64(11)).astype(np.float64) * 2.0**-53).reshape(shape)
    )


def _normal(u: Tensor) -> Tensor:
    normal: Tensor = torch.special.ndtri(u.clamp(2.0**-54, 1 - 2.0**-53))
    return normal


@dataclass(frozen=True)
class Private(MethodWrapper):
    """w_i reaches the server as w + clip(w_i - w, C) + N(0, (sigma C)^2), and the method below sees the mean."""

    privacy: Privacy
    draw: Draw

    def check(self, task: Task, training: TrainingConfig) -> None:
        super().check(task, training)
        if self.privacy.noisy and "select_clients" in self.overridden_hooks:
            raise UsageError(
                f"{self.name} is not offered with dp_noise: it chooses who takes part, and epsilon is counted for "
                "cohorts drawn by chance alone; choose another method"
            )
        if self.privacy.noisy and self.privacy.dp_delta >= 1 / task.num_clients:
            raise UsageError(
                f"dp_delta is {self.privacy.dp_delta:g}: must be below 1/{task.num_clients}, one over the clients, else it "
                "allows to give one of them away"
            )
        if set(task.batch_stat_names) & set(self.shared_param_names(task)):
            raise UsageError(
                f"{self.name} is not offered with dp_clip on batch normalisation whose running statistics travel: "
                "noise would make variances negative; keep them at the clients (fedbn), or use GroupNorm"
            )
        if self.needs_common_start:
            raise UsageError(
                f"{self.name} is not offered with dp_clip: clients and server each keep a memory of the uploads, and "
                "clipping or noise would part the two; choose another method"
            )
        up, sent = dry_run_upload(self.inner, task, training)
        if up.extra or up.metrics:
            raise UsageError(
                f"{self.name} is not offered with dp_clip: beside its model a client uploads "
                f"'{next(iter([*up.extra, *up.metrics]))}', which would leave it unprotected; choose another method"
            )
        if any(
            sent[block] is not True
            for block, names in task.blocks.items()
            if set(names) & set(up.params)
        ):
            raise UsageError(
                f"{self.name} is not offered with dp_clip: a client that was not sent a block knows nothing to clip "
                "its change of it against; choose a method that sends all the blocks that it collects"
            )

    def init_server(self, task: Task, params: Params) -> State:
        state = super().init_server(task, params)
        return (
            state | {CLIP: torch.tensor(self.privacy.dp_clip, dtype=torch.float64)}
            if self._adapts
            else state
        )

    def distribute(self, server: Server, ids: Tensor) -> tuple[ServerMessage, State]:
        down, state = super().distribute(server, ids)
        return replace(
            down, broadcast={**down.broadcast, CLIP: server.state[CLIP]}
        ) if self._adapts else down, state

    def upload(self, client: Client) -> tuple[ClientUpdate, State]:
        up, state = super().upload(client)
        params, within = self._protected(client, up.params)
        if not self._adapts:
            return replace(up, params=params), state
        bit = within.double()
        if self.privacy.noisy:
            bit = bit + self.privacy.bit_noise * self.draw(client, torch.Size([1]), len(params))[0]
        return replace(up, params=params, metrics={UNCLIPPED: bit}), state

    def aggregation_weights(
        self, server: Server, ids: Tensor, updates: ClientUpdate
    ) -> tuple[Tensor | Params, State]:
        weights, state = super().aggregation_weights(server, ids, self._mean(updates))
        return weights, self._adapted(server, state, updates)

    def aggregate(
        self, server: Server, ids: Tensor, updates: ClientUpdate, weights: Tensor | Params
    ) -> tuple[Params, State]:
        return super().aggregate(server, ids, self._mean(updates), weights)

    def learn(self, server: Server, ids: Tensor, updates: ClientUpdate) -> State:
        """Show the inner method no more than `aggregate` does."""
        return super().learn(server, ids, self._mean(updates))

    @property
    def report_ranges(self) -> Mapping[str, ValueRange]:  # type: ignore[override]
        """A noised bit lies within six standard deviations, or its client is left out."""
        if not self._adapts:
            return super().report_ranges
        room = FAR * self.privacy.bit_noise
        return {**super().report_ranges, UNCLIPPED: ValueRange(-room, 1 + room)}

    @property
    def _adapts(self) -> bool:
        return self.privacy.dp_quantile > 0

    def _adapted(self, server: Server, state: State, updates: ClientUpdate) -> State:
        """C <- C exp(-eta_C (b - gamma)), with b the noised share of changes that were within C."""
        if not self._adapts:
            return state
        share = updates.metrics[UNCLIPPED].mean()
        clip = server.state[CLIP] * torch.exp(-RATE * (share - self.privacy.dp_quantile))
        server.logged |= {CLIP: float(server.state[CLIP]), UNCLIPPED: float(share)}
        return {**state, CLIP: clip}

    def _protected(self, client: Client, params: Params) -> tuple[Params, Tensor]:
        """w + clip(w_i - w, C) + N(0, (sigma C)^2), with w as it was sent; to the bit w_i if nothing is to be done.

        And whether the change was within the bound.
        """
        if not params:
            return params, torch.tensor(True)
        sent = client.message.params
        clip = client.message.broadcast[CLIP] if self._adapts else self.privacy.dp_clip
        change = {name: value.double() - sent[name].double() for name, value in params.items()}
        norm = torch.stack([value.square().sum() for value in change.values()]).sum().sqrt()
        out: Params = {}
        for number, (name, value) in enumerate(params.items()):
            clipped = sent[name].double() + change[name] * (clip / norm)
            kept = torch.where(norm <= clip, value.double(), clipped)
            if self.privacy.noisy:
                kept = kept + self.privacy.change_noise * clip * self.draw(
                    client, value.shape, number
                )
            out[name] = kept.to(value.dtype)
        return out, norm <= clip

    def _mean(self, updates: ClientUpdate) -> ClientUpdate:
        """Under noise every client counts alike, whatever a method would weigh by: all it is shown is the mean."""
        if not self.privacy.noisy:
            return updates
        return replace(
            updates,
            params={
                name: value.mean(0, keepdim=True).expand_as(value)
                for name, value in updates.params.items()
            },
        )


class _NoTrainClient(ClientRuntime):
    """A client that does everything but train."""

    def _fit(
        self,
        request: LocalTrainRequest,
        train: LocalHParams,
        blocks: tuple[str, ...] | None,
        training: TrainingConfig | None = None,
    ) -> tuple[Params, Params]:
        return request.params, request.proximal.anchor if request.proximal else {}


def dry_run_upload(
    method: Method, task: Task, training: TrainingConfig
) -> tuple[ClientUpdate, Mapping[str, bool | Tensor]]:
    """What a client of this method would upload, and what it is sent: known without training."""
    ids, initial = torch.zeros(1, dtype=torch.int64), task.init_params(0)
    with torch.no_grad():
        server = Server(task, training, initial, method.init_server(task, initial), 0, 1, 1)
        down, _ = method.distribute(server, ids)
        held = index(init_client_states(method, task, ids, initial, keeps_local=True), 0)
        c = _NoTrainClient(
            task, training, RngContext(0, 1, training), 1, ids[0], down.for_clients(0), held
        )
        c.start, c.state = method.receive(c)
        c.hparams, c.state = method.configure_training(c)
        c.trained, c.state = method.train(c)
        up, _ = method.upload(c)
    return up, down.sent_blocks


def strip_unprotected(method: Method, reply: ClientResult) -> ClientResult:
    """A client's reply without what noise does not protect: scores, decisions, notes."""
    return ClientResult(reply.update, reply.client_state) if is_noisy(method) else reply


def is_noisy(method: Method) -> bool:
    """Whether what clients upload under this method is noised, at whatever depth."""
    if isinstance(method, Private):
        return method.privacy.noisy
    return isinstance(method, MethodWrapper) and is_noisy(method.inner)
