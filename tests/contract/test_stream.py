"""A round that stores one group's states at a time gives the numbers of one that stores all at its
end, to the bit; and so do chunks in one stack.
"""

import copy
from dataclasses import dataclass, replace

import pytest
import torch

from equipoise.core import ClientState, ServerMessage
from equipoise.methods import find_method
from equipoise.methods.fedavg import FedAvg
from equipoise.methods.local import Local
from equipoise.simulation.executors import CohortRequest, Loop, Stacked, run_and_commit
from equipoise.simulation.server_loop import FederatedSimulation, RoundLoopConfig
from helpers import largest_difference, small_task, timeless

CLIENTS, WRONG = 130, 77


def _simulation(method, executor=Stacked, commits_early=True, participation=0.9):
    task = small_task("linear", clients=CLIENTS, samples=20)
    made = FederatedSimulation(
        method,
        task,
        task.info.training,
        RoundLoopConfig(3, 1, participation, "stacked", 1, False),
        executor,
    )
    assert made.commits_early
    made.commits_early = commits_early
    return made


@dataclass(frozen=True)
class _Wrong(Local):
    """Local training with a client that gives no numbers from the second round on."""

    def train(self, client):
        trained, state = super().train(client)
        bad = (client.id == WRONG) & (client.round > 1)
        return {name: torch.where(bad, torch.nan, value) for name, value in trained.items()}, state


@pytest.mark.parametrize("executor", [Stacked, Loop])
def test_the_same_to_the_bit(executor):
    early = _simulation(Local(), executor)
    whole = _simulation(Local(), executor, commits_early=False)
    assert len(early.executor.chunks(CLIENTS)) > 1
    for _ in range(3):
        assert timeless(early.run_round()) == timeless(whole.run_round())
    assert largest_difference(early.state_dict(), whole.state_dict()) == 0


def test_a_reply_that_is_left_out():
    early = _simulation(_Wrong(), participation=1.0)
    whole = _simulation(_Wrong(), commits_early=False, participation=1.0)
    for round in range(3):
        record = early.run_round()
        assert record.dropped == ([WRONG] if round else [])
        assert timeless(record) == timeless(whole.run_round())
    assert largest_difference(early.state_dict(), whole.state_dict()) == 0
    assert all(bool(torch.isfinite(value).all()) for value in early.store.local_params.values())


def test_states_are_in_the_store_alone():
    simulation = _simulation(Local())
    ids = torch.arange(CLIENTS)
    message = ServerMessage(simulation.params, dict.fromkeys(simulation.task.info.blocks, False))
    request = CohortRequest(1, ids, message, ClientState(), ())
    results = run_and_commit(simulation.executor, simulation.store, request)
    assert results.stack.client_state.local_params == results.stack.scores == {}
    trained = simulation.store.client_state(ids.numpy()).local_params
    assert all(bool((value != value[:1]).any()) for value in trained.values())


def test_who_uploads_commits_at_the_end_of_the_round():
    task = small_task("linear", clients=4, samples=20)
    schedule = RoundLoopConfig(3, 1, 1.0, "stacked", 1, False)
    assert not FederatedSimulation(FedAvg(), task, task.info.training, schedule).commits_early


def test_what_others_were_given_does_not_change():
    early = _simulation(Local(), participation=1.0)
    early.run_round()
    given = early.state_dict()
    before = copy.deepcopy(given)
    early.run_round()
    assert largest_difference(given, before) == 0
    assert largest_difference(early.state_dict(), before) > 0


@pytest.mark.parametrize(("model", "keep"), [("linear", True), ("linear", False), ("mlp", True)])
def test_chunks_in_one_stack_are_chunks_one_after_another_to_the_bit(model, keep):
    """Of clients with equally many rows; a method that computes at clients by itself keeps its
    chunks apart.
    """

    class Apart(Stacked):
        def groups(self, ids, down):
            return [[chunk] for chunk in self.chunks(len(ids))]

    def simulation(executor, method):
        task = small_task(model, clients=448, samples=20, size_sigma=0.0)
        # Matrices of whole 16 bytes wherever a client lies.
        training = replace(task.info.training, batch_size=16)
        made = FederatedSimulation(
            method,
            task,
            training,
            RoundLoopConfig(5, 1, 1.0, "stacked", 2, keep),
            executor,
        )
        return made, [timeless(made.run_round()) for _ in range(5)]

    (joined, records), (apart, others) = simulation(Stacked, FedAvg()), simulation(Apart, FedAvg())
    assert records == others
    assert largest_difference(joined.state_dict(), apart.state_dict()) == 0
    # Two groups of four chunks, in rounds with evaluation and without.
    assert list(joined.executor._can_join.values()) == [True] * 4
    assert apart.executor._can_join == {}
    assert simulation(Stacked, find_method("finetune")())[0].executor._can_join == {}


def test_chunks_whose_bits_would_differ_in_one_stack_stay_apart(monkeypatch):
    task = small_task("linear", clients=CLIENTS, size_sigma=0.0)
    made = FederatedSimulation(
        FedAvg(), task, task.info.training, RoundLoopConfig(3, 1, 1.0, "stacked", 1, True), Stacked
    )
    chunk = made.executor.run_chunk

    def other_bits(request):
        reply = chunk(request)
        if len(request.ids) == CLIENTS:
            reply.update.params["weight"][WRONG] += 1e-15
        return reply

    monkeypatch.setattr(made.executor, "run_chunk", other_bits)
    for _ in range(3):
        made.run_round()
    assert list(made.executor._can_join.values()) == [False]
    monkeypatch.undo()
    whole = FederatedSimulation(
        FedAvg(), task, task.info.training, RoundLoopConfig(3, 1, 1.0, "stacked", 1, True), Stacked
    )
    for _ in range(3):
        whole.run_round()
    assert largest_difference(made.state_dict(), whole.state_dict()) == 0
