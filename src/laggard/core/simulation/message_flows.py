"""Concurrent messages, which share the rates of links and bottlenecks evenly (max-min fairness).

The definition is that of Bertsekas and Gallager 1992, section 6.5. A message that begins or ends
changes the rates of those only that share a link with it, directly or through others.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from laggard.core.cost_model.links import HopEnds
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
    if len(routes) == 1:
        return [min(rates[link] for link in routes[0])]
    given = [float("inf")] * len(routes)
    users: dict[Hashable, set[int]] = {}
    for index, route in enumerate(routes):
        for link in route:
            users.setdefault(link, set()).add(index)
    left = {link: rates[link] for link in users}
    # Progressive filling: the tightest link fixes the rate of all its messages, and the rest of the
    # capacity is shared among the others. The number breaks ties, since links have no order.
    parts = [
        (left[link] / len(of), number, link) for number, (link, of) in enumerate(users.items())
    ]
    heapq.heapify(parts)
    while parts:
        known, number, link = heapq.heappop(parts)
        if not users[link]:
            continue
        part = left[link] / len(users[link])
        # Parts only grow, so an outdated one is never too large.
        if part > known:
            heapq.heappush(parts, (part, number, link))
            continue
        for index in list(users[link]):
            given[index] = part
            for other in routes[index]:
                users[other].discard(index)
                left[other] = max(left[other] - part, 0.0) if part < float("inf") else left[other]
    return given


@dataclass(eq=False)
class _MessageFlow:
    """Message in flight; `turn` counts the changes of its rate or of the rates beside it."""

    route: tuple[Hashable, ...]
    left_bits: float
    delay_s: float
    on_done: Action
    since_s: float
    rate_mbps: float = 0.0
    turn: int = 0

    def advance(self, now_s: float) -> None:
        if self.rate_mbps == float("inf"):
            self.left_bits = 0.0
        else:
            self.left_bits -= self.rate_mbps * 1e6 * (now_s - self.since_s)
        self.since_s = now_s


class MessageFlows:
    """Messages between hosts, each at its fair rate.

    Args:
        loop: event loop with the simulated time.
        network: links and bottlenecks between the hosts.
    """

    def __init__(self, loop: EventLoop, network: SimulatedNetwork) -> None:
        self._loop, self._network = loop, network
        self._bottleneck_rates: dict[Hashable, float] = {
            each.name: each.rate_mbps for each in network.bottlenecks
        }
        self._shared: dict[HopEnds, tuple[str, ...]] = {}
        # Flows in the order in which they began, by link.
        self._on_link: dict[Hashable, dict[_MessageFlow, None]] = {}
        # Rates change when a slow period begins or ends, also while messages are in flight.
        for edge_s in sorted(
            {edge for slow in network.slow_periods for edge in (slow.first_s, slow.last_s)}
        ):
            loop.schedule(edge_s, self._on_rate_change)

    def send(self, src: str, dst: str, size_bytes: float, on_done: Action) -> None:
        """Start to send a message and call `on_done` when its last byte has arrived."""
        hop, now_s = self._network.hop((src, dst), self._loop.now_s), self._loop.now_s
        if src == dst or not size_bytes:
            self._loop.schedule(now_s + hop.rtt_ms / 2e3, on_done)
            return
        route = (hop.ends, *self._find_shared(hop.ends))
        bits = size_bytes * 8 * FRAMING_OVERHEAD
        flow = _MessageFlow(route, bits, hop.rtt_ms / 2e3, on_done, now_s)
        for link in route:
            self._on_link.setdefault(link, {})[flow] = None
        self._allocate_rates([flow])

    def _find_shared(self, ends: HopEnds) -> tuple[str, ...]:
        """Return the names of the bottlenecks of a link."""
        if ends not in self._shared:
            self._shared[ends] = tuple(
                each.name for each in self._network.bottlenecks if ends in each.ends
            )
        return self._shared[ends]

    def _on_rate_change(self) -> None:
        self._allocate_rates(flow for flows in self._on_link.values() for flow in flows)

    def _allocate_rates(self, changed: Iterable[_MessageFlow]) -> None:
        """Give new rates to these messages and to all that share links with them."""
        seen: set[_MessageFlow] = set()
        for flow in list(changed):
            if flow not in seen:
                together = self._find_together(flow)
                seen.update(together)
                self._share_rates(together)

    def _find_together(self, flow: _MessageFlow) -> list[_MessageFlow]:
        """Return the messages that share links with a message, directly or through others."""
        found, visited = {flow: None}, set()
        pending = [flow]
        while pending:
            for link in pending.pop().route:
                if link in visited:
                    continue
                visited.add(link)
                for other in self._on_link[link]:
                    if other not in found:
                        found[other] = None
                        pending.append(other)
        return list(found)

    def _share_rates(self, flows: Sequence[_MessageFlow]) -> None:
        now_s, first_s, first = self._loop.now_s, float("inf"), flows[0]
        rates = dict(self._bottleneck_rates)
        for flow in flows:
            flow.advance(now_s)
            ends = flow.route[0]
            assert isinstance(ends, tuple)
            rates[ends] = self._network.hop((ends[0], ends[1]), now_s).rate_mbps
        fair = compute_fair_rates([flow.route for flow in flows], rates)
        for flow, rate in zip(flows, fair, strict=True):
            flow.rate_mbps = rate
            flow.turn += 1
            left_s = max(flow.left_bits, 0.0) / (rate * 1e6)
            if left_s < first_s:
                first_s, first = left_s, flow
        self._loop.schedule(now_s + first_s, partial(self._finish, first, first.turn))

    def _finish(self, first: _MessageFlow, turn: int) -> None:
        # Messages were added or removed since this event was scheduled; a newer event replaces it.
        if turn != first.turn:
            return
        together, now_s = self._find_together(first), self._loop.now_s
        for flow in together:
            flow.advance(now_s)
        least = max(min(flow.left_bits for flow in together), 0.0) + _MIN_BITS
        for flow in [flow for flow in together if flow.left_bits <= least]:
            # An event of its own may be due at this very moment.
            flow.turn += 1
            for link in flow.route:
                del self._on_link[link][flow]
            self._loop.schedule(now_s + flow.delay_s, flow.on_done)
        self._allocate_rates(flow for flow in together if flow.left_bits > least)
