"""The rate of a link, by a flow of its own that keeps the link busy.

Links that lose nothing get a TCP connection. It starts with reno's plain slow start and is held at
a window that keeps a short queue at the bottleneck (bandwidth x delay, and a little), which this
process can do exactly because it holds both ends: the link never idles, nothing is dropped, and
from then on bytes arrive as the link serves them. Where a round trip takes more than a queue holds,
slow start would send what fills it in bursts of twice the rate, and lose them: it is paced there.
Links that lose or jitter get UDP above their rate, since TCP there measures TCP (Mathis et al.
1997).
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
"""What a full-size TCP segment with timestamps leaves for data, of `PACKET_BYTES` on the wire over
IPv4."""

UDP_PAYLOAD_BYTES = 1472
IPV4_HEADER_BYTES = 20

_SIOCOUTQNSD = 0x894B
_CHUNK = memoryview(bytes(1 << 16))
_LULL_S = 0.002
_QUEUE_S = 0.025
_SETTLED_S = 0.03
_QUEUE_BYTES = (12_000, 600_000)
_OVERDRIVE = 1.25
_SO_MAX_PACING_RATE = 47
_MOST_EXCESS = 0.1


@dataclass(frozen=True)
class RateProbe:
    """How to measure one ordered pair (real units).

    Attributes:
        rate_mbps: expected.
        delay_ms: one way, expected.
        rtt_ms: round trip, expected.
        transport: what to send.
        loss: fraction of packets that the link loses.
        jitter_ms: how much its delay varies, expected.
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
    def window_bytes(self) -> int:
        """Bytes to keep between the two ends: the link's own, and a queue of 25 ms or what a queue
        takes.
        """
        rate = self.rate_mbps * 125.0
        queue = min(max(rate * _QUEUE_S * 1e3, _QUEUE_BYTES[0]), _QUEUE_BYTES[1])
        return int(rate * self.delay_ms + queue)

    @property
    def warm_up_s(self) -> float:
        """How long slow start may take at most."""
        rate = self.rate_mbps * 1.25e5
        filling_s = (
            _QUEUE_BYTES[1] / (self.paced_bytes_per_s - rate) if self.paced_bytes_per_s else 0.0
        )
        return 0.25 + 14 * self.rtt_ms / 1e3 + 16 * self.window_bytes / rate / 10 + filling_s

    @property
    def paced_bytes_per_s(self) -> int | None:
        """A little more than the link carries, for a flow whose bursts its queue would not hold;
        None for others.
        """
        rate = self.rate_mbps * 1.25e5
        pipe, queue = rate * self.rtt_ms / 1e3, QUEUE_PACKETS * PACKET_BYTES / 2
        return round(rate * (1 + min(_MOST_EXCESS, queue / pipe))) if pipe > queue else None

    @property
    def window_s(self) -> float:
        """How long to measure: 0.3 s, or the time of 60 packets or of 160 jitters where those take
        longer, at most 2 s, unless that is too short for five packets.

        Packets that wait for one before them arrive together with it, so that either end of the
        window may be off by a jitter or so.
        """
        packet_s = PACKET_BYTES * 8e-6 / self.rate_mbps
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
        """Whether the network itself holds a whole window, not the sender's buffer."""
        outstanding = self.sent - self.received
        return (
            outstanding >= 0.8 * self.probe.window_bytes and _count_unsent_bytes(self.sender) == 0
        )

    def done(self, now_s: float) -> bool:
        return self.measuring_until_s is not None and now_s >= self.measuring_until_s


def measure_streams(
    probes: Sequence[RateProbe], hosts: Mapping[str, ProbeEndpoint]
) -> dict[Pair, float]:
    """Rate of every probed link, in real Mbit/s on the wire, all flows at the same time; 0 where
    nothing arrived.
    """
    with ExitStack() as stack:
        flows = [_open_flow(probe, hosts, stack) for probe in probes]
        _run_flows(flows, stack)
    return {(flow.probe.src, flow.probe.dst): _wire_mbps(flow) for flow in flows}


def served_mbps(marks: Sequence[tuple[float, int]]) -> float:
    """Mbit/s between the first and the last arrival of a busy link, from (seconds, bytes so far); 0
    without two arrivals.

    What arrives first only starts the clock: its bytes were served before.
    """
    if len(marks) < 2 or marks[-1][0] <= marks[0][0]:
        return 0.0
    return (marks[-1][1] - marks[0][1]) * 8e-6 / (marks[-1][0] - marks[0][0])


def _wire_mbps(flow: _Flow) -> float:
    return served_mbps(flow.marks) * PACKET_BYTES / flow.payload_bytes


def _open_flow(probe: RateProbe, hosts: Mapping[str, ProbeEndpoint], stack: ExitStack) -> _Flow:
    kind = socket.SOCK_STREAM if probe.transport == "tcp" else socket.SOCK_DGRAM
    listener = stack.enter_context(listener_in(hosts[probe.dst], kind))
    sender = stack.enter_context(socket_in(hosts[probe.src], kind))
    if probe.transport == "tcp":
        sender.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")
        sender.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if probe.paced_bytes_per_s is not None:
            rate = struct.pack("=Q", probe.paced_bytes_per_s)  # 32 bits would end at 34 Gbit/s
            sender.setsockopt(socket.SOL_SOCKET, _SO_MAX_PACING_RATE, rate)
    sender.connect_ex(listener.getsockname())
    over_ipv4 = TCP_PAYLOAD_BYTES if probe.transport == "tcp" else UDP_PAYLOAD_BYTES
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
    pace = flow.probe.rate_mbps * _OVERDRIVE / max(0.05, 1.0 - flow.probe.loss) / 8e-6
    while flow.sent < (now_s - started_s) * pace:
        try:
            flow.sender.send(_CHUNK[: flow.payload_bytes])
        except (BlockingIOError, ConnectionRefusedError):
            return
        flow.sent += PACKET_BYTES


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
        if flow.probe.transport == "tcp" and count < len(_INBOX):
            return


def _is_steady(flow: _Flow, now_s: float, started_s: float) -> bool:
    """Whether the link is in steady state: datagrams came for a while, or the network held a full
    window for a round trip.
    """
    if flow.probe.transport == "tcp" and not flow.full():
        flow.begun_s = None
    elif flow.begun_s is None:
        flow.begun_s = now_s
    settled_s = _SETTLED_S + (flow.probe.rtt_ms / 1e3 if flow.probe.transport == "tcp" else 0.0)
    steady = flow.begun_s is not None and now_s - flow.begun_s > settled_s
    return steady or now_s - started_s > flow.probe.warm_up_s


def _count_unsent_bytes(sender: socket.socket) -> int:
    answer = fcntl.ioctl(sender, _SIOCOUTQNSD, struct.pack("i", 0))
    return int(struct.unpack("i", answer)[0])


_INBOX = bytearray(1 << 18)
