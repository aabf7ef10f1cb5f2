"""Reinforcement learning across federations: `equipoise train-policy`.

An episode is a whole small federation. Its clients and their needs are drawn anew: label skew, few
rows, rotated or scrambled inputs, permuted labels, and mixtures of these. At every decision the
policy samples a part for each client, which holds it for a twelfth of the run. At the end

    return_i = accuracy of client i's own model (mean of that as it is and fine-tuned)
               + TEAM_SHARE x mean (accuracy of own models + GLOBAL_SHARE x that of the global one)

relative to the mean accuracy of own models. What the others gain must count: a client that keeps
its own model gains alone by it, and all lose when nobody shares.

The policy starts as the gate: it observes the gate's choice and prefers it. Training changes by how
much, and when not.

Every federation is played by `REPLICAS` teams with the same data, start and mini-batches, which
differ only in the sampled parts; the mean return of a client over its replicas is the baseline of
the policy gradient (REINFORCE with the clipped ratio of PPO, arXiv:1707.06347, for several steps
on one batch).

`simulator.py` computes all federations of a batch in one stack.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from equipoise.config.schema import Options, option
from equipoise.methods.fedpolicy.network import PolicyNetwork, init_network
from equipoise.methods.fedpolicy.simulator import Choose, Episode, draw_federations, play, repeat
from equipoise.methods.fedpolicy.state import TINY
from equipoise.rl.nn import DTYPE

TEAM_SHARE = 2.0
GLOBAL_SHARE = 0.25
REPLICAS = 6
CLIP = 0.2  # of the ratio of PPO
STEPS_PER_BATCH = 4
MIN_LEVEL = 0.05  # of the mean accuracy, by which returns are divided
NEW_FEDERATIONS = 40  # on which the trained policy is compared with the gate
NEW_SEEDS = 10**6  # added to the seed of the training for them


@dataclass(frozen=True)
class TrainingOptions(Options):
    """Options of a training run."""

    batches: int = option(60, "batches of episodes", low=1)
    federations: int = option(8, "federations in a batch, each played by several teams", low=1)
    clients: int = option(10, "clients of a federation", low=2)
    rounds: int = option(24, "rounds of a federation", low=2)
    lr: float = option(0.03, "learning rate of Adam in the first batch; it falls to 0", above=0)
    entropy: float = option(0.01, "weight of the entropy in the first batch; falls to 0", low=0)
    seed: int = option(1, "seed of everything", low=0)


def describe(options: TrainingOptions) -> dict[str, object]:
    """Return a note for the file of a policy: its command and what it was trained on."""
    defaults = TrainingOptions()
    given = [
        f"--{name} {value}"
        for name, value in vars(options).items()
        if name != "seed" and value != getattr(defaults, name)
    ]
    episodes = options.batches * options.federations * REPLICAS
    return {
        "command": " ".join(["equipoise train-policy --seed", str(options.seed), *given]),
        "episodes": f"{episodes} federations of {options.clients} clients, {options.rounds} rounds",
    }


def advantages(episode: Episode) -> Tensor:
    """Return each client's return less its mean over replicas `[E, C]`, in units of its spread."""
    own = (episode.personal + episode.tuned) / 2
    team = own.mean(1, keepdim=True)
    shared = team + GLOBAL_SHARE * episode.global_.mean(1, keepdim=True)
    returns = ((own + TEAM_SHARE * shared) / team.clamp(min=MIN_LEVEL)).unflatten(0, (-1, REPLICAS))
    differences: Tensor = (returns - returns.mean(1, keepdim=True)).flatten(0, 1)
    return differences / differences.square().mean().sqrt().clamp(min=TINY)


def train(
    options: TrainingOptions, on_batch: Callable[[int, Episode, PolicyNetwork], None]
) -> PolicyNetwork:
    """Train a policy.

    Args:
        options: How.
        on_batch: Called after each batch with its number from 1, its episode and the policy.

    Returns:
        The policy.
    """
    generator = torch.Generator().manual_seed(options.seed)
    network = PolicyNetwork(*(layer.requires_grad_() for layer in init_network(generator)))
    optimizer = torch.optim.Adam(list(network), lr=options.lr)
    for batch in range(1, options.batches + 1):
        left = 1.0 - (batch - 1) / options.batches
        data = repeat(draw_federations(options.federations, options.clients, generator), REPLICAS)
        with torch.no_grad():
            choose = sampled(network, generator)
            episode = play(data, options.rounds, REPLICAS, choose, generator)
            advantage = advantages(episode).to(DTYPE)
            old = log_chances(network, episode)
        for group in optimizer.param_groups:
            group["lr"] = options.lr * left
        for _ in range(STEPS_PER_BATCH):
            ratio = (log_chances(network, episode) - old).exp()
            gain = torch.minimum(ratio * advantage, ratio.clamp(1 - CLIP, 1 + CLIP) * advantage)
            logs = torch.log_softmax(network.logits(episode.features), -1)
            entropy = -(logs.exp() * logs).sum(-1).mean()
            optimizer.zero_grad()
            (-gain.mean() - options.entropy * left * entropy).backward()
            optimizer.step()
        on_batch(batch, episode, network)
    return PolicyNetwork(*(layer.detach() for layer in network))


def log_chances(network: PolicyNetwork, episode: Episode) -> Tensor:
    """Return the log probability of every action `[D, E, C]`."""
    logs: Tensor = torch.log_softmax(network.logits(episode.features), -1)
    return logs.gather(-1, episode.actions[..., None])[..., 0]


def sampled(network: PolicyNetwork, generator: torch.Generator) -> Choose:
    """Return the choice of parts by chance, as likely as the policy has them."""

    def choose(features: Tensor, over: float) -> Tensor:
        chances = torch.softmax(network.logits(features), -1).flatten(0, -2)
        drawn = torch.multinomial(chances, 1, generator=generator)
        return drawn.reshape(features.shape[:-1])

    return choose


class PolicyGain(NamedTuple):
    """Mean personal accuracy on new federations, in percent.

    Attributes:
        trained: With the trained policy.
        gate: With the gate, from which it started.
        difference: Of the two.
        standard_error: Of the difference, over federations.
        changed: Share of the decisions in which the policy chooses another part than the gate.
    """

    trained: float
    gate: float
    difference: float
    standard_error: float
    changed: float


def gain_over_gate(network: PolicyNetwork, options: TrainingOptions) -> PolicyGain:
    """Compare a policy with the gate on federations that it was not trained on.

    They are of the same kind. Both start equal, and see the same data and mini-batches.

    Args:
        network: The policy; it takes the part with the largest value.
        options: Those of its training.
    """
    gate = init_network(torch.Generator().manual_seed(options.seed))
    episodes = []
    for player in (network, gate):
        generator = torch.Generator().manual_seed(NEW_SEEDS + options.seed)
        data = draw_federations(NEW_FEDERATIONS, options.clients, generator)
        with torch.no_grad():
            episodes.append(play(data, options.rounds, 1, preferred(player), generator))
    trained, start = (100 * episode.personal.mean(1) for episode in episodes)
    difference = trained - start
    of_gate = preferred(gate)(episodes[0].features, 0.0)
    return PolicyGain(
        trained=round(float(trained.mean()), 2),
        gate=round(float(start.mean()), 2),
        difference=round(float(difference.mean()), 2),
        standard_error=round(float(difference.std()) / NEW_FEDERATIONS**0.5, 2),
        changed=round(float((episodes[0].actions != of_gate).double().mean()), 3),
    )


def preferred(network: PolicyNetwork) -> Choose:
    """Return the choice of the part with the largest value."""

    def choose(features: Tensor, over: float) -> Tensor:
        return network.logits(features).argmax(-1)

    return choose
