"""Messages over Flower's grid.

Node ids are not client ids, and Flower's error replies do not say which client they concern. So
each node is asked once for its client id, and replies are matched by the message they answer.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping

from flwr.app import Array, ArrayRecord, Message, MessageType, RecordDict
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid

from equipoise.flower import codec
from equipoise.flower.audit import AuditLog
from equipoise.flower.codec import NO_REPLY, InvalidMessage
from equipoise.flower.config import MAX_NAME_LENGTH, ROLES
from equipoise.flower.guests import Guest

LOG = logging.getLogger("equipoise")
MIN_POLL_INTERVAL = 0.02  # seconds; doubles after each poll
MAX_POLL_INTERVAL = 0.5
MAX_HELLO_BYTES = 4096  # of a node's introduction
HELLO_RETRY = 120.0  # seconds until a node that did not introduce itself is asked again
ANSWERED = ""  # in the place of the id of a question that a node has answered
GUEST_WAIT = 20.0  # seconds that nodes have to introduce themselves after the last round
NO_AUDIT = AuditLog(None)


def to_record(data: bytes) -> RecordDict:
    """Wrap a message in a Flower record; Flower splits large arrays into chunks."""
    return RecordDict(
        {"message": ArrayRecord({"bytes": Array("uint8", (len(data),), "safetensors", data)})}
    )


def from_record(content: RecordDict) -> bytes:
    """Return the message in a Flower record.

    Raises:
        InvalidMessage: If there is none.
    """
    try:
        data: bytes = content.array_records["message"]["bytes"].data
    except KeyError as error:
        raise InvalidMessage("the message has no content") from error
    return data


class GridWire:
    """The :class:`~equipoise.flower.async_executor.AsyncWire` over Flower's grid."""

    def __init__(
        self,
        grid: Grid,
        clients: int,
        min_replies: int,
        wait: float,
        bound: Mapping[int, int] | None = None,
        audit: AuditLog = NO_AUDIT,
    ) -> None:
        """Set up the connection.

        Args:
            grid: Flower's grid.
            clients: Number of clients of the run.
            min_replies: Clients that a round needs.
            wait: Seconds to wait for clients to connect.
            bound: Client of each registered node; if ``None``, nodes say which client they are.
            audit: Audit log.
        """
        self.audit = audit
        self.grid = grid
        self.clients = clients
        self.min_replies = min_replies
        self.wait = wait
        self.bound = bound
        self.names: dict[int, str] = {}  # of clients that gave themselves one
        self._known: dict[int, tuple[int, int]] = {}  # node: client and samples
        self._asked: dict[int, tuple[str, float]] = {}  # node: the question's id and its time
        self._node: dict[int, int] = {}  # client: node
        self._guests: dict[int, Guest] = {}  # node: a site outside training
        self._posted: dict[str, int] = {}  # message: client, of replies that may come later
        self._posted_data: dict[int, bytes] = {}  # client: the message, for the audit
        self._wanted = clients  # all at the start, then as many as a round needs

    def present(self) -> dict[int, int]:
        """Return connected clients with their samples; wait for all, later for enough."""
        for _ in _polls(self.wait):
            nodes = set(self.grid.get_node_ids())
            self._greet(nodes)
            self._node = self._assign_nodes(nodes)
            if len(self._node) >= self._wanted:
                break
        self._wanted = min(self.min_replies, self.clients)
        return {client: self._known[node][1] for client, node in self._node.items()}

    def exchange(self, messages: dict[int, bytes], limit: float) -> dict[int, bytes | str]:
        """Send messages and return the replies within ``limit`` seconds."""
        waiting = self._ask(messages, limit)
        answers = self._poll_replies(waiting, len(waiting), limit)
        self.audit.record_exchange(messages, answers)
        return answers

    def guests(self) -> list[Guest]:
        """Return the connected sites that take no part in training."""
        for _ in _polls(GUEST_WAIT):
            nodes = set(self.grid.get_node_ids())
            self._greet(nodes)
            if not any(id for id, _ in self._asked.values()):
                break
        return [guest for node, guest in sorted(self._guests.items()) if node in nodes]

    def ask_guests(self, messages: Mapping[Guest, bytes], limit: float) -> dict[Guest, bytes | str]:
        """Send messages to sites outside training and return the replies within ``limit``."""
        by_node = {guest.node: data for guest, data in messages.items()}
        ids = self._push(by_node, MessageType.TRAIN, limit)
        waiting = {id: guest.node for id, guest in zip(ids, messages, strict=True) if id}
        answers = self._poll_replies(waiting, len(waiting), limit)
        self.audit.record_exchange(by_node, answers)
        return {guest: answers[guest.node] for guest in messages if guest.node in answers}

    def post(self, messages: dict[int, bytes], limit: float) -> None:
        """Send messages; :meth:`gather` returns their replies."""
        self._posted |= self._ask(messages, limit)
        self._posted_data |= messages

    def gather(self, num_wanted: int, limit: float) -> dict[int, bytes | str]:
        """Return replies to posted messages when there are ``num_wanted``, or after ``limit``."""
        answers = self._poll_replies(self._posted, num_wanted, limit)
        self.audit.record_exchange(
            {client: self._posted_data.pop(client) for client in answers}, answers
        )
        return answers

    def _ask(self, messages: dict[int, bytes], limit: float) -> dict[str, int]:
        """Send messages to clients and return the client of each message's id."""
        by_node = {self._node[client]: data for client, data in messages.items()}
        ids = self._push(by_node, MessageType.TRAIN, limit)
        return {id: client for id, client in zip(ids, messages, strict=True) if id}

    def _poll_replies(
        self, waiting: dict[str, int], num_wanted: int, limit: float
    ) -> dict[int, bytes | str]:
        """Poll for replies; a message that was answered is removed from ``waiting``."""
        answers: dict[int, bytes | str] = {}
        for _ in _polls(limit):
            for reply in self.grid.pull_messages(list(waiting)):
                client = waiting.pop(reply.metadata.reply_to_message_id, None)
                if client is not None:  # else it came twice, or nobody asked for it
                    answers[client] = self._content(reply)
            if not waiting or len(answers) >= num_wanted:
                break
        return answers

    def _push(self, by_node: Mapping[int, bytes], kind: str, limit: float) -> list[str]:
        """Send a message to each node and return the messages' ids, empty if one was not sent."""
        messages = [
            Message(to_record(data), node, kind, ttl=limit) for node, data in by_node.items()
        ]
        return list(self.grid.push_messages(messages))

    def _greet(self, nodes: set[int]) -> None:
        """Ask new nodes for their client ids, and read answers that have arrived."""
        now = time.monotonic()
        new = [
            n
            for n in sorted(nodes - self._known.keys() - self._guests.keys())
            if n not in self._asked or now - self._asked[n][1] > HELLO_RETRY
        ]
        question = codec.encode({}, {"kind": "hello"})
        if new:
            ids = self._push(dict.fromkeys(new, question), MessageType.QUERY, HELLO_RETRY)
            self._asked |= {n: (id, now) for n, id in zip(new, ids, strict=True) if id}
        open_questions = {id: n for n, (id, _) in self._asked.items() if id}
        if open_questions:
            for reply in self.grid.pull_messages(list(open_questions)):
                node = open_questions.pop(reply.metadata.reply_to_message_id, None)
                if node is not None:
                    self._asked[node] = (ANSWERED, self._asked[node][1])
                    self._read_hello(node, reply)

    def _read_hello(self, node: int, reply: Message) -> None:
        """Read a node's introduction; a node whose client is not valid is left out."""
        try:
            _, metadata = codec.decode_reply(self._content(reply), MAX_HELLO_BYTES)
            client = codec.read_int(metadata, "client", 0)
            samples = codec.read_int(metadata, "samples", 1)
            role = metadata.get("role", "train")
            if role not in ROLES:
                raise InvalidMessage("its role is not known")
            if role == "train" and client >= self.clients:
                raise InvalidMessage(
                    f"it says that it is client {client}, the run has clients 0 to "
                    f"{self.clients - 1}"
                )
            if self.bound is not None and self.bound.get(node) != client:
                registered = f"client {self.bound[node]}" if node in self.bound else "no client"
                raise InvalidMessage(
                    f"it says that it is client {client}, its key is registered for {registered}"
                )
            name = metadata.get("name", "")
            if not isinstance(name, str) or len(name) > MAX_NAME_LENGTH:
                raise InvalidMessage("its name is no short text")
        except InvalidMessage as error:
            LOG.warning("node %d is left out: %s", node, error)
            self.audit.record("refused", node=node, reason=str(error))
            return
        if role != "train":
            self._guests[node] = Guest(node, client, name, role)
            LOG.info("%s is connected as node %d", self._guests[node].label, node)
            self.audit.record("joined", node=node, client=client, role=role)
            return
        self._known[node] = (client, samples)
        if name:
            self.names[client] = name
        LOG.info("client %d is connected as node %d, %d samples", client, node, samples)
        self.audit.record("joined", node=node, client=client, samples=samples, name=name)

    def _assign_nodes(self, nodes: Iterable[int]) -> dict[int, int]:
        """Return the node of each client; of two nodes that claim one, the earlier keeps it."""
        seats = {client: node for client, node in self._node.items() if node in nodes}
        for node in sorted(nodes):
            if node not in self._known:
                continue
            client = self._known[node][0]
            seat = seats.setdefault(client, node)
            if seat != node and self._node.get(client) == seat:
                LOG.warning(
                    "node %d says it is client %d too, which node %d is", node, client, seat
                )
        return seats

    @staticmethod
    def _content(reply: Message) -> bytes | str:
        """Return the content of a reply, or why it has none."""
        if reply.has_error():
            if reply.error.code == ErrorCode.MESSAGE_UNAVAILABLE:  # its time to live is over
                return NO_REPLY
            return f"Flower reports error {reply.error.code}: {reply.error.reason}"[:500]
        try:
            return from_record(reply.content)
        except InvalidMessage as error:
            return str(error)


def _polls(limit: float) -> Iterator[None]:
    """Yield at growing intervals until ``limit`` seconds are over, at least once."""
    end = time.monotonic() + limit
    pause = MIN_POLL_INTERVAL
    yield
    while (left := end - time.monotonic()) > 0:
        time.sleep(min(pause, left))
        pause = min(2 * pause, MAX_POLL_INTERVAL)
        yield
