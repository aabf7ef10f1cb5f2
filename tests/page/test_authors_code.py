"""The reading `authors-code` against a reference that plays the public code's game step by step.

The reference is written for this test: plain loops over clients, torch's own Adam and SGD. It
shares with the library the data, the random numbers and the first weights of the networks, no
decision.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from equipoise.core import TrainingConfig
from equipoise.methods.page.page import Page
from equipoise.training import batching
from equipoise.utils import rng
from helpers import largest_difference, simulate, small_task

WARMUP = 3
ROUNDS = 9
BATCH = 32
RATE = 0.005  # of critics and of the soft update; actors have a tenth
GAMMA = 0.99
LOW, HIGH, EPOCHS = 0.001, 0.1, 20
TRAINING = TrainingConfig(epochs=2, lr=0.1, batch_size=5, weight_decay=1e-3)


def draws(owner: int, round: int, count: int) -> Tensor:
    """A player's random numbers of a round; the server is -1."""
    key = rng.keys(0, np.array([owner]), round, rng.AGENT[1])
    return torch.from_numpy(rng.uniform(key, count)[0])


def layers(flat: Tensor, sizes: list[tuple[int, int]]) -> list[Tensor]:
    """Weights and biases of a network, from its flat vector."""
    found, at = [], 0
    for inputs, outputs in sizes:
        found.append(flat[at : at + inputs * outputs].view(inputs, outputs).clone())
        found.append(flat[at + inputs * outputs : at + (inputs + 1) * outputs].clone())
        at += (inputs + 1) * outputs
    return [value.requires_grad_() for value in found]


class Agent:
    """DDPG as the public code has it: nothing is standardised, the memory holds real actions."""

    def __init__(self, actor: Tensor, critic: Tensor, states: int, actions: int) -> None:
        self.actions = actions
        shapes = (
            [(states, 40), (40, 30), (30, actions)],
            [(states, 40), (40 + actions, 30), (30, 1)],
        )
        self.actor, self.target_actor = layers(actor, shapes[0]), layers(actor, shapes[0])
        self.critic, self.target_critic = layers(critic, shapes[1]), layers(critic, shapes[1])
        self.actor_adam = torch.optim.Adam(self.actor, lr=RATE / 10)
        self.critic_adam = torch.optim.Adam(self.critic, lr=RATE)
        self.memory: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []
        self.noise = torch.zeros(actions, dtype=torch.float64)

    @staticmethod
    def act(net: list[Tensor], state: Tensor) -> Tensor:
        hidden = torch.relu(torch.relu(state @ net[0] + net[1]) @ net[2] + net[3])
        return torch.tanh(hidden @ net[4] + net[5])

    @staticmethod
    def value(net: list[Tensor], state: Tensor, action: Tensor) -> Tensor:
        hidden = torch.relu(state @ net[0] + net[1])
        hidden = torch.relu(torch.cat([hidden, action], -1) @ net[2] + net[3])
        return (hidden @ net[4] + net[5]).squeeze(-1)

    def learn(self, u: Tensor) -> None:
        rows = [self.memory[int(x * len(self.memory))] for x in u]
        s, a, r, s2 = (torch.stack(column) for column in zip(*rows, strict=True))
        with torch.no_grad():
            y = r + GAMMA * self.value(self.target_critic, s2, self.act(self.target_actor, s2))
        self.critic_adam.zero_grad()
        (y - self.value(self.critic, s, a)).square().mean().backward()
        self.critic_adam.step()
        self.actor_adam.zero_grad()
        # The public code's mismatch: the critic sees tanh here, and real actions above.
        (-self.value(self.critic, s, self.act(self.actor, s)).mean()).backward()
        self.actor_adam.step()
        for net, target in ((self.actor, self.target_actor), (self.critic, self.target_critic)):
            for new, old in zip(net, target, strict=True):
                old.data += RATE * (new.data - old.data)

    def shake(self, u: Tensor) -> Tensor:
        """Ornstein-Uhlenbeck with theta 0.15, sigma 0.2 and dt 0.01."""
        normal = torch.special.ndtri(u)
        self.noise = self.noise - 0.15 * 0.01 * self.noise + 0.2 * 0.1 * normal
        return self.noise


def local_training(task: Any, client: int, start: Any, epochs: int, lr: float, t: int) -> Any:
    """SGD with gradients clipped to norm 10, from torch's parts."""
    ids = np.array([client])
    split = task.data.split(ids, "train")
    key = rng.keys(0, ids, t, rng.BATCHES[0])
    plan = batching.plan_batches(key, split.size, np.array([epochs]), TRAINING.batch_size)
    params = {name: value.clone().requires_grad_() for name, value in start.items()}
    sgd = torch.optim.SGD(params.values(), lr=lr, weight_decay=TRAINING.weight_decay)
    for step in range(int(plan.steps[0])):
        count = TRAINING.batch_size if plan.counts is None else int(plan.counts[step, 0])
        rows = torch.from_numpy(split.start[0] + plan.rows[step, 0, :count])
        sgd.zero_grad()
        F.cross_entropy(task.forward(params, task.prepare(split.x[rows])), split.y[rows]).backward()
        norm = torch.stack([p.grad.square().sum() for p in params.values()]).sum().sqrt()
        for p in params.values():
            p.grad *= min(1.0, 10.0 / float(norm))
        sgd.step()
    return {name: value.detach() for name, value in params.items()}


def play(task: Any, first: Any) -> tuple[list[Any], Any]:
    """The whole game; `first` is a run of one round, for the networks as they were drawn."""
    n = task.info.num_clients
    nets = first.store.state["agent"]["ddpg"]
    clients = [Agent(nets["actor"][i], nets["critic"][i], 1, 2) for i in range(n)]
    server_nets = first.server_state["server_agent"]["ddpg"]
    server = Agent(server_nets["actor"], server_nets["critic"], n, n)
    accs = torch.zeros(n, dtype=torch.float64)
    upload_accs = torch.zeros(n, dtype=torch.float64)
    last: list[Any] = [None] * n
    last_server: Any = None
    W = dict(first.initial_params)
    told = []
    for t in range(1, ROUNDS + 1):
        decisions, uploads, new_accs = [], [], torch.zeros_like(accs)
        for i, agent in enumerate(clients):
            state, u = accs[i : i + 1], draws(i, t, 2 + BATCH)
            if last[i] is not None:
                agent.memory.append((*last[i], state))
            if t > WARMUP and len(agent.memory) >= WARMUP:
                agent.learn(u[2:])
            noise = agent.shake(u[:2])
            if t <= WARMUP:
                share, eta = LOW + u[0] * (HIGH - LOW), LOW + u[1] * (HIGH - LOW)
            else:
                decay = 1 - (t - 1 - WARMUP) / 500
                tanh = (agent.act(agent.actor, state).detach() + noise * decay).clamp(-1, 1)
                share, eta = ((tanh + 1) / 2).clamp(LOW, HIGH)
            alpha = share / HIGH * EPOCHS
            epochs = max(1, round(float(alpha)))
            w = local_training(task, i, W, epochs, float(eta), t)
            score = task.evaluate(torch.tensor(i), w, "test")
            new_accs[i] = score["acc"]
            last[i] = (state, torch.stack([alpha, eta]), 1 / (score["loss"].double() + 1e-5))
            decisions.append((epochs, float(eta)))
            uploads.append(w)
        accs = new_accs
        stack = {name: torch.stack([w[name] for w in uploads]) for name in W}
        u = draws(-1, t, n + BATCH)
        if last_server is not None:
            server.memory.append((*last_server, upload_accs))
        if t > WARMUP and len(server.memory) >= WARMUP:
            server.learn(u[n:])
        tanh = 2 * u[:n] - 1 if t <= WARMUP else server.act(server.actor, upload_accs).detach()
        p = (tanh + 1) / 2
        p = p / p.sum()
        W = {name: torch.tensordot(p, value, 1) for name, value in stack.items()}
        loss = task.evaluate_server({name: v.unsqueeze(0) for name, v in W.items()}, "test")["loss"]
        last_server = (upload_accs, p, 1 / (loss[0].double() + 1e-5))
        upload_accs = task.evaluate_server(stack, "test")["acc"].double()
        told.append((decisions, p))
    return told, W


@pytest.mark.parametrize("model", ["mlp", "linear"])
def test_the_reading_plays_the_public_codes_game(model: str) -> None:
    task = small_task(model, training=TRAINING, samples=30)
    method = Page(reading="authors-code", warmup=WARMUP, window=0)
    first = simulate(method, task, 1)
    told, W = play(task, first)
    sim = simulate(method, task, ROUNDS)
    for log, (decisions, p) in zip(sim.logs, told, strict=True):
        assert log.logged["p"] == pytest.approx(p.tolist(), rel=1e-4, abs=1e-6)
        assert log.train["epochs"].mean == pytest.approx(np.mean([e for e, _ in decisions]))
        assert log.train["lr"].mean == pytest.approx(np.mean([lr for _, lr in decisions]), rel=1e-5)
    assert largest_difference(sim.params, W) < 1e-8


def test_a_bound_on_gradients_of_the_user_counts_instead() -> None:
    method = Page(reading="authors-code", warmup=9, window=0)
    runs = {
        bound: simulate(
            method, small_task("linear", training=replace(TRAINING, max_grad_norm=bound)), 1
        )
        for bound in (0.0, 10.0, 0.01)
    }
    assert largest_difference(runs[0.0].params, runs[10.0].params) == 0.0
    assert largest_difference(runs[0.0].params, runs[0.01].params) > 1e-3


def test_warm_up_is_uniform_over_the_box() -> None:
    """Rates in [0.001, 0.1] and 0.2 to 20 epochs; the clipped map would give the corner mostly."""
    sim = simulate(Page(reading="authors-code", window=0), small_task("linear"), 30)
    rates = torch.cat([torch.tensor(log.decisions["lr"]) for log in sim.logs if log.decisions])
    memory = sim.store.state["agent"]["ddpg"]["buffer"]["action"][:, :29]
    assert float(memory[..., 1].mean()) == pytest.approx((LOW + HIGH) / 2, abs=0.01)
    assert float(memory[..., 0].mean()) == pytest.approx(10.1, abs=1.0)
    assert float(memory[..., 0].max()) <= 20.0
    assert float((rates >= 0.0999).double().mean()) < 0.1


def test_control_random_draws_from_the_box_and_zero_is_the_corner() -> None:
    sims = [
        simulate(Page(reading="authors-code", control=control, window=0), small_task(), 2)
        for control in ("zero", "random")
    ]
    assert (sims[0].logs[0].train["lr"].min, sims[0].logs[0].train["epochs"].min) == (0.1, 20)
    assert 0.001 <= sims[1].logs[0].train["lr"].min < sims[1].logs[0].train["lr"].max <= 0.1
