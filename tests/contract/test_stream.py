"""A round that keeps one chunk's models at a time gives the numbers of one that keeps them all, to
the bit.
"""

import copy
from dataclasses import dataclass, replace

import pytest
import torch

from equipoise.core import ServerMessage
from equipoise.methods import find_method
from equipoise.methods.fedavg import FedAvg
from equipoise.methods.local import Local
from equipoise.simulation.executors import Loop, Stacked
from equipoise.simulation.server_loop import FederatedSimulation, RoundLoopConfig
from helpers import largest_difference, small_task, timeless

CLIENTS, WRONG = 130, 77


def _simulation(method, executor=Stacked, streams=True, participation=0.9):
    task = small_task("linear", clients=CLIENTS, samples=20)
    made = FederatedSimulation(
        method,
        task,
        task.info.training,
        RoundLoopConfig(3, 1, participation, "stacked", 1, False),
        executor,
    )
    if not streams:
        made.chunked_round = None
    return made


def _wrong(kind):
    """The method with a client whose training gives no numbers from the second round on."""

    @dataclass(frozen=True)
    class Wrong(kind):
        def train(self, client):
            trained, state = super().train(client)
            bad = (client.id == WRONG) & (client.round > 1)
            return {
                name: torch.where(bad, torch.nan, value) for name, value in trained.items()
            }, state

    return Wrong()


@pytest.mark.parametrize("executor", [Stacked, Loop])
@pytest.mark.parametrize(
    "method", [FedAvg(), find_method("fedavgm")(), find_method("finetune")(), Local()]
)
def test_the_same_to_the_bit(method, executor):
    streamed, whole = _simulation(method, executor), _simulation(method, executor, streams=False)
    assert len(streamed.executor.chunks(CLIENTS)) > 1
    for _ in range(3):
        assert timeless(streamed.run_round()) == timeless(whole.run_round())
    assert largest_difference(streamed.state_dict(), whole.state_dict()) == 0


@pytest.mark.parametrize("kind", [FedAvg, Local])
def test_a_reply_that_is_left_out(kind):
    streamed, whole = (
        _simulation(_wrong(kind), participation=1.0),
        _simulation(_wrong(kind), streams=False, participation=1.0),
    )
    for round in range(3):
        record = streamed.run_round()
        assert record.dropped == ([WRONG] if round else [])
        assert timeless(record) == timeless(whole.run_round())
    assert largest_difference(streamed.state_dict(), whole.state_dict()) == 0
    assert all(bool(torch.isfinite(value).all()) for value in streamed.store.local_params.values())


def test_a_round_is_computed_twice_once(monkeypatch):
    """Whoever is left out or limited once may be so in every round: uploads are kept from then on.

    In the first round some are limited, as in most rounds of 20 clients or more.
    """
    streamed, asked = _simulation(_wrong(FedAvg), participation=1.0), []
    chunk = streamed.executor.run_chunk
    monkeypatch.setattr(
        streamed.executor,
        "run_chunk",
        lambda request: asked.append(request.round) or chunk(request),
    )
    for _ in range(3):
        streamed.run_round()
    assert asked == [1, 1, 1, 1, 2, 2, 3, 3]


def test_uploads_are_gone():
    streamed = _simulation(FedAvg())
    ids = torch.arange(CLIENTS)
    down = ServerMessage(streamed.params, dict.fromkeys(streamed.task.info.blocks, True))
    replies = streamed.chunked_round.run(1, ids, down, ())
    assert replies.stack.update.params == replies.stack.client_state.local_params == {}
    assert replies.upload_bytes() == 8 * sum(
        value.numel() for value in streamed.initial_params.values()
    )


def test_what_others_were_given_does_not_change():
    streamed = _simulation(Local(), participation=1.0)
    streamed.run_round()
    given = streamed.state_dict()
    before = copy.deepcopy(given)
    streamed.run_round()
    assert largest_difference(given, before) == 0
    assert largest_difference(streamed.state_dict(), before) > 0


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
