"""Endpoint of one node: encrypted sockets for known nodes, acknowledgements and byte counts.

CURVE (https://rfc.zeromq.org/spec/26/) authenticates both ends. A node knows the public key of
every node that it connects to, and it accepts only the public keys in its plan.

ZeroMQ's send returns when a message is queued. Here the receiver acknowledges every message as
soon as it takes it from the network, so that the sender can wait for the end of a send. An
endpoint belongs to one thread.
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
    """Endpoint that sends messages to other nodes and receives theirs; a context manager.

    Args:
        plan: plan with the number of this node and the addresses and keys of all.
        listens: whether others may connect to it, at its own address on the experiment network
            only.

    Attributes:
        sent_bytes: bytes of tensors sent, by receiving node.
        received_bytes: bytes of tensors received, by sending node.
        gone: nodes whose connection with this one is broken. A node that this one connects to is
            removed after a new handshake. A node that connects to this one is removed when a new
            message arrives.
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
        # ZeroMQ sockets belong to one thread. Other threads wake it through this descriptor.
        self._bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._poller.register(self._bell, zmq.POLLIN)
        if listens:
            self._listen()

    def _listen(self) -> None:
        """Open the socket that other nodes connect to."""
        self._authenticator = ThreadAuthenticator(self._context)
        self._authenticator.start()
        self._authenticator.configure_curve_callback(
            domain="*", credentials_provider=_Ring(self.plan.public_keys)
        )
        door = self._socket(zmq.ROUTER)
        door.curve_server = True
        # Raise an error for an unknown receiver, instead of dropping the message.
        door.router_mandatory = True
        door.bind(f"tcp://{self.plan.addresses[self.plan.node]}")
        self._door_monitor = self._watch(door, _ANYBODY)
        self._poller.register(door, zmq.POLLIN)
        self._door = door

    def connect(self, node: int) -> None:
        """Open a connection to a node that listens; ZeroMQ retries until the node does."""
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
        # No limit on queues: a send would drop or block if a queue were full. The sender waits for
        # acknowledgements instead.
        made.sndhwm = made.rcvhwm = 0
        return made

    def _watch(self, watched: zmq.Socket[bytes], node: int) -> zmq.Socket[bytes]:
        """Monitor a socket's handshakes and disconnections."""
        monitor = watched.get_monitor_socket(zmq.EVENT_DISCONNECTED | zmq.EVENT_HANDSHAKE_SUCCEEDED)
        self._poller.register(monitor, zmq.POLLIN)
        self._monitors[monitor] = node
        return monitor

    def send(self, node: int, message: Message) -> int:
        """Begin to send a message, whose tensor must not change until it is acknowledged.

        Returns:
            The number of the message, for `acknowledged`.

        Raises:
            TransportError: the node has never connected to this one, or its connection is broken.
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
                # ZeroMQ may still have a queue for a node whose end its monitor has reported.
                self._require(node)
                self._door.send_multipart([self._identities[node], *frames], copy=False)
            else:
                raise TransportError(
                    f"node {self.plan.node} cannot send to node {node}, which has never connected"
                    f" to it; read the log of node {node}"
                )
        except zmq.ZMQError as error:
            self.gone.add(node)
            raise TransportError(
                f"the connection to node {node} is broken: connection reset ({error})"
            ) from error

    def deliver(self, node: int, message: Message) -> None:
        """Send a message and return when the receiver has acknowledged it.

        Raises:
            TransportError: the connection is broken, or no acknowledgement came in time.
        """
        number = self.send(node, message)
        deadline_s = time.monotonic() + self.plan.timeout_s
        while (node, number) in self._unacknowledged:
            self._require(node)
            if not self._poll(deadline_s - time.monotonic()) and time.monotonic() > deadline_s:
                raise TransportError(
                    f"node {node} did not acknowledge a message within {self.plan.timeout_s:g} s"
                )
        if (node, number) in self._given_up:
            raise TransportError(
                f"the connection to node {node} is broken: connection reset by peer"
            )

    def acknowledged(self, node: int, number: int) -> bool:
        """Return whether a node has acknowledged the message with this number (see `send`)."""
        return (node, number) not in self._unacknowledged

    def wake(self) -> None:
        """End a wait in `take`; the only method that any thread may call."""
        os.eventfd_write(self._bell, 1)

    def drain(self, timeout_s: float) -> None:
        """Wait until all messages to connected nodes are acknowledged, or until a timeout.

        Messages that arrive meanwhile are kept for `take`.

        Args:
            timeout_s: longest wait in seconds.
        """
        deadline_s = time.monotonic() + timeout_s
        while (
            any(node not in self.gone for node, _ in self._unacknowledged)
            and time.monotonic() < deadline_s
        ):
            self._poll(deadline_s - time.monotonic())

    def receive(self) -> Message:
        """Return the next message from any node.

        Raises:
            TransportError: no message came in time, or the connection to a node is broken.
        """
        deadline_s = time.monotonic() + self.plan.timeout_s
        while (message := self.take(deadline_s - time.monotonic())) is None:
            for node in self._called:
                self._require(node)
            if time.monotonic() > deadline_s:
                raise TransportError(
                    f"node {self.plan.node} received no message for {self.plan.timeout_s:g} s"
                )
        return message

    def take(self, timeout_s: float = 0.0) -> Message | None:
        """Return the next message, waiting at most `timeout_s` seconds for it.

        The result is None if there is no message, or if the wait ended because a connection broke.
        """
        # Acknowledge what has arrived before the caller works on an earlier message.
        self._poll(0.0)
        if not self._inbox:
            self._poll(timeout_s)
        return self._inbox.popleft() if self._inbox else None

    @property
    def departed(self) -> frozenset[int]:
        """Nodes with a broken connection and no message left to take."""
        return frozenset(self.gone - {message.sender for message in self._inbox})

    def _require(self, node: int) -> None:
        if node in self.gone:
            raise TransportError(
                f"the connection to node {node} is broken: connection reset by peer"
            )

    def _poll(self, timeout_s: float) -> bool:
        """Process all that arrived, waiting for the first; return whether anything arrived."""
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
        """Accept a node's new connection, and ignore late messages of its older one."""
        # Events so far are about the previous connection with this descriptor. Process them first.
        if self._door_monitor is not None:
            self._note_severed(self._door_monitor)
        for monitor in [each for each, called in self._monitors.items() if called == node]:
            self._note_severed(monitor)
        if node in self._identities:
            self._replaced.add(self._identities[node])
            self._give_up(node)
        self._identities[node] = identity
        # A monitor reports a lost connection by its descriptor only, so remember whose it is.
        self._descriptors[descriptor] = node, identity
        self.gone.discard(node)

    def _give_up(self, node: int) -> None:
        """Mark all unacknowledged messages to a node as lost.

        Messages sent over a broken connection are never acknowledged, even after a new connection.
        """
        lost = {each for each in self._unacknowledged if each[0] == node}
        self._unacknowledged -= lost
        self._given_up |= lost

    def _accept(self, message: Message) -> None:
        """Acknowledge a message and keep it for `take`."""
        if message.kind == ACKNOWLEDGEMENT:
            self._unacknowledged.discard((message.sender, message.number))
            return
        self.received_bytes[message.sender] += message.payload_bytes
        with suppress(TransportError):  # a sender that is gone by now needs no acknowledgement
            self._put(message.sender, pack(Message(ACKNOWLEDGEMENT), message.number))
        self._inbox.append(message)

    def _note_severed(self, monitor: zmq.Socket[bytes]) -> None:
        """Update the set of broken connections from a monitor's events."""
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
        """Return the total time with bytes in flight to a node's machine, in ns.

        This is the time in which this process's kernel waited for acknowledgements. It does not
        depend on the speed of the two processes, and it excludes the time in which the receiver's
        window was full.

        Raises:
            PrerequisiteError: this machine's kernel does not report it.
        """
        machine = socket.inet_aton(self.plan.addresses[node].rpartition(":")[0])
        connections = [each for each in list_own_connections() if each.dst == machine]
        return sum(each.busy_us - each.rwnd_limited_us for each in connections) * 1000

    def close(self) -> None:
        """Close the sockets after all messages are sent, or after one second."""
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
    """Set of accepted public keys, for ZeroMQ's authenticator (ZAP)."""

    def __init__(self, keys: tuple[str, ...]) -> None:
        self._keys = frozenset(key.encode() for key in keys)

    def callback(self, _domain: str, key: bytes) -> bool:
        """Return whether a public key belongs to a node of this run."""
        return key in self._keys
