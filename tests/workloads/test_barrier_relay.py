"""Barriers of several machines, each with its own shared memory and its own clock, joined by the
relay."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from pathlib import Path

import pytest

from laggard.workloads.coordination.barrier_relay import (
    Arrived,
    BarrierHub,
    BarrierRelay,
    BarrierUpdate,
    LastStep,
    LastStepConfirmed,
    LastStepKnown,
    Opened,
    StopRequested,
)
from laggard.workloads.coordination.start_barrier import (
    RELAYED_LEAD_NS,
    START_BARRIER,
    EvaluationVerdict,
    Reason,
    StartBarrier,
    evaluation_barrier,
)

RANKS = {"head": (0, 1), "left": (2,), "right": (3, 4)}
OFFSETS_NS = {"head": 0, "left": 7_000_000_000, "right": -3_000_000_000}
WORLD = 5


class Machines:
    """All machines; `deliver_all` carries update until there is none."""

    def __init__(self, folder: Path) -> None:
        self.start_barrier = {
            name: StartBarrier(folder / name, WORLD, relayed=True) for name in RANKS
        }
        self.relays = {name: self._relay(name) for name in RANKS}
        self.hub = BarrierHub(list(RANKS), "head")
        self.carried: list[tuple[str, str, BarrierUpdate]] = []

    def _relay(self, name: str) -> BarrierRelay:
        offset_ns = OFFSETS_NS[name]
        return BarrierRelay(
            self.start_barrier[name],
            RANKS[name],
            lambda t: t - offset_ns,
            lambda t: t + offset_ns,
            is_head=name == "head",
        )

    def deliver_all(self) -> None:
        waiting = deque(
            (name, update) for name, relay in self.relays.items() for update in relay.poll_updates()
        )
        while waiting:
            source, update = waiting.popleft()
            for target, passed in self.hub.route(source, update):
                self.carried.append((source, target, passed))
                answer = self.relays[target].apply_update(passed)
                waiting.extend([(target, answer)] if answer is not None else [])

    def arrive(self, barrier: int, times_ns: Mapping[int, int]) -> None:
        """Ranks arrive at reference times; each writes its own machine's time."""
        for name, ranks in RANKS.items():
            for rank in ranks:
                if rank in times_ns:
                    self.start_barrier[name].arrive(
                        rank, barrier, times_ns[rank] + OFFSETS_NS[name]
                    )


@pytest.fixture
def machines(tmp_path: Path) -> Machines:
    return Machines(tmp_path)


def test_the_head_sees_everybody_arrive_and_everybody_sees_the_gate_open(
    machines: Machines,
) -> None:
    machines.arrive(START_BARRIER, {rank: 1_000 + rank for rank in range(4)})
    machines.deliver_all()
    assert machines.start_barrier["head"].last_arrival_ns(START_BARRIER) is None
    machines.arrive(START_BARRIER, {4: 9_000})
    machines.deliver_all()
    assert machines.start_barrier["head"].last_arrival_ns(START_BARRIER) == 9_000
    open_ns = machines.start_barrier["head"].open(START_BARRIER)
    machines.deliver_all()
    for name, start_barrier in machines.start_barrier.items():
        barrier, opening = start_barrier.announced
        assert (barrier, opening.open_ns - OFFSETS_NS[name]) == (START_BARRIER, open_ns)
    assert RELAYED_LEAD_NS >= 100_000_000, "the relay needs time to tell"
    machines.deliver_all()
    assert len([update for _, _, update in machines.carried if isinstance(update, Opened)]) == 2, (
        "routed once"
    )


def test_a_verdict_travels_with_its_gate(machines: Machines) -> None:
    barrier = evaluation_barrier(3)
    machines.start_barrier["head"].open(barrier, EvaluationVerdict.STOP, paused_since_ns=5)
    machines.deliver_all()
    assert all(
        start_barrier.announced[0] == barrier for start_barrier in machines.start_barrier.values()
    )
    assert all(
        start_barrier.announced[1].verdict is EvaluationVerdict.STOP
        for start_barrier in machines.start_barrier.values()
    )


def test_rank_0_begins_the_last_step_only_when_all_machines_know(machines: Machines) -> None:
    head = machines.start_barrier["head"]
    head.learn_last_step(41, Reason.TIME)
    hub, routed = machines.hub, []
    for update in machines.relays["head"].poll_updates():
        routed = list(hub.route("head", update))
    assert [(target, type(update)) for target, update in routed] == [
        ("left", LastStep),
        ("right", LastStep),
    ]
    first = machines.relays["left"].apply_update(routed[0][1])
    assert isinstance(first, LastStepKnown)
    assert hub.route("left", first) == ()
    second = machines.relays["right"].apply_update(routed[1][1])
    assert isinstance(second, LastStepKnown)
    ((target, confirmed),) = hub.route("right", second)
    assert (target, confirmed) == ("head", LastStepConfirmed())
    machines.relays["head"].apply_update(confirmed)
    head.name_last_step(41, Reason.TIME)  # returns, as it is confirmed
    assert all(
        start_barrier.last_step() == (41, Reason.TIME)
        for start_barrier in machines.start_barrier.values()
    )


def test_a_machine_alone_confirms_itself() -> None:
    assert BarrierHub(["only"], "only").route("only", LastStep(step=1, reason=Reason.STEPS)) == (
        ("only", LastStepConfirmed()),
    )


def test_a_stop_is_asked_of_rank_0(machines: Machines) -> None:
    assert not machines.start_barrier["head"].is_stop_requested
    machines.relays["head"].apply_update(StopRequested())
    assert machines.start_barrier["head"].is_stop_requested


def test_the_heads_own_arrivals_go_nowhere(machines: Machines) -> None:
    assert machines.hub.route("head", Arrived(rank=1, barrier=1, time_ns=0)) == ()
    assert machines.hub.route("left", Arrived(rank=2, barrier=1, time_ns=0)) == (
        ("head", Arrived(rank=2, barrier=1, time_ns=0)),
    )
