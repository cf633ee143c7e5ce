"""Ranks that send each other messages, simulated: steps and ways take given times, and ranks are
lost and join; what rules bring about, event by event."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Protocol

from hypothesis import strategies as st

Sent = list[tuple[int, object]]


class MeshRule(Protocol):
    """One rank's rule; what it is to send comes as receivers and messages."""

    @property
    def step(self) -> int: ...
    def sends(self) -> Sent: ...
    def receive(self, sender: int, message: object) -> Sent: ...
    def remove_member(self, rank: int) -> None: ...
    def add_member(self, rank: int, step: int) -> Sent: ...
    def start_at_step(self, step: int, present: Collection[int]) -> None: ...
    def can_end(self) -> bool: ...
    def end(self) -> None: ...


@dataclass
class Mesh:
    """As the real ranks do, these listen only while they wait; who dies takes with it what is still
    on its way.

    Attributes:
        rules: of all ranks.
        compute: time that a rank takes to compute in a step.
        way: time that a message takes from one rank to another.
        deaths: when ranks die.
        births: when ranks start that are not there then; it takes until one who is there has heard
            them before they begin.
        absent: ranks that are not there in the beginning.
        begun: called when a rank has begun a step.
        began_at: when each rank began each of its steps.
    """

    rules: Mapping[int, MeshRule]
    compute: Callable[[int, int], float]
    way: Callable[[int, int], float]
    deaths: Mapping[int, float] = field(default_factory=dict)
    births: Mapping[int, float] = field(default_factory=dict)
    absent: Collection[int] = ()
    begun: Callable[[int], None] = lambda _: None
    began_at: dict[tuple[int, int], float] = field(default_factory=dict)
    _now: float = 0.0
    _events: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _inbox: dict[int, list[Callable[[], None]]] = field(default_factory=dict)
    _listening: set[int] = field(default_factory=set)
    _dead: set[int] = field(default_factory=set)
    _came: dict[tuple[int, int], float] = field(default_factory=dict)
    _lives: Counter[int] = field(default_factory=Counter)
    _known: dict[tuple[int, int], int] = field(default_factory=dict)
    _hosts: dict[int, int] = field(default_factory=dict)
    _first: Counter[int] = field(default_factory=Counter)
    _number: Iterator[int] = field(default_factory=count)

    def run(self, steps: int) -> None:
        """Until every rank that lives has come to a step; fails if one never does."""
        self._inbox = {rank: [] for rank in self.rules}
        for rank, when in self.deaths.items():
            self._at(when, lambda rank=rank: self._die(rank))  # type: ignore[misc]
        for rank, when in self.births.items():
            self._at(when, lambda rank=rank: self._start(rank))  # type: ignore[misc]
        self._dead = set(self.absent)
        for rank in self.alive:
            for other in self.absent:
                self.rules[rank].remove_member(other)
        for rank in self.alive:
            self._begin(rank)
        while any(self.rules[rank].step < steps for rank in self.alive):
            assert self._events, (
                f"nobody can go on: {[(rank, self.rules[rank].step) for rank in self.alive]}"
            )
            assert self._now < 100_000, (
                f"one cannot go on: {[(rank, self.rules[rank].step) for rank in self.alive]}"
            )
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
        self._first[rank] = step + 1
        life = self._lives[rank]
        self._send(rank, self.rules[rank].sends())
        self._at(self._now + self.compute(rank, step), lambda: self._listen(rank, life))
        self.begun(rank)

    def _send(self, sender: int, messages: Sent) -> None:
        for receiver, message in messages:
            self._bring(
                sender, receiver, lambda r=receiver, m=message: self._on_message(r, sender, m)
            )  # type: ignore[misc]

    def _bring(
        self, sender: int, receiver: int, happen: Callable[[], None], *, last: bool = False
    ) -> None:
        """One after another on each way."""
        lives = (
            self._lives[sender],
            self._lives[receiver] if last else self._known.get((sender, receiver), 0),
        )
        came = max(self._now + self.way(sender, receiver), self._came.get((sender, receiver), 0.0))
        self._came[sender, receiver] = came

        def arrive() -> None:
            is_there = receiver not in self._dead and lives[1] == self._lives[receiver]
            if is_there and (
                last or (sender not in self._dead and lives[0] == self._lives[sender])
            ):
                self._inbox[receiver].append(happen)
                if receiver in self._listening:
                    self._go_on(receiver)

        self._at(came, arrive)

    def _on_message(self, receiver: int, sender: int, message: object) -> None:
        self._send(receiver, self.rules[receiver].receive(sender, message))

    def _start(self, rank: int) -> None:
        """Ask the first who is there, and another one if that one dies before it has answered."""
        if rank in self._dead:
            self._lives[rank] += rank not in self._hosts
            host = self._hosts[rank] = min(self.alive)
            life = self._lives[rank]
            self._at(self._now + self.way(rank, host), lambda: self._knock(rank, host, life))

    def _knock(self, rank: int, host: int, life: int) -> None:
        def receive() -> None:
            step = max(self.rules[host].step, self._first[rank])
            self._at(self._now + self.way(host, rank), lambda: self._arrive(rank, host, step))
            self._meet(host, rank, life, step)

        if host not in self._dead:
            self._inbox[host].append(receive)
            if host in self._listening:
                self._go_on(host)

    def _meet(self, rank: int, newcomer: int, life: int, step: int) -> None:
        self._known[rank, newcomer] = life
        self._came[rank, newcomer] = max(
            self._came.get((rank, newcomer), 0.0), self._now + self.way(rank, newcomer)
        )
        self._send(rank, self.rules[rank].add_member(newcomer, step))

    def _arrive(self, rank: int, host: int, step: int) -> None:
        """Begin, and let everybody else know."""
        if self._hosts.get(rank) != host:
            return
        del self._hosts[rank]
        self._dead.discard(rank)
        self._inbox[rank] = []
        others = [other for other in self.alive if other != rank]
        self.rules[rank].start_at_step(step, others)
        life = self._lives[rank]
        for other in others:
            self._known[rank, other] = self._lives[other]
            if other != host:
                self._bring(rank, other, lambda other=other: self._meet(other, rank, life, step))  # type: ignore[misc]
        self._begin(rank)

    def _die(self, rank: int) -> None:
        if rank in self._dead and self._hosts.pop(rank, None) is None:
            return
        self._dead.add(rank)
        self._listening.discard(rank)
        for newcomer in [each for each, host in self._hosts.items() if host == rank]:
            self._start(newcomer)
        for other in self.alive:
            self._bring(
                rank, other, lambda other=other: self.rules[other].remove_member(rank), last=True
            )  # type: ignore[misc]

    def _listen(self, rank: int, life: int) -> None:
        if rank not in self._dead and life == self._lives[rank]:
            self._listening.add(rank)
            self._go_on(rank)

    def _go_on(self, rank: int) -> None:
        inbox, self._inbox[rank] = self._inbox[rank], []
        for happen in inbox:
            happen()
        self._send(rank, self.rules[rank].sends())
        if self.rules[rank].can_end():
            self._listening.discard(rank)
            self.rules[rank].end()
            self._begin(rank)


def come_and_go(data: st.DataObject, mesh: Mesh) -> None:
    """Let some ranks be absent in the beginning, and these, or some that die, start; one is always
    there."""
    stays = data.draw(st.sampled_from(sorted(mesh.rules)))
    others = [rank for rank in mesh.rules if rank != stays]
    mesh.absent = data.draw(st.sets(st.sampled_from(others))) if others else set()
    mesh.deaths = {rank: when for rank, when in mesh.deaths.items() if rank != stays}
    may_come = sorted({*mesh.absent, *mesh.deaths})
    if may_come:
        times = data.draw(st.dictionaries(st.sampled_from(may_come), st.floats(0, 300)))
        mesh.births = {
            rank: when
            for rank, when in times.items()
            if rank in mesh.absent or when > mesh.deaths[rank]
        }
