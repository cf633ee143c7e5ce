"""Speed of the simulation: a million workers in lockstep, and workers that are played by events.

    python benchmarks/simulation.py

It prints worker-steps, and actions of the event loop, per second of processor time; each figure is
the median of five simulations, which take turns.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import numpy as np

from laggard.core.cost_model.links import NetworkHop
from laggard.core.simulation.fleet import Fleet, WorkerClass, simulate_fleet
from laggard.core.simulation.network import SimulatedNetwork
from laggard.core.simulation.recorded_durations import RecordedDurations
from laggard.core.simulation.strategies.catalog import AlternativeStrategy
from laggard.core.simulation.training import SimulationInput, SimulationResult, TrainingWork

TIMES = 5
FLEET_STEPS = 40
STEPS = 100
WORLDS = (8, 64, 256)
STRATEGIES = ("asynchronous", "bounded_staleness", "gossip", "partial_reduce")


def main() -> None:
    """Print both tables."""
    print("| workers | links | worker-steps per CPU-second |\n|---|---|---|")
    fleets = {f"{workers:,} | {name}": fleet for workers, name, fleet in make_fleets()}
    for label, speed in measure({each: run_fleet(fleet) for each, fleet in fleets.items()}).items():
        print(f"| {label} | {speed[0]:.2g} |", flush=True)
    print(
        "\n| workers | strategy | steps per CPU-second | actions per CPU-second |\n|---|---|---|---|"
    )
    for world in WORLDS:
        trainings = {name: run_training(name, make_training(world)) for name in STRATEGIES}
        for name, (steps, actions) in measure(trainings).items():
            print(f"| {world} | `{name}` | {steps:,.0f} | {actions:,.0f} |", flush=True)


def measure(
    tasks: dict[str, Callable[[], tuple[float, float]]],
) -> dict[str, tuple[float, float]]:
    """Return the median speeds of tasks that take turns; each returns two amounts of work."""
    speeds: dict[str, list[tuple[float, float]]] = {label: [] for label in tasks}
    for _ in range(TIMES):
        for label, task in tasks.items():
            began_s = time.process_time()
            done = task()
            took_s = time.process_time() - began_s
            speeds[label].append((done[0] / took_s, done[1] / took_s))
    return {
        label: (
            statistics.median(one for one, _ in each),
            statistics.median(two for _, two in each),
        )
        for label, each in speeds.items()
    }


def make_fleets() -> list[tuple[int, str, Fleet]]:
    """Return fleets of edge devices and a tenth of fog nodes, without and with links."""
    found = []
    for sites in (10, 1000):
        for mbps in (float("inf"), 1000.0):
            edge = WorkerClass(9 * sites, 100, 0.5, 0.3, link_mbps=mbps, rtt_ms=20.0)
            fog = WorkerClass(sites, 100, 0.1, 0.2, link_mbps=10 * mbps, rtt_ms=5.0)
            fleet = Fleet((edge, fog), 4e5, root_mbps=100 * mbps, root_rtt_ms=10.0)
            found.append((1000 * sites, "shared" if mbps < 1e9 else "infinitely fast", fleet))
    return found


def run_fleet(fleet: Fleet) -> Callable[[], tuple[float, float]]:
    """Return a task that simulates a fleet."""
    workers = sum(each.sites * each.workers for each in fleet.classes)
    rng = np.random.Generator(np.random.SFC64(1))

    def run() -> tuple[float, float]:
        simulate_fleet(fleet, FLEET_STEPS, rng)
        return float(FLEET_STEPS * workers), 0.0

    return run


def make_training(world: int) -> SimulationInput:
    """Return a training of workers with jitter, each behind links of its own."""
    rng = np.random.default_rng(world)
    hosts = tuple(f"h{rank}" for rank in range(world))
    hops = {
        (src, dst): NetworkHop((src, dst), 100.0, 10.0)
        for src in (*hosts, "server")
        for dst in (*hosts, "server")
        if src != dst
    }
    work = tuple(
        RecordedDurations(0.1, 0.0, rng.lognormal(0.0, 0.2, STEPS), 0, np.zeros(0), np.ones(1))
        for _ in hosts
    )
    return SimulationInput(
        work=TrainingWork(work, np.ones(1), float(STEPS * world), float("inf")),
        hosts=hosts,
        tiers=("edge",) * world,
        shares_of_core=(1.0,) * world,
        server="server",
        server_share=1.0,
        network=SimulatedNetwork(hops),
        message_bytes=1e5,
    )


def run_training(name: str, sim_input: SimulationInput) -> Callable[[], tuple[float, float]]:
    """Return a task that simulates a strategy."""

    def run() -> tuple[float, float]:
        result: SimulationResult = AlternativeStrategy(name).simulate(sim_input)
        return float(sum(result.steps)), float(result.actions)

    return run


if __name__ == "__main__":
    main()
