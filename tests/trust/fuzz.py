"""Messages that somebody spoiled, a million of them: each is refused in words, or is sound in every
number.

``PYTHONPATH=tests python -m trust.fuzz --messages 2000000`` prints one line; the exit code is 1 if
one message ended in another way. With ``--add FILE`` what it found is added to what the file says
of earlier sittings. Spoiled are bytes, lengths, the header (names, types, shapes, places), what the
message says of itself, and numbers. Four of five are replies as the server reads them, the others
messages as a client reads them.
"""

from __future__ import annotations

import json
import logging
import random
import struct
import sys
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from equipoise.core import ClientState, Server
from equipoise.core.report_validation import validate_reports
from equipoise.flower import codec, node
from equipoise.flower.codec import InvalidMessage
from equipoise.flower.remote_executor import RemoteExecutor
from equipoise.methods.autopilot import Autopilot
from equipoise.simulation.executors import CohortRequest
from equipoise.utils.pytree import map_leaves, to_dict
from helpers import simulate, small_task
from trust.sittings import Found, sit

CLIENT, ROUND, RUN = 1, 1, "abc"
NUMBERS = (
    0,
    -1,
    1,
    2**31,
    2**53,
    2**63,
    2**64,
    1e308,
    -1e308,
    "",
    "x",
    None,
    True,
    [],
    {},
    [[]],
    "\x1b[2J",
    "9" * 400,
)
BITS = (
    0x7FC00000,
    0x7F800000,
    0xFF800000,
    0x7F7FFFFF,
    0x00000001,
    0xFFFFFFFF,
)  # NaN, infinities, the largest, ...


@dataclass
class Spoiled(Found):
    messages: int = 0
    refused: int = 0
    wrong: int = 0
    sittings: int = 0

    def in_words(self) -> str:
        wrong = f"{self.wrong} neither refused nor sound"
        return f"{self.messages} messages: {self.refused} refused, {wrong}"

    @property
    def failed(self) -> bool:
        return self.wrong > 0


class Fuzz:
    """A federation of which one message each way is known, and how both sides read it."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.method, self.task = Autopilot(), small_task("linear")
        self.remote = RemoteExecutor(
            self.method,
            self.task,
            self.task.info.training,
            0,
            1,
            wire=None,
            run=RUN,
            time_limit=1.0,
            min_replies=1,
        )
        simulation = simulate(self.method, self.task, 1, "loop")
        self.model = self.task.init_params(0)
        params, state = simulation.params, simulation.server_state
        server = Server(self.task, self.task.info.training, params, state, 0, ROUND, 1, 1.0)
        with torch.no_grad():
            down = self.method.distribute(server, torch.arange(self.task.info.num_clients))[0]
            one = torch.tensor([CLIENT])
            expected = self.remote._expect(
                CohortRequest(ROUND, one, down.for_clients(one), ClientState(), ())
            )
        self.expected = expected
        about = {
            "client": CLIENT,
            "round": ROUND,
            "run": RUN,
            "samples": 3,
            "version": "0",
            "lost": False,
        }
        self.up = codec.encode(expected, about)
        self.down = node.encode_message(
            down.for_clients(CLIENT),
            self.task.info.blocks,
            {**about, "kind": "round", "splits": [], "taken": 0},
        )

    def one(self) -> bool:
        """Spoil one message and have it read; whether it was refused.

        Whatever else is wrong is raised.
        """
        up = self.draw.random() < 0.8
        data = self.spoiled(self.up if up else self.down)
        try:
            self._read_up(data) if up else self._read_down(data)
        except InvalidMessage:
            return True
        return False

    def _read_up(self, data: bytes) -> None:
        """As the server does; what it takes must be what was agreed, in finite numbers within their
        ranges.
        """
        reply, about = self.remote._read(data, CLIENT, ROUND, self.expected)
        codec.check_like(to_dict(reply.update), self.expected["update"])
        codec.check_finite(to_dict(reply.update), "update")
        assert about["client"] == CLIENT
        for reason in validate_reports(
            self.method.report_ranges, map_leaves(lambda value: value.unsqueeze(0), reply.update)
        ).values():
            raise InvalidMessage(reason)

    def _read_down(self, data: bytes) -> None:
        """As a client does before it trains."""
        tree, about = codec.decode(data)
        codec.read_int(about, "round", 1), codec.read_int(about, "taken", 0)
        if about.get("client") != CLIENT:
            raise InvalidMessage("for another client")
        node._splits(about)
        down = node.decode_message(tree, about, self.model, self.task.info.blocks)
        assert down.sent_blocks.keys() == self.task.info.blocks.keys()
        codec.check_like({name: down.params[name] for name in self.model}, self.model, "message")

    def spoiled(self, data: bytes) -> bytes:
        kinds = (self._bytes, self._cut, self._length, self._header, self._words, self._numbers)
        return self.draw.choice(kinds)(data)

    def _bytes(self, data: bytes) -> bytes:
        changed = bytearray(data)
        for _ in range(self.draw.randint(1, 8)):
            changed[self.draw.randrange(len(changed))] = self.draw.randrange(256)
        return bytes(changed)

    def _cut(self, data: bytes) -> bytes:
        at = self.draw.randrange(len(data))
        return (
            data[:at]
            if self.draw.random() < 0.5
            else data[:at] + self.draw.randbytes(self.draw.randint(1, 64)) + data[at:]
        )

    def _length(self, data: bytes) -> bytes:
        return (
            struct.pack("<Q", self.draw.choice((0, 1, 7, 2**31, 2**63, 2**64 - 1, len(data))))
            + data[8:]
        )

    def _header(self, data: bytes) -> bytes:
        """One entry of the header becomes another: types, shapes, places, names."""
        header, body = self._parts(data)
        names = [name for name in header if name != "__metadata__"]
        name, value = self.draw.choice(names), self.draw.choice(NUMBERS)
        field = self.draw.choice(("dtype", "shape", "data_offsets", "name", "gone"))
        if field == "gone":
            header.pop(name)
        elif field == "name":
            header[str(value)] = header.pop(name)
        elif field == "dtype":
            header[name]["dtype"] = self.draw.choice(
                ("F64", "I64", "BOOL", "U8", "F16", "X9", value)
            )
        else:
            header[name][field] = self.draw.choice((value, [value], [2**40, 2**40], [0], [-1, 5]))
        return self._joined(header, body)

    def _words(self, data: bytes) -> bytes:
        """What the message says of itself, or the shape of its tree."""
        header, body = self._parts(data)
        part = self.draw.choice(("structure", "meta"))
        table = json.loads(header["__metadata__"][part])
        inner: Any = table
        while isinstance(inner, dict) and inner and self.draw.random() < 0.6:
            key = self.draw.choice(list(inner))
            if not isinstance(inner[key], dict):
                inner[key] = self.draw.choice(NUMBERS)
                break
            inner = inner[key]
        else:
            if isinstance(inner, dict):
                inner[str(self.draw.choice(NUMBERS))] = self.draw.choice(NUMBERS)
        header["__metadata__"][part] = (
            json.dumps(table) if self.draw.random() < 0.95 else str(self.draw.choice(NUMBERS))
        )
        return self._joined(header, body)

    def _numbers(self, data: bytes) -> bytes:
        """Numbers of tensors, well formed around them."""
        end = 8 + struct.unpack("<Q", data[:8])[0]
        words = np.frombuffer(data[end : end + (len(data) - end) // 4 * 4], np.uint32).copy()
        for _ in range(self.draw.randint(1, 4)):
            words[self.draw.randrange(len(words))] = self.draw.choice(
                (*BITS, self.draw.getrandbits(32))
            )
        return data[:end] + words.tobytes() + data[end + 4 * len(words) :]

    @staticmethod
    def _parts(data: bytes) -> tuple[dict[str, Any], bytes]:
        end = 8 + struct.unpack("<Q", data[:8])[0]
        return json.loads(data[8:end]), data[end:]

    @staticmethod
    def _joined(header: dict[str, Any], body: bytes) -> bytes:
        text = json.dumps(header).encode()
        return struct.pack("<Q", len(text)) + text + body


def fuzz(messages: int, minutes: float, seed: int) -> Spoiled:
    """So many messages, or as many as there is time for."""
    here, found, end = Fuzz(seed), Spoiled(sittings=1), time.monotonic() + 60 * minutes
    while found.messages < messages and (found.messages % 1000 or time.monotonic() < end):
        found.messages += 1
        try:
            found.refused += here.one()
        except Exception as error:
            found.wrong += 1
            print(
                f"message {found.messages} of seed {seed}: {type(error).__name__}: {error}",
                file=sys.stderr,
            )
    return found


if __name__ == "__main__":
    logging.disable()
    sit(Spoiled, fuzz, wanted=2_000_000, minutes=60.0, about=__doc__)
