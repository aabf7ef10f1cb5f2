"""Any method whose clients train no longer than their device can before the deadline, whatever decided their epochs."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from equipoise.clock.options import Timing
from equipoise.contract import Around, Client, Method, State, Task, Train, Training
from equipoise.core.errors import UsageError
from equipoise.core.trees import tree_bytes

MOST = 10**6  # epochs: more than anybody asks for


def timely(method: Method, timing: Timing) -> Method:
    """The method with epochs that fit the deadline; itself if that is not asked for."""
    return Timely(method, timing) if timing.fit_deadline else method


@dataclass(frozen=True)
class Timely(Around):
    """alpha_i <- min(alpha_i, most epochs before the deadline), and at least one.

    A device knows its usual speed and links, not the luck of the round. The log shows ``affordable`` epochs.
    """

    timing: Timing

    def check(self, task: Task, training: Training) -> None:
        super().check(task, training)
        if self.tries:
            raise UsageError(
                f"fit_deadline cannot serve {self.name}, whose clients also train on trial: leave fit_deadline out, "
                "with a deadline that is long enough for the slowest, or choose another method"
            )

    def decide(self, c: Client) -> tuple[Train, State]:
        train, state = super().decide(c)
        most = self.affordable(c, train)
        c.notes["affordable"] = most
        return Train(torch.minimum(train.epochs, most.clamp(min=1)), train.lr), state

    def affordable(self, c: Client, train: Train) -> Tensor:
        """Whole epochs in the time that download and upload leave."""
        size = tree_bytes({name: c.start[name] for name in self.shared_names(c.task)})
        samples = c.steps(Train(torch.ones_like(train.epochs), train.lr)) * c.training.batch_size
        device = c.device()
        left = self.timing.within - size * (device.up + device.down)
        return (left * device.speed / samples).floor().clamp(min=0, max=MOST).long()
