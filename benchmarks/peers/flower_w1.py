"""W1 on Flower's simulation runtime: 100 virtual nodes, two Ray workers, messages by our own loop over the grid."""

from __future__ import annotations

import json
import statistics
import sys
import time

import torch
from common import accuracy, load, train
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.server import Grid
from flwr.serverapp import ServerApp
from flwr.simulation import run_simulation

PATH, EPOCHS, ROUNDS = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
client_app, server_app = ClientApp(), ServerApp()
_cache: dict[str, dict[str, torch.Tensor]] = {}


def data() -> dict[str, torch.Tensor]:
    if not _cache:
        torch.set_num_threads(1)
        _cache["w1"] = load(PATH)
    return _cache["w1"]


@client_app.train()
def fit(message: Message, context: Context) -> Message:
    rows, k = data(), int(context.node_config["partition-id"])
    model = torch.nn.Linear(30, 30)
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    received = accuracy(model, rows["test_x"][k], rows["test_y"][k])
    train(model, rows["train_x"][k], rows["train_y"][k], int(message.content["config"]["epochs"]))
    trained = accuracy(model, rows["test_x"][k], rows["test_y"][k])
    content = {
        "arrays": ArrayRecord(model.state_dict()),
        "metrics": MetricRecord({"received": received, "trained": trained}),
    }
    return Message(content=RecordDict(content), reply_to=message)


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    rows, model, times = data(), torch.nn.Linear(30, 30), []
    torch.nn.init.zeros_(model.weight)
    torch.nn.init.zeros_(model.bias)
    while len(list(grid.get_node_ids())) < 100:
        time.sleep(0.1)
    for _ in range(ROUNDS):
        started = time.perf_counter()
        content = {"arrays": ArrayRecord(model.state_dict()), "config": ConfigRecord({"epochs": EPOCHS})}
        messages = [
            Message(content=RecordDict(content), message_type="train", dst_node_id=node) for node in grid.get_node_ids()
        ]
        states = [reply.content["arrays"].to_torch_state_dict() for reply in grid.send_and_receive(messages)]
        model.load_state_dict({name: torch.stack([s[name] for s in states]).mean(0) for name in states[0]})
        accuracy(model, rows["server_x"], rows["server_y"])
        times.append(1e3 * (time.perf_counter() - started))
    print(json.dumps({"ms": statistics.median(times[1:])}), flush=True)


if __name__ == "__main__":
    resources = {"client_resources": {"num_cpus": 1}, "init_args": {"num_cpus": 2, "include_dashboard": False}}
    run_simulation(server_app=server_app, client_app=client_app, num_supernodes=100, backend_config=resources)
