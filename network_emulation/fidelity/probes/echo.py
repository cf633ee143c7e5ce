"""Round-trip probe by ICMP echo, answered by the other host's kernel (RFC 792; RFC 4443 for IPv6).

The kernel stamps a reply on arrival (SO_TIMESTAMPNS), so the scheduling of neither end enters the
result: it measures the link. Echoes of two sizes alternate. The line through both medians,
extended to zero bytes, gives the round trip of an empty packet (Jacobson's pathchar). So the time
of a packet's own bytes counts towards the rate, not the delay.
"""

from __future__ import annotations

import heapq
import os
import select
import socket
import statistics
import struct
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from laggard.network_emulation.fidelity.probes.endpoint import ProbeEndpoint, socket_in
from laggard.network_emulation.link_plan import Pair

SMALL_BYTES, LARGE_BYTES = 16, 1016
_IP_BYTES = 20
_HEADERS = 14 + 8
_ECHO_REQUEST, _ECHO_REPLY = 8, 0
_ECHO_REQUEST_6, _ECHO_REPLY_6 = 128, 129
_SO_TIMESTAMPNS = 35
_TIMESPEC = struct.Struct("@ll")
_ICMP = struct.Struct("!BBHHH")
_GRACE_S = 0.03


@dataclass(frozen=True)
class EchoProbe:
    """Parameters of the round-trip measurement of one pair.

    Attributes:
        src: host that sends.
        dst: host that answers.
        count: number of echoes, both sizes together.
        spacing_ms: time between two echoes.
        patience_ms: longest round trip to wait for.
        large_bytes: payload of the large echoes.
    """

    src: str
    dst: str
    count: int
    spacing_ms: float
    patience_ms: float
    large_bytes: int = LARGE_BYTES


@dataclass(frozen=True)
class Echoes:
    """Round trips of one probe in ns, in order of arrival.

    Attributes:
        small_ns: round trips of small echoes.
        large_ns: round trips of large echoes.
        header_bytes: size of their IP headers.
        large_bytes: payload of the large echoes.
    """

    small_ns: tuple[int, ...]
    large_ns: tuple[int, ...]
    header_bytes: int = _IP_BYTES
    large_bytes: int = LARGE_BYTES


@dataclass
class _Round:
    """One pair being probed: departure time of each echo, and round trips of each size in ns."""

    probe: EchoProbe
    descriptor: int
    peer: ProbeEndpoint
    left_ns: dict[int, int]
    small_ns: list[int]
    large_ns: list[int]


def measure_echoes(
    probes: Sequence[EchoProbe], hosts: Mapping[str, ProbeEndpoint]
) -> dict[Pair, float | None]:
    """Measure the median round-trip time of an empty packet for every probe, in real ms.

    It is None if no echo came back. All pairs are probed at the same time, with interleaved
    echoes.
    """
    sampled = sample_echoes(probes, hosts)
    return {
        pair: round_trip_ms(each.small_ns, each.large_ns, each.header_bytes, each.large_bytes)
        for pair, each in sampled.items()
    }


def sample_echoes(
    probes: Sequence[EchoProbe], hosts: Mapping[str, ProbeEndpoint]
) -> dict[Pair, Echoes]:
    """Measure every round trip of every probe, all pairs at the same time.

    The time of the packet's own bytes is included.
    """
    sources = {
        name: socket_in(hosts[name], socket.SOCK_RAW, _get_icmp_protocol(hosts[name]))
        for name in {p.src for p in probes}
    }
    for source in sources.values():
        source.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
    rounds = [_Round(p, sources[p.src].fileno(), hosts[p.dst], {}, [], []) for p in probes]
    by_descriptor = {source.fileno(): source for source in sources.values()}
    try:
        _run_rounds(rounds, by_descriptor)
    finally:
        for source in sources.values():
            source.close()
    return {
        (r.probe.src, r.probe.dst): Echoes(
            tuple(r.small_ns), tuple(r.large_ns), r.peer.header_bytes, r.probe.large_bytes
        )
        for r in rounds
    }


def _get_icmp_protocol(endpoint: ProbeEndpoint) -> int:
    return socket.IPPROTO_ICMPV6 if endpoint.family == socket.AF_INET6 else socket.IPPROTO_ICMP


def round_trip_ms(
    small_ns: Sequence[int],
    large_ns: Sequence[int],
    header_bytes: int = _IP_BYTES,
    large_bytes: int = LARGE_BYTES,
) -> float | None:
    """Return the round trip of an empty packet in ms; None without echoes of both sizes.

    Args:
        small_ns: round trips of small echoes.
        large_ns: round trips of large echoes.
        header_bytes: size of their IP headers.
        large_bytes: payload of the large echoes.
    """
    if not small_ns or not large_ns:
        return None
    small, large = statistics.median(small_ns), statistics.median(large_ns)
    per_byte = max(0.0, (large - small) / (large_bytes - SMALL_BYTES))
    return (small - per_byte * (SMALL_BYTES + header_bytes + _HEADERS)) / 1e6


def _run_rounds(rounds: Sequence[_Round], sources: Mapping[int, socket.socket]) -> None:
    poll = select.epoll()
    for descriptor in sources:
        poll.register(descriptor, select.EPOLLIN)
    start_s = time.monotonic() + 0.001
    # Pairs are spread over one spacing, so that echoes of different pairs do not queue behind each
    # other.
    plan = [
        (start_s + r.probe.spacing_ms * i / len(rounds) / 1e3, i, 0) for i, r in enumerate(rounds)
    ]
    heapq.heapify(plan)
    ends_s = max(
        start_s + ((r.probe.count + 1) * r.probe.spacing_ms + r.probe.patience_ms) / 1e3
        for r in rounds
    )
    while (now_s := time.monotonic()) < ends_s + _GRACE_S and not _is_complete(rounds, plan):
        while plan and plan[0][0] <= now_s:
            due_s, index, number = heapq.heappop(plan)
            _send_echo(rounds[index], sources, index, number)
            if number + 1 < rounds[index].probe.count:
                heapq.heappush(
                    plan, (due_s + rounds[index].probe.spacing_ms / 1e3, index, number + 1)
                )
        wait_s = plan[0][0] - time.monotonic() if plan else 0.005
        for descriptor, _ in poll.poll(max(0.0, wait_s)):
            _receive_echoes(rounds, sources[descriptor])
    poll.close()


def _is_complete(rounds: Sequence[_Round], plan: Sequence[object]) -> bool:
    return not plan and all(len(r.small_ns) + len(r.large_ns) == r.probe.count for r in rounds)


def _send_echo(
    round_: _Round, sources: Mapping[int, socket.socket], index: int, number: int
) -> None:
    size = round_.probe.large_bytes if number % 2 else SMALL_BYTES
    if round_.peer.family == socket.AF_INET6:
        # The kernel computes the checksum, which covers the addresses too (RFC 3542).
        packet = _ICMP.pack(_ECHO_REQUEST_6, 0, 0, index, number) + bytes(size)
    else:
        packet = echo_request(index, number, size)
    # SO_TIMESTAMPNS uses CLOCK_REALTIME, so the departure is read from the same clock.
    round_.left_ns[number] = time.time_ns()
    sources[round_.descriptor].sendto(packet, (round_.peer.address, 0))


def echo_request(identifier: int, number: int, payload_bytes: int) -> bytes:
    """Return an ICMP echo request with its checksum (RFC 1071)."""
    body = bytes(payload_bytes)
    header = _ICMP.pack(_ECHO_REQUEST, 0, 0, identifier, number)
    words = struct.unpack(f"!{(len(header) + payload_bytes) // 2}H", header + body)
    total = sum(words)
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return _ICMP.pack(_ECHO_REQUEST, 0, ~total & 0xFFFF, identifier, number) + body


def _receive_echoes(rounds: Sequence[_Round], source: socket.socket) -> None:
    while True:
        try:
            packet, ancillary, _, _ = source.recvmsg(2048, 64)
        except BlockingIOError:
            return
        is_ipv6 = source.family == socket.AF_INET6
        # A raw IPv6 socket delivers packets without the IP header.
        start = 0 if is_ipv6 else (packet[0] & 0xF) * 4
        kind, _, _, identifier, number = _ICMP.unpack_from(packet, start)
        if kind != (_ECHO_REPLY_6 if is_ipv6 else _ECHO_REPLY) or identifier >= len(rounds):
            continue
        # The ICMP identifier is the index of the round, the sequence number that of the echo. A
        # second reply to one echo is ignored.
        round_ = rounds[identifier]
        left_ns = round_.left_ns.pop(number, None)
        if left_ns is not None and round_.descriptor == source.fileno():
            took = round_.large_ns if number % 2 else round_.small_ns
            took.append(_stamp_ns(ancillary) - left_ns)


def _stamp_ns(ancillary: Sequence[tuple[int, int, bytes]]) -> int:
    for _, kind, data in ancillary:
        if kind == _SO_TIMESTAMPNS:
            seconds, nanoseconds = _TIMESPEC.unpack_from(data)
            return int(seconds) * 1_000_000_000 + int(nanoseconds)
    raise OSError(os.EX_OSERR, "the kernel did not add a timestamp to a received packet")
