"""Federated reinforcement learning: agents that walk Frozen Lake apart learn one table of action
values.

States are visited unevenly. Equal averaging takes every agent's entry alike; importance averaging
weighs each entry of an agent's table by how often the agent has visited it.

python examples/federated_rl.py [folder of the result] [steps]
"""

import sys
from pathlib import Path

import equipoise as eq

RULES = {"fedasynq-eq": "equal averaging", "fedasynq-im": "importance averaging"}


def main(out: str = "runs/example-rl", steps: str = "20000") -> None:
    for method, rule in RULES.items():
        run = eq.run(
            Path(out) / method,
            method=method,
            task=eq.Task.from_name("frozen-lake", agents=10, sims=4),
            tau=min(50, int(steps)),
            steps=int(steps),
            overwrite=True,
        )
        print(f"{rule:22} largest error of the server's table: {run.final.global_.error:.3f}")


if __name__ == "__main__":
    main(*sys.argv[1:])
