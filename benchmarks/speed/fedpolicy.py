"""The policy's share of a round: time of probes and choices, and bytes, on
Fashion-MNIST with a CNN.

20 clients with 600 images 28x28 each, two epochs a round, one thread, a whole run of 60 rounds; CPU
time inside the policy's own functions over that of the rounds, without evaluation for the log; data
sets in ``$EQUIPOISE_DATA``.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.lab.provenance import measured
from equipoise.experiment.build import build_task
from equipoise.methods.fedpolicy import policies, state
from equipoise.methods.fedpolicy.gate import GatePolicy
from equipoise.methods.fedpolicy.state import BlockSets
from equipoise.settings.experiment_config import ExperimentConfig
from equipoise.simulation.server_loop import FederatedSimulation, RoundLoopConfig

SETTING: dict[str, Any] = {
    "task": "fmnist",
    "model": "cnn",
    "scenario": "M3",
    "train_rows": 12_000,
    "val_share": 0.2,
    "epochs": 2,
    "lr": 0.05,
    "method": "fedpolicy",
    "policy": "gate",
    "rounds": 60,
    "seed": 1,
}
POLICY: dict[Any, tuple[str, ...]] = {
    policies: ("probe_scores",),
    state: ("record_parts", "staleness_weight"),
    BlockSets: ("block_weights", "damp_stale_blocks"),
    GatePolicy: ("assign", "record_probes", "record_updates"),
}


class Clock:
    """CPU seconds spent in watched functions; one that is called by another
    is not counted twice.
    """

    def __init__(self) -> None:
        self.spent, self.depth = 0.0, 0

    def watching(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            started, self.depth = time.process_time(), self.depth + 1
            try:
                return function(*args, **kwargs)
            finally:
                self.depth -= 1
                if self.depth == 0:
                    self.spent += time.process_time() - started

        return timed


def main() -> None:
    torch.set_num_threads(1)
    clock = Clock()
    for room, names in POLICY.items():
        for name in names:
            setattr(room, name, clock.watching(getattr(room, name)))
    settings = ExperimentConfig.from_options(SETTING)
    task = build_task(settings)
    schedule = RoundLoopConfig(settings.run.rounds, 1, 1.0, "loop", 10**9, False)
    simulation = FederatedSimulation(settings.method, task, settings.training, schedule)
    rounds, started = settings.run.rounds, time.process_time()
    logs = [simulation.run_round() for _ in range(rounds)]
    whole = time.process_time() - started
    model = sum(value.numel() * value.element_size() for value in simulation.params.values())
    full = 2 * model * task.info.num_clients * rounds
    moved = sum(log.bytes.down + log.bytes.up for log in logs)
    uploads = sum(log.bytes.up for log in logs) - full // 2
    probe_counts: list[Any] = [log.logged["probes"] for log in logs]  # one number per round
    result = {
        "rounds": rounds,
        "seconds_a_round": round(whole / rounds, 4),
        "policy_seconds_a_round": round(clock.spent / rounds, 4),
        "policy_share_of_time": round(clock.spent / whole, 4),
        "probes_a_client": sum(probe_counts) / task.info.num_clients,
        "bytes_beside_fedavg": round(moved / full, 4),
        "policy_share_of_uploads": round(uploads / (full // 2), 6),
    }
    measured("fedpolicy_cost", result)


if __name__ == "__main__":
    main()
