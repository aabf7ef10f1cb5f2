"""Seconds and bytes a round on Flower: Equipoise's FedAvg beside Flower's own, same model, same
machine, 3 nodes.

Run with the environment of `make test-flower`: .venv-flower/bin/python -m benchmarks.speed.flower
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from benchmarks.lab.provenance import measured
from equipoise.flower import project
from equipoise.records.run_dir import RunFolder
from flower_live.harness import fleet, wait_until

OPTIONS = {
    "task": "synthetic",
    "model": "mlp",
    "clients": 3,
    "epochs": 1,
    "time_limit": 120.0,
    "wait": 120.0,
}
PLAIN_SERVER = """
import json, time
from flwr.app import ArrayRecord
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from equipoise.experiment.build import build_task
from equipoise.settings.experiment_config import ExperimentConfig

app = ServerApp()

class Timed(FedAvg):
    seconds = []
    def configure_train(self, *args, **kwargs):
        self.began = time.perf_counter()
        return super().configure_train(*args, **kwargs)
    def aggregate_train(self, *args, **kwargs):
        result = super().aggregate_train(*args, **kwargs)
        self.seconds.append(time.perf_counter() - self.began)
        return result

@app.main()
def main(grid, context):
    c = dict(context.run_config)
    out, rounds = c.pop("out"), c["rounds"]
    options = {k: v for k, v in c.items() if k not in ("time-limit", "wait")}
    config = ExperimentConfig.from_options(options)
    params = build_task(config).init_params(0)
    strategy = Timed(fraction_evaluate=0.0, min_train_nodes=3, min_available_nodes=3)
    strategy.start(grid=grid, initial_arrays=ArrayRecord(params), num_rounds=rounds, timeout=120)
    open(out, "w").write(json.dumps(strategy.seconds))
"""
PLAIN_CLIENT = """
import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from equipoise.core import LocalTrainRequest, RngContext
from equipoise.experiment.build import build_task
from equipoise.settings.experiment_config import ExperimentConfig

app = ClientApp()

@app.train()
def train(message, context):
    c = {k: v for k, v in context.run_config.items() if k not in ("time-limit", "wait", "out")}
    config = ExperimentConfig.from_options(c)
    task = build_task(config)
    params = dict(message.content["arrays"].to_torch_state_dict())
    id = torch.tensor(context.node_config["client-id"])
    epochs = torch.tensor(config.training.epochs)
    lr = torch.tensor(config.training.lr)
    request = LocalTrainRequest(params, epochs, lr, trainable=tuple(params))
    params, _, _ = task.fit(id, request, {}, RngContext(0, 1, config.training))
    metrics = MetricRecord({"num-examples": int(task.num_examples(id.reshape(1))[0])})
    content = RecordDict({"arrays": ArrayRecord(params), "metrics": metrics})
    return Message(content, reply_to=message)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with fleet(folder / "fleet") as running:
            for client in range(3):
                running.node(client)
            ours, plain = folder / "ours", folder / "plain"
            project.write_app(ours, {**OPTIONS, "rounds": rounds})
            project.write_app(
                plain, {**OPTIONS, "rounds": rounds, "out": str(folder / "plain.json")}
            )
            (plain / "app" / "server.py").write_text(PLAIN_SERVER)
            (plain / "app" / "client.py").write_text(PLAIN_CLIENT)
            traffic = {}
            for app, end in ((ours, ours / "run" / "summary.json"), (plain, folder / "plain.json")):
                run = running.submit(app)
                wait_until(end.exists, 60 * rounds, f"{app.name} ends")
                wait_until(
                    lambda run=run: running.status(run).startswith("finished"),
                    60,
                    "the run is closed",
                )
                traffic[app.name] = running.traffic(run) / rounds
            logs = RunFolder(ours / "run").records()
            seconds = {
                "ours": [log.seconds for log in logs],
                "plain": json.loads((folder / "plain.json").read_text()),
            }
    # The first round of ours waits for the nodes' introduction: it is left out on both sides.
    report = {
        name: {
            "seconds a round": round(statistics.median(seconds[name][1:]), 2),
            "fastest and slowest": [round(pick(seconds[name][1:]), 2) for pick in (min, max)],
            "bytes a round": int(traffic[name]),
        }
        for name in seconds
    }
    measured("flower_cost", {"rounds": rounds, **report, "billed bytes": asdict(logs[-1].bytes)})


if __name__ == "__main__":
    main()
