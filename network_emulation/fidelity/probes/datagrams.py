"""Loss probe: small numbered UDP datagrams, sent one way far below the link's rate."""

from __future__ import annotations

import select
import socket
import struct
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from laggard.network_emulation.fidelity.probes.endpoint import ProbeEndpoint, listener_in, socket_in
from laggard.network_emulation.link_plan import Pair

DATAGRAM_WIRE_BYTES = 14 + 20 + 8 + 8
"""Bytes of a datagram on the wire: headers of Ethernet, IPv4 and UDP, and the number."""
_NUMBER = struct.Struct("!Q")
_TICK_S = 0.001
_SETTLE_S = 0.03
"""Real seconds to wait for late datagrams beyond the expected delay."""


@dataclass(frozen=True)
class LossProbe:
    """Parameters of the loss measurement of one ordered pair (real units).

    Attributes:
        src: host that sends.
        dst: host that receives.
        count: number of datagrams.
        per_s: datagrams per second.
        patience_ms: longest delay to wait for.
    """

    src: str
    dst: str
    count: int
    per_s: float
    patience_ms: float


@dataclass(frozen=True)
class LossCount:
    """Datagrams sent and lost."""

    sent: int
    lost: int


@dataclass
class _Train:
    probe: LossProbe
    sender: socket.socket
    receiver: socket.socket
    sent: int = 0
    seen: set[int] = field(default_factory=set)

    def push(self, elapsed_s: float) -> None:
        """Send the datagrams that are due.

        A datagram that the sender's own queue refuses is sent later and is no loss.
        """
        due = min(self.probe.count, int(elapsed_s * self.probe.per_s) + 1)
        while self.sent < due:
            try:
                self.sender.send(_NUMBER.pack(self.sent))
            except BlockingIOError:
                return
            self.sent += 1

    def pull(self) -> None:
        while True:
            try:
                # A set, so that a duplicate does not hide a loss.
                self.seen.add(_NUMBER.unpack(self.receiver.recv(64))[0])
            except BlockingIOError:
                return


def measure_datagrams(
    probes: Sequence[LossProbe], hosts: Mapping[str, ProbeEndpoint]
) -> dict[Pair, LossCount]:
    """Measure the losses of every probed link, all at the same time."""
    with ExitStack() as stack:
        trains = [_open_train(probe, hosts, stack) for probe in probes]
        _run_trains(trains)
    return {(t.probe.src, t.probe.dst): LossCount(t.sent, t.sent - len(t.seen)) for t in trains}


def _open_train(probe: LossProbe, hosts: Mapping[str, ProbeEndpoint], stack: ExitStack) -> _Train:
    receiver = stack.enter_context(listener_in(hosts[probe.dst], socket.SOCK_DGRAM))
    sender = stack.enter_context(socket_in(hosts[probe.src], socket.SOCK_DGRAM))
    sender.connect(receiver.getsockname())
    return _Train(probe, sender, receiver)


def _run_trains(trains: Sequence[_Train]) -> None:
    poll = select.epoll()
    by_descriptor = {train.receiver.fileno(): train for train in trains}
    for descriptor in by_descriptor:
        poll.register(descriptor, select.EPOLLIN)
    start_s = tick_s = time.monotonic()
    quiet_s = (
        start_s
        + max(t.probe.count / t.probe.per_s + t.probe.patience_ms / 1e3 for t in trains)
        + _SETTLE_S
    )
    while (now_s := time.monotonic()) < quiet_s:
        if now_s >= tick_s:
            tick_s = now_s + _TICK_S
            for train in trains:
                train.push(now_s - start_s)
        for descriptor, _ in poll.poll(max(0.0, tick_s - time.monotonic())):
            by_descriptor[descriptor].pull()
    poll.close()
