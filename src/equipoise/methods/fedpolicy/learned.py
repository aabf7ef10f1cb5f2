"""Learned policies: a network trained across federations, and an agent that learns within a run.

Symbols: N clients in all, K clients in a round, P parts, F features.
"""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from equipoise.core import Server, State
from equipoise.methods.fedpolicy.gate import FULL_PART, NONE_PART, GatePolicy, mean_alignment
from equipoise.methods.fedpolicy.network import (
    FEATURES,
    FOUR_PARTS,
    Observation,
    PolicyNetwork,
    client_features,
    load_network,
)
from equipoise.methods.fedpolicy.policies import stratified_random_parts
from equipoise.methods.fedpolicy.state import write_rows
from equipoise.rl import dqn
from equipoise.rl.nn import DTYPE, add_to_buffer
from equipoise.utils import rng

GAMMA = 0.9  # discount of one hold
PRIOR_WEIGHT = 0.02  # accuracy for which one unit of the trained policy's value counts
EPSILON_START = 0.3  # chance of a random part in the first decision; 0 in the last quarter
EXPLORED_SHARE = 0.75


class TrainedPolicy(GatePolicy):
    """A small network, trained by `equipoise train-policy`, that observes the gate's decisions."""

    @cached_property
    def network(self) -> PolicyNetwork:
        """The policy's network."""
        return load_network(self.config.policy_file)

    def observe(
        self, server: Server, client_table: State, policy_state: State, ids: Tensor
    ) -> tuple[Tensor, State]:
        """Let the gate decide, and return the features of these clients `[K, F]`.

        Args:
            server: The server of this round.
            client_table: What is recorded of all clients.
            policy_state: The policy's own state.
            ids: The clients `[K]`.

        Returns:
            The features, and the policy's new state.
        """
        part, policy_state = GatePolicy.decide(self, server, client_table, policy_state, ids)
        all_ids = torch.arange(server.task.info.num_clients)
        observation = Observation(
            smoothed=policy_state["smoothed_scores"],
            accuracy=policy_state["scores"],
            previous=policy_state["previous_scores"],
            is_known=policy_state["probe_round"] > 0,
            installs=FOUR_PARTS.membership[client_table["installed_part"]],
            num_rows=server.task.num_examples(all_ids),
            num_val_rows=server.task.num_rows(all_ids, "val"),
            time_left=torch.tensor(1.0 - (server.round - 1) / server.num_rounds),
            gate_part=policy_state["part"].index_copy(0, ids, part),
            has_left=policy_state["has_left"],
            alignment=mean_alignment(policy_state),
        )
        return client_features(observation)[ids], policy_state

    def decide(
        self, server: Server, client_table: State, policy_state: State, ids: Tensor
    ) -> tuple[Tensor, State]:
        """Choose the part with the largest value."""
        features, policy_state = self.observe(server, client_table, policy_state, ids)
        return self.mask(self.network.logits(features)).argmax(1), policy_state


class OnlineDqn(TrainedPolicy):
    """A double DQN that all clients share and that learns within the run.

    A transition lasts from one decision to the next. Its reward is what the client's own model
    gained in validation accuracy meanwhile, less the mean gain of the clients that held `full` in
    the same time. The trained policy is its start: parts are chosen by Q + PRIOR_WEIGHT x value.
    """

    @property
    def dqn_config(self) -> dqn.Config:
        """The Q-network."""
        return dqn.Config(len(FEATURES), len(self.config.parts), gamma=GAMMA)

    def init(self, num_clients: int) -> State:
        """Return an agent and no open transition; the network is drawn in the first decision."""
        config = self.dqn_config
        return super().init(num_clients) | {
            "agent": dqn.init(config, torch.zeros(dqn.init_draws(config), dtype=DTYPE)),
            # Of each client's last decision.
            "features": torch.zeros(num_clients, config.features, dtype=DTYPE),
            "is_open": torch.zeros(num_clients, dtype=torch.bool),
        }

    def decide(
        self, server: Server, client_table: State, policy_state: State, ids: Tensor
    ) -> tuple[Tensor, State]:
        """Learn from the transitions that end here, then choose epsilon-greedily."""
        config = self.dqn_config
        now, policy_state = self.observe(server, client_table, policy_state, ids)
        agent = policy_state["agent"]
        if int(agent["normaliser"]["count"]) == 0:
            agent = dqn.init(config, server.uniform(dqn.init_draws(config), rng.POLICY[0]))
        agent = dqn.update_normaliser(agent, now)
        is_open = policy_state["is_open"][ids]
        open_ids = ids[is_open]
        if len(open_ids):
            reward = relative_gains(policy_state, ids)[is_open]
            transitions = {
                "state": policy_state["features"][open_ids],
                "action": policy_state["part"][open_ids],
                "reward": reward,
                "base": torch.zeros_like(reward),
                "next": now[is_open],
                "discount": torch.full_like(reward, config.gamma),
                "round": torch.full_like(open_ids, server.round),
            }
            agent = add_to_buffer(agent, transitions)
            draws = server.uniform(config.steps * config.batch, rng.POLICY[1])
            draws = draws.reshape(config.steps, config.batch)
            agent = dqn.learn(config, agent, self.config.allowed_mask, server.round, draws)
        values = dqn.values(config, agent, now)
        values = values + PRIOR_WEIGHT * self.network.logits(now)
        best = self.mask(values).argmax(1)
        progress = server.round / (EXPLORED_SHARE * server.num_rounds)
        epsilon = EPSILON_START * max(0.0, 1.0 - progress)
        explores = server.uniform_per_client(ids, 1, rng.POLICY[3])[:, 0] < epsilon
        part = torch.where(explores, stratified_random_parts(server, self.config, ids), best)
        rows = {"features": now, "is_open": torch.ones_like(explores)}
        return part, write_rows({**policy_state, "agent": agent}, ids, rows)


def relative_gains(policy_state: State, ids: Tensor) -> Tensor:
    """Return what own models gained since the probe before `[K]`, less what holders of full did.

    Where nobody held `full`, the mean over these clients takes its place.
    """
    own = policy_state["scores"][ids, NONE_PART]
    gain: Tensor = own - policy_state["previous_scores"][ids, NONE_PART]
    is_full = policy_state["part"][ids] == FULL_PART
    reference = gain[is_full] if bool(is_full.any()) else gain
    return gain - reference.mean()
