"""A round of PAGE on Synthetic, stacked, against the same work client by client and agent by agent
in plain PyTorch.

100 clients, 30 features and classes, batches of 5, epochs and rates as the agents choose, DDPG
updates and all that the players look at included, evaluation for the log left out on both sides;
one process, one thread. The plain loop trains each client with torch.optim.SGD on an nn.Linear and
each agent with torch.optim.Adam on its nets, as one would write it by hand, under the very
decisions of the stacked round. Times are CPU seconds of the process: other work on the machine
stretches wall times of either side at random.

    python -m benchmarks.speed.page [--rounds 3]
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.lab.provenance import measured
from equipoise.methods.page import agents as page_agents
from equipoise.settings.experiment_config import ExperimentConfig
from equipoise.simulation.server_loop import FederatedSimulation, RoundLoopConfig

WARMUP = 3
PAPER_GAME = {
    "method": "page",
    "reading": "paper",
    "agents": "per-client",
    "warmup": WARMUP,
    "window": 0,
    "task": "synthetic",
}


class Agent:
    """DDPG by hand: four nets, two optimisers, a list of transitions."""

    def __init__(self, states: int, actions: int) -> None:
        self.actor = nn.Sequential(
            nn.Linear(states, 40), nn.ReLU(), nn.Linear(40, 30), nn.ReLU(), nn.Linear(30, actions)
        )
        self.critic = nn.ModuleList(
            [nn.Linear(states, 40), nn.Linear(40 + actions, 30), nn.Linear(30, 1)]
        )
        self.actor_target, self.critic_target = (
            copy.deepcopy(self.actor),
            copy.deepcopy(self.critic),
        )
        self.actor_adam = torch.optim.Adam(self.actor.parameters(), 0.001)
        self.critic_adam = torch.optim.Adam(self.critic.parameters(), 0.01)
        self.memory: list[tuple[Tensor, ...]] = []

    @staticmethod
    def value(critic: Any, s: Tensor, a: Tensor) -> Tensor:
        hidden = F.relu(critic[0](s))
        value: Tensor = critic[2](F.relu(critic[1](torch.cat([hidden, a], -1)))).squeeze(-1)
        return value

    def turn(self, s: Tensor) -> Tensor:
        chosen = torch.randint(len(self.memory), (32,)).tolist()
        states, actions, rewards, following = (
            torch.stack(x) for x in zip(*[self.memory[k] for k in chosen], strict=True)
        )
        with torch.no_grad():
            ahead = torch.tanh(self.actor_target(following))
            y = rewards + 0.99 * self.value(self.critic_target, following, ahead)
        self.critic_adam.zero_grad()
        (y - self.value(self.critic, states, actions)).square().mean().backward()
        self.critic_adam.step()
        self.actor_adam.zero_grad()
        (-self.value(self.critic, states, torch.tanh(self.actor(states))).mean()).backward()
        self.actor_adam.step()
        with torch.no_grad():
            for target, main in (
                (self.actor_target, self.actor),
                (self.critic_target, self.critic),
            ):
                for old, new in zip(target.parameters(), main.parameters(), strict=True):
                    old.lerp_(new, 0.01)
            return torch.tanh(self.actor(s))


def plain_round(
    task: Any,
    training: Any,
    start: dict[str, Tensor],
    decisions: dict[str, list[float]],
    agents: list[Agent],
    server: Agent,
) -> dict[str, float]:
    """Times of the parts of one round, client by client."""
    spent = {"agents": 0.0, "training": 0.0, "rest": 0.0}
    ids = list(range(task.info.num_clients))
    train, val = (task.data.split(torch.tensor(ids).numpy(), name) for name in ("train", "val"))
    public = task.data.server("public")
    models = []
    for k in ids:
        began = time.process_time()
        classes, features = start["weight"].shape
        model = nn.Linear(features, classes)
        model.load_state_dict(start)
        x_val, y_val = _rows(val, k)
        with torch.no_grad():
            state = (model(x_val).argmax(-1) == y_val).float().mean().reshape(1)
        spent["rest"] += time.process_time() - began
        began = time.process_time()
        agents[k].turn(state)
        spent["agents"] += time.process_time() - began
        began = time.process_time()
        x, y = _rows(train, k)
        optimiser = torch.optim.SGD(
            model.parameters(), decisions["lr"][k], weight_decay=training.weight_decay
        )
        for _ in range(int(decisions["epochs"][k])):
            for rows in torch.randperm(len(x)).split(training.batch_size):
                optimiser.zero_grad()
                F.cross_entropy(model(x[rows]), y[rows]).backward()
                optimiser.step()
        spent["training"] += time.process_time() - began
        began = time.process_time()
        with torch.no_grad():
            F.cross_entropy(model(x_val), y_val)
        models.append(model)
        spent["rest"] += time.process_time() - began
    began = time.process_time()
    with torch.no_grad():
        accuracies = torch.stack(
            [(m(public[0]).argmax(-1) == public[1]).float().mean() for m in models]
        )
    spent["rest"] += time.process_time() - began
    began = time.process_time()
    p = torch.softmax(server.turn(accuracies), -1)
    spent["agents"] += time.process_time() - began
    began = time.process_time()
    with torch.no_grad():
        {name: sum(p[k] * m.state_dict()[name] for k, m in enumerate(models)) for name in start}
    spent["rest"] += time.process_time() - began
    return spent


def _rows(split: Any, k: int) -> tuple[Tensor, Tensor]:
    here = slice(int(split.start[k]), int(split.start[k] + split.size[k]))
    return split.x[here], split.y[here]


def _time_agents() -> dict[str, float]:
    """Put a stopwatch around the agents of the stacked engine; return its seconds, to be reset."""
    stopwatch = {"agents": 0.0}
    step = page_agents._step

    def timed(*arguments: Any) -> Any:
        began = time.process_time()
        result = step(*arguments)
        stopwatch["agents"] += time.process_time() - began
        return result

    setattr(page_agents, "_step", timed)  # noqa: B010 (mypy refuses a plain assignment)
    return stopwatch


def _experienced_agent(states: int, actions: int) -> Agent:
    """Return an agent of the plain loop with enough transitions to learn from."""
    agent = Agent(states, actions)
    agent.memory = [
        (torch.rand(states), torch.rand(actions), torch.rand(()), torch.rand(states))
        for _ in range(40)
    ]
    return agent


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3, help="rounds that are timed (default: 3)")
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    settings = ExperimentConfig.from_options(PAPER_GAME)
    task = settings.task_spec.build(settings.task_config, "linear", settings.training, 0)
    total = WARMUP + 1 + rounds
    schedule = RoundLoopConfig(total + 1, 0, 1.0, "stacked", total + 1, False)
    simulation = FederatedSimulation(settings.method, task, settings.training, schedule)
    stopwatch = _time_agents()
    agents = [_experienced_agent(1, 2) for _ in range(task.info.num_clients)]
    server = _experienced_agent(task.info.num_clients, task.info.num_clients)
    stacked, shares, plain = [], [], []
    for t in range(total):
        start = {name: value.clone() for name, value in simulation.params.items()}
        stopwatch["agents"] = 0.0
        began = time.process_time()
        log = simulation.run_round()
        seconds = time.process_time() - began
        if t < WARMUP + 1:
            continue
        assert log.decisions is not None
        stacked.append(seconds)
        shares.append(stopwatch["agents"] / seconds)
        plain.append(
            plain_round(task, settings.training, start, log.decisions or {}, agents, server)
        )
    whole = [sum(parts.values()) for parts in plain]
    result = {
        "rounds": rounds,
        "stacked_seconds": round(statistics.median(stacked), 4),
        "stacked_agents_share": round(statistics.median(shares), 3),
        "plain_seconds": round(statistics.median(whole), 3),
        "plain_agents_share": round(
            statistics.median(p["agents"] / w for p, w in zip(plain, whole, strict=True)), 4
        ),
        "times_as_fast": round(
            statistics.median(w / s for w, s in zip(whole, stacked, strict=True)), 1
        ),
        "threads": 1,
    }
    measured("page_speed", result)


if __name__ == "__main__":
    main()
