"""Messages are trees: they are cut, stacked, mapped, written and read whole; what differs by client is told apart."""

import pickle

import pytest
import torch
from torch.func import vmap

from equipoise.contract import Down, Fit, Held, Reply, Train, Up
from equipoise.core import trees


def example(clients: int) -> Down:
    ids = torch.arange(clients)
    return Down(
        {"w": torch.arange(3.0)},
        {"backbone": True, "head": ids % 2 == 0},
        Train(ids, ids / 10),
        {"c": {"w": torch.ones(3)}},
        {"part": ids * 2},
    )


def test_one_clients_row_has_its_own_entries_and_the_shared_ones_whole():
    down = example(4).row(3)
    assert down.sent["backbone"] is True
    assert not bool(down.sent["head"])
    assert (int(down.train.epochs), int(down.each["part"])) == (3, 6)
    assert down.params["w"].shape == (3,)
    assert down.extra["c"]["w"].shape == (3,)


def test_axes_tell_a_map_what_differs_between_clients():
    down = example(4)

    def one(down: Down) -> torch.Tensor:
        assert down.sent["backbone"] is True
        return down.params["w"].sum() + down.each["part"] + down.train.epochs + down.sent["head"].long()

    mapped = vmap(one, in_dims=(down.axes(),))(down)
    looped = torch.stack([one(down.row(k)) for k in range(4)])
    assert torch.equal(mapped, looped)


def test_a_field_that_is_absent_stays_absent():
    reply = Reply(Up({"w": torch.ones(2)}), Held({"w": torch.zeros(2)}))
    stacked = trees.stack([reply, reply])
    assert stacked.train is None
    assert stacked.held.personal is None
    assert stacked.up.params["w"].shape == (2, 2)
    assert torch.equal(trees.row(stacked, 1).up.params["w"], reply.up.params["w"])


def test_what_is_static_is_carried_along():
    fit = Fit({"w": torch.ones(2)}, torch.tensor(1), torch.tensor(0.1), names=("w",), stream=7)
    again = trees.stack([fit, fit])
    assert (again.names, again.stream) == (("w",), 7)


def test_plain_and_back_and_through_a_pickle():
    reply = Reply(
        Up({"w": torch.ones(2)}, metrics={"error": torch.tensor(0.5)}),
        Held({"w": torch.zeros(2)}, {"c": {"w": torch.ones(2)}}, personal={"w": torch.full((2,), 3.0)}),
        Train(torch.tensor(2), torch.tensor(0.1)),
    )
    again = trees.revive(Reply, trees.plain(reply))
    assert trees.plain(pickle.loads(pickle.dumps(again))).keys() == trees.plain(reply).keys()
    assert isinstance(again.up, Up)
    assert isinstance(again.train, Train)
    assert torch.equal(again.held.personal["w"], reply.held.personal["w"])
    assert torch.equal(again.held.state["c"]["w"], reply.held.state["c"]["w"])


@pytest.mark.parametrize(
    ("tree", "told"), [({"up": {"params": {}}, "hold": {}}, "no 'hold'"), ({"held": {}}, "lacks a part")]
)
def test_a_tree_that_is_no_such_message_is_refused(tree, told):
    with pytest.raises(ValueError, match=told):
        trees.revive(Reply, tree)


def test_places_can_stand_where_tensors_were():
    shapes = trees.map_leaves(lambda leaf: tuple(leaf.shape), Held({"w": torch.ones(2, 3)}))
    assert shapes.local == {"w": (2, 3)}
    assert trees.tree_bytes(Held({"w": torch.ones(2, 3)})) == 24


def test_stacks_that_come_one_after_another_are_one() -> None:
    """As their concatenation; what every part has twice is held once, and no longer than every part has it twice."""
    model, other = torch.arange(12.0).reshape(6, 2), torch.ones(6, 1)

    def part(here: slice, twice: bool) -> dict[str, torch.Tensor]:
        up = model[here].clone()
        return {"up": up, "held": up if twice else up + 1, "other": other[here].clone()}

    cuts = [slice(0, 2), slice(2, 3), slice(3, 6)]
    one = trees.gathered((part(here, True) for here in cuts), 6)
    assert one["held"].data_ptr() == one["up"].data_ptr()
    assert torch.equal(one["up"], model)
    assert torch.equal(one["other"], other)
    apart = [part(here, k != 1) for k, here in enumerate(cuts)]
    found, wanted = trees.gathered(iter(apart), 6), trees.concatenate(apart)
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)
    assert found["held"].data_ptr() != found["up"].data_ptr()
