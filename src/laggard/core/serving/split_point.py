"""Dynamic split computing: at which block a request leaves its device for a server.

The first blocks of a network compute at the device and the rest at the server, so that the latency
of a request is shortest (Y. Kang et al., "Neurosurgeon", ASPLOS 2017; A. Bakhtiarnia et al.,
"Dynamic split computing for efficient deep edge intelligence", ICASSP 2023). In a chain every cut
can be tried, so the choice is exact for what is known of the link and the queues.
"""

from __future__ import annotations

import math
import operator
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

from laggard.core.serving.served_network import ServedNetwork

SplitName = Literal["dynamic", "static", "none", "server"]
"""`dynamic` chooses a cut for every request, `static` one for all requests, from the state of the
link at the start. `none` computes all blocks at the device, and `server` at the server."""

SPLITS: tuple[SplitName, ...] = get_args(SplitName)

LEAST_GAIN = 0.03
"""Part of the latency that another cut must save before it is taken."""

FADING, MOST_SEEN = 0.1, 12
"""Weight of a message relative to the next one, and the number of messages that are remembered."""

PROBE_S, PROBE_BYTES = 0.25, 2048
"""Seconds without a message to the server after which a device asks how the link is, and the bytes
of the question."""

START_WEIGHT, LEAST_S, FASTEST_MBPS = 1e-3, 1e-6, 1e5
"""Weight of the round trip at the start, and limits of what is believed."""


@dataclass(frozen=True)
class LinkState:
    """Rate and round trip that a device believes the link to its server has.

    Attributes:
        rate_mbps: rate in Mbit/s.
        round_trip_s: seconds of a small message and its answer.
    """

    rate_mbps: float
    round_trip_s: float

    def predict_s(self, size_bytes: float) -> float:
        """Return the seconds from the first byte of a message to the end of its answer's way."""
        return size_bytes * 8 / (self.rate_mbps * 1e6) + self.round_trip_s


@dataclass(frozen=True)
class QueueState:
    """Seconds that a request would wait for other ones.

    Attributes:
        device_s: before its first block at the device.
        link_s: before its first byte on the link to the server.
        server_s: before its first block at the server.
    """

    device_s: float = 0.0
    link_s: float = 0.0
    server_s: float = 0.0


def predict_latencies(
    network: ServedNetwork, link: LinkState, queues: QueueState
) -> Sequence[float]:
    """Return the expected seconds of a request for every cut, [blocks + 1].

    Examples:
        >>> network = ServedNetwork("a", (0.2, 0.6), (0.01, 0.03), cut_bytes=(5e5, 1e5))
        >>> latencies = predict_latencies(network, LinkState(8.0, 0.1), QueueState())
        >>> [round(each, 2) for each in latencies]
        [0.64, 0.43, 0.8]
    """
    heads_s, tails_s = network.sum_head_s(), network.sum_tail_s()
    latencies = [
        (queues.device_s if cut else 0.0)
        + heads_s[cut]
        # What is on the link already passes while the device computes.
        + max(queues.link_s - (queues.device_s + heads_s[cut] if cut else 0.0), 0.0)
        + link.predict_s(size_bytes)
        + queues.server_s
        + tails_s[cut]
        for cut, size_bytes in enumerate(network.cut_bytes)
    ]
    return [*latencies, queues.device_s + network.alone_s]


@dataclass
class LinkBelief:
    """State of a link as its last messages tell it: the line through their sizes and seconds.

    A message counts `FADING` times as much as the one after it, and errors count relative to the
    seconds. If all messages have one size, the round trip stays what it was at the start.

    Attributes:
        state: what is believed now.
    """

    state: LinkState
    _seen: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=MOST_SEEN))
    _start_s: float = field(init=False)

    def __post_init__(self) -> None:
        self._start_s = max(self.state.round_trip_s, LEAST_S)

    def learn(self, size_bytes: float, took_s: float) -> None:
        """Learn from a message whose answer came back.

        Args:
            size_bytes: bytes of the message.
            took_s: seconds on its way and on the way of its answer, without those at the server.
        """
        self._seen.append((size_bytes, max(took_s, LEAST_S)))
        points = [(FADING**age, *each) for age, each in enumerate(reversed(self._seen))]
        # The start counts little beside a message, however short the round trip was then.
        weight = START_WEIGHT * (self._start_s / self._seen[-1][1]) ** 2
        self.state = _fit_link([*points, (weight, 0.0, self._start_s)])


def _fit_link(points: Sequence[tuple[float, float, float]]) -> LinkState:
    """Return the line through weighted sizes and seconds, of which no part is negative."""
    weights = [weight / took_s**2 for weight, _, took_s in points]
    sizes = [size for _, size, _ in points]
    seconds = [took_s for _, _, took_s in points]
    total = sum(weights)
    mean_bytes = sum(map(operator.mul, weights, sizes)) / total
    mean_s = sum(map(operator.mul, weights, seconds)) / total
    spread = sum(
        weight * (size - mean_bytes) ** 2 for weight, size in zip(weights, sizes, strict=True)
    )
    common = sum(
        weight * (size - mean_bytes) * took_s
        for weight, size, took_s in zip(weights, sizes, seconds, strict=True)
    )
    byte_s = common / spread if spread > 0 else 0.0
    # A round trip of less than nothing would follow: then all of the time is the bytes'.
    if byte_s * mean_bytes > mean_s:
        byte_s = mean_s / mean_bytes
    byte_s = max(byte_s, 8e-6 / FASTEST_MBPS)
    return LinkState(8e-6 / byte_s, max(mean_s - byte_s * mean_bytes, 0.0))


@dataclass
class SplitChooser:
    """Choice of cuts for the requests of one device.

    Attributes:
        split: how cuts are chosen.
        link: what is believed of the link to the server; None without a server.
        switches: number of times that the cut of a network changed.
    """

    split: SplitName
    link: LinkBelief | None = None
    switches: int = 0
    _cuts: dict[str, int] = field(default_factory=dict)
    _sent: dict[int, tuple[float, float]] = field(default_factory=dict)

    def note_sent(self, number: int, size_bytes: float, now_s: float) -> None:
        """Note that the message of a request is on the link from now on."""
        self._sent[number] = now_s, size_bytes

    def note_answered(self, number: int) -> None:
        """Note that a request that was sent is answered."""
        self._sent.pop(number, None)

    def predict_link_wait_s(self, now_s: float) -> float:
        """Return the seconds until the messages that are not answered have passed the link."""
        if self.link is None or not self._sent:
            return 0.0
        begun_s = min(sent_s for sent_s, _ in self._sent.values())
        moved = sum(size_bytes for _, size_bytes in self._sent.values())
        return max(moved * 8e-6 / self.link.state.rate_mbps - (now_s - begun_s), 0.0)

    def learn(self, size_bytes: float, took_s: float) -> None:
        """Learn from a message that was answered (see `LinkBelief`)."""
        if self.link is not None:
            self.link.learn(size_bytes, took_s)

    def choose(self, network: ServedNetwork, queues: QueueState) -> int:
        """Return the cut of a request, and remember it for the network's next one.

        A cut stays unless another one is expected to save at least `LEAST_GAIN` of the latency, so
        that small changes of a link do not move it back and forth.
        """
        if self.link is None or self.split == "none":
            return network.blocks
        if self.split == "server":
            return 0
        last = self._cuts.get(network.name)
        if self.split == "static" and last is not None:
            return last
        known = queues if self.split == "dynamic" else QueueState()
        latencies = predict_latencies(network, self.link.state, known)
        best = min(range(len(latencies)), key=lambda cut: (latencies[cut], -cut))
        if last is not None:
            if latencies[best] >= (1 - LEAST_GAIN) * latencies[last]:
                return last
            self.switches += 1
        self._cuts[network.name] = best
        return best


def is_feasible(latencies: Sequence[float], deadline_s: float) -> bool:
    """Return whether any cut is expected to meet a deadline."""
    return min(latencies, default=math.inf) <= deadline_s
