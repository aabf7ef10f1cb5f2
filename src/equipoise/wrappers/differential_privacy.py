"""Client-level differential privacy: clients clip their updates and add Gaussian noise.

Abadi et al., "Deep Learning with Differential Privacy", CCS 2016 (arXiv:1607.00133), with local
noise. The clipping norm can follow a quantile of the update norms: Andrew et al., "Differentially
Private Learning with Adaptive Clipping", NeurIPS 2021 (arXiv:1905.03871). The inner method sees the
noised mean only; what it does with it cannot weaken the guarantee (post-processing).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from equipoise.core import (
    Capabilities,
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
from equipoise.privacy.config import PrivacyConfig
from equipoise.simulation.client_runtime import ClientRuntime
from equipoise.simulation.executors import init_client_states
from equipoise.utils import rng
from equipoise.utils.errors import UsageError
from equipoise.utils.pytree import index

CLIP_KEY = "dp_clip"
UNCLIPPED_KEY = "dp_unclipped"
MAX_NOISE_STDS = 6.0
"""Reports with more noise than this many standard deviations are rejected."""
CLIP_LR = 0.2
"""Learning rate eta_C of the clipping norm (Andrew et al.)."""

NormalSampler = Callable[[Client, torch.Size, int], Tensor]
"""Draws independent standard normal numbers of a shape, for the parameter of a number."""


def with_differential_privacy(
    method: Method, privacy: PrivacyConfig, draw: NormalSampler | None = None
) -> Method:
    """Wrap a method with clipping and noise.

    Args:
        method: Any method.
        privacy: Clipping norm, noise and delta.
        draw: The source of the noise; by default the run's seed.

    Returns:
        The wrapped method, or `method` itself if clipping is off.
    """
    if not privacy.is_enabled:
        return method
    return DifferentialPrivacy(method, privacy, draw or seeded_normal)


def seeded_normal(client: Client, shape: torch.Size, number: int) -> Tensor:
    """Draw noise from the run's seed, for simulations: equal on every executor, but predictable.

    Args:
        client: The client.
        shape: Shape of the noise.
        number: Number of the tensor within the upload, which separates the random streams.

    Returns:
        Standard normal numbers.
    """
    return _to_normal(client.uniform(*shape, stream=rng.PRIVACY[number]))


def secret_normal(client: Client, shape: torch.Size, number: int) -> Tensor:
    """Draw noise from the operating system's entropy, for deployments.

    Args:
        client: The client, on which the noise does not depend.
        shape: Shape of the noise.
        number: Number of the tensor, on which the noise does not depend.

    Returns:
        Standard normal numbers.
    """
    words = np.frombuffer(os.urandom(8 * shape.numel()), np.uint64)
    uniform = (words >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return _to_normal(torch.from_numpy(uniform).reshape(shape))


def _to_normal(uniform: Tensor) -> Tensor:
    """Map uniform numbers in [0, 1) to standard normal ones by the inverse distribution."""
    normal: Tensor = torch.special.ndtri(uniform.clamp(2.0**-54, 1 - 2.0**-53))
    return normal


@dataclass(frozen=True)
class DifferentialPrivacy(MethodWrapper):
    """Upload w + clip(w_i - w, C) + N(0, (sigma C)^2) instead of w_i.

    Under noise the inner method sees the mean of the uploads in place of each of them. With
    `dp_quantile` the clipping norm C is server state; clients report one noised bit, whether their
    update was within C.
    """

    privacy: PrivacyConfig
    draw: NormalSampler

    def check(self, task: Task, training: TrainingConfig) -> None:
        """Refuse methods and tasks for which the guarantee would not hold."""
        super().check(task, training)
        if task.info.learner_kind == "trees":
            raise UsageError(
                f"{self.name} is not offered with dp_clip: a client sends sums of gradients for "
                "every level of every tree, and noise for all of them would leave no signal; "
                "choose --model linear or mlp with another method"
            )
        if self.privacy.has_noise:
            self._check_accounting(task)
        if set(task.info.batch_stat_names) & set(self.shared_param_names(task)):
            raise UsageError(
                f"{self.name} is not offered with dp_clip on batch normalisation whose running "
                "statistics are shared: noise would make variances negative; keep them at the "
                "clients (fedbn), or use GroupNorm"
            )
        if self.capabilities.needs_common_start:
            raise UsageError(
                f"{self.name} is not offered with dp_clip: clients and server each keep a memory "
                "of the uploads, and clipping or noise would make the two differ; choose another "
                "method"
            )
        self._check_upload(task, training)

    def _check_accounting(self, task: Task) -> None:
        """Refuse what the accountant's epsilon would not cover."""
        if "select_clients" in self.overridden_hooks:
            raise UsageError(
                f"{self.name} is not offered with dp_noise: it chooses who takes part, and epsilon "
                "is computed for cohorts drawn at random; choose another method"
            )
        if self.privacy.dp_delta >= 1 / task.info.num_clients:
            raise UsageError(
                f"dp_delta is {self.privacy.dp_delta:g}: must be below "
                f"1/{task.info.num_clients}, one "
                "over the clients, else it allows to give one of them away"
            )

    def _check_upload(self, task: Task, training: TrainingConfig) -> None:
        """Refuse uploads that clipping and noise do not cover."""
        update, sent = dry_run_upload(self.inner, task, training)
        if update.extra or update.metrics:
            unprotected = next(iter([*update.extra, *update.metrics]))
            raise UsageError(
                f"{self.name} is not offered with dp_clip: beside its model a client uploads "
                f"'{unprotected}', which would leave it unprotected; choose another method"
            )
        is_sent = [
            sent[block] is True
            for block, names in task.info.blocks.items()
            if set(names) & set(update.params)
        ]
        if not self.inner.capabilities.sends_every_block or not all(is_sent):
            raise UsageError(
                f"{self.name} is not offered with dp_clip: a client that was not sent a block "
                "has no reference to clip its update of it; choose a method that sends all "
                "the blocks that it collects"
            )

    # --- client -----------------------------------------------------------------------------

    def upload(self, client: Client) -> tuple[ClientUpdate, State]:
        """Clip and noise the update; report the noised bit if the clipping norm is adaptive."""
        update, state = super().upload(client)
        params, unclipped = self._privatize(client, update.params)
        if not self._is_adaptive:
            return replace(update, params=params), state
        bit = unclipped.double()
        if self.privacy.has_noise:
            noise = self.draw(client, torch.Size([1]), len(params))[0]
            bit = bit + self.privacy.bit_noise * noise
        return replace(update, params=params, metrics={UNCLIPPED_KEY: bit}), state

    def _privatize(self, client: Client, params: Params) -> tuple[Params, Tensor]:
        """Return w + clip(w_i - w, C) + N(0, (sigma C)^2), and whether the update was within C.

        w is the model as it was sent. Without noise, an update within C is uploaded to the bit.
        Under noise, an update that is not finite counts as zero: a client that reported a failure
        would tell one bit about its data without noise.
        """
        if not params:
            return params, torch.tensor(True)
        sent = client.message.params
        clip = client.message.broadcast[CLIP_KEY] if self._is_adaptive else self.privacy.dp_clip
        change = {name: value.double() - sent[name].double() for name, value in params.items()}
        norm = torch.stack([value.square().sum() for value in change.values()]).sum().sqrt()
        is_within = norm <= clip
        noise_std = self.privacy.change_noise * clip
        private: Params = {}
        for number, (name, value) in enumerate(params.items()):
            clipped = sent[name].double() + change[name] * (clip / norm)
            result = torch.where(is_within, value.double(), clipped)
            if self.privacy.has_noise:
                result = torch.where(norm.isfinite(), result, sent[name].double())
                result = result + noise_std * self.draw(client, value.shape, number)
            private[name] = result.to(value.dtype)
        return private, is_within

    # --- server -----------------------------------------------------------------------------

    def init_server(self, task: Task, params: Params) -> State:
        """Add the clipping norm to the state if it is adaptive."""
        state = super().init_server(task, params)
        if not self._is_adaptive:
            return state
        return state | {CLIP_KEY: torch.tensor(self.privacy.dp_clip, dtype=torch.float64)}

    def distribute(self, server: Server, ids: Tensor) -> tuple[ServerMessage, State]:
        """Send the clipping norm along if it is adaptive."""
        message, state = super().distribute(server, ids)
        if not self._is_adaptive:
            return message, state
        broadcast = {**message.broadcast, CLIP_KEY: server.state[CLIP_KEY]}
        return replace(message, broadcast=broadcast), state

    def aggregation_weights(
        self, server: Server, ids: Tensor, updates: ClientUpdate
    ) -> tuple[Tensor | Params, State]:
        """Ask the inner method for weights of the mean, and adapt the clipping norm."""
        weights, state = super().aggregation_weights(server, ids, self._with_mean(updates))
        return weights, self._with_next_clip(server, state, updates)

    def aggregate(
        self, server: Server, ids: Tensor, updates: ClientUpdate, weights: Tensor | Params
    ) -> tuple[Params, State]:
        """Let the inner method aggregate the mean."""
        return super().aggregate(server, ids, self._with_mean(updates), weights)

    def learn(self, server: Server, ids: Tensor, updates: ClientUpdate) -> State:
        """Show the inner method no more than `aggregate` does."""
        return super().learn(server, ids, self._with_mean(updates))

    @property
    def capabilities(self) -> Capabilities:  # type: ignore[override]
        """Return those of the inner method; noise is added to the mean of all uploads."""
        return replace(
            self.inner.capabilities,
            aggregates_by_sum=False,
            bounds_influence=self.privacy.has_noise,
        )

    @property
    def report_ranges(self) -> Mapping[str, ValueRange]:  # type: ignore[override]
        """Return the ranges of the inner method and that of the noised bit."""
        if not self._is_adaptive:
            return super().report_ranges
        margin = MAX_NOISE_STDS * self.privacy.bit_noise
        return {**super().report_ranges, UNCLIPPED_KEY: ValueRange(-margin, 1 + margin)}

    def _with_mean(self, updates: ClientUpdate) -> ClientUpdate:
        """Replace every model by the mean under noise, so that all clients count equally."""
        if not self.privacy.has_noise:
            return updates
        params = {
            name: value.mean(0, keepdim=True).expand_as(value)
            for name, value in updates.params.items()
        }
        return replace(updates, params=params)

    def _with_next_clip(self, server: Server, state: State, updates: ClientUpdate) -> State:
        """Set C <- C exp(-eta_C (b - gamma)), with b the noised share of unclipped updates."""
        if not self._is_adaptive:
            return state
        clip = server.state[CLIP_KEY]
        share = updates.metrics[UNCLIPPED_KEY].mean()
        server.logged |= {CLIP_KEY: float(clip), UNCLIPPED_KEY: float(share)}
        factor = torch.exp(-CLIP_LR * (share - self.privacy.dp_quantile))
        return {**state, CLIP_KEY: clip * factor}

    @property
    def _is_adaptive(self) -> bool:
        """Return whether the clipping norm follows a quantile."""
        return self.privacy.dp_quantile > 0


class _NoTrainClient(ClientRuntime):
    """A client that does everything but train."""

    def _fit(
        self,
        request: LocalTrainRequest,
        train: LocalHParams,
        blocks: tuple[str, ...] | None,
        training: TrainingConfig | None = None,
    ) -> tuple[Params, Params]:
        """Return the model and the anchor unchanged."""
        return request.params, request.proximal.anchor if request.proximal else {}


def dry_run_upload(
    method: Method, task: Task, training: TrainingConfig
) -> tuple[ClientUpdate, Mapping[str, bool | Tensor]]:
    """Find out what a client of a method uploads, without training.

    Args:
        method: The method.
        task: The task.
        training: The run's training configuration.

    Returns:
        The first client's upload in round 1, and which blocks it was sent.
    """
    ids = torch.zeros(1, dtype=torch.int64)
    initial = task.init_params(0)
    with torch.no_grad():
        server = Server(task, training, initial, method.init_server(task, initial), 0, 1, 1)
        message, _ = method.distribute(server, ids)
        client_state = index(init_client_states(method, task, ids, initial, keeps_local=True), 0)
        client = _NoTrainClient(
            task,
            training,
            RngContext(0, 1, training),
            1,
            ids[0],
            message.for_clients(0),
            client_state,
        )
        client.start, client.state = method.receive(client)
        client.hparams, client.state = method.configure_training(client)
        client.trained, client.state = method.train(client)
        update, _ = method.upload(client)
    return update, message.sent_blocks


def strip_unprotected(method: Method, reply: ClientResult) -> ClientResult:
    """Remove from a client's reply what noise does not protect: scores, decisions and logs."""
    if not is_noisy(method):
        return reply
    return ClientResult(reply.update, reply.client_state)


def is_noisy(method: Method) -> bool:
    """Return whether a method, or any method that it wraps, adds noise to uploads."""
    if isinstance(method, DifferentialPrivacy):
        return method.privacy.has_noise
    return isinstance(method, MethodWrapper) and is_noisy(method.inner)
