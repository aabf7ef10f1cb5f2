"""The round: weighted means, bytes, what absent and broken clients do to it."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch

from equipoise.core import Method, weighted_mean
from equipoise.methods.fedavg import FedAvg
from equipoise.methods.finetune import Finetune
from equipoise.methods.local import Local
from equipoise.records.rounds import Bytes
from equipoise.utils import rng
from equipoise.utils.pytree import index
from helpers import largest_difference, simulate, small_task


def test_weighted_mean_by_hand():
    stack = {"w": torch.tensor([[1.0, 2.0], [3.0, 6.0]])}
    assert weighted_mean(stack, torch.tensor([0.25, 0.75]))["w"].tolist() == [2.5, 5.0]
    per_entry = {"w": torch.tensor([[1.0, 0.5], [0.0, 0.5]])}
    assert weighted_mean(stack, per_entry)["w"].tolist() == [1.0, 4.0]


def test_fedavg_is_the_mean_of_local_models_by_data_size():
    task = small_task("mlp")
    federated, alone = simulate(FedAvg(), task, 1), simulate(Local(), task, 1)
    n = task.num_examples(torch.arange(6)).double()
    models = alone.personal_models()[1]
    expected = {
        k: (n.view(-1, *[1] * (v.dim() - 1)) * v).sum(0) / n.sum() for k, v in models.items()
    }
    assert largest_difference(federated.params, expected) < 1e-15


def test_one_client_makes_fedavg_and_local_the_same():
    task = small_task("mlp", clients=1)
    assert (
        largest_difference(
            simulate(FedAvg(), task).params, simulate(Local(), task).personal_models()[1]
        )
        < 1e-15
    )


def test_bytes_are_those_of_the_model_times_those_who_take_part():
    task = small_task("mlp")
    size = sum(v.nbytes for v in task.init_params(0).values())
    for participation, clients in ((1.0, 6), (0.5, 3)):
        for log in simulate(FedAvg(), task, 2, participation=participation).logs:
            assert log.bytes == Bytes(clients * size, clients * size)
    assert all(log.bytes == Bytes(0, 0) for log in simulate(Local(), task).logs)


def test_each_clients_bytes_and_rounds_are_counted():
    task = small_task("mlp")
    run = simulate(FedAvg(), task, 5, participation=0.5)
    counts, ids = run.store.counts, run.store.ids
    taken = np.bincount(
        np.concatenate([rng.sample_cohort(0, t, 6, 0.5) for t in range(1, 6)]), minlength=6
    )
    assert counts["rounds"].tolist() == taken[ids].tolist()
    size = sum(v.nbytes for v in task.init_params(0).values())
    assert counts["up"].tolist() == (taken[ids] * size).tolist()


def test_all_methods_meet_the_same_cohorts():
    logs = [
        simulate(m, small_task("mlp"), 4, participation=0.5).logs for m in (FedAvg(), Finetune())
    ]
    assert [log.trained for log in logs[0]] == [log.trained for log in logs[1]]


def test_named_evaluations_are_of_the_models_they_name():
    task = small_task("mlp")
    run = simulate(Finetune(), task, 2)
    one_less = simulate(Finetune(), task, 1)
    ids = torch.arange(6)
    received = task.evaluate_stack(
        ids, {k: v.expand(6, *v.shape) for k, v in one_less.params.items()}, "test"
    )
    assert run.logs[-1].received.acc == pytest.approx(float(received["acc"].mean()))
    trained = task.evaluate_stack(ids, run.store.local_params, "test")
    assert run.logs[-1].trained.loss == pytest.approx(float(trained["loss"].mean()))
    personal = task.evaluate_stack(ids, run.personal_models()[1], "test")
    assert run.logs[-1].personal.acc == pytest.approx(float(personal["acc"].mean()))
    assert run.logs[-1].personal != run.logs[-1].trained
    whole = task.evaluate_server({k: v[None] for k, v in run.params.items()}, "test")
    assert run.logs[-1].global_.acc == pytest.approx(float(whole["acc"][0]))
    assert run.logs[-1].trained.p10 <= run.logs[-1].trained.acc


def test_absent_clients_keep_their_model_and_score():
    task = small_task("mlp")
    short, longer = (simulate(Local(), task, t, participation=0.5) for t in (3, 4))
    away = sorted(set(short.store.ids.tolist()) - set(rng.sample_cohort(0, 4, 6, 0.5).tolist()))
    assert away
    for run_tree in ("local_params", "scores"):
        before, after = (
            index(
                getattr(run.store, run_tree),
                torch.tensor([run.store.ids.tolist().index(client) for client in away]),
            )
            for run in (short, longer)
        )
        assert largest_difference(before, after) == 0


@dataclass(frozen=True)
class Poisoned(Method):
    """FedAvg whose client 2 sends NaN in round 2."""

    name: ClassVar[str] = "poisoned"

    def train(self, client):
        trained, state = super().train(client)
        bad = (client.id == 2) & torch.tensor(client.round == 2)
        return {
            k: torch.where(bad, torch.full_like(v, torch.nan), v) for k, v in trained.items()
        }, state


@pytest.mark.parametrize("executor", ["loop", "stacked"])
def test_a_client_that_turns_non_finite_is_dropped_named_and_may_come_back(executor):
    task = small_task("mlp")
    run = simulate(Poisoned(), task, 3, executor)
    assert [log.dropped for log in run.logs] == [[], [2], []]
    assert all(torch.isfinite(v).all() for v in run.params.values())
    assert all(torch.isfinite(v).all() for v in run.store.local_params.values())
    # Round 2 averaged the five others, with weights renormalised over them.
    first, others = simulate(FedAvg(), task, 1, executor), torch.tensor([0, 1, 3, 4, 5])
    second = simulate(Poisoned(), task, 2, executor)
    n = task.num_examples(others).double()
    expected = torch.tensordot(n / n.sum(), second.store.local_params["0.weight"][others], 1)
    assert torch.allclose(second.params["0.weight"], expected, atol=1e-15)
    # The client itself keeps what it held.
    assert torch.equal(
        second.store.local_params["0.weight"][2], first.store.local_params["0.weight"][2]
    )


@dataclass(frozen=True)
class AllPoisoned(Method):
    name: ClassVar[str] = "all-poisoned"

    def train(self, client):
        return {k: torch.full_like(v, torch.inf) for k, v in client.start.items()}, client.state


def test_a_round_that_loses_everybody_leaves_the_global_model_alone():
    task = small_task("mlp")
    run = simulate(AllPoisoned(), task, 2)
    assert run.logs[-1].dropped == list(range(6))
    assert largest_difference(run.params, task.init_params(0)) == 0
    assert run.logs[-1].trained.acc is None  # nobody has a score yet


def test_rounds_between_evaluations_have_no_scores_but_the_last_has():
    from equipoise.simulation.server_loop import FederatedSimulation, RoundLoopConfig

    task = small_task("mlp")
    run = FederatedSimulation(
        FedAvg(), task, task.info.training, RoundLoopConfig(5, 0, 1.0, "stacked", 2, True)
    )
    assert [run.run_round().has_client_scores for _ in range(5)] == [False, True, False, True, True]


def test_models_of_clients_need_not_be_kept():
    from equipoise.simulation.server_loop import FederatedSimulation, RoundLoopConfig

    task = small_task("mlp")
    run = FederatedSimulation(
        FedAvg(), task, task.info.training, RoundLoopConfig(2, 0, 1.0, "stacked", 1, False)
    )
    run.run_round()
    assert run.store.local_params == {}
    assert largest_difference(run.params, simulate(FedAvg(), task, 1).params) == 0


def test_a_seed_fixes_everything_and_another_seed_changes_it():
    task = small_task("mlp")
    one, again, other = (simulate(FedAvg(), task, 2, seed=s) for s in (0, 0, 1))
    assert largest_difference(one.state_dict(), again.state_dict()) == 0
    assert largest_difference(one.params, other.params) > 1e-3


def test_a_million_clients_cost_no_more_than_the_cohort():
    """Data, store and scores grow with the clients seen."""
    task = small_task("linear", clients=1_000_000, server_clients=20)
    run = simulate(FedAvg(), task, 2, participation=1e-5)
    assert len(run.store.ids) == 20
    assert run.store.local_params["weight"].shape[0] == 20
    assert len(task.data._generated) <= 40


@dataclass(frozen=True)
class BadSecondModel(Method):
    """Its uploads are fine; the personal model of client 1 is not."""

    name: ClassVar[str] = "bad-second-model"

    def personal_model(self, client):
        return {
            k: torch.where(client.id == 1, torch.full_like(v, torch.nan), v)
            for k, v in client.trained.items()
        }


def test_a_client_whose_own_model_breaks_is_dropped_too():
    run = simulate(BadSecondModel(), small_task("mlp"), 2)
    assert [log.dropped for log in run.logs] == [[1], [1]]
    assert all(torch.isfinite(v).all() for v in run.personal_models()[1].values())


def test_personal_models_are_made_in_rounds_without_evaluation_too():
    from equipoise.simulation.server_loop import FederatedSimulation, RoundLoopConfig

    task = small_task("mlp")
    often, seldom = (
        FederatedSimulation(
            Finetune(), task, task.info.training, RoundLoopConfig(5, 0, 0.5, "stacked", every, True)
        )
        for every in (1, 5)
    )
    for run in (often, seldom):
        for _ in range(5):
            run.run_round()
    assert largest_difference(often.personal_models()[1], seldom.personal_models()[1]) == 0
