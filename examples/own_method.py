"""Your own method: clients that trust the global model as far as it beats their own on their validation data.

python examples/own_method.py [folder of the result] [rounds]
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch

import equipoise
from equipoise.contract import Client, Method, State, Tree, option


@dataclass(frozen=True)
class Cautious(Method):
    """Decision 4, the client's half: what to install of what came down. All else is FedAvg's."""

    name: ClassVar[str] = "cautious"
    keeps_model: ClassVar[bool] = True  # install reads c.local
    sharpness: float = option(20.0, "how strongly the better model is preferred")

    def install(self, c: Client) -> tuple[Tree, State]:
        ours, theirs = c.evaluate(c.local)["acc"], c.evaluate(c.down.params)["acc"]
        share = torch.sigmoid(self.sharpness * (theirs - ours))
        c.notes["share"] = share  # a heat map of the report
        mixed = {name: torch.lerp(c.local[name], value, share.to(value.dtype)) for name, value in c.down.params.items()}
        return mixed, c.state


def main(out: str = "runs/example-own-method", rounds: str = "40") -> None:
    for method in ("fedavg", f"{__file__}:Cautious"):
        folder = Path(out) / method.rpartition(":")[2].lower()
        summary = equipoise.run(folder, overwrite=True, method=method, rounds=int(rounds), clients=30)
        print(f"{folder.name:8} personal models: {100 * summary.personal.acc:.1f} %")


if __name__ == "__main__":
    main(*sys.argv[1:])
