"""Your own method: clients that trust the global model as far as it beats their own on their
validation data.

python examples/own_method.py [folder of the result] [rounds]
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch

import equipoise as eq


@dataclass(frozen=True)
class Cautious(eq.Method):
    """Decision 4, the client's half: what to install of what came down. All else is FedAvg's."""

    capabilities: ClassVar[eq.Capabilities] = eq.Capabilities(needs_previous_model=True)

    sharpness: float = eq.option(20.0, "how strongly the better model is preferred", low=0.0)

    def receive(self, c: eq.Client) -> tuple[eq.Params, eq.State]:
        ours, theirs = c.evaluate(c.local_params)["acc"], c.evaluate(c.message.params)["acc"]
        share = torch.sigmoid(self.sharpness * (theirs - ours))
        c.logged["share"] = share  # a heat map of the report
        mixed = {
            name: torch.lerp(c.local_params[name], value, share.to(value.dtype))
            for name, value in c.message.params.items()
        }
        return mixed, c.state


def main(out: str = "runs/example-own-method", rounds: str = "40") -> None:
    task = eq.Task.from_name("synthetic", clients=30)
    for name, method in (("fedavg", eq.methods.FedAvg()), ("cautious", Cautious(sharpness=10.0))):
        run = eq.run(Path(out) / name, method=method, task=task, rounds=int(rounds), overwrite=True)
        print(f"{name:8} personal models: {100 * run.final.personal.acc:.1f} %")


if __name__ == "__main__":
    main(*sys.argv[1:])
