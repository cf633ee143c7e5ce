"""One node's sockets: encrypted, deaf to strangers, with acknowledgements and a count of what was
sent.

CURVE (https://rfc.zeromq.org/spec/26/) authenticates both ends: who connects knows the public key
of whom it connects to, and a node hears only those whose public keys it was given. ZeroMQ's send
returns when a message is queued; here the receiver acknowledges every message as soon as it takes
it from the network, so that the end of a send can be waited for. An endpoint belongs to one thread.
"""

from __future__ import annotations

import math
import os
import socket
import time
from collections import Counter, deque
from contextlib import suppress
from typing import Self

import zmq
from zmq.auth.thread import ThreadAuthenticator
from zmq.utils.monitor import recv_monitor_message

from laggard.core.errors import TransportError
from laggard.workloads.transport.frames import ACKNOWLEDGEMENT, Message, pack, unpack
from laggard.workloads.transport.inet_diag import list_own_connections
from laggard.workloads.transport.plan import EndpointPlan

_LINGER_MS = 1000
_ANYBODY = -1


class Endpoint:
    """Sends to and receives from other nodes; a context manager.

    Args:
        plan: which node this is, and who the others are.
        listens: whether others may connect to it, at its own address on the experiment network and
            no other.

    Attributes:
        sent_bytes: of tensors, by the node that they were sent to.
        received_bytes: of tensors, by the node that they came from.
        gone: nodes whose connection with this one has broken, until there is another: one that this
            node calls is back when its keys are proved anew, one that calls this node when it is
            heard again.
    """

    def __init__(self, plan: EndpointPlan, *, listens: bool = False) -> None:
        self.plan = plan
        self.sent_bytes: Counter[int] = Counter()
        self.received_bytes: Counter[int] = Counter()
        self.gone: set[int] = set()
        self._context = zmq.Context()
        self._nodes = {key: node for node, key in enumerate(plan.public_keys)}
        self._poller = zmq.Poller()
        self._called: dict[int, zmq.Socket[bytes]] = {}
        self._identities: dict[int, bytes] = {}
        self._replaced: set[bytes] = set()
        self._descriptors: dict[int, tuple[int, bytes]] = {}
        self._inbox: deque[Message] = deque()
        self._unacknowledged: set[tuple[int, int]] = set()
        self._given_up: set[tuple[int, int]] = set()
        self._numbers: Counter[int] = Counter()
        self._door: zmq.Socket[bytes] | None = None
        self._door_monitor: zmq.Socket[bytes] | None = None
        self._monitors: dict[zmq.Socket[bytes], int] = {}
        self._authenticator: ThreadAuthenticator | None = None
        self._bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._poller.register(self._bell, zmq.POLLIN)
        if listens:
            self._listen()

    def _listen(self) -> None:
        self._authenticator = ThreadAuthenticator(self._context)
        self._authenticator.start()
        self._authenticator.configure_curve_callback(
            domain="*", credentials_provider=_Ring(self.plan.public_keys)
        )
        door = self._socket(zmq.ROUTER)
        door.curve_server = True
        door.router_mandatory = True
        door.bind(f"tcp://{self.plan.addresses[self.plan.node]}")
        self._door_monitor = self._watch(door, _ANYBODY)
        self._poller.register(door, zmq.POLLIN)
        self._door = door

    def connect(self, node: int) -> None:
        """Open a connection to a node that listens; ZeroMQ keeps trying until it does."""
        caller = self._socket(zmq.DEALER)
        caller.curve_serverkey = self.plan.public_keys[node].encode()
        self._watch(caller, node)
        caller.connect(f"tcp://{self.plan.addresses[node]}")
        self._poller.register(caller, zmq.POLLIN)
        self._called[node] = caller

    def _socket(self, kind: int) -> zmq.Socket[bytes]:
        made: zmq.Socket[bytes] = self._context.socket(kind)
        made.curve_secretkey = self.plan.secret_key.encode()
        made.curve_publickey = self.plan.public_keys[self.plan.node].encode()
        made.linger = _LINGER_MS
        # Or a send would drop or block where a queue is full; who sends waits for acknowledgements
        # instead.
        made.sndhwm = made.rcvhwm = 0
        return made

    def _watch(self, watched: zmq.Socket[bytes], node: int) -> zmq.Socket[bytes]:
        monitor = watched.get_monitor_socket(zmq.EVENT_DISCONNECTED | zmq.EVENT_HANDSHAKE_SUCCEEDED)
        self._poller.register(monitor, zmq.POLLIN)
        self._monitors[monitor] = node
        return monitor

    def send(self, node: int, message: Message) -> int:
        """Begin to send; the tensor must stay as it is until the message is acknowledged.

        Returns:
            The number to wait for the acknowledgement by.

        Raises:
            TransportError: the node has never been connected to this one, or is gone.
        """
        self._numbers[node] += 1
        number = self._numbers[node]
        self._unacknowledged.add((node, number))
        self._put(node, pack(message, number))
        self.sent_bytes[node] += message.payload_bytes
        return number

    def _put(self, node: int, frames: list[bytes | memoryview]) -> None:
        try:
            if node in self._called:
                self._called[node].send_multipart(frames, copy=False)
            elif self._door is not None and node in self._identities:
                self._door.send_multipart([self._identities[node], *frames], copy=False)
            else:
                raise TransportError(f"node {node} has not been connected to node {self.plan.node}")
        except zmq.ZMQError as error:
            self.gone.add(node)
            raise TransportError(f"node {node} is gone: connection reset ({error})") from error

    def deliver(self, node: int, message: Message) -> None:
        """Send, and return when the receiver has acknowledged.

        Raises:
            TransportError: the node is gone, or did not acknowledge in time.
        """
        number = self.send(node, message)
        deadline_s = time.monotonic() + self.plan.timeout_s
        while (node, number) in self._unacknowledged:
            self._require(node)
            if not self._poll(deadline_s - time.monotonic()) and time.monotonic() > deadline_s:
                raise TransportError(
                    f"node {node} did not acknowledge within {self.plan.timeout_s:g} s"
                )
        if (node, number) in self._given_up:
            raise TransportError(f"node {node} is gone: connection reset by peer")

    def acknowledged(self, node: int, number: int) -> bool:
        """Whether a node has said that the message of this number has come (see `send`)."""
        return (node, number) not in self._unacknowledged

    def wake(self) -> None:
        """End the waiting of `take`; alone of all methods, any thread may call it."""
        os.eventfd_write(self._bell, 1)

    def drain(self, timeout_s: float) -> None:
        """Wait until all that was sent to those who are still there is acknowledged, at most so
        long; what comes meanwhile stays to be taken.
        """
        deadline_s = time.monotonic() + timeout_s
        while (
            any(node not in self.gone for node, _ in self._unacknowledged)
            and time.monotonic() < deadline_s
        ):
            self._poll(deadline_s - time.monotonic())

    def receive(self) -> Message:
        """The next message, from whomever.

        Raises:
            TransportError: none came in time, or the only node that this one is connected to is
                gone.
        """
        deadline_s = time.monotonic() + self.plan.timeout_s
        while (message := self.take(deadline_s - time.monotonic())) is None:
            for node in self._called:
                self._require(node)
            if time.monotonic() > deadline_s:
                raise TransportError(
                    f"node {self.plan.node} heard nothing for {self.plan.timeout_s:g} s"
                )
        return message

    def take(self, timeout_s: float = 0.0) -> Message | None:
        """The next message, waiting for it at most so long; None where there is none, or where a
        node went.
        """
        self._poll(0.0)  # what has arrived is acknowledged before what came earlier is worked on
        if not self._inbox:
            self._poll(timeout_s)
        return self._inbox.popleft() if self._inbox else None

    @property
    def departed(self) -> frozenset[int]:
        """Nodes that are gone and of whom nothing is left to be taken."""
        return frozenset(self.gone - {message.sender for message in self._inbox})

    def _require(self, node: int) -> None:
        if node in self.gone:
            raise TransportError(f"node {node} is gone: connection reset by peer")

    def _poll(self, timeout_s: float) -> bool:
        """Take from the network what there is, waiting for something; whether there was
        anything.
        """
        ready = self._poller.poll(math.ceil(max(0.0, timeout_s) * 1e3))
        for found, _ in ready:
            if found == self._bell:
                os.eventfd_read(self._bell)
            elif found in self._monitors:
                self._note_severed(found)
            else:
                self._drain(found)
        return bool(ready)

    def _drain(self, source: zmq.Socket[bytes]) -> None:
        while source.poll(0):
            frames = source.recv_multipart(copy=False)
            if source is self._door:
                identity, *frames = frames
                sender = self._nodes[str(frames[0].get("User-Id"))]
                if identity.bytes in self._replaced:
                    continue
                if identity.bytes != self._identities.get(sender):
                    self._admit(sender, identity.bytes, int(frames[0].get(zmq.SRCFD)))
            else:
                sender = next(node for node, each in self._called.items() if each is source)
            payload = frames[1].buffer if len(frames) > 1 else None
            self._accept(unpack(frames[0].bytes, payload, sender))

    def _admit(self, node: int, identity: bytes, descriptor: int) -> None:
        """A node speaks over a connection that it has not used before: what comes late over an
        older one is not heard any more.
        """
        if self._door_monitor is not None:
            self._note_severed(
                self._door_monitor
            )  # all told so far of this descriptor is about whoever had it before
        for monitor in [each for each, called in self._monitors.items() if called == node]:
            self._note_severed(monitor)
        if node in self._identities:
            self._replaced.add(self._identities[node])
            self._give_up(node)
        self._identities[node] = identity
        self._descriptors[descriptor] = node, identity
        self.gone.discard(node)

    def _give_up(self, node: int) -> None:
        """What was sent over a connection that is no more will not be acknowledged, be there
        another or not.
        """
        lost = {each for each in self._unacknowledged if each[0] == node}
        self._unacknowledged -= lost
        self._given_up |= lost

    def _accept(self, message: Message) -> None:
        if message.kind == ACKNOWLEDGEMENT:
            self._unacknowledged.discard((message.sender, message.number))
            return
        self.received_bytes[message.sender] += message.payload_bytes
        with suppress(TransportError):  # who is gone by now wants none
            self._put(message.sender, pack(Message(ACKNOWLEDGEMENT), message.number))
        self._inbox.append(message)

    def _note_severed(self, monitor: zmq.Socket[bytes]) -> None:
        while monitor.poll(0):
            event, called = recv_monitor_message(monitor), self._monitors[monitor]
            if event["event"] == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self.gone.discard(called)
            elif called != _ANYBODY:
                self.gone.add(called)
                self._give_up(called)
            elif (caller := self._descriptors.pop(event["value"], None)) is not None:
                node, identity = caller
                if self._identities[node] == identity:
                    self.gone.add(node)
                    self._give_up(node)

    def under_way_ns(self, node: int) -> int:
        """How long this process has had bytes on their way to a node's machine that its kernel had
        not acknowledged, all in all.

        Neither how quickly the two processes are counts in it, nor time in which the receiver's
        took nothing from its kernel.

        Raises:
            PrerequisiteError: this machine's kernel does not tell.
        """
        machine = socket.inet_aton(self.plan.addresses[node].rpartition(":")[0])
        connections = [each for each in list_own_connections() if each.dst == machine]
        return sum(each.busy_us - each.rwnd_limited_us for each in connections) * 1000

    def close(self) -> None:
        """Close the sockets once what was sent is out, or after a second."""
        if self._authenticator is not None:
            self._authenticator.stop()
        for each in (*self._called.values(), *((self._door,) if self._door is not None else ())):
            each.disable_monitor()
            each.close()
        for monitor in self._monitors:
            monitor.close(0)
        self._context.term()
        os.close(self._bell)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Ring:
    """The keys that are let in (what ZAP's authenticator asks)."""

    def __init__(self, keys: tuple[str, ...]) -> None:
        self._keys = frozenset(key.encode() for key in keys)

    def callback(self, _domain: str, key: bytes) -> bool:
        """Whether the holder of this public key is one of this run's nodes."""
        return key in self._keys
