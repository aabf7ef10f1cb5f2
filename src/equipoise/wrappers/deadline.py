"""Limit every client's epochs to what its device can train before the deadline."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from equipoise.clock.config import ClockConfig
from equipoise.core import Client, LocalHParams, Method, MethodWrapper, State, Task, TrainingConfig
from equipoise.utils.errors import UsageError
from equipoise.utils.pytree import tree_bytes

MAX_EPOCHS = 10**6
"""Upper bound of the affordable epochs, so that they fit an integer."""


def with_deadline_epochs(method: Method, timing: ClockConfig) -> Method:
    """Wrap a method so that its epochs fit the deadline.

    Args:
        method: Any method.
        timing: The clock's configuration.

    Returns:
        The wrapped method, or `method` itself if `adapt_epochs` is off.
    """
    return DeadlineEpochs(method, timing) if timing.adapt_epochs else method


@dataclass(frozen=True)
class DeadlineEpochs(MethodWrapper):
    """Train min(configured epochs, epochs that fit the deadline), and at least one.

    A device knows its nominal speed and bandwidth, not the jitter of the round. The affordable
    epochs are logged as `affordable`.
    """

    timing: ClockConfig

    def check(self, task: Task, training: TrainingConfig) -> None:
        """Refuse methods with trial training, which fewer epochs do not shorten."""
        super().check(task, training)
        if self.capabilities.runs_trial_training:
            raise UsageError(
                f"adapt_epochs cannot serve {self.name}, whose clients also run trial training: "
                "leave adapt_epochs out, with a deadline that is long enough for the slowest, or "
                "choose another method"
            )

    def configure_training(self, client: Client) -> tuple[LocalHParams, State]:
        """Limit the epochs that the inner method chose."""
        hparams, state = super().configure_training(client)
        affordable = self.affordable_epochs(client, hparams)
        client.logged["affordable"] = affordable
        epochs = torch.minimum(hparams.epochs, affordable.clamp(min=1))
        return LocalHParams(epochs, hparams.lr), state

    def allowed_hparams(
        self, task: Task, proposed: LocalHParams, round: int, num_rounds: int, server_chose: bool
    ) -> tuple[LocalHParams, LocalHParams]:
        """Allow fewer epochs than the inner method chooses, and at least one."""
        lowest, highest = super().allowed_hparams(task, proposed, round, num_rounds, server_chose)
        return LocalHParams(lowest.epochs.clamp(max=1), lowest.lr), highest

    def affordable_epochs(self, client: Client, hparams: LocalHParams) -> Tensor:
        """Return the whole epochs that fit in the time left by download and upload.

        Args:
            client: The client.
            hparams: Its hyper-parameters, for the type and device of the result.
        """
        shared = {name: client.start[name] for name in self.shared_param_names(client.task)}
        device = client.device()
        seconds_per_byte = device.upload_seconds_per_byte + device.download_seconds_per_byte
        seconds_left = self.timing.deadline_seconds - tree_bytes(shared) * seconds_per_byte

        one_epoch = LocalHParams(torch.ones_like(hparams.epochs), hparams.lr)
        samples_per_epoch = client.num_steps(one_epoch) * client.training.batch_size
        epochs = seconds_left * device.samples_per_second / samples_per_epoch
        return epochs.floor().clamp(min=0, max=MAX_EPOCHS).long()
