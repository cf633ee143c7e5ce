"""Concurrent messages, which share the rates of links and bottlenecks evenly (max-min fairness).

The definition is that of Bertsekas and Gallager 1992, section 6.5.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from laggard.core.simulation.event_loop import Action, EventLoop
from laggard.core.simulation.network import FRAMING_OVERHEAD, SimulatedNetwork

# Remaining bits that count as none; it absorbs rounding errors of times.
_MIN_BITS = 1e-3


def compute_fair_rates(
    routes: Sequence[Sequence[Hashable]], rates: Mapping[Hashable, float]
) -> list[float]:
    """Return the max-min fair rate of each message.

    No message could have more unless another that has no more gets less.

    Args:
        routes: links and bottlenecks that each message uses; at least one each.
        rates: rates of these links and bottlenecks; may be infinite.
    """
    given = [float("inf")] * len(routes)
    open_routes = dict(enumerate(routes))
    left = {each: rates[each] for route in routes for each in route}
    # Progressive filling: the tightest link fixes the rate of all its messages, and the rest of
    # the capacity is shared among the others.
    while open_routes:
        users = {each: sum(each in route for route in open_routes.values()) for each in left}
        parts = {each: left[each] / count for each, count in users.items() if count}
        tight = min(parts, key=lambda each: parts[each])
        part = parts[tight]
        for index in [index for index, route in open_routes.items() if tight in route]:
            given[index] = part
            for each in open_routes.pop(index):
                left[each] = max(left[each] - part, 0.0) if part < float("inf") else left[each]
    return given


@dataclass
class _MessageFlow:
    """Message in flight."""

    route: tuple[Hashable, ...]
    left_bits: float
    delay_s: float
    on_done: Action
    rate_mbps: float = 0.0


class MessageFlows:
    """Messages between hosts, each at its fair rate.

    Args:
        loop: event loop with the simulated time.
        network: links and bottlenecks between the hosts.
    """

    def __init__(self, loop: EventLoop, network: SimulatedNetwork) -> None:
        self._loop, self._network = loop, network
        self._flows: list[_MessageFlow] = []
        self._since_s, self._turn = 0.0, 0
        # Rates change when a slow period begins or ends, also while messages are in flight.
        for edge_s in sorted(
            {edge for slow in network.slow_periods for edge in (slow.first_s, slow.last_s)}
        ):
            loop.schedule(edge_s, self._on_rate_change)

    def send(self, src: str, dst: str, size_bytes: float, on_done: Action) -> None:
        """Start to send a message and call `on_done` when its last byte has arrived."""
        hop = self._network.hop((src, dst), self._loop.now_s)
        if src == dst or not size_bytes:
            self._loop.schedule(self._loop.now_s + hop.rtt_ms / 2e3, on_done)
            return
        shared = (each.name for each in self._network.bottlenecks if hop.ends in each.ends)
        self._advance()
        self._flows.append(
            _MessageFlow(
                (hop.ends, *shared), size_bytes * 8 * FRAMING_OVERHEAD, hop.rtt_ms / 2e3, on_done
            )
        )
        self._allocate_rates()

    def _on_rate_change(self) -> None:
        self._advance()
        self._allocate_rates()

    def _advance(self) -> None:
        for flow in self._flows:
            if flow.rate_mbps == float("inf"):
                flow.left_bits = 0.0
            else:
                flow.left_bits -= flow.rate_mbps * 1e6 * (self._loop.now_s - self._since_s)
        self._since_s = self._loop.now_s

    def _allocate_rates(self) -> None:
        rates: dict[Hashable, float] = {
            each.name: each.rate_mbps for each in self._network.bottlenecks
        }
        for flow in self._flows:
            ends = flow.route[0]
            assert isinstance(ends, tuple)
            rates[ends] = self._network.hop((ends[0], ends[1]), self._loop.now_s).rate_mbps
        for flow, rate in zip(
            self._flows,
            compute_fair_rates([flow.route for flow in self._flows], rates),
            strict=True,
        ):
            flow.rate_mbps = rate
        self._turn += 1
        if self._flows:
            first_s = min(max(flow.left_bits, 0.0) / (flow.rate_mbps * 1e6) for flow in self._flows)
            self._loop.schedule(self._loop.now_s + first_s, partial(self._finish, self._turn))

    def _finish(self, turn: int) -> None:
        # Messages were added or removed since this event was scheduled; a newer event replaces it.
        if turn != self._turn:
            return
        self._advance()
        least = min(flow.left_bits for flow in self._flows)
        done = [flow for flow in self._flows if flow.left_bits <= max(least, 0.0) + _MIN_BITS]
        self._flows = [flow for flow in self._flows if not any(flow is each for each in done)]
        for flow in done:
            self._loop.schedule(self._loop.now_s + flow.delay_s, flow.on_done)
        self._allocate_rates()
