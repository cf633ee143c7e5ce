"""A scenario with up to millions of workers: counts of equal workers instead of lists of hosts.

The workers of a scenario that compute and communicate alike are a class. A larger number of hosts
of a tier makes its classes larger, in equal proportions. Every worker keeps its samples of a step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from laggard.core.cost_model.links import NetworkHop
from laggard.core.errors import InputError
from laggard.core.rules.synchronization import PeriodicSynchronization
from laggard.core.simulation.crowd.collective_rounds import (
    RingParts,
    simulate_all_reduce_rounds,
    simulate_tier_rounds,
)
from laggard.core.simulation.crowd.independent import simulate_alone, simulate_server_queue
from laggard.core.simulation.crowd.server_rounds import CrowdServer, simulate_server_rounds
from laggard.core.simulation.crowd.workers import Crowd, CrowdClass, CrowdResult
from laggard.core.simulation.network import FRAMING_OVERHEAD
from laggard.core.simulation.strategies.catalog import ALL_REDUCE_STRATEGIES, AlternativeStrategy
from laggard.core.simulation.training import SimulationInput

CROWD_STRATEGIES = (
    *sorted(ALL_REDUCE_STRATEGIES),
    "hierarchical",
    "parameter_server",
    "asynchronous",
    "ad_psgd",
    "overlap_local_sgd",
)
"""Strategies that can be simulated with any number of workers."""


@dataclass(frozen=True)
class CrowdTraining:
    """Training whose classes of workers can be of any size.

    Attributes:
        strategy: its strategy.
        sim_input: training of the scenario's own size, from which classes are made.
        classes: class of every rank of it, as the number of the class, [W].
        spread: standard deviation of the logarithm of a step's duration.
    """

    strategy: AlternativeStrategy
    sim_input: SimulationInput
    classes: tuple[int, ...]
    spread: float

    @classmethod
    def of(
        cls, strategy: AlternativeStrategy, sim_input: SimulationInput, spread: float
    ) -> CrowdTraining:
        """Group the ranks of a training into classes.

        Raises:
            InputError: the strategy cannot be simulated with very many workers.
        """
        if strategy.name not in CROWD_STRATEGIES:
            raise InputError(
                f"{strategy.name} cannot be simulated with very many workers — choose one of"
                f" {', '.join(CROWD_STRATEGIES)}, for example with --set"
                f" workload.strategy={CROWD_STRATEGIES[0]}, or use laggard predict --workers"
            )
        kinds = [_describe(sim_input, rank) for rank in range(sim_input.world)]
        numbers = {kind: number for number, kind in enumerate(dict.fromkeys(kinds))}
        return cls(strategy, sim_input, tuple(numbers[kind] for kind in kinds), spread)

    def simulate(
        self, counts: Mapping[str, int], steps: int, rng: np.random.Generator
    ) -> CrowdResult:
        """Simulate the training with other numbers of workers.

        Args:
            counts: number of workers by tier; other tiers keep theirs.
            steps: number of steps.
            rng: source of the durations of steps.

        Raises:
            InputError: a tier has no workers, or a number is impossible.
        """
        crowd, settings = self.scale(counts), self.strategy.settings
        name = self.strategy.name
        if name in ("ad_psgd", "overlap_local_sgd"):
            return simulate_alone(crowd, steps)
        if name in ("parameter_server", "asynchronous"):
            simulate = (
                simulate_server_rounds if name == "parameter_server" else simulate_server_queue
            )
            return simulate(crowd, self._build_server(), steps, rng)
        if name == "hierarchical":
            self._require_equal_tiers()
            rules = (
                PeriodicSynchronization(int(settings["tier_steps"])),
                PeriodicSynchronization(int(settings["wan_steps"]), steps - 1),
            )
            tiers = tuple(self._build_ring([each]) for each in crowd.classes)
            leaders = self._build_ring([replace(each, workers=1) for each in crowd.classes])
            broadcast_s = self._slowest_hop(crowd.classes).message_s(self.sim_input.wire_bytes)
            return simulate_tier_rounds(crowd, tiers, leaders, broadcast_s, rules, steps, rng)
        rule = PeriodicSynchronization(
            int(settings.get("steps", 1)), steps - 1, int(settings.get("after", 0))
        )
        ring = self._build_ring(crowd.classes)
        ring = replace(ring, start_s=ring.start_s + self._broadcasts_s(crowd))
        return simulate_all_reduce_rounds(crowd, ring, rule, steps, rng)

    def scale(self, counts: Mapping[str, int]) -> Crowd:
        """Return the classes with other numbers of workers."""
        tiers = self.sim_input.tiers
        unknown = next((tier for tier in counts if tier not in tiers), None)
        if unknown is not None:
            raise InputError(
                f"{unknown}: no workers are in this tier — use one of"
                f" {', '.join(dict.fromkeys(tiers))}"
            )
        found = []
        for number in dict.fromkeys(self.classes):
            ranks = [rank for rank, own in enumerate(self.classes) if own == number]
            tier = tiers[ranks[0]]
            workers = len(ranks)
            if tier in counts:
                workers = max(1, round(counts[tier] * workers / tiers.count(tier)))
            found.append(self._build_class(ranks[0], workers))
        return Crowd(tuple(found))

    def _require_equal_tiers(self) -> None:
        tiers = self.sim_input.tiers
        if len({*self.classes}) > len({*tiers}):
            raise InputError(
                "hierarchical: the workers of a tier differ, and with very many workers a tier must"
                " have equal ones — use laggard predict --workers"
            )

    def _build_class(self, rank: int, workers: int) -> CrowdClass:
        sim_input, recorded = self.sim_input, self.sim_input.work.ranks[rank]
        host, server = sim_input.hosts[rank], sim_input.server
        return CrowdClass(
            name=host,
            workers=workers,
            step_s=recorded.fixed_s,
            spread=self.spread,
            packing_s=sim_input.packing_s(rank),
            up_s=self._own_message_s((host, server)),
            down_s=self._own_message_s((server, host)),
            edges_s=tuple(recorded.edges_s.tolist()),
            factors=tuple(recorded.factors.tolist()),
        )

    def _own_message_s(self, way: tuple[str, str]) -> float:
        """Return the seconds that a message takes longer than on the link that all share.

        It passes both at once, at the rate of the slower one.
        """
        if self.strategy.name not in ("parameter_server", "asynchronous"):
            return 0.0
        hop, bits = self.sim_input.network.hop(way), self.sim_input.wire_bytes * 8e-6
        shared_s = bits / self._find_shared_mbps(
            self._list_ways(to_server=way[1] == self.sim_input.server)
        )
        return max(bits / hop.rate_mbps - shared_s, 0.0) + hop.rtt_ms / 2e3

    def _list_ways(self, *, to_server: bool) -> list[tuple[str, str]]:
        """Return the ways of all workers to the server, or from it."""
        server = self.sim_input.server
        ways = [(host, server) for host in self.sim_input.hosts if host != server]
        return ways if to_server else [way[::-1] for way in ways]

    def _build_server(self) -> CrowdServer:
        sim_input = self.sim_input
        message_bits = sim_input.wire_bytes * 8e-6
        return CrowdServer(
            packing_s=sim_input.server_packing_s,
            applying_s=sim_input.applying_s,
            in_s=message_bits / self._find_shared_mbps(self._list_ways(to_server=True)),
            out_s=message_bits / self._find_shared_mbps(self._list_ways(to_server=False)),
        )

    def _find_shared_mbps(self, ways: Sequence[tuple[str, str]]) -> float:
        """Return the rate that all these ways share; infinite if they share none."""
        rates = [math.inf]
        for bottleneck in self.sim_input.network.bottlenecks:
            crossing = sum(way in bottleneck.ends for way in ways)
            if crossing == len(ways) and ways:
                rates.append(bottleneck.rate_mbps)
            elif crossing > 1:
                raise InputError(
                    f"{bottleneck.name}: {crossing} of {len(ways)} workers share this link on their"
                    " way to the server, and with very many workers only a link that all share can"
                    " be simulated — use laggard predict --workers"
                )
        return min(rates)

    def _build_ring(self, classes: Sequence[CrowdClass]) -> RingParts:
        """Return the parts of a ring through all workers of these classes, class after class."""
        sim_input = self.sim_input
        share = min(sim_input.shares_of_core[sim_input.hosts.index(each.name)] for each in classes)
        return RingParts.over(
            sum(each.workers for each in classes),
            self._slowest_hop(classes),
            sim_input.wire_bytes,
            sim_input.handling.ring_part_s / share,
        )

    def _broadcasts_s(self, crowd: Crowd) -> float:
        """Return the seconds of the broadcasts that follow an all-reduce of DDP."""
        sim_input, rounds = self.sim_input, math.ceil(math.log2(crowd.workers))
        part_s = sim_input.handling.ring_part_s / min(sim_input.shares_of_core)
        hop = self._slowest_hop(crowd.classes)
        return sum(
            rounds * (hop.message_s(size * FRAMING_OVERHEAD) + part_s)
            for size in sim_input.step_broadcasts
        )

    def _slowest_hop(self, classes: Sequence[CrowdClass]) -> NetworkHop:
        """Return the slowest link of a ring through all workers of these classes."""
        network, hosts, tiers = self.sim_input.network, self.sim_input.hosts, self.sim_input.tiers
        names = [each.name for each in classes]
        hops = [network.hop(ends) for ends in zip(names, [*names[1:], names[0]], strict=True)]
        for each in classes:
            if each.workers == 1:
                continue
            tier = tiers[hosts.index(each.name)]
            others = (
                host
                for host, own in zip(hosts, tiers, strict=True)
                if own == tier and host != each.name
            )
            other = next(others, None)
            if other is None:
                raise InputError(
                    f"{tier}: has one worker, so the links between several of them are unknown —"
                    " give the tier two workers in layers_services.yaml"
                )
            hops.append(network.hop((each.name, other)))
        part_bytes = self.sim_input.wire_bytes / len(hosts)
        slowest = max(hops, key=lambda hop: hop.part_s(part_bytes))
        return replace(slowest, rate_mbps=min(slowest.rate_mbps, 1e9))


def _describe(sim_input: SimulationInput, rank: int) -> tuple[object, ...]:
    """Return everything that distinguishes a worker from others."""
    recorded, host = sim_input.work.ranks[rank], sim_input.hosts[rank]
    ways = (host, sim_input.server), (sim_input.server, host)
    hops = [sim_input.network.hop(way) for way in ways]
    return (
        sim_input.tiers[rank],
        recorded.fixed_s,
        sim_input.shares_of_core[rank],
        tuple(recorded.edges_s.tolist()),
        tuple(recorded.factors.tolist()),
        *((hop.rate_mbps, hop.rtt_ms) for hop in hops),
    )
