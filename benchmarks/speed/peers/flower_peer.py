"""W1 or W2 on Flower's simulation runtime: virtual nodes, two Ray workers, messages by our own loop
over the grid.
"""

from __future__ import annotations

import json
import statistics
import sys
import time

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.server import Grid
from flwr.serverapp import ServerApp
from flwr.simulation import run_simulation

from benchmarks.speed.peers.common import CLIENTS, accuracy, load, model, train

PATH, WORK, EPOCHS, ROUNDS = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
client_app, server_app = ClientApp(), ServerApp()


@client_app.train()
def fit(message: Message, context: Context) -> Message:
    rows, k = load(PATH), int(context.node_config["partition-id"])
    own, metrics = model(WORK), {}
    own.load_state_dict(message.content["arrays"].to_torch_state_dict())
    if WORK == "w1":
        metrics["received"] = accuracy(own, rows["test_x"][k], rows["test_y"][k])
    train(
        own, WORK, rows["train_x"][k], rows["train_y"][k], int(message.content["config"]["epochs"])
    )
    if WORK == "w1":
        metrics["trained"] = accuracy(own, rows["test_x"][k], rows["test_y"][k])
    content = {"arrays": ArrayRecord(own.state_dict()), "metrics": MetricRecord(metrics)}
    return Message(content=RecordDict(content), reply_to=message)


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    rows, whole, times = load(PATH), model(WORK), []
    while len(list(grid.get_node_ids())) < CLIENTS[WORK]:
        time.sleep(0.1)
    for _ in range(ROUNDS):
        started = time.perf_counter()
        content = {
            "arrays": ArrayRecord(whole.state_dict()),
            "config": ConfigRecord({"epochs": EPOCHS}),
        }
        messages = [
            Message(content=RecordDict(content), message_type="train", dst_node_id=node)
            for node in grid.get_node_ids()
        ]
        states = [
            reply.content["arrays"].to_torch_state_dict()
            for reply in grid.send_and_receive(messages)
        ]
        whole.load_state_dict(
            {name: torch.stack([s[name] for s in states]).mean(0) for name in states[0]}
        )
        if WORK == "w1":
            accuracy(whole, rows["server_x"], rows["server_y"])
        times.append(1e3 * (time.perf_counter() - started))
    print(json.dumps({"ms": statistics.median(times[1:])}), flush=True)


if __name__ == "__main__":
    resources = {
        "client_resources": {"num_cpus": 1},
        "init_args": {"num_cpus": 2, "include_dashboard": False},
    }
    run_simulation(
        server_app=server_app,
        client_app=client_app,
        num_supernodes=CLIENTS[WORK],
        backend_config=resources,
    )
