"""Rate probe: one flow that keeps the link busy.

A lossless link gets a TCP connection. It starts with reno's plain slow start. Then it is held at a
window that keeps a short queue at the bottleneck (a little more than bandwidth x delay). This
process can do that exactly, because it holds both ends. So the link never idles, no packet is
dropped, and bytes arrive at the rate of the link. If a round trip takes longer than a queue holds,
slow start would send its packets in bursts of twice the rate and lose them, so the flow is paced
there.

A link with loss or jitter gets UDP above its rate, because TCP there would measure TCP (Mathis et
al. 1997).
"""

from __future__ import annotations

import fcntl
import select
import socket
import struct
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Literal

from laggard.network_emulation.fidelity.probes.endpoint import ProbeEndpoint, listener_in, socket_in
from laggard.network_emulation.link_plan import PACKET_BYTES, QUEUE_PACKETS, Pair

TCP_PAYLOAD_BYTES = 1448
"""Data bytes of a full-size TCP segment with timestamps over IPv4, of `PACKET_BYTES` on the
wire."""

UDP_PAYLOAD_BYTES = 1472
IPV4_HEADER_BYTES = 20

_SIOCOUTQNSD = 0x894B
"""Request of ioctl(2) that returns the bytes that a TCP socket has not sent yet."""
_CHUNK = memoryview(bytes(1 << 16))
_LULL_S = 0.002
_QUEUE_S = 0.025
"""Length of the queue to keep at the bottleneck."""
_SETTLED_S = 0.03
_QUEUE_BYTES = (12_000, 600_000)
"""Smallest and largest queue to keep at the bottleneck."""
_OVERDRIVE = 1.25
"""Factor by which a UDP flow exceeds the expected rate."""
_DATAGRAM_S = 0.02
_LEAST_DATAGRAM_BYTES = 82
_SO_MAX_PACING_RATE = 47
_MOST_EXCESS = 0.1
"""Largest part by which a paced flow exceeds the rate."""


@dataclass(frozen=True)
class RateProbe:
    """Parameters of the rate measurement of one ordered pair (real units).

    Attributes:
        rate_mbps: expected rate.
        delay_ms: expected one-way delay.
        rtt_ms: expected round trip.
        transport: kind of flow.
        loss: fraction of packets that the link loses.
        jitter_ms: expected jitter.
    """

    src: str
    dst: str
    rate_mbps: float
    delay_ms: float
    rtt_ms: float
    transport: Literal["tcp", "udp"] = "tcp"
    loss: float = 0.0
    jitter_ms: float = 0.0

    @property
    def packet_bytes(self) -> int:
        """Return the bytes of a packet on the wire.

        Datagrams on a slow link are small, so that one takes at most 20 ms if that is possible.
        """
        if self.transport == "tcp":
            return PACKET_BYTES
        fitting = int(self.rate_mbps * 1.25e5 * _DATAGRAM_S)
        return min(PACKET_BYTES, max(_LEAST_DATAGRAM_BYTES, fitting))

    @property
    def burst_bytes(self) -> int:
        """Return the bytes to skip before measuring, which a token bucket may pass at once."""
        return 0 if self.packet_bytes == PACKET_BYTES else 2 * PACKET_BYTES

    @property
    def longest_s(self) -> float:
        """Return the usual duration of the measurement if the link has the expected rate."""
        rate = self.rate_mbps * 1.25e5
        return self.delay_ms / 1e3 + self.burst_bytes / rate + self.window_s

    @property
    def window_bytes(self) -> int:
        """Return the bytes to keep between the two ends: those of the link, and those of a queue.

        The queue is 25 ms long, within the bounds `_QUEUE_BYTES`.
        """
        rate = self.rate_mbps * 125.0
        queue = min(max(rate * _QUEUE_S * 1e3, _QUEUE_BYTES[0]), _QUEUE_BYTES[1])
        return int(rate * self.delay_ms + queue)

    @property
    def warm_up_s(self) -> float:
        """Return the longest time that slow start may take."""
        rate = self.rate_mbps * 1.25e5
        filling_s = (
            _QUEUE_BYTES[1] / (self.paced_bytes_per_s - rate) if self.paced_bytes_per_s else 0.0
        )
        return 0.25 + 14 * self.rtt_ms / 1e3 + 16 * self.window_bytes / rate / 10 + filling_s

    @property
    def paced_bytes_per_s(self) -> int | None:
        """Return the pace of a flow whose bursts would overflow the queue; None for other flows.

        The pace is a little above the link's rate.
        """
        rate = self.rate_mbps * 1.25e5
        pipe, queue = rate * self.rtt_ms / 1e3, QUEUE_PACKETS * PACKET_BYTES / 2
        return round(rate * (1 + min(_MOST_EXCESS, queue / pipe))) if pipe > queue else None

    @property
    def window_s(self) -> float:
        """Return the time to measure.

        It is 0.3 s, or the time of 60 packets or of 160 jitters if that is longer, at most 2 s,
        but at least the time of five packets. Packets that wait for an earlier packet arrive
        together with it, so either end of the window may be wrong by about one jitter.
        """
        packet_s = self.packet_bytes * 8e-6 / self.rate_mbps
        return max(5 * packet_s, min(2.0, max(0.3, 60 * packet_s, 160e-3 * self.jitter_ms)))


@dataclass
class _Flow:
    probe: RateProbe
    sender: socket.socket
    receiver: socket.socket
    payload_bytes: int
    sent: int = 0
    received: int = 0
    listening: bool = False
    begun_s: float | None = None
    measuring_until_s: float | None = None
    marks: list[tuple[float, int]] = field(default_factory=list)

    def full(self) -> bool:
        """Return True if the network itself, not the sender's buffer, holds a whole window."""
        outstanding = self.sent - self.received
        return (
            outstanding >= 0.8 * self.probe.window_bytes and _count_unsent_bytes(self.sender) == 0
        )

    def done(self, now_s: float) -> bool:
        return self.measuring_until_s is not None and now_s >= self.measuring_until_s


def measure_streams(
    probes: Sequence[RateProbe], hosts: Mapping[str, ProbeEndpoint]
) -> dict[Pair, float]:
    """Measure the rate of every probed link, in real Mbit/s on the wire, all at the same time.

    The rate is 0 if nothing arrived.
    """
    with ExitStack() as stack:
        flows = [_open_flow(probe, hosts, stack) for probe in probes]
        _run_flows(flows, stack)
    return {(flow.probe.src, flow.probe.dst): _wire_mbps(flow) for flow in flows}


def served_mbps(marks: Sequence[tuple[float, int]]) -> float:
    """Return Mbit/s between the first and last arrival of a busy link; 0 without two arrivals.

    The first arrival only starts the clock, because its bytes were served before.

    Args:
        marks: arrivals as (seconds, bytes so far).
    """
    if len(marks) < 2 or marks[-1][0] <= marks[0][0]:
        return 0.0
    return (marks[-1][1] - marks[0][1]) * 8e-6 / (marks[-1][0] - marks[0][0])


def _wire_mbps(flow: _Flow) -> float:
    return served_mbps(flow.marks) * flow.probe.packet_bytes / flow.payload_bytes


def _open_flow(probe: RateProbe, hosts: Mapping[str, ProbeEndpoint], stack: ExitStack) -> _Flow:
    kind = socket.SOCK_STREAM if probe.transport == "tcp" else socket.SOCK_DGRAM
    listener = stack.enter_context(listener_in(hosts[probe.dst], kind))
    sender = stack.enter_context(socket_in(hosts[probe.src], kind))
    if probe.transport == "tcp":
        sender.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")
        sender.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if probe.paced_bytes_per_s is not None:
            rate = struct.pack("=Q", probe.paced_bytes_per_s)  # 32 bits end at 34 Gbit/s
            sender.setsockopt(socket.SOL_SOCKET, _SO_MAX_PACING_RATE, rate)
    sender.connect_ex(listener.getsockname())
    over_ipv4 = (
        TCP_PAYLOAD_BYTES
        if probe.transport == "tcp"
        else UDP_PAYLOAD_BYTES - (PACKET_BYTES - probe.packet_bytes)
    )
    payload_bytes = over_ipv4 - (hosts[probe.dst].header_bytes - IPV4_HEADER_BYTES)
    return _Flow(probe, sender, listener, payload_bytes, listening=probe.transport == "tcp")


def _run_flows(flows: Sequence[_Flow], stack: ExitStack) -> None:
    poll = select.epoll()
    by_descriptor = {flow.receiver.fileno(): flow for flow in flows}
    for descriptor in by_descriptor:
        poll.register(descriptor, select.EPOLLIN)
    started_s = time.monotonic()
    limit_s = (
        started_s
        + max(f.probe.warm_up_s + f.probe.window_s + 2 * f.probe.rtt_ms / 1e3 for f in flows)
        + 1.0
    )
    while (now_s := time.monotonic()) < limit_s and not all(flow.done(now_s) for flow in flows):
        for flow in flows:
            _push_bytes(flow, now_s, started_s)
        for descriptor, _ in poll.poll(_LULL_S):
            flow = by_descriptor[descriptor]
            if flow.listening:
                by_descriptor[_accept_connection(flow, poll, stack)] = flow
            else:
                _pull_bytes(flow, started_s)
    poll.close()


def _accept_connection(flow: _Flow, poll: select.epoll, stack: ExitStack) -> int:
    peer = stack.enter_context(flow.receiver.accept()[0])
    peer.setblocking(False)
    poll.unregister(flow.receiver.fileno())
    poll.register(peer.fileno(), select.EPOLLIN)
    flow.receiver, flow.listening = peer, False
    return peer.fileno()


def _push_bytes(flow: _Flow, now_s: float, started_s: float) -> None:
    if flow.done(now_s):
        return
    if flow.probe.transport == "udp":
        _push_datagrams(flow, now_s, started_s)
        return
    while (room := flow.probe.window_bytes - (flow.sent - flow.received)) > 0:
        try:
            flow.sent += flow.sender.send(_CHUNK[:room])
        except (BlockingIOError, BrokenPipeError):
            return


def _push_datagrams(flow: _Flow, now_s: float, started_s: float) -> None:
    # Packets are lost before the queue, so the flow sends more of them to keep the link busy.
    pace = flow.probe.rate_mbps * _OVERDRIVE / max(0.05, 1.0 - flow.probe.loss) / 8e-6
    while flow.sent < (now_s - started_s) * pace:
        try:
            flow.sender.send(_CHUNK[: flow.payload_bytes])
        except (BlockingIOError, ConnectionRefusedError):
            return
        flow.sent += flow.probe.packet_bytes


def _pull_bytes(flow: _Flow, started_s: float) -> None:
    while True:
        try:
            count = flow.receiver.recv_into(_INBOX)
        except BlockingIOError:
            return
        if count == 0:
            return
        flow.received += count
        now_s = time.monotonic()
        if flow.measuring_until_s is None and _is_steady(flow, now_s, started_s):
            flow.measuring_until_s = now_s + flow.probe.window_s
        if flow.measuring_until_s is not None:
            flow.marks.append((now_s, flow.received))
        # A short read empties a TCP socket; a UDP socket returns one datagram per read.
        if flow.probe.transport == "tcp" and count < len(_INBOX):
            return


def _is_steady(flow: _Flow, now_s: float, started_s: float) -> bool:
    """Return True if the link is in steady state.

    That is the case when datagrams have arrived for some time, when the network has held a full
    window for a round trip, or when the warm-up is over.
    """
    arrived = flow.received * flow.probe.packet_bytes / flow.payload_bytes
    if flow.probe.transport == "tcp" and not flow.full():
        flow.begun_s = None
    elif arrived < flow.probe.burst_bytes:
        return False
    elif flow.begun_s is None:
        flow.begun_s = now_s
    settled_s = _SETTLED_S + (flow.probe.rtt_ms / 1e3 if flow.probe.transport == "tcp" else 0.0)
    steady = flow.begun_s is not None and now_s - flow.begun_s > settled_s
    return steady or now_s - started_s > flow.probe.warm_up_s


def _count_unsent_bytes(sender: socket.socket) -> int:
    answer = fcntl.ioctl(sender, _SIOCOUTQNSD, struct.pack("i", 0))
    return int(struct.unpack("i", answer)[0])


_INBOX = bytearray(1 << 18)
