from dataclasses import dataclass

import pytest
import torch

from equipoise.core import (
    Client,
    ClientUpdate,
    LocalHParams,
    Server,
    ServerMessage,
    State,
    TrainingConfig,
)
from equipoise.core.report_validation import memory_factors
from equipoise.methods.fedavg import FedAvg
from equipoise.methods.scaffold import Scaffold
from equipoise.simulation.attacks import hostile_clients, with_attack
from equipoise.simulation.executors import Loop, Stacked
from equipoise.simulation.server_loop import FederatedSimulation, RoundLoopConfig
from equipoise.utils.errors import UsageError
from helpers import largest_difference, simulate, small_task
from helpers_quadratic import Quadratic, heterogeneous, long_run


def test_two_rounds_by_hand_with_unequal_steps() -> None:
    task = Quadratic(
        [1.0, 3.0],
        [[1.0], [-1.0]],
        TrainingConfig(epochs=1, lr=0.1),
        sizes=[1, 9],
        per_epoch=[1, 2],
    )
    run = simulate(Scaffold(), task, 1)
    own = run.store.state["c"]["w"].flatten().tolist()
    assert own == pytest.approx([-1.0, 2.55], abs=1e-14)  # -0.1 / 0.1, and 0.51 / (2 * 0.1)
    assert float(run.server_state["c"]["w"]) == pytest.approx(0.775, abs=1e-14)
    assert float(run.params["w"]) == pytest.approx(
        -0.205, abs=1e-14
    )  # the plain mean of 0.1 and -0.51, whatever n_i

    run = simulate(Scaffold(), task, 2)
    # Client 0: y = -0.205 - 0.1 (-1.205 + 1 + 0.775) = -0.262, and c_0 is its gradient at x =
    # -0.205
    assert float(run.store.local_params["w"][0]) == pytest.approx(-0.262, abs=1e-14)
    assert float(run.store.state["c"]["w"][0]) == pytest.approx(-1.205, abs=1e-13)


def test_the_first_round_is_fedavg_when_sizes_are_equal() -> None:
    task = small_task(size_sigma=0.0)
    fedavg, scaffold = simulate(FedAvg(), task, 1), simulate(Scaffold(), task, 1)
    assert largest_difference(fedavg.params, scaffold.params) < 1e-15


@pytest.mark.parametrize("executor", ["loop", "stacked"])
def test_c_is_the_mean_of_all_clients_variates_seen_or_not(executor: str) -> None:
    task = small_task()
    run = simulate(Scaffold(server_lr=0.7), task, 2, executor, participation=0.34)
    assert len(run.store.ids) < task.info.num_clients
    mean = {name: c.sum(0) / task.info.num_clients for name, c in run.store.state["c"].items()}
    assert largest_difference(mean, run.server_state["c"]) < 1e-14
    assert max(float(c.abs().max()) for c in mean.values()) > 1e-3


def attacked(method: Scaffold, task: Quadratic, attack: str, rounds: int) -> FederatedSimulation:
    """Return a finished run with hostile clients."""
    config = RoundLoopConfig(rounds, 0, 1.0, "loop", 1, True)
    make = with_attack(Loop, attack)
    simulation = FederatedSimulation(method, task, task.info.training, config, make)
    for _ in range(rounds):
        simulation.run_round()
    return simulation


def test_clients_whose_replies_never_count_are_not_in_the_mean_of_variates() -> None:
    """One of four sends no numbers: the others train as if there were three clients."""
    training = TrainingConfig(epochs=1, lr=0.1)
    curvatures = [1.0, 3.0, 2.0, 0.5]
    optima = [[1.0], [-1.0], [0.5], [2.0]]
    liar = int(hostile_clients(0, 4, 0.25)[0])
    others = [client for client in range(4) if client != liar]
    three = Quadratic([curvatures[i] for i in others], [optima[i] for i in others], training)
    honest = simulate(Scaffold(), three, 6)
    run = attacked(Scaffold(), Quadratic(curvatures, optima, training), "broken:0.25", 6)
    assert largest_difference(honest.params, run.params) < 1e-14
    assert not run.server_state["counted"][liar]


def test_a_change_of_c_that_does_not_follow_from_the_model_is_refused() -> None:
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    x, c = {"w": normal(50)}, {"w": normal(50)}
    y = x["w"] + 1e-3 * normal(4, 50)
    path = torch.tensor([[0.5], [0.01], [3.0], [1e-4]])
    change = (x["w"] - y) / path - c["w"]
    message = ServerMessage(x, {}, broadcast={"c": c})

    def refused(change: torch.Tensor) -> list[int]:
        update = ClientUpdate({"w": y}, {"c": {"w": change}})
        return sorted(Scaffold().check_updates(message, torch.arange(4), update, {}))

    assert refused(change) == []
    for lie in (-change[2], change[0], torch.zeros(50), 2 * change[2]):
        false = change.clone()
        false[2] = lie
        assert refused(false) == [2]


@dataclass(frozen=True)
class Unbounded(Scaffold):
    """Clients may move c as far as they like."""

    def memory_limits(
        self, server: Server, ids: torch.Tensor, moves: torch.Tensor
    ) -> tuple[torch.Tensor, State]:
        return torch.ones_like(moves), server.state


def run_of_24(method: Scaffold, attack: str) -> FederatedSimulation:
    """Return a run of 40 rounds with 24 clients, one of which may be hostile."""
    task = small_task("linear", clients=24, size_sigma=0.0, samples=120)
    make = with_attack(Stacked, attack) if attack else Stacked
    config = RoundLoopConfig(40, 0, 1.0, "stacked", 40, True)
    simulation = FederatedSimulation(method, task, task.info.training, config, make)
    for _ in range(40):
        simulation.run_round()
    return simulation


def test_the_bound_on_what_a_client_moves_c_leaves_honest_runs_to_the_bit() -> None:
    bounded, free = (run_of_24(method, "") for method in (Scaffold(), Unbounded()))
    assert largest_difference(bounded.params, free.params) == 0.0
    assert largest_difference(bounded.server_state["c"], free.server_state["c"]) == 0.0
    assert float(bounded.server_state["moved"].abs().max()) > 0.1


@pytest.mark.parametrize("attack", ["under", "cap", "steady"])
def test_a_lie_about_the_model_and_c_together_does_not_add_up_over_the_rounds(attack: str) -> None:
    liar = int(hostile_clients(0, 24, 1 / 24)[0])

    def left_in_c(method: Scaffold) -> float:
        """Return the norm of N c without the variates of honest clients."""
        run = run_of_24(method, f"{attack}:{1 / 24}")
        rest = [
            24 * run.server_state["c"][name] - c.sum(0) + c[liar]
            for name, c in run.store.state["c"].items()
        ]
        return float(torch.cat([value.flatten() for value in rest]).norm())

    assert left_in_c(Scaffold()) < 0.6 * left_in_c(Unbounded())


@pytest.mark.parametrize("side", [1.0, -1.0])
def test_moves_of_c_by_hand(side: float) -> None:
    """Of what clients have moved c to either side, 0.2 is the most but one: 0.4 is the limit."""
    moved = torch.tensor([0.0, 0.1, 0.2, 0.1, 0.2, -0.3], dtype=torch.float64)
    moves = torch.tensor([0.1, 0.0, 0.0, 0.1, 0.0, -0.4], dtype=torch.float64)
    moved *= side
    moves *= side
    assert memory_factors(moved, moves).tolist() == pytest.approx([1.0] * 5 + [0.25])
    assert memory_factors(moved, -moves).tolist() == [1.0] * 6  # back again
    moved[5] *= 4
    assert memory_factors(moved, moves).tolist() == [1.0] * 5 + [0.0]
    assert memory_factors(moved, -moves).tolist() == [1.0] * 6
    assert memory_factors(moved[2:], moves[2:]).tolist() == [1.0] * 4  # too few to tell


def test_spread_moves_of_c_have_a_wider_limit_by_hand() -> None:
    """Median 0.1 and trimmed maximum 0.4: 0.4 * 4^1.5 = 3.2 is the limit."""
    moved = torch.tensor([0.1, -0.1, 0.1, 0.4, -0.4, 0.0], dtype=torch.float64)
    moves = torch.tensor([0.0, 0.0, 0.0, 0.0, 0.0, 6.4], dtype=torch.float64)
    assert memory_factors(moved, moves).tolist() == pytest.approx([1.0] * 5 + [0.5])
    assert memory_factors(moved, moves / 2).tolist() == [1.0] * 6


def test_what_a_client_has_moved_c_is_known_over_rounds_and_counts_what_was_used() -> None:
    task = Quadratic([1.0] * 6, [[0.0, 0.0]] * 6, TrainingConfig(epochs=1, lr=0.1))
    method = Scaffold()
    state = method.init_server(task, task.init_params(0))
    state["moved"][:6] = torch.tensor([1.0, 4.0, 4.0, -4.0, 5.0, -8.0], dtype=torch.float64)
    server = Server(task, task.info.training, task.init_params(0), state, 0, 2, 3)
    ids = torch.tensor([5, 0, 1, 2, 3, 4])
    moves = torch.tensor([-4.0, 1.0, 0.0, 0.0, 0.0, 0.0], dtype=torch.float64)
    factors, after = method.memory_limits(server, ids, moves)
    assert factors.tolist() == [0.5, 1.0, 1.0, 1.0, 1.0, 1.0]  # -10 is twice 5
    assert after["moved"].tolist() == [2.0, 4.0, 4.0, -4.0, 5.0, -10.0]


@dataclass(frozen=True)
class OwnRates(Scaffold):
    """Clients that decide on rates of their own."""

    def configure_training(self, client: Client) -> tuple[LocalHParams, State]:
        return LocalHParams(
            client.hparams.epochs, client.hparams.lr * (1 + client.id)
        ), client.state


def test_variates_use_the_rate_that_the_client_took() -> None:
    task = heterogeneous(TrainingConfig(epochs=1, lr=0.01))
    run = simulate(OwnRates(), task, 1)
    gradient_at_zero = (
        -task.a[:, None] * task.b
    )  # one step: the mean gradient is the gradient at x, at any rate
    assert largest_difference(run.store.state["c"]["w"], gradient_at_zero) < 1e-13


@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_reaches_the_true_optimum_where_fedavg_is_biased(participation: float) -> None:
    task = heterogeneous(TrainingConfig(epochs=2, lr=0.1), per_epoch=[1, 3, 2, 4])
    fedavg = long_run(FedAvg(), task, 300)
    assert largest_difference(fedavg.params["w"], task.fedavg_fixed_point()) < 1e-12
    assert float((fedavg.params["w"] - task.optimum).norm()) > 0.1
    scaffold = long_run(Scaffold(), task, 400, participation=participation)
    assert largest_difference(scaffold.params["w"], task.optimum) < 1e-9


def test_each_client_sends_and_receives_a_variate_too() -> None:
    fedavg, scaffold = (simulate(m, small_task(), 1).logs[0].bytes for m in (FedAvg(), Scaffold()))
    assert (scaffold.up, scaffold.down) == (2 * fedavg.up, 2 * fedavg.down)


def test_float32_models_stay_float32() -> None:
    task = small_task()
    task.dtype = torch.float32
    task.module = task.module.float()
    run = simulate(Scaffold(), task, 2)
    assert {value.dtype for value in (*run.params.values(), *run.server_state["c"].values())} == {
        torch.float32
    }


def test_momentum_and_a_bad_server_rate_are_refused() -> None:
    with pytest.raises(UsageError, match="momentum"):
        Scaffold().check(small_task(), TrainingConfig(momentum=0.9))
    with pytest.raises(UsageError, match="server_lr"):
        Scaffold(server_lr=0.0).check(small_task(), TrainingConfig())
