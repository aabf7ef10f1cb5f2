"""Speed of 10 stacked DQN agents against 10 single ones of a plain PyTorch implementation, in one
run.

    python -m benchmarks.speed.dqn [--steps 300] [--peer]

Every way does the same work: E environment steps, then one gradient step of a double DQN on 64
remembered transitions (two hidden layers of 64, Adam, soft target net), on one thread. `--peer`
adds Stable-Baselines3's DQN (not doubled). Times are CPU seconds of the process, so that other work
on the machine counts little.
"""

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import nn

from benchmarks.lab.provenance import measured
from equipoise.core import LocalTrainRequest, RngContext
from equipoise.environments.classic_control import CartPole
from equipoise.environments.deep_task import ClassicControlConfig, build_classic_control
from equipoise.tasks.rl_deep import CARTPOLE

AGENTS, BATCH, WIDTH, CAPACITY = 10, 64, 64, 20000
Way = Callable[[int, int], Callable[[], None]]
"""Copies of the environment and gradient steps; gives what is to be timed."""


class SingleDqn:
    """One agent as one would write it: a module, torch.optim.Adam, a NumPy ring buffer, Gymnasium's
    environments.
    """

    def __init__(self, seed: int, copies: int) -> None:
        torch.manual_seed(seed)
        self.rng, self.copies = np.random.default_rng(seed), copies
        # Gymnasium's own vector environment of CartPole is its fastest; one copy is fastest without
        # it.
        self.env: Any = gymnasium.make("CartPole-v1")
        if copies > 1:
            self.env = gymnasium.make_vec(
                "CartPole-v1", copies, vectorization_mode="vector_entry_point"
            )
        self.seen, _ = self.env.reset(seed=seed)
        sizes = (4, WIDTH, WIDTH, 2)
        layers = [
            layer for i in range(3) for layer in (nn.Linear(sizes[i], sizes[i + 1]), nn.ReLU())
        ]
        self.net = nn.Sequential(*layers[:-1])
        self.target = copy.deepcopy(self.net)
        self.adam = torch.optim.Adam(self.net.parameters(), lr=1e-3)
        self.before, self.after = (
            np.zeros((CAPACITY, 4), np.float32),
            np.zeros((CAPACITY, 4), np.float32),
        )
        self.action = np.zeros(CAPACITY, np.int64)
        self.reward, self.goes_on = np.zeros(CAPACITY, np.float32), np.zeros(CAPACITY, np.float32)
        self.stored = 0

    def act(self) -> None:
        with torch.no_grad():
            greedy = self.net(torch.from_numpy(self.seen.reshape(-1, 4))).argmax(1).numpy()
        random = self.rng.random(self.copies) < 0.1
        action = np.where(random, self.rng.integers(2, size=self.copies), greedy)
        following, reward, ended, cut, _ = self.env.step(
            int(action[0]) if self.copies == 1 else action
        )
        rows = (self.stored + np.arange(self.copies)) % CAPACITY
        self.before[rows], self.after[rows], self.action[rows] = self.seen, following, action
        self.reward[rows], self.goes_on[rows] = reward, 1.0 - np.asarray(ended, np.float32)
        self.stored += self.copies
        if self.copies == 1 and (ended or cut):
            following, _ = self.env.reset()
        self.seen = following

    def learn(self) -> None:
        rows = self.rng.integers(min(self.stored, CAPACITY), size=BATCH)
        before, after = torch.from_numpy(self.before[rows]), torch.from_numpy(self.after[rows])
        with torch.no_grad():
            ahead = self.net(after).argmax(1, keepdim=True)
            future = self.target(after).gather(1, ahead)[:, 0]
            goal = (
                torch.from_numpy(self.reward[rows])
                + 0.99 * torch.from_numpy(self.goes_on[rows]) * future
            )
        q = self.net(before).gather(1, torch.from_numpy(self.action[rows])[:, None])[:, 0]
        self.adam.zero_grad()
        nn.functional.mse_loss(q, goal).backward()
        self.adam.step()
        with torch.no_grad():
            torch._foreach_lerp_(list(self.target.parameters()), list(self.net.parameters()), 0.01)


def stacked(copies: int, steps: int) -> Callable[[], None]:
    """So many steps of our ten agents, through the task as the rounds use it."""
    config = ClassicControlConfig(
        parallel=copies, width=WIDTH, capacity=CAPACITY, learning_starts=1
    )
    task = build_classic_control("cartpole", CartPole(), config, "mlp", CARTPOLE.training, 0)
    ids, one = torch.arange(AGENTS), task.init_params(0)
    start = {name: value.expand(AGENTS, *value.shape) for name, value in one.items()}
    fit = LocalTrainRequest(
        start, torch.full_like(ids, steps), torch.full((AGENTS,), 1e-3), trainable=tuple(one)
    )
    source = task.init_data_state(ids)
    return lambda: task.fit_stack(ids, fit, source, RngContext(0, 1, task.info.training)) and None


def singles(copies: int, steps: int) -> Callable[[], None]:
    agents = [SingleDqn(seed, copies) for seed in range(AGENTS)]

    def run() -> None:
        for agent in agents:
            for _ in range(steps):
                agent.act()
                agent.learn()

    return run


def peer(copies: int, steps: int) -> Callable[[], None]:
    from stable_baselines3 import DQN
    from stable_baselines3.common.env_util import make_vec_env

    def run() -> None:
        for seed in range(AGENTS):
            agent = DQN(
                "MlpPolicy",
                make_vec_env("CartPole-v1", copies),
                batch_size=BATCH,
                buffer_size=CAPACITY,
                train_freq=1,
                gradient_steps=1,
                learning_starts=1,
                tau=0.01,
                target_update_interval=1,
                seed=seed,
                device="cpu",
                policy_kwargs={"net_arch": [WIDTH, WIDTH]},
            )
            agent.learn(steps * copies)

    return run


def measure(
    ways: dict[str, Way], copies: int, steps: int, repeats: int
) -> dict[str, dict[str, float]]:
    """The fastest of a few repetitions of each way, in turn so that all meet the same machine,
    after a short one.
    """
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for make in ways.values():
        make(copies, 10)()
    for _ in range(repeats):
        for name, make in ways.items():
            run = make(copies, steps)
            started = time.process_time()
            run()
            seconds[name].append(time.process_time() - started)
    done = AGENTS * steps
    return {
        name: {
            "cpu_seconds": min(spent),
            "environment_steps_a_second": done * copies / min(spent),
            "gradient_steps_a_second": done / min(spent),
        }
        for name, spent in seconds.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=300, help="gradient steps of each agent")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--peer", action="store_true", help="also Stable-Baselines3")
    given = parser.parse_args()
    torch.set_num_threads(1)
    ways: dict[str, Way] = {
        "stacked": stacked,
        "single": singles,
        **({"stable-baselines3": peer} if given.peer else {}),
    }
    result: dict[str, Any] = {
        "what": (
            f"{AGENTS} agents, batch {BATCH}, two hidden layers of {WIDTH}, one thread, CPU seconds"
        )
    }
    for copies in (1, 8):
        found = measure(ways, copies, given.steps, given.repeats)
        own = found["stacked"]["cpu_seconds"]
        found["times_as_fast"] = {
            name: v["cpu_seconds"] / own for name, v in found.items() if name != "stacked"
        }
        result[f"{copies} environment steps a gradient step"] = found
    measured("dqn_speed", result)


if __name__ == "__main__":
    main()
