"""Probes of a link between different machines: a sink on one, a source on the other.

They give the same figures as `stream` and `datagrams`, where one process holds both ends. Here the
source does not know how much has arrived, so it keeps its socket full for a fixed time. The sink
ignores the warm-up and measures only afterwards, when the link's queue is never empty.
"""

from __future__ import annotations

import select
import socket
import struct
import time
from dataclasses import dataclass
from typing import Literal, Self

from laggard.core.errors import EmulationError
from laggard.network_emulation.fidelity.probes.stream import (
    TCP_PAYLOAD_BYTES,
    UDP_PAYLOAD_BYTES,
    served_mbps,
)
from laggard.network_emulation.link_plan import PACKET_BYTES

Transport = Literal["tcp", "udp", "count"]
"""Kind of flow: `tcp` and `udp` measure a rate; `count` counts numbered datagrams that are sent
far below the rate."""

_INBOX = 1 << 18
_NUMBER = struct.Struct("!Q")
_COUNT_BYTES = 8
_OVERDRIVE = 1.25
"""Factor by which a UDP flow exceeds the expected rate."""
_TICK_S = 0.001
_GRACE_S = 1.0


@dataclass(frozen=True)
class FlowProbe:
    """One flow (real units).

    Attributes:
        transport: kind of flow.
        rate_mbps: expected rate of the link; unused for `count`.
        rtt_ms: expected round trip.
        warm_up_s: time whose arrivals are ignored.
        window_s: time to measure.
        count: number of datagrams of a `count` flow.
        per_s: datagrams per second of a `count` flow.
        loss: fraction of packets that the link loses before it serializes them.
    """

    transport: Transport
    rate_mbps: float
    rtt_ms: float
    warm_up_s: float
    window_s: float
    count: int = 0
    per_s: float = 0.0
    loss: float = 0.0

    @property
    def total_s(self) -> float:
        """Return the time for which the source sends."""
        return (
            self.count / self.per_s if self.transport == "count" else self.warm_up_s + self.window_s
        )


class Sink:
    """Receiving end on a free port of `address`; open it before the source starts."""

    def __init__(self, address: str, transport: Transport) -> None:
        kind = socket.SOCK_STREAM if transport == "tcp" else socket.SOCK_DGRAM
        self._socket = socket.socket(socket.AF_INET, kind)
        self._socket.bind((address, 0))
        self._transport = transport
        if transport == "tcp":
            self._socket.listen(1)
        else:
            # A large buffer, so that a sink that is scheduled late loses no datagrams.
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)

    @property
    def port(self) -> int:
        """Return the port that the source sends to."""
        return int(self._socket.getsockname()[1])

    def receive(self, probe: FlowProbe) -> float:
        """Wait for the flow to pass.

        Returns:
            Mbit/s on the wire, or the number of datagrams that arrived.

        Raises:
            EmulationError: if nothing arrived.
        """
        deadline_s = time.monotonic() + probe.total_s + 4 * probe.rtt_ms / 1e3 + 10 * _GRACE_S
        receiver = self._accepted(deadline_s)
        if self._transport == "count":
            return float(_count_datagrams(receiver, deadline_s, probe))
        marks = _record_marks(receiver, deadline_s, probe)
        payload = TCP_PAYLOAD_BYTES if self._transport == "tcp" else UDP_PAYLOAD_BYTES
        return served_mbps(marks) * PACKET_BYTES / payload

    def _accepted(self, deadline_s: float) -> socket.socket:
        _await_first_bytes(self._socket, deadline_s)
        return self._socket.accept()[0] if self._transport == "tcp" else self._socket

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _await_first_bytes(receiver: socket.socket, deadline_s: float) -> None:
    if not select.select([receiver], [], [], max(0.0, deadline_s - time.monotonic()))[0]:
        raise EmulationError("no packet of a probe arrived; check for a firewall between the nodes")


def _record_marks(
    receiver: socket.socket, deadline_s: float, probe: FlowProbe
) -> list[tuple[float, int]]:
    inbox, received, marks = bytearray(_INBOX), 0, list[tuple[float, int]]()
    _await_first_bytes(receiver, deadline_s)
    begins_s = time.monotonic() + probe.warm_up_s
    ends_s = begins_s + probe.window_s
    while (now_s := time.monotonic()) < ends_s:
        if not select.select([receiver], [], [], ends_s - now_s)[0]:
            break
        count = receiver.recv_into(inbox)
        if count == 0:
            break
        received += count
        now_s = time.monotonic()
        if now_s >= begins_s:
            marks.append((now_s, received))
    if receiver.type == socket.SOCK_STREAM:
        receiver.close()  # the source then ends with an error that it expects
    return marks


def _count_datagrams(receiver: socket.socket, deadline_s: float, probe: FlowProbe) -> int:
    seen: set[int] = set()
    patience_s = _GRACE_S + 2 * probe.rtt_ms / 1e3
    while len(seen) < probe.count and time.monotonic() < deadline_s:
        if not select.select([receiver], [], [], patience_s + (1 / probe.per_s))[0]:
            break
        seen.add(_NUMBER.unpack(receiver.recv(64)[:_COUNT_BYTES])[0])
    return len(seen)


def send_flow(source: str, destination: tuple[str, int], probe: FlowProbe) -> None:
    """Send a flow, until everything was sent or the sink has seen enough.

    Args:
        source: address to send from.
        destination: address and port of the sink.
        probe: the flow to send.

    Raises:
        EmulationError: if the sink cannot be reached.
    """
    kind = socket.SOCK_STREAM if probe.transport == "tcp" else socket.SOCK_DGRAM
    with socket.socket(socket.AF_INET, kind) as sender:
        sender.bind((source, 0))
        sender.settimeout(4 * probe.rtt_ms / 1e3 + 10 * _GRACE_S)
        try:
            sender.connect(destination)
        except OSError as error:
            raise EmulationError(f"{source} cannot reach {destination[0]}: {error}") from error
        if probe.transport == "tcp":
            _send_stream(sender, probe)
        else:
            _send_paced_datagrams(sender, probe)


def _send_stream(sender: socket.socket, probe: FlowProbe) -> None:
    chunk, deadline_s = (
        bytes(1 << 16),
        time.monotonic() + probe.total_s + 4 * probe.rtt_ms / 1e3 + _GRACE_S,
    )
    try:
        while time.monotonic() < deadline_s:
            sender.send(chunk)
    except (BrokenPipeError, ConnectionResetError, TimeoutError):
        return  # the sink has seen enough


def _send_paced_datagrams(sender: socket.socket, probe: FlowProbe) -> None:
    counting = probe.transport == "count"
    per_s = (
        probe.per_s
        if counting
        else probe.rate_mbps * _OVERDRIVE / max(0.05, 1.0 - probe.loss) * 1.25e5 / PACKET_BYTES
    )
    total = probe.count if counting else round(per_s * probe.total_s)
    padding = bytes(0 if counting else UDP_PAYLOAD_BYTES - _COUNT_BYTES)
    began_s, sent = time.monotonic(), 0
    while sent < total:
        due = min(total, int((time.monotonic() - began_s) * per_s) + 1)
        while sent < due:
            try:
                sender.send(_NUMBER.pack(sent) + padding)
            except ConnectionRefusedError:
                return  # the sink has seen enough
            sent += 1
        time.sleep(_TICK_S)
