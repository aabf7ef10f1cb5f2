"""Federated reinforcement learning: agents that walk Frozen Lake apart learn one table of action values.

States are visited unevenly. Equal averaging takes every agent's entry alike; importance averaging weighs each entry of
an agent's table by how often the agent has visited it.

python examples/federated_rl.py [folder of the result] [steps]
"""

import sys
from pathlib import Path

import equipoise

RULES = {"fedasynq-eq": "equal averaging", "fedasynq-im": "importance averaging"}


def main(out: str = "runs/example-rl", steps: str = "20000") -> None:
    for method, rule in RULES.items():
        summary = equipoise.run(
            Path(out) / method,
            overwrite=True,
            task="frozen-lake",
            method=method,
            agents=10,
            tau=min(50, int(steps)),
            steps=int(steps),
            sims=4,
        )
        print(f"{rule:22} largest error of the server's table: {summary.global_.error:.3f}")


if __name__ == "__main__":
    main(*sys.argv[1:])
