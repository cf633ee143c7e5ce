"""Small random systems, held against simulations of the same systems with simpy."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import numpy as np
import pytest
import simpy

from laggard.core.cost_model.links import NetworkHop
from laggard.core.cost_model.message_handling import DEFAULT_HANDLING
from laggard.core.rules.synchronization import PeriodicSynchronization
from laggard.core.simulation.fleet import Fleet, WorkerClass, simulate_fleet
from laggard.core.simulation.network import FRAMING_OVERHEAD, Bottleneck, SimulatedNetwork
from laggard.core.simulation.recorded_durations import RecordedDurations
from laggard.core.simulation.strategies.catalog import AlternativeStrategy
from laggard.core.simulation.training import (
    SimulationInput,
    TrainingWork,
)

Process = Generator[simpy.Event, Any, None]
STEPS = 12
EXACT = 1e-9


@dataclass
class System:
    """Workers, their links to a server or to each other, and what steps cost."""

    seed: int
    shared_uplink: bool = False
    seconds: list[list[float]] = field(init=False)

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.seed)
        self.world = int(rng.integers(2, 7))
        self.staleness = int(rng.integers(0, 4))
        self.mb = float(rng.uniform(0.2, 3.0))
        self.share = float(rng.uniform(0.05, 1.0))
        self.mbps = rng.uniform(20.0, 200.0, self.world).tolist()
        self.rtt_ms = rng.uniform(1.0, 80.0, self.world).tolist()
        speed = rng.uniform(0.1, 1.0, self.world)
        # More steps than any rule lets a worker take.
        self.seconds = [(rng.uniform(0.5, 1.5, 40 * STEPS) * each).tolist() for each in speed]
        self.uplink_mbps = 15.0

    def input(self) -> SimulationInput:
        hosts = tuple(f"h{rank}" for rank in range(self.world))
        hops = {}
        for rank, host in enumerate(hosts):
            for ends in ((host, "server"), ("server", host)):
                hops[ends] = NetworkHop(ends, self.mbps[rank], self.rtt_ms[rank])
            for other in range(self.world):
                ends = (host, hosts[other])
                hops[ends] = NetworkHop(ends, self.mbps[rank], self.rtt_ms[rank])
        uplink = Bottleneck("up", frozenset((host, "server") for host in hosts), self.uplink_mbps)
        return SimulationInput(
            work=TrainingWork(
                tuple(
                    RecordedDurations(1.0, 0.0, np.array(each), 0, np.zeros(0), np.ones(1))
                    for each in self.seconds
                ),
                np.ones(1),
                float(STEPS * self.world),
                float("inf"),
            ),
            hosts=hosts,
            tiers=("edge",) * self.world,
            shares_of_core=(self.share,) * self.world,
            server="server",
            server_share=self.share,
            network=SimulatedNetwork(hops, (uplink,) if self.shared_uplink else ()),
            message_bytes=self.mb * 1e6,
        )


class SharedUplink:
    """A link whose messages have equal parts of its rate: each is through when the work that one
    message is given since its begin equals its size."""

    def __init__(self, env: simpy.Environment, mbps: float) -> None:
        self.env, self.mbps = env, mbps
        self.given, self.since, self.ends = 0.0, 0.0, dict[simpy.Event, float]()
        self.watch: simpy.Process | None = None

    def transmit(self, megabits: float) -> simpy.Event:
        self.advance()
        done = self.env.event()
        self.ends[done] = self.given + megabits
        self.plan()
        return done

    def advance(self) -> None:
        if self.ends:
            self.given += (self.env.now - self.since) * self.mbps / len(self.ends)
        self.since = self.env.now

    def plan(self) -> None:
        if self.watch is not None and self.watch.is_alive:
            self.watch.interrupt()
        if self.ends:
            self.watch = self.env.process(self.wait())

    def wait(self) -> Process:
        first = min(self.ends, key=lambda each: self.ends[each])
        try:
            yield self.env.timeout((self.ends[first] - self.given) * len(self.ends) / self.mbps)
        except simpy.Interrupt:
            return
        self.advance()
        del self.ends[first]
        self.watch = None
        first.succeed()
        self.plan()


@dataclass(order=True)
class Task:
    """What a server does: answers and updates (0) before gradients that wait (1)."""

    priority: int
    number: int
    seconds: float = field(compare=False)
    push_of: int = field(compare=False, default=-1)
    answers: simpy.Event | None = field(compare=False, default=None)
    awaits: simpy.Event | None = field(compare=False, default=None)


@dataclass
class Server:
    """A server that counts gradients under a bound of staleness, one task after another."""

    env: simpy.Environment
    system: System
    staleness: float

    def __post_init__(self) -> None:
        self.tasks, self.order = simpy.PriorityStore(self.env), count()
        self.done = [0] * self.system.world
        self.pending: list[tuple[int, int]] = []
        self.waiting: dict[int, simpy.Event] = {}
        self.counted, self.over = 0, self.env.event()

    def put(self, priority: int, seconds: float, **what: Any) -> None:
        self.tasks.put(Task(priority, next(self.order), seconds, **what))

    def run(self) -> Process:
        packing_s = DEFAULT_HANDLING.packing_s_per_mb * self.system.mb / self.system.share
        applying_s = DEFAULT_HANDLING.applying_s_per_mb * self.system.mb / self.system.share
        while True:
            task = yield self.tasks.get()
            yield self.env.timeout(task.seconds)
            if task.answers is not None:
                task.answers.succeed()
            if task.awaits is None:
                continue
            self.waiting[task.push_of] = task.awaits
            self.pending.append((self.done[task.push_of], task.push_of))
            self.done[task.push_of] += 1
            bound = min(self.done) + self.staleness
            counts = [each for each in self.pending if each[0] < bound]
            self.pending = [each for each in self.pending if each[0] >= bound]
            self.counted += len(counts)
            if self.counted >= STEPS * self.system.world and not self.over.triggered:
                self.over.succeed(self.env.now)
            self.put(0, applying_s * len({clock for clock, _ in counts}))
            for rank in [rank for rank in sorted(self.waiting) if self.done[rank] <= bound]:
                self.put(0, packing_s, answers=self.waiting.pop(rank))


def serve(system: System, staleness: float) -> float:
    """Seconds until a server has as many gradients as the training needs."""
    env = simpy.Environment()
    server, uplink = Server(env, system, staleness), SharedUplink(env, system.uplink_mbps)
    packing_s = DEFAULT_HANDLING.packing_s_per_mb * system.mb / system.share
    megabits = system.mb * 8 * FRAMING_OVERHEAD

    def worker(rank: int) -> Process:
        alone_s, way_s = megabits / system.mbps[rank], system.rtt_ms[rank] / 2e3
        for seconds in system.seconds[rank]:
            yield env.timeout(seconds + packing_s)
            yield uplink.transmit(megabits) if system.shared_uplink else env.timeout(alone_s)
            yield env.timeout(way_s)
            answered = env.event()
            server.put(1, packing_s, push_of=rank, awaits=answered)
            yield answered
            yield env.timeout(alone_s + way_s + packing_s)

    for rank in range(system.world):
        env.process(worker(rank))
    env.process(server.run())
    return float(env.run(until=server.over))


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("shared_uplink", [False, True])
def test_a_server_and_its_workers(seed: int, shared_uplink: bool) -> None:
    system = System(seed, shared_uplink)
    found = AlternativeStrategy("bounded_staleness", {"staleness": system.staleness})
    assert found.simulate(system.input()).makespan_s == pytest.approx(
        serve(system, system.staleness), rel=EXACT
    )


@pytest.mark.parametrize("seed", range(5))
def test_a_server_whose_workers_never_wait(seed: int) -> None:
    system = System(seed)
    found = AlternativeStrategy("asynchronous").simulate(system.input())
    assert found.makespan_s == pytest.approx(serve(system, float("inf")), rel=EXACT)


def gossip(system: System, staleness: int) -> float:
    """Seconds until ranks in a ring have taken as many steps as the training needs; a step waits
    for what the neighbors sent when they began the step `staleness` before it."""
    env = simpy.Environment()
    world, taken, over = system.world, 0, env.event()
    begun = [[env.event() for _ in range(40 * STEPS)] for _ in range(world)]

    def tell(rank: int, step: int) -> Process:
        yield env.timeout(system.rtt_ms[rank] / 2e3)
        begun[rank][step].succeed()

    def run(rank: int) -> Process:
        nonlocal taken
        beside = {(rank - 1) % world, (rank + 1) % world} - {rank}
        for step, seconds in enumerate(system.seconds[rank]):
            env.process(tell(rank, step))
            yield env.timeout(seconds)
            if step >= staleness:
                yield env.all_of([begun[other][step - staleness] for other in beside])
            taken += 1
            if taken >= STEPS * world and not over.triggered:
                over.succeed(env.now)

    for rank in range(world):
        env.process(run(rank))
    return float(env.run(until=over))


@pytest.mark.parametrize("seed", range(10))
def test_ranks_that_wait_for_their_neighbors(seed: int) -> None:
    system = System(seed)
    system.mb = 0.0
    bounds = {"staleness": system.staleness, "skip": 0, "max_iteration_gap": 1_000_000}
    found = AlternativeStrategy("hop", bounds).simulate(system.input())
    assert found.makespan_s == pytest.approx(gossip(system, system.staleness), rel=EXACT)


@dataclass(frozen=True)
class Drawn(WorkerClass):
    """Workers whose steps' durations are given."""

    rows: tuple[tuple[tuple[float, ...], ...], ...] = ()
    used: Iterator[int] = field(default_factory=count)

    def draw(self, rng: np.random.Generator, out: Any) -> None:
        out[:] = self.rows[next(self.used)]


def reduce_in_tree(fleet: Fleet, steps: int, every: int) -> float:
    """Seconds of a training in which links carry one message after another, first come, first
    served."""
    env = simpy.Environment()
    root_link = simpy.Resource(env)
    sites = [
        (each, simpy.Resource(env), site) for each in fleet.classes for site in range(each.sites)
    ]

    def worker(each: Drawn, link: simpy.Resource, site: int, number: int, step: int) -> Process:
        for one in range(step, min(step + every, steps)):
            yield env.timeout(each.rows[one][site][number])
        with link.request() as turn:
            yield turn
            yield env.timeout(fleet.message_s(each.link_mbps))

    def aggregate(each: Drawn, link: simpy.Resource, site: int, step: int) -> Process:
        yield env.all_of(
            [env.process(worker(each, link, site, n, step)) for n in range(each.workers)]
        )
        yield env.timeout((each.rtt_ms + fleet.root_rtt_ms) / 2e3)
        with root_link.request() as turn:
            yield turn
            yield env.timeout(fleet.message_s(fleet.root_mbps))

    def late(begin_s: float, rest: Process) -> Process:
        yield env.timeout(begin_s)
        yield env.process(rest)

    def train() -> Process:
        back_s = [
            len(sites) * fleet.message_s(fleet.root_mbps)
            + each.workers * fleet.message_s(each.link_mbps)
            + (each.rtt_ms + fleet.root_rtt_ms) / 2e3
            for each in fleet.classes
        ]
        for step in range(0, steps, every):
            yield env.all_of(
                [
                    env.process(
                        late(
                            back_s[fleet.classes.index(each)] if step else 0.0,
                            aggregate(each, link, site, step),
                        )
                    )
                    for each, link, site in sites
                    if isinstance(each, Drawn)
                ]
            )
        yield env.timeout(max(back_s))

    env.run(until=env.process(train()))
    return float(env.now)


@pytest.mark.parametrize("seed", range(15))
def test_a_fleet_behind_shared_links(seed: int) -> None:
    rng = np.random.default_rng(seed)
    steps, every = int(rng.integers(1, 9)), int(rng.integers(1, 4))
    classes = []
    for _ in range(int(rng.integers(1, 4))):
        sites, workers = int(rng.integers(1, 5)), int(rng.integers(1, 7))
        rows = rng.uniform(0.1, 1.0, (steps, sites, workers)).tolist()
        given = tuple(tuple(map(tuple, row)) for row in rows)
        mbps, rtt_ms = float(rng.uniform(5.0, 200.0)), float(rng.uniform(0.0, 50.0))
        classes.append(Drawn(sites, workers, 1.0, link_mbps=mbps, rtt_ms=rtt_ms, rows=given))
    fleet = Fleet(
        tuple(classes), float(rng.uniform(0.0, 2e6)), float(rng.uniform(20.0, 500.0)), 7.0
    )
    rule = PeriodicSynchronization(every, steps - 1)
    found = simulate_fleet(fleet, steps, rng, rule, precision=np.float64)
    assert found.makespan_s == pytest.approx(reduce_in_tree(fleet, steps, every), rel=EXACT)
