"""Ranks that send each other messages, simulated: steps and ways take given times, and ranks are lost; what rules bring about, event by event."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Protocol

Sent = list[tuple[int, object]]


class MeshRule(Protocol):
    """One rank's rule; what it is to send comes as receivers and messages."""

    @property
    def step(self) -> int: ...
    def sends(self) -> Sent: ...
    def hear(self, sender: int, message: object) -> Sent: ...
    def leave(self, rank: int) -> None: ...
    def may_end(self) -> bool: ...
    def end(self) -> None: ...


@dataclass
class Mesh:
    """As the real ranks do, these listen only while they wait; who dies takes with it what is still on its way.

    Attributes:
        rules: of all ranks.
        compute: time that a rank takes to compute in a step.
        way: time that a message takes from one rank to another.
        deaths: when ranks die.
        begun: called when a rank has begun a step.
        began_at: when each rank began each of its steps.
    """

    rules: Mapping[int, MeshRule]
    compute: Callable[[int, int], float]
    way: Callable[[int, int], float]
    deaths: Mapping[int, float] = field(default_factory=dict)
    begun: Callable[[int], None] = lambda _: None
    began_at: dict[tuple[int, int], float] = field(default_factory=dict)
    _now: float = 0.0
    _events: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _inbox: dict[int, list[Callable[[], None]]] = field(default_factory=dict)
    _listening: set[int] = field(default_factory=set)
    _dead: set[int] = field(default_factory=set)
    _came: dict[tuple[int, int], float] = field(default_factory=dict)
    _number: Iterator[int] = field(default_factory=count)

    def run(self, steps: int) -> None:
        """Until every rank that lives has come to a step; fails if one never does."""
        self._inbox = {rank: [] for rank in self.rules}
        for rank, when in self.deaths.items():
            self._at(when, lambda rank=rank: self._die(rank))  # type: ignore[misc]
        for rank in self.rules:
            self._begin(rank)
        while any(self.rules[rank].step < steps for rank in self.alive):
            assert self._events, f"nobody can go on: {[(rank, self.rules[rank].step) for rank in self.alive]}"
            self._now, _, happen = heapq.heappop(self._events)
            happen()

    @property
    def alive(self) -> list[int]:
        return [rank for rank in self.rules if rank not in self._dead]

    def _at(self, when: float, happen: Callable[[], None]) -> None:
        heapq.heappush(self._events, (when, next(self._number), happen))

    def _begin(self, rank: int) -> None:
        step = self.rules[rank].step
        self.began_at[rank, step] = self._now
        self._send(rank, self.rules[rank].sends())
        self._at(self._now + self.compute(rank, step), lambda: self._listen(rank))
        self.begun(rank)

    def _send(self, sender: int, messages: Sent) -> None:
        for receiver, message in messages:
            self._bring(sender, receiver, lambda r=receiver, m=message: self._hear(r, sender, m))  # type: ignore[misc]

    def _bring(self, sender: int, receiver: int, happen: Callable[[], None], *, last: bool = False) -> None:
        """One after another on each way."""
        came = max(self._now + self.way(sender, receiver), self._came.get((sender, receiver), 0.0))
        self._came[sender, receiver] = came

        def arrive() -> None:
            if receiver not in self._dead and (last or sender not in self._dead):
                self._inbox[receiver].append(happen)
                if receiver in self._listening:
                    self._go_on(receiver)

        self._at(came, arrive)

    def _hear(self, receiver: int, sender: int, message: object) -> None:
        self._send(receiver, self.rules[receiver].hear(sender, message))

    def _die(self, rank: int) -> None:
        self._dead.add(rank)
        self._listening.discard(rank)
        for other in self.alive:
            self._bring(rank, other, lambda other=other: self.rules[other].leave(rank), last=True)  # type: ignore[misc]

    def _listen(self, rank: int) -> None:
        if rank not in self._dead:
            self._listening.add(rank)
            self._go_on(rank)

    def _go_on(self, rank: int) -> None:
        inbox, self._inbox[rank] = self._inbox[rank], []
        for happen in inbox:
            happen()
        self._send(rank, self.rules[rank].sends())
        if self.rules[rank].may_end():
            self._listening.discard(rank)
            self.rules[rank].end()
            self._begin(rank)
