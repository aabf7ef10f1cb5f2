"""Any method whose clients train no longer than their device can before the deadline, whatever decided their epochs."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from equipoise.clock.config import ClockConfig
from equipoise.core import Client, LocalHParams, Method, MethodWrapper, State, Task, TrainingConfig
from equipoise.utils.errors import UsageError
from equipoise.utils.pytree import tree_bytes

MOST = 10**6  # epochs: more than anybody asks for


def with_deadline_epochs(method: Method, timing: ClockConfig) -> Method:
    """The method with epochs that fit the deadline; itself if that is not asked for."""
    return DeadlineEpochs(method, timing) if timing.adapt_epochs else method


@dataclass(frozen=True)
class DeadlineEpochs(MethodWrapper):
    """alpha_i <- min(alpha_i, most epochs before the deadline), and at least one.

    A device knows its usual speed and links, not the luck of the round. The log shows ``affordable`` epochs.
    """

    timing: ClockConfig

    def check(self, task: Task, training: TrainingConfig) -> None:
        super().check(task, training)
        if self.runs_trial_training:
            raise UsageError(
                f"fit_deadline cannot serve {self.name}, whose clients also train on trial: leave fit_deadline out, "
                "with a deadline that is long enough for the slowest, or choose another method"
            )

    def configure_training(self, client: Client) -> tuple[LocalHParams, State]:
        train, state = super().configure_training(client)
        most = self.affordable(client, train)
        client.logged["affordable"] = most
        return LocalHParams(torch.minimum(train.epochs, most.clamp(min=1)), train.lr), state

    def affordable(self, client: Client, train: LocalHParams) -> Tensor:
        """Whole epochs in the time that download and upload leave."""
        size = tree_bytes(
            {name: client.start[name] for name in self.shared_param_names(client.task)}
        )
        samples = (
            client.num_steps(LocalHParams(torch.ones_like(train.epochs), train.lr))
            * client.training.batch_size
        )
        device = client.device()
        left = self.timing.deadline_seconds - size * (
            device.upload_seconds_per_byte + device.download_seconds_per_byte
        )
        return (left * device.samples_per_second / samples).floor().clamp(min=0, max=MOST).long()
