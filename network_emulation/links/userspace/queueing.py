"""Model of the emulated links: sizes and times in, departure times out (no I/O, no clock).

A `Stage` is a bounded first-in-first-out queue served at a rate. A `Route` (one ordered pair of
hosts) crosses stages in series and then a delay line. Times are nanoseconds on any one clock.

A stage is always busy from now until it is empty, so the departure of a packet is known on its
arrival (Lindley's recursion): start = max(arrival, end of the previous packet), end = start + size
/ rate. So a packet costs one event per stage, and a new rate only stretches or shrinks the time
between now and the end of the backlog.

A super-packet (many segments in one frame) does not wait at a stage until all of it has passed the
previous stage. A stage hands it over when its first segment leaves, and serves the whole at its
own rate. It is not done before the last segment, which arrives at time w, has passed: end =
max(start + size / rate, w + segment / rate). So the last byte arrives when it would if the
segments traveled alone. The stage's capacity stays free for others when the previous stage is the
slower one.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from laggard.network_emulation.jitter import build_offset_table
from laggard.network_emulation.link_plan import Constraint
from laggard.network_emulation.loss_bursts import compute_gilbert_probabilities

BYTES, PACKETS, DROPPED = 0, 1, 2
TALLY_FIELDS = 3
_BITS_NS = 8000.0
"""Nanoseconds that a byte takes at 1 Mbit/s."""
_DELIVER = -1
"""Step of an event that delivers a packet to its destination."""


class Counts(Protocol):
    """Counters by position: a list, or a view of shared memory."""

    def __getitem__(self, position: int, /) -> int: ...
    def __setitem__(self, position: int, value: int, /) -> None: ...


class Stage:
    """Queue of at most `limit_bytes` of backlog, served at `rate_mbps`; None is unlimited."""

    __slots__ = ("busy_until_ns", "limit_bytes", "ns_per_byte")

    def __init__(self, rate_mbps: float | None, limit_bytes: float = math.inf) -> None:
        self.ns_per_byte = ns_per_byte(rate_mbps)
        self.limit_bytes = limit_bytes
        self.busy_until_ns = 0.0

    def admits(self, size: int, now_ns: float) -> bool:
        """Return True if a packet of `size` bytes that arrives now is queued.

        An empty queue accepts a packet of any size.
        """
        backlog_ns = self.busy_until_ns - now_ns
        return (
            backlog_ns <= 0
            or backlog_ns + size * self.ns_per_byte <= self.limit_bytes * self.ns_per_byte
        )


def ns_per_byte(rate_mbps: float | None) -> float:
    """Return the nanoseconds that a byte takes at a rate in Mbit/s; 0 for no rate."""
    return 0.0 if rate_mbps is None else _BITS_NS / rate_mbps


class Route:
    """Path of packets from one host to another.

    Args:
        index: position in the counters.
        port: destination that the caller delivers to.
        stages: stages in the order they are crossed; `own` is one of them.
        own: stage of this pair alone, whose rate `LinkModel.constrain` sets.
    """

    __slots__ = (
        "bursts",
        "delay_ns",
        "direct",
        "index",
        "jitter_ns",
        "last_due_ns",
        "losing",
        "loss",
        "offsets",
        "own",
        "port",
        "stages",
    )

    def __init__(self, index: int, port: int, stages: Sequence[Stage], own: Stage) -> None:
        self.index = index
        self.port = port
        self.stages = tuple(stages)
        self.own = own
        self.delay_ns = 0.0
        self.jitter_ns = 0.0
        self.offsets: tuple[float, ...] = ()
        self.loss = 0.0
        self.bursts: tuple[float, float] | None = None
        self.losing = False
        self.last_due_ns = 0.0
        self.direct = False

    def is_free(self) -> bool:
        """Return True if nothing on this route delays or drops packets."""
        return not (
            self.delay_ns
            or self.jitter_ns
            or self.loss
            or any(stage.ns_per_byte for stage in self.stages)
        )


class Packet(NamedTuple):
    """Frame with its bytes on the wire, bytes of its first segment, and number of segments."""

    frame: bytes
    size: int
    first: int
    segments: int


class _Event:
    """Arrival of a packet at its next stage, or at its destination (`step` is -1), at `time_ns`.

    Its last segment left `stage` at `end_ns`, and reached it at `whole_ns`.
    """

    __slots__ = ("end_ns", "order", "packet", "route", "stage", "step", "time_ns", "whole_ns")

    def __init__(
        self,
        time_ns: float,
        order: int,
        route: Route,
        step: int,
        packet: Packet,
        stage: Stage | None,
        end_ns: float,
        whole_ns: float,
    ) -> None:
        self.time_ns = time_ns
        self.order = order
        self.route = route
        self.step = step
        self.packet = packet
        self.stage = stage
        self.end_ns = end_ns
        self.whole_ns = whole_ns

    def entry(self) -> tuple[float, int, _Event]:
        return self.time_ns, self.order, self


class LinkModel:
    """All queues and delay lines of a continuum.

    Args:
        tally: counters, `TALLY_FIELDS` per route at `route.index` (bytes and packets delivered,
            packets dropped).
        chance: random generator of losses and jitter.
    """

    def __init__(self, tally: Counts, chance: random.Random) -> None:
        self._tally = tally
        self._random: Callable[[], float] = chance.random
        self._events: list[tuple[float, int, _Event]] = []
        self._order = 0

    def next_ns(self) -> float:
        """Return the time of the next event; infinity if no packet is under way."""
        return self._events[0][0] if self._events else math.inf

    def enter(self, route: Route, packet: Packet, now_ns: float) -> bool:
        """Send a packet on its way; call `advance(now_ns)` first.

        Returns:
            True if it has arrived already and the caller must deliver it now.
        """
        if route.loss and self._loses(route):
            self._drop(route, packet)
            return False
        event = self._serve(route, 0, packet, now_ns, now_ns)
        if event is None:
            return False
        if event.step == _DELIVER and event.time_ns <= now_ns:
            route.direct = route.is_free()
            self.count(route, packet)
            return True
        heapq.heappush(self._events, event.entry())
        return False

    def advance(self, now_ns: float) -> list[tuple[float, Route, Packet]]:
        """Advance the time to `now_ns`.

        Returns:
            Arrived packets in order: time at which each was due, its route, and the packet.
        """
        arrived: list[tuple[float, Route, Packet]] = []
        events = self._events
        while events and events[0][0] <= now_ns:
            time_ns, _, event = heapq.heappop(events)
            if event.step == _DELIVER:
                self.count(event.route, event.packet)
                arrived.append((time_ns, event.route, event.packet))
                continue
            following = self._serve(event.route, event.step, event.packet, time_ns, event.end_ns)
            if following is not None:
                heapq.heappush(events, following.entry())
        return arrived

    def constrain(
        self, route: Route, constraint: Constraint, limit_bytes: float, now_ns: float
    ) -> None:
        """Change the constraint of a route.

        Packets in the delay line keep their delay; packets still in a queue get the new rate.
        """
        route.delay_ns = constraint.delay_ms * 1e6
        route.jitter_ns = constraint.jitter_ms * 1e6
        route.offsets = build_offset_table(constraint.distribution)
        route.loss = constraint.loss_percent / 100.0
        bursts = compute_gilbert_probabilities(route.loss, constraint.burst_packets)
        # A route whose loss or burst changes begins in the good state.
        route.losing = route.losing and bursts == route.bursts
        route.bursts = bursts
        self._change_rate(route.own, ns_per_byte(constraint.rate_mbps), limit_bytes, now_ns)
        route.direct = route.is_free() and route.last_due_ns <= now_ns

    def count(self, route: Route, packet: Packet) -> None:
        """Count a delivery; for a `direct` route, the caller counts its own deliveries."""
        at = route.index * TALLY_FIELDS
        self._tally[at + BYTES] += packet.size
        self._tally[at + PACKETS] += packet.segments

    def _loses(self, route: Route) -> bool:
        if route.bursts is None:
            return self._random() < route.loss
        begins, ends = route.bursts
        loses = route.losing
        route.losing = self._random() < (1.0 - ends if loses else begins)
        return loses

    def _drop(self, route: Route, packet: Packet) -> None:
        self._tally[route.index * TALLY_FIELDS + DROPPED] += packet.segments

    def _serve(
        self, route: Route, step: int, packet: Packet, now_ns: float, whole_ns: float
    ) -> _Event | None:
        """Return the next event of a packet that reaches a stage now; None if the stage is full.

        The packet's last segment reaches the stage at `whole_ns`.
        """
        step = _next_limited(route.stages, step)
        self._order += 1
        if step == len(route.stages):
            return _Event(
                self._delayed(route, whole_ns),
                self._order,
                route,
                _DELIVER,
                packet,
                None,
                whole_ns,
                whole_ns,
            )
        stage = route.stages[step]
        if not stage.admits(packet.size, now_ns):
            self._drop(route, packet)
            return None
        start_ns = max(now_ns, stage.busy_until_ns)
        first_ns = packet.first * stage.ns_per_byte
        stage.busy_until_ns = start_ns + packet.size * stage.ns_per_byte
        end_ns = max(stage.busy_until_ns, whole_ns + first_ns)
        # The next stage may begin after the first segment; the whole packet leaves at `end_ns`.
        following = _next_limited(route.stages, step + 1)
        if following < len(route.stages):
            return _Event(
                start_ns + first_ns, self._order, route, following, packet, stage, end_ns, whole_ns
            )
        return _Event(
            self._delayed(route, end_ns),
            self._order,
            route,
            _DELIVER,
            packet,
            stage,
            end_ns,
            whole_ns,
        )

    def _delayed(self, route: Route, end_ns: float) -> float:
        delay_ns = route.delay_ns
        if route.jitter_ns:
            table, chance = route.offsets, self._random()
            offset = table[int(chance * len(table))] if table else 2.0 * chance - 1.0
            delay_ns = max(0.0, delay_ns + route.jitter_ns * offset)
        # Packets of a route never overtake each other, like those of a netem with a rate.
        due_ns = max(end_ns + delay_ns, route.last_due_ns)
        route.last_due_ns = due_ns
        return due_ns

    def _change_rate(self, stage: Stage, new: float, limit_bytes: float, now_ns: float) -> None:
        old, stage.ns_per_byte, stage.limit_bytes = stage.ns_per_byte, new, limit_bytes
        if old == new or stage.busy_until_ns <= now_ns:
            return
        # An unlimited stage is never busy, so `old` is not 0 here.
        stage.busy_until_ns = now_ns + (stage.busy_until_ns - now_ns) * new / old
        # In order of arrival, so that packets of a route keep their order after the change.
        moved = sorted((event for _, _, event in self._events), key=lambda event: event.order)
        for route in {event.route for event in moved if event.step == _DELIVER}:
            route.last_due_ns = 0.0
        for event in moved:
            if event.stage is stage and event.end_ns > now_ns:
                _reschedule_event(event, now_ns, new / old)
            if event.step == _DELIVER:
                event.time_ns = event.route.last_due_ns = max(
                    event.time_ns, event.route.last_due_ns
                )
        self._events = [event.entry() for event in moved]
        heapq.heapify(self._events)


def _next_limited(stages: Sequence[Stage], step: int) -> int:
    while step < len(stages) and not stages[step].ns_per_byte:
        step += 1
    return step


def _reschedule_event(event: _Event, now_ns: float, stretch: float) -> None:
    """Move an event whose packet is still at a stage that now serves `stretch` times as slowly."""
    end_ns = max(now_ns + (event.end_ns - now_ns) * stretch, event.whole_ns)
    if event.step == _DELIVER:
        event.time_ns += end_ns - event.end_ns
    else:
        event.time_ns = now_ns + (event.time_ns - now_ns) * stretch
    event.end_ns = end_ns
