"""PAGE's players: the policies of clients and server, and the state of their agents.

A client policy chooses a_i(t) from s_i(t) (section 4.3): `FixedPolicy` (no learning),
`PerClientAgents` (one DDPG agent at each client, algorithm 2 of the paper) or `SharedAgent` (one
DDPG agent for all clients, trained at the server). A server policy chooses a_CS(t) from s_CS(t)
(section 4.2, algorithm 1): `ExponentPolicy`, `PerClientWeights` or `SetPolicy`. The updates of
actor and critic, lines 4 to 9 of algorithm 1, are in `equipoise/rl/ddpg.py`.

Where the agents are:
    client state `agent`: `PlayerState` with `PerClientAgents`, `SharedPlayerState` with
        `SharedAgent`.
    server state `client_agent`: the `ddpg.AgentState` of `SharedAgent`.
    server state `server_agent`: `PlayerState`, with `PerClientWeights` a `WeightsPlayerState`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, NamedTuple, TypedDict

import torch
from torch import Tensor

from equipoise.core import Client, ClientUpdate, Params, Server, State, Task
from equipoise.core.report_validation import FRACTION, ValueRange, winsorize
from equipoise.rl import ddpg
from equipoise.rl.nn import DTYPE, add_to_buffer
from equipoise.utils import rng
from equipoise.utils.rng import Streams

if TYPE_CHECKING:
    from equipoise.methods.page.page import Page

NOISE_DECAY_ROUNDS = 500
"""Rounds over which the exploration noise of the paper's agents decays to zero."""
NUM_FEATURES = 4
"""What `SetPolicy` sees of one client; the cohort's mean of it is appended."""
SET_SIZE = 32
"""Clients of a cohort that `SetPolicy` stores in its replay buffer."""
SERVER_UPDATES = 4
"""Updates per round of a server's agent, which sees one transition per round."""
MIN_FEATURE_LOSS = 1e-3
"""Smallest loss of which a feature takes the logarithm."""

REPORT_RANGES = {
    "agent_state": ValueRange(-100.0, 100.0),  # accuracies and logarithms of losses
    "agent_next_state": ValueRange(-100.0, 100.0),
    "agent_action": ValueRange(-1.0, 1.0),
    "agent_reward": ValueRange(-200.0, 200.0),  # differences of logarithms, or at most 1 / MIN_LOSS
    "agent_completed": FRACTION,
}
"""What a client of `SharedAgent` uploads: the fields of `Transition`."""


class PlayerState(TypedDict):
    """A player with an agent of its own.

    A transition (s(t), a(t), r(t), s(t+1)) is complete one round later. Until then its first three
    parts wait here.
    """

    ddpg: ddpg.AgentState
    """Actor, critic, their targets, optimisers and replay buffer."""
    last_state: Tensor
    """s(t) `[S]`."""
    last_action: Tensor
    """a(t) `[A]`."""
    last_reward: Tensor
    """r(t) `[]`."""
    num_turns: Tensor
    """Actions so far `[]`; 0 before the first."""


class WeightsPlayerState(PlayerState):
    """The server's player under `PerClientWeights`."""

    upload_accs: Tensor
    """Accuracy of every client's last upload on D_CS `[N]`; 0 before the first."""


class Transition(TypedDict):
    """(s(t), a(t), r(t), s(t+1)) of one client."""

    state: Tensor
    """s(t) `[S]`."""
    action: Tensor
    """a(t) `[A]`."""
    reward: Tensor
    """r(t) `[]`."""
    next_state: Tensor
    """s(t+1) `[S]`."""
    completed: Tensor
    """A boolean `[]`: false in a client's first round, which completes no transition."""


class SharedPlayerState(TypedDict):
    """A client's side of `SharedAgent`: as `PlayerState`, without an agent."""

    last_state: Tensor
    """s(t) `[S]`."""
    last_action: Tensor
    """a(t) `[A]`."""
    last_reward: Tensor
    """r(t) `[]`."""
    num_turns: Tensor
    """Actions so far `[]`; 0 before the first."""
    transition: Transition
    """The transition that this round completed; it is uploaded."""


def set_last_transition(state: State, key: str, **values: Tensor) -> State:
    """Set fields of a player's last transition.

    Args:
        state: State of a client or of the server.
        key: Where the player is in the state; without one there, nothing changes.
        values: `last_action` or `last_reward`.

    Returns:
        The new state.
    """
    if key not in state:
        return state
    return {**state, key: {**state[key], **values}}


# -------------------------------------------------------------------- a player with its own agent


def init_state(config: ddpg.Config, state_dim: int, action_dim: int) -> PlayerState:
    """Return a player before its first round; the networks are drawn in `init_networks`.

    Args:
        config: Hyper-parameters of DDPG.
        state_dim: Dimension of the state.
        action_dim: Dimension of the action.
    """
    u = torch.zeros(ddpg.init_draws(config, state_dim, action_dim))
    return {
        "ddpg": ddpg.init(config, state_dim, action_dim, u),
        "last_state": torch.zeros(state_dim, dtype=DTYPE),
        "last_action": torch.zeros(action_dim, dtype=DTYPE),
        "last_reward": torch.zeros((), dtype=DTYPE),
        "num_turns": torch.zeros((), dtype=torch.int64),
    }


def init_networks(party: Client | Server, config: ddpg.Config, player: PlayerState) -> PlayerState:
    """Draw the networks of a player in its first round, when seed and client are known.

    Args:
        party: The client or the server whose agent it is.
        config: Hyper-parameters of DDPG.
        player: The player so far.

    Returns:
        The player, with networks.
    """
    is_new = player["num_turns"] == 0
    any_new = party.any_client(is_new) if isinstance(party, Client) else bool(is_new)
    if not any_new:
        return player
    state_dim = player["last_state"].shape[-1]
    action_dim = player["last_action"].shape[-1]
    u = party.uniform(ddpg.init_draws(config, state_dim, action_dim), stream=rng.AGENT[0])
    initial = ddpg.init(config, state_dim, action_dim, u)
    agent = _with_networks(player["ddpg"], initial, is_new)
    return {**player, "ddpg": agent}


def act_and_learn(
    party: Client | Server,
    config: ddpg.Config,
    player: PlayerState,
    observation: Tensor,
    learning: bool,
) -> tuple[Tensor, PlayerState]:
    """Complete the last transition, learn from the replay buffer, and choose the next action.

    Learning comes before acting, as in steps 2 and 5 of the paper's workflow: the decision of round
    t depends on what is learned in round t.

    Args:
        party: The client or the server whose player this is.
        config: Hyper-parameters of the agent.
        player: The player.
        observation: s(t) `[S]`.
        learning: Whether the agent may learn already.

    Returns:
        a(t) `[A]` and the player.
    """
    player = init_networks(party, config, player)
    count = int(player["last_action"].shape[-1]) + config.steps * config.batch
    u = party.uniform(count, stream=rng.AGENT[1])
    return _step(config, player, observation.to(DTYPE), u, learning)


def _step(
    config: ddpg.Config, player: PlayerState, observation: Tensor, u: Tensor, learning: bool
) -> tuple[Tensor, PlayerState]:
    """Store the last transition, learn and act, with the random numbers `u`."""
    # Algorithm 1, line 3: s(t) is observed, so that the transition from s(t - 1) is complete.
    agent = ddpg.store(
        player["ddpg"],
        player["last_state"],
        player["last_action"],
        player["last_reward"],
        observation,
        player["num_turns"] > 0,
    )
    action_dim = player["last_action"].shape[-1]
    if learning:  # lines 4 to 9
        agent = ddpg.learn(config, agent, u[action_dim:].reshape(config.steps, config.batch))
    # a(t) = mu(s(t)) with exploration noise.
    action, agent = ddpg.act(config, agent, observation, u[:action_dim])
    return action, {
        **player,
        "ddpg": agent,
        "last_state": observation,
        "last_action": action,
        "num_turns": player["num_turns"] + 1,
    }


# ---------------------------------------------------------------------------------- client policies


@dataclass(frozen=True)
class ClientPolicy:
    """The clients' policy; subclasses say who acts and who learns. The defaults have no state.

    Attributes:
        config: The method, whose options are those of the game.
    """

    config: Page

    @property
    def state_dim(self) -> int:
        """Numbers in s_i(t), see `Page.configure_training`."""
        num_observed = 3 if self.config.variant.relative_actions else 1
        return num_observed + bool(self.config.energy_budget)

    @property
    def action_dim(self) -> int:
        """Numbers in a_i(t)."""
        return len(self.config.client_actions)

    def init_client(self, task: Task) -> State:
        """Return the policy's part of a client's state."""
        return {}

    def act(self, client: Client, state: State, observation: Tensor) -> tuple[Tensor, State]:
        """Choose a_i(t).

        Args:
            client: The client.
            state: The client's state.
            observation: s_i(t) `[S]`.

        Returns:
            a_i(t) `[A]` in [-1, 1], and the client's state.
        """
        raise NotImplementedError

    def is_random(self, state: State) -> Tensor:
        """Return whether the action just chosen was uniformly random, a boolean `[]`."""
        return torch.tensor(False)

    def report(self, state: State) -> Params:
        """Return what a client uploads for the policy."""
        return {}

    def init_server(self, task: Task) -> State:
        """Return the policy's part of the server's state."""
        return {}

    def distribute(self, server: Server, state: State) -> tuple[State, State]:
        """Return what clients need from the server to act, and the server's state."""
        return {}, state

    def learn(self, server: Server, state: State, metrics: Params) -> State:
        """Learn at the server from what clients reported; return the server's state.

        Args:
            server: The server of this round.
            state: The server's state.
            metrics: What the clients reported `[K, ...]`.
        """
        return state


@dataclass(frozen=True)
class FixedPolicy(ClientPolicy):
    """The controls of an experiment: actions are zero, where agents start, or random."""

    def act(self, client: Client, state: State, observation: Tensor) -> tuple[Tensor, State]:
        """Choose zero or a random action in [-1, 1]."""
        action = random_action(client, self.action_dim)
        if self.config.control == "zero":
            action = torch.zeros_like(action)
        return action, state

    def is_random(self, state: State) -> Tensor:
        """Return whether actions are random."""
        return torch.tensor(self.config.control == "random")


@dataclass(frozen=True)
class PerClientAgents(ClientPolicy):
    """One DDPG agent at each client, as in the paper (algorithm 2)."""

    def init_client(self, task: Task) -> State:
        """Return a player without experience."""
        agent_config = self.config.agent_config(task)
        return {"agent": init_state(agent_config, self.state_dim, self.action_dim)}

    def act(self, client: Client, state: State, observation: Tensor) -> tuple[Tensor, State]:
        """Learn from the last round and choose a_i(t)."""
        agent_config = self.config.agent_config(client.task, client.num_rounds)
        learning = client.round > self.config.learning_starts(client.num_rounds)
        action, player = act_and_learn(client, agent_config, state["agent"], observation, learning)
        return action, {**state, "agent": player}

    def is_random(self, state: State) -> Tensor:
        """Return whether the client's agent is in its warm-up."""
        num_turns: Tensor = state["agent"]["num_turns"]
        return num_turns <= self.config.warmup


@dataclass(frozen=True)
class SharedAgent(ClientPolicy):
    """One DDPG agent for all clients, trained at the server on the transitions of all clients.

    The actor is sent to the clients, which act with it and upload one transition per round.
    """

    def agent_config(self, task: Task) -> ddpg.Config:
        """Return the agent's hyper-parameters.

        It sees as many transitions per round as there are clients: a larger buffer, larger batches
        and more updates than an agent of one client, in steps of a tenth.
        """
        config = self.config.agent_config(task)
        return replace(
            config,
            critic_lr=config.critic_lr / 10,
            actor_lr=config.actor_lr / 10,
            batch=64,
            steps=16,
            buffer_size=10_000,
            learning_starts=64,
        )

    def noise_std(self, round: int, num_rounds: int) -> float:
        """Return the standard deviation of the exploration noise in a round."""
        decay = 1 - (round - self.config.warmup) / NOISE_DECAY_ROUNDS
        if self.config.variant.relative_actions:
            decay = 1 - round / num_rounds
        return ddpg.Config.sigma * min(1.0, max(0.0, decay))

    def init_client(self, task: Task) -> State:
        """Return a player before its first round."""
        state = torch.zeros(self.state_dim, dtype=DTYPE)
        action = torch.zeros(self.action_dim, dtype=DTYPE)
        zero = torch.zeros((), dtype=DTYPE)
        player: SharedPlayerState = {
            "last_state": state,
            "last_action": action,
            "last_reward": zero,
            "num_turns": torch.zeros((), dtype=torch.int64),
            "transition": {
                "state": state,
                "action": action,
                "reward": zero,
                "next_state": state,
                "completed": torch.zeros((), dtype=torch.bool),
            },
        }
        return {"agent": player}

    def act(self, client: Client, state: State, observation: Tensor) -> tuple[Tensor, State]:
        """Choose a_i(t) with the actor that came with the model, and complete a transition.

        The noise is Gaussian: sampled clients have no sequence to be correlated along.
        """
        player: SharedPlayerState = state["agent"]
        received = client.message.broadcast
        u = client.uniform(self.action_dim, stream=rng.RESIDUAL[0])
        noise = self.noise_std(client.round, client.num_rounds) * ddpg.normal_quantile(u)
        config = self.agent_config(client.task)
        greedy = ddpg.apply_policy(config, received["policy"], observation, self.action_dim)
        action = torch.where(received["ready"], (greedy + noise).clamp(-1, 1), 2.0 * u - 1.0)
        transition: Transition = {
            "state": player["last_state"],
            "action": player["last_action"],
            "reward": player["last_reward"],
            "next_state": observation,
            "completed": player["num_turns"] > 0,
        }
        new_player: SharedPlayerState = {
            **player,
            "last_state": observation,
            "last_action": action,
            "num_turns": player["num_turns"] + 1,
            "transition": transition,
        }
        return action, {**state, "agent": new_player}

    def report(self, state: State) -> Params:
        """Return the transition that this round completed."""
        return {f"agent_{name}": value for name, value in state["agent"]["transition"].items()}

    def init_server(self, task: Task) -> State:
        """Return the agent; its networks are drawn in the first round."""
        config = self.agent_config(task)
        u = torch.zeros(ddpg.init_draws(config, self.state_dim, self.action_dim))
        return {"client_agent": ddpg.init(config, self.state_dim, self.action_dim, u)}

    def distribute(self, server: Server, state: State) -> tuple[State, State]:
        """Send the actor, and whether to use it: absolute actions are random at first."""
        config = self.agent_config(server.task)
        agent = _init_shared_networks(server, config, state["client_agent"], rng.AGENT)
        ready = (agent["num_updates"] > 0) | self.config.variant.relative_actions
        sent: State = {"policy": ddpg.export_policy(config, agent), "ready": ready}
        return sent, {**state, "client_agent": agent}

    def learn(self, server: Server, state: State, metrics: Params) -> State:
        """Learn from the transitions that clients completed, for the next round.

        Improvements are paid less the cohort's mean: the common gain is due to the round, not to
        the action (a baseline that reduces variance).
        """
        is_improvement = self.config.variant.reward_is_improvement
        rows = completed_transitions(server, metrics, clip_outliers=is_improvement)
        if is_improvement:
            rows["reward"] = rows["reward"] - rows["reward"].mean()
        learning = server.round >= self.config.learning_starts(server.num_rounds)
        config = self.agent_config(server.task)
        agent = _store_and_learn(server, config, state["client_agent"], rows, rng.AGENT, learning)
        return {**state, "client_agent": agent}


def random_action(client: Client, action_dim: int) -> Tensor:
    """Return a uniformly random action `[action_dim]` in [-1, 1]."""
    return 2.0 * client.uniform(action_dim, stream=rng.RESIDUAL[0]) - 1.0


def completed_transitions(server: Server, metrics: Params, clip_outliers: bool = True) -> Params:
    """Return the transitions among the clients' reports.

    Args:
        server: The server; no transition can be completed in round 1.
        metrics: The reports `[K, ...]`.
        clip_outliers: Winsorise every number over the cohort. It suits logarithms of losses and
            their differences, of which no honest client's is far from all others'.

    Returns:
        `state`, `action`, `reward` and `next_state`, each `[M, ...]` with M <= K.
    """
    completed = metrics["agent_completed"] & (server.round > 1)
    names = ("state", "action", "reward", "next_state")
    rows = {name: metrics[f"agent_{name}"][completed] for name in names}
    if not clip_outliers:
        return rows
    return {name: winsorize(value) for name, value in rows.items()}


def make_client_policy(config: Page) -> ClientPolicy:
    """Return the client policy that the options ask for."""
    if config.control != "learned" or not config.client_actions:
        return FixedPolicy(config)
    if config.shares_agent:
        return SharedAgent(config)
    return PerClientAgents(config)


# ---------------------------------------------------------------------------------- server policies


class ServerTurn(NamedTuple):
    """A turn of the server's agent.

    Attributes:
        server: The server.
        config: Hyper-parameters of the agent.
        ids: The clients that replied `[K]`.
        learning: Whether the agent may learn already.
    """

    server: Server
    config: ddpg.Config
    ids: Tensor
    learning: bool


@dataclass(frozen=True)
class ServerPolicy:
    """The server's policy; subclasses say what it sees and what its action means.

    Without learning (`control`), its action is zero, where agents start, or random.
    """

    config: Page
    uses_reported_accuracy: ClassVar[bool] = True
    """Whether clients report the accuracy of their trained model."""

    def init_server(self, task: Task) -> State:
        """Return the policy's part of the server's state."""
        if self.config.control != "learned" or "p" not in self.config.factors:
            return {}
        agent_config = self.agent_config(self.config.agent_config(task, is_server=True))
        return {"server_agent": self.init_player(agent_config, task.info.num_clients)}

    def act(
        self, server: Server, state: State, ids: Tensor, updates: ClientUpdate
    ) -> tuple[Tensor, State]:
        """Choose a_CS(t).

        The agent learns here, not in `Page.learn`: p(t) depends on what is learned in round t
        (algorithm 1 and step 5 of the workflow).

        Args:
            server: The server.
            state: The server's state.
            ids: The clients that replied `[K]`.
            updates: Their uploads.

        Returns:
            a_CS(t) in [-1, 1], `[1]` or `[K]`, and the server's state.
        """
        if "server_agent" not in state:
            action = 2 * server.uniform(self.action_dim(ids), rng.AGENT[1]) - 1
            if self.config.control == "zero":
                action = torch.zeros_like(action)
            return action, state
        config = self.config.agent_config(server.task, server.num_rounds, is_server=True)
        learning = server.round > self.config.learning_starts(server.num_rounds)
        observation, player = self.observe(server, state["server_agent"], ids, updates)
        turn = ServerTurn(server, self.agent_config(config), ids, learning)
        action, player = self.decide(turn, player, observation)
        return action, {**state, "server_agent": player}

    def action_dim(self, ids: Tensor) -> int:
        """Return the number of numbers in an action for these clients."""
        return len(ids)

    def agent_config(self, config: ddpg.Config) -> ddpg.Config:
        """Return the agent's hyper-parameters from those of a client's agent."""
        raise NotImplementedError

    def init_player(self, config: ddpg.Config, num_clients: int) -> PlayerState:
        """Return the server's player before its first round."""
        raise NotImplementedError

    def observe(
        self, server: Server, player: PlayerState, ids: Tensor, updates: ClientUpdate
    ) -> tuple[Tensor, PlayerState]:
        """Return s_CS(t) and the player.

        Args:
            server: The server of this round.
            player: The server's agent.
            ids: The clients that replied `[K]`.
            updates: Their updates, stacked `[K, ...]`.
        """
        raise NotImplementedError

    def decide(
        self, turn: ServerTurn, player: PlayerState, observation: Tensor
    ) -> tuple[Tensor, PlayerState]:
        """Complete the last transition, learn, and choose a_CS(t) for the turn's clients.

        Args:
            turn: The round, as the server's agent sees it.
            player: The server's agent.
            observation: The state s_CS(t).

        Returns:
            The action a_CS(t), and the player.
        """
        return act_and_learn(turn.server, turn.config, player, observation, turn.learning)


@dataclass(frozen=True)
class ExponentPolicy(ServerPolicy):
    """One exponent for all clients (`GameVariant.exponent_weights`).

    s_CS(t): mean and standard deviation of the uploads' accuracy, mean error of W(t), time left.
    """

    def action_dim(self, ids: Tensor) -> int:
        """Return 1."""
        return 1

    def agent_config(self, config: ddpg.Config) -> ddpg.Config:
        """Return a client's agent with more updates per round."""
        return replace(config, steps=SERVER_UPDATES)

    def init_player(self, config: ddpg.Config, num_clients: int) -> PlayerState:
        """Return a player of four observations and one action."""
        return init_state(config, 4, 1)

    def observe(
        self, server: Server, player: PlayerState, ids: Tensor, updates: ClientUpdate
    ) -> tuple[Tensor, PlayerState]:
        """Return statistics of the cohort."""
        acc = updates.metrics["trained_acc"].to(DTYPE)
        error = updates.metrics["error"].to(DTYPE)
        time_left = torch.full_like(acc[0], 1 - server.round / server.num_rounds)
        return torch.stack([acc.mean(), acc.std(correction=0), error.mean(), time_left]), player


@dataclass(frozen=True)
class PerClientWeights(ServerPolicy):
    """One weight per client, as in the paper (algorithm 1).

    s_CS(t): accuracy of every client's upload on the server's data D_CS; an absent client counts
    with its last one. The authors' code shows the agent the accuracies of round t - 1.
    """

    uses_reported_accuracy: ClassVar[bool] = False

    def agent_config(self, config: ddpg.Config) -> ddpg.Config:
        """Return a client's agent with Gaussian noise; the authors' code has none."""
        if self.config.variant.authors_code:
            return replace(config, noise="none")
        steps = SERVER_UPDATES if self.config.variant.relative_actions else 1
        return replace(config, noise="gaussian", steps=steps)

    def init_player(self, config: ddpg.Config, num_clients: int) -> WeightsPlayerState:
        """Return a player with one observation and one action per client."""
        player = init_state(config, num_clients, num_clients)
        return {**player, "upload_accs": torch.zeros(num_clients, dtype=DTYPE)}

    def observe(
        self, server: Server, player: PlayerState, ids: Tensor, updates: ClientUpdate
    ) -> tuple[Tensor, PlayerState]:
        """Score every upload on D_CS."""
        variant = self.config.variant
        last_accs: Tensor = player["upload_accs"]  # type: ignore[typeddict-item]
        scores = server.evaluate(updates.params, variant.server_split)
        upload_acc, _ = server.task.utility_and_loss(scores)
        accs = last_accs.index_copy(0, ids, upload_acc.to(DTYPE))
        observation = last_accs if variant.authors_code else accs
        new_player: WeightsPlayerState = {**player, "upload_accs": accs}
        return observation, new_player

    def decide(
        self, turn: ServerTurn, player: PlayerState, observation: Tensor
    ) -> tuple[Tensor, PlayerState]:
        """Choose a number for each client; the authors' code stores the weights p themselves."""
        action, player = super().decide(turn, player, observation)
        if self.config.variant.authors_code:
            p = self.config.variant.weights(action, action, None, 0.0)
            player = {**player, "last_action": p}
        return action[turn.ids], player


@dataclass(frozen=True)
class SetPolicy(ServerPolicy):
    """One network that scores each client from its features and the cohort's mean (Deep Sets).

    Permuting clients permutes their weights, and nothing grows with the number of clients.
    """

    def agent_config(self, config: ddpg.Config) -> ddpg.Config:
        """Return an agent whose states are sets of clients."""
        return replace(config, steps=SERVER_UPDATES, set_size=SET_SIZE, noise="gaussian")

    def init_player(self, config: ddpg.Config, num_clients: int) -> PlayerState:
        """Return a player before its first round."""
        u = torch.zeros(ddpg.init_draws(config, 2 * NUM_FEATURES, 1))
        return {
            "ddpg": ddpg.init(config, 2 * NUM_FEATURES, 1, u),
            "last_state": torch.zeros(config.set_size, 2 * NUM_FEATURES, dtype=DTYPE),
            "last_action": torch.zeros(config.set_size, 1, dtype=DTYPE),
            "last_reward": torch.zeros((), dtype=DTYPE),
            "num_turns": torch.zeros((), dtype=torch.int64),
        }

    def observe(
        self, server: Server, player: PlayerState, ids: Tensor, updates: ClientUpdate
    ) -> tuple[Tensor, PlayerState]:
        """Return the features of each client, from its reports."""
        features = client_features(
            updates.metrics["trained_acc"],
            updates.metrics["received_loss"],
            updates.metrics["trained_loss"],
            server.task.num_examples(ids),
        )
        return features, player

    def decide(
        self, turn: ServerTurn, player: PlayerState, observation: Tensor
    ) -> tuple[Tensor, PlayerState]:
        """Learn and score each client."""
        return act_and_learn_on_set(
            turn.server, turn.config, player, turn.ids, observation, turn.learning
        )


def client_features(
    acc: Tensor, received_loss: Tensor, trained_loss: Tensor, num_examples: Tensor
) -> Tensor:
    """Return what `SetPolicy` sees of each client.

    Clients report all of it with their models: scoring K uploads on public data, as PAGE does,
    would cost the server more than the training of a thousand clients.

    Args:
        acc: Accuracy of each trained model `[K]`.
        received_loss: Loss of the received model at each client `[K]`.
        trained_loss: Loss of each trained model `[K]`.
        num_examples: Training examples of each client `[K]`.

    Returns:
        Features `[K, 8]`: accuracy, log losses, log size, and the cohort's mean of each.
    """
    log_losses = [
        loss.to(DTYPE).clamp(min=MIN_FEATURE_LOSS).log() for loss in (received_loss, trained_loss)
    ]
    features = torch.stack([acc.to(DTYPE), *log_losses, num_examples.to(DTYPE).log()], -1)
    return torch.cat([features, features.mean(0).expand_as(features)], -1)


def client_scores(config: ddpg.Config, agent: ddpg.AgentState, features: Tensor) -> Tensor:
    """Return mu(s) `[K]` in [-1, 1] for the features `[K, 8]` of a cohort of any size.

    Args:
        config: Hyper-parameters of DDPG.
        agent: The agent, one network for all clients.
        features: Features of the clients.
    """
    policy = ddpg.export_policy(config, agent)
    return ddpg.apply_policy(config, policy, features, 1).squeeze(-1)


def act_and_learn_on_set(
    server: Server,
    config: ddpg.Config,
    player: PlayerState,
    ids: Tensor,
    features: Tensor,
    learning: bool,
) -> tuple[Tensor, PlayerState]:
    """Complete the last transition, learn, and choose an action for each client of a cohort.

    As `act_and_learn`, for a state that is a set. Actions are random until the agent has learned,
    unless it learns from the first round on.

    Args:
        server: The server.
        config: Hyper-parameters of the agent.
        player: The player.
        ids: The clients `[K]`.
        features: Their features `[K, 8]`.
        learning: Whether the agent may learn already.

    Returns:
        Actions `[K]` and the player.
    """
    agent = _init_shared_networks(server, config, player["ddpg"], rng.COHORT_AGENT)
    members = even_sample(len(ids), config.set_size, server.uniform(1, rng.COHORT_MEMBERS[0]))
    transition = {
        "state": player["last_state"],
        "action": player["last_action"],
        "reward": player["last_reward"],
        "next_state": features[members],
    }
    num_rows = min(1, int(player["num_turns"]))  # the first round completes no transition
    rows = {name: value.unsqueeze(0)[:num_rows] for name, value in transition.items()}
    agent = _store_and_learn(server, config, agent, rows, rng.COHORT_AGENT, learning)

    u = server.uniform_per_client(ids, 1, rng.COHORT_NOISE[0]).squeeze(-1)
    action = 2.0 * u - 1.0
    if int(agent["num_updates"]) > 0 or config.learning_starts == 0:
        decay = 1.0 - (server.round - config.learning_starts) / config.noise_decay_steps
        noise = config.sigma * min(1.0, max(0.0, decay)) * ddpg.normal_quantile(u)
        action = (client_scores(config, agent, features) + noise).clamp(-1.0, 1.0)
    return action, {
        **player,
        "ddpg": agent,
        "last_state": features[members],
        "last_action": action[members].unsqueeze(-1),
        "num_turns": player["num_turns"] + 1,
    }


def even_sample(cohort_size: int, sample_size: int, u: Tensor) -> Tensor:
    """Return indices `[sample_size]` into a cohort, each as often as any other to within one.

    Args:
        cohort_size: Clients in the cohort; it may be smaller than the sample.
        sample_size: How many indices.
        u: One uniform number `[1]`, the offset.

    Returns:
        The indices, ascending.
    """
    positions = (torch.arange(sample_size, dtype=DTYPE) + u) * (cohort_size / sample_size)
    return positions.long().clamp(max=cohort_size - 1)


def make_server_policy(config: Page) -> ServerPolicy:
    """Return the server policy that the options ask for."""
    if config.variant.exponent_weights:
        return ExponentPolicy(config)
    if config.shares_agent:
        return SetPolicy(config)
    return PerClientWeights(config)


# ------------------------------------------------------------------------------- agents, both sides


def _init_shared_networks(
    server: Server, config: ddpg.Config, agent: ddpg.AgentState, streams: Streams
) -> ddpg.AgentState:
    """Draw the networks in the first round, when the seed is known."""
    if server.round > 1:
        return agent
    state_dim = agent["buffer"]["state"].shape[-1]
    action_dim = agent["buffer"]["action"].shape[-1]
    u = server.uniform(ddpg.init_draws(config, state_dim, action_dim), streams[0])
    initial = ddpg.init(config, state_dim, action_dim, u)
    return _with_networks(agent, initial, torch.tensor(True))


def _with_networks(
    agent: ddpg.AgentState, source: ddpg.AgentState, is_new: Tensor
) -> ddpg.AgentState:
    """Return the agent with the networks of `source` where it is new."""
    return {
        **agent,
        "actor": torch.where(is_new, source["actor"], agent["actor"]),
        "critic": torch.where(is_new, source["critic"], agent["critic"]),
        "actor_target": torch.where(is_new, source["actor_target"], agent["actor_target"]),
        "critic_target": torch.where(is_new, source["critic_target"], agent["critic_target"]),
    }


def _store_and_learn(
    server: Server,
    config: ddpg.Config,
    agent: ddpg.AgentState,
    rows: Params,
    streams: Streams,
    learning: bool,
) -> ddpg.AgentState:
    """Store transitions `[M, ...]`, and learn unless it is too early."""
    agent = add_to_buffer(agent, rows)
    if not learning:
        return agent
    u = server.uniform(config.steps * config.batch, streams[1])
    return ddpg.learn(config, agent, u.reshape(config.steps, config.batch))
