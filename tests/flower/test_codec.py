"""What crosses the network is refused unless it is exactly what was agreed."""

from __future__ import annotations

import json
import pickle
import struct

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from equipoise.flower import codec
from equipoise.flower.codec import InvalidMessage

LIKE = {"params": {"w": torch.zeros(2, 3), "b": torch.zeros(2, dtype=torch.float64)}, "extra": {}}


def test_a_tree_comes_back_to_the_bit_with_empty_branches_and_scalars() -> None:
    tree = {
        "a": {"x": torch.randn(3, 2), "n": torch.tensor(7)},
        "none": {},
        "flag": torch.tensor(True),
    }
    back, about = codec.decode(codec.encode(tree, {"round": 3}))
    codec.check_like(back, tree)
    assert about == {"round": 3}
    assert back["none"] == {}
    assert torch.equal(back["a"]["x"], tree["a"]["x"])
    assert torch.equal(back["flag"], tree["flag"])


@pytest.mark.parametrize(
    ("tree", "what"),
    [
        ({"params": {"w": torch.zeros(2, 3)}, "extra": {}}, "reply/params lacks 'b'"),
        ({**LIKE, "more": {}}, "reply has an unknown 'more'"),
        (
            {"params": {**LIKE["params"], "w": torch.zeros(3, 2)}, "extra": {}},
            r"w has shape \(3, 2\), expected",
        ),
        (
            {"params": {**LIKE["params"], "w": torch.zeros(2, 3, dtype=torch.int64)}, "extra": {}},
            "w has type torch.int64",
        ),
        ({"params": {**LIKE["params"], "w": {}}, "extra": {}}, "reply/params/w is a group"),
        ({"params": torch.zeros(2), "extra": {}}, "reply/params is a tensor"),
    ],
)
def test_another_shape_type_or_name_is_refused_by_name(tree: dict, what: str) -> None:
    with pytest.raises(InvalidMessage, match=what):
        codec.check_like(tree, LIKE)


def test_nan_and_infinity_are_refused_by_name() -> None:
    for bad in (torch.nan, torch.inf):
        with pytest.raises(InvalidMessage, match="up/params/b holds NaN or infinity"):
            codec.check_finite(
                {"params": {"w": torch.ones(2), "b": torch.tensor([1.0, bad])}}, "up"
            )


def test_more_bytes_than_expected_are_refused_unread() -> None:
    data = codec.encode({"w": torch.zeros(1000)}, {})
    with pytest.raises(InvalidMessage, match="bytes came, at most 100"):
        codec.decode(data, 100)


@pytest.mark.parametrize("value", [-1, 0, 1.5, True, "7", None, 2**60])
def test_a_count_that_is_none_is_refused(value: object) -> None:
    with pytest.raises(InvalidMessage, match="must be a whole number of at least 1"):
        codec.read_int({"samples": value}, "samples", 1)


class Boom:
    def __reduce__(self) -> tuple:
        raise AssertionError("unpickled")


def _claims(header: object) -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"short",
        pickle.dumps({"w": [1.0]}),
        struct.pack("<Q", 2**63) + b"{}",
        _claims({}),
        _claims([]),
        _claims({"__metadata__": {"structure": "{}", "meta": "[]"}}),
        _claims({"__metadata__": {"structure": '{"w": 0}', "meta": "{}"}}),
        _claims({"__metadata__": {"structure": '{"w": [1]}', "meta": "{}"}}),
        _claims({"__metadata__": {"structure": "7", "meta": "{}"}}),
        _claims(
            {"__metadata__": {"structure": '{"a":' * 100_000 + "1" + "}" * 100_000, "meta": "{}"}}
        ),
        _claims({"0": {"dtype": "F32", "structure": [2**40], "data_offsets": [0, 2**42]}}),
    ],
)
def test_garbage_is_refused_not_crashed_on(data: bytes) -> None:
    with pytest.raises(InvalidMessage):
        codec.decode(data)


@given(st.integers(0, 10_000), st.integers(0, 255))
def test_one_changed_byte_gives_a_tree_or_a_refusal(where: int, byte: int) -> None:
    data = bytearray(codec.encode(LIKE, {"round": 1}))
    data[where % len(data)] = byte
    try:
        tree, _ = codec.decode(bytes(data))
    except InvalidMessage:
        return
    assert isinstance(tree, dict)
