"""A round that keeps one chunk's models at a time gives the numbers of one that keeps them all, to the bit."""

import copy
from dataclasses import dataclass

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
    task = small_task("linear", clients=CLIENTS)
    made = FederatedSimulation(
        method,
        task,
        task.training,
        RoundLoopConfig(3, 1, participation, "stacked", 1, False),
        executor,
    )
    if not streams:
        made.stream = None
    return made


def _wrong(kind):
    """The method with a client whose training gives no numbers from the second round on."""

    @dataclass(frozen=True)
    class Wrong(kind):
        def train(self, client):
            trained, state = super().update(client)
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
    assert all(bool(torch.isfinite(value).all()) for value in streamed.store.local.values())


def test_a_round_is_computed_twice_once(monkeypatch):
    """Whoever is left out once may be so in every round: uploads are kept from then on."""
    streamed, asked = _simulation(_wrong(FedAvg), participation=1.0), []
    chunk = streamed.executor.chunk
    monkeypatch.setattr(
        streamed.executor, "chunk", lambda round, *rest: asked.append(round) or chunk(round, *rest)
    )
    for _ in range(3):
        streamed.run_round()
    assert asked == [1, 1, 2, 2, 2, 2, 3, 3]


def test_uploads_are_gone():
    streamed = _simulation(FedAvg())
    ids = torch.arange(CLIENTS)
    down = ServerMessage(streamed.params, dict.fromkeys(streamed.task.blocks, True))
    replies = streamed.stream.run(1, ids, down, ())
    assert replies.stack.update.params == replies.stack.client_state.local_params == {}
    assert replies.upload_bytes() == 8 * sum(value.numel() for value in streamed.initial.values())


def test_what_others_were_given_does_not_change():
    streamed = _simulation(Local(), participation=1.0)
    streamed.run_round()
    given = streamed.state_dict()
    before = copy.deepcopy(given)
    streamed.run_round()
    assert largest_difference(given, before) == 0
    assert largest_difference(streamed.state_dict(), before) > 0
