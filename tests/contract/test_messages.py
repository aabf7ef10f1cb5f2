"""Messages are trees: they are cut, stacked, mapped, written and read whole; what differs by client
is told apart.
"""

import pickle

import pytest
import torch

from equipoise.core import (
    ClientResult,
    ClientState,
    ClientUpdate,
    LocalHParams,
    LocalTrainRequest,
    ServerMessage,
)
from equipoise.simulation.client_runtime import over_clients
from equipoise.utils import pytree


def example(clients: int) -> ServerMessage:
    ids = torch.arange(clients)
    return ServerMessage(
        {"w": torch.arange(3.0)},
        {"backbone": True, "head": ids % 2 == 0},
        LocalHParams(ids, ids / 10),
        {"c": {"w": torch.ones(3)}},
        {"part": ids * 2},
    )


def test_one_clients_row_has_its_own_entries_and_the_shared_ones_whole():
    down = example(4).for_clients(3)
    assert down.sent_blocks["backbone"] is True
    assert not bool(down.sent_blocks["head"])
    assert (int(down.hparams.epochs), int(down.per_client["part"])) == (3, 6)
    assert down.params["w"].shape == (3,)
    assert down.broadcast["c"]["w"].shape == (3,)


def test_axes_tell_a_map_what_differs_between_clients():
    down = example(4)

    def one(message: ServerMessage) -> torch.Tensor:
        assert message.sent_blocks["backbone"] is True
        return (
            message.params["w"].sum()
            + message.per_client["part"]
            + message.hparams.epochs
            + message.sent_blocks["head"].long()
        )

    mapped = over_clients(one, (down.vmap_axes(),), (down,), 4)
    looped = torch.stack([one(down.for_clients(k)) for k in range(4)])
    assert torch.equal(mapped, looped)


def test_a_field_that_is_absent_stays_absent():
    reply = ClientResult(ClientUpdate({"w": torch.ones(2)}), ClientState({"w": torch.zeros(2)}))
    stacked = pytree.stack([reply, reply])
    assert stacked.hparams is None
    assert stacked.client_state.personal is None
    assert stacked.update.params["w"].shape == (2, 2)
    assert torch.equal(pytree.index(stacked, 1).update.params["w"], reply.update.params["w"])


def test_what_is_static_is_carried_along():
    fit = LocalTrainRequest(
        {"w": torch.ones(2)}, torch.tensor(1), torch.tensor(0.1), trainable=("w",), stream=7
    )
    again = pytree.stack([fit, fit])
    assert (again.trainable, again.stream) == (("w",), 7)


def test_plain_and_back_and_through_a_pickle():
    reply = ClientResult(
        ClientUpdate({"w": torch.ones(2)}, metrics={"error": torch.tensor(0.5)}),
        ClientState(
            {"w": torch.zeros(2)},
            {"c": {"w": torch.ones(2)}},
            personal={"w": torch.full((2,), 3.0)},
        ),
        LocalHParams(torch.tensor(2), torch.tensor(0.1)),
    )
    again = pytree.from_dict(ClientResult, pytree.to_dict(reply))
    assert pytree.to_dict(pickle.loads(pickle.dumps(again))).keys() == pytree.to_dict(reply).keys()
    assert isinstance(again.update, ClientUpdate)
    assert isinstance(again.hparams, LocalHParams)
    assert torch.equal(again.client_state.personal["w"], reply.client_state.personal["w"])
    assert torch.equal(again.client_state.state["c"]["w"], reply.client_state.state["c"]["w"])


@pytest.mark.parametrize(
    ("tree", "told"),
    [({"update": {"params": {}}, "hold": {}}, "no 'hold'"), ({"client_state": {}}, "lacks a part")],
)
def test_a_tree_that_is_no_such_message_is_refused(tree, told):
    with pytest.raises(ValueError, match=told):
        pytree.from_dict(ClientResult, tree)


def test_places_can_stand_where_tensors_were():
    shapes = pytree.map_leaves(lambda leaf: tuple(leaf.shape), ClientState({"w": torch.ones(2, 3)}))
    assert shapes.local_params == {"w": (2, 3)}
    assert pytree.tree_bytes(ClientState({"w": torch.ones(2, 3)})) == 24


def test_stacks_that_come_one_after_another_are_one() -> None:
    """As their concatenation; what every part has twice is held once, and no longer than every part
    has it twice.
    """
    model, other = torch.arange(12.0).reshape(6, 2), torch.ones(6, 1)

    def part(here: slice, twice: bool) -> dict[str, torch.Tensor]:
        up = model[here].clone()
        return {"up": up, "held": up if twice else up + 1, "other": other[here].clone()}

    cuts = [slice(0, 2), slice(2, 3), slice(3, 6)]
    one = pytree.concat_stream((part(here, True) for here in cuts), 6)
    assert one["held"].data_ptr() == one["up"].data_ptr()
    assert torch.equal(one["up"], model)
    assert torch.equal(one["other"], other)
    apart = [part(here, k != 1) for k, here in enumerate(cuts)]
    found, wanted = pytree.concat_stream(iter(apart), 6), pytree.concatenate(apart)
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)
    assert found["held"].data_ptr() != found["up"].data_ptr()
