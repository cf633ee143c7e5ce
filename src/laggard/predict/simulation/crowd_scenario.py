"""A scenario with up to millions of workers: counts of equal workers instead of lists of hosts.

The workers of a scenario that compute and communicate alike are a class. A larger number of hosts
of a tier makes its classes larger, in equal proportions. Every worker keeps its samples of a step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise

import numpy as np

from laggard.core.cost_model.links import HopEnds, NetworkHop
from laggard.core.errors import InputError
from laggard.core.rules.backup_workers import BackupWorkersRule
from laggard.core.rules.bounded_staleness import BoundedStalenessRule
from laggard.core.rules.server_rule import ServerUpdateRule
from laggard.core.rules.synchronization import PeriodicSynchronization
from laggard.core.simulation.crowd.absences import Absences
from laggard.core.simulation.crowd.collective_rounds import (
    RingParts,
    simulate_all_reduce_rounds,
    simulate_tier_rounds,
)
from laggard.core.simulation.crowd.independent import simulate_alone
from laggard.core.simulation.crowd.neighbor_rounds import NeighborLinks, simulate_ring_neighbors
from laggard.core.simulation.crowd.served_workers import CreateRule, simulate_served_workers
from laggard.core.simulation.crowd.server_rounds import CrowdServer, simulate_server_rounds
from laggard.core.simulation.crowd.stand_ins import MAX_PLAYED, simulate_stand_ins
from laggard.core.simulation.crowd.workers import (
    CONSTANT,
    Crowd,
    CrowdClass,
    CrowdResult,
    Slowness,
)
from laggard.core.simulation.network import FRAMING_OVERHEAD
from laggard.core.simulation.strategies.catalog import (
    ALL_REDUCE_STRATEGIES,
    AlternativeStrategy,
)
from laggard.core.simulation.training import SimulationInput

SERVED = frozenset({"parameter_server", "asynchronous", "bounded_staleness", "backup_workers"})
"""Strategies with a server."""
ALONE = frozenset({"ad_psgd", "overlap_local_sgd"})
"""Strategies whose workers wait for nobody."""
WITH_ABSENCES = SERVED | ALONE
"""Strategies that are simulated with workers that leave and join."""
_MAX_HOP = 256
_LEAST_S = 1e-9
"""Least seconds of a message on a link, whose slowness is a factor."""


@dataclass(frozen=True)
class CrowdTraining:
    """Training whose classes of workers can be of any size.

    Attributes:
        strategy: its strategy.
        sim_input: training of the scenario's own size, from which classes are made.
        classes: class of every rank of it, as the number of the class, [W].
        spread: standard deviation of the logarithm of a step's duration.
        absences: absences of ranks that have any, by rank.
    """

    strategy: AlternativeStrategy
    sim_input: SimulationInput
    classes: tuple[int, ...]
    spread: float
    absences: Mapping[int, Absences] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        strategy: AlternativeStrategy,
        sim_input: SimulationInput,
        spread: float,
        absences: Mapping[int, Absences] | None = None,
    ) -> CrowdTraining:
        """Group the ranks of a training into classes.

        Args:
            strategy: its strategy.
            sim_input: the training.
            spread: standard deviation of the logarithm of a step's duration.
            absences: absences of ranks that have any, by rank; they count for the strategies
                `WITH_ABSENCES`.

        Raises:
            InputError: the strategy cannot be simulated with very many workers.
        """
        if strategy.settings.get("graph") == "complete":
            raise InputError(
                f"{strategy.name} on a complete graph cannot be simulated with very many workers,"
                " which all send to all — choose the graph `ring`, or use laggard predict --workers"
            )
        known = (absences or {}) if strategy.name in WITH_ABSENCES else {}
        kinds = [_describe(sim_input, rank, known.get(rank)) for rank in range(sim_input.world)]
        numbers = {kind: number for number, kind in enumerate(dict.fromkeys(kinds))}
        return cls(strategy, sim_input, tuple(numbers[kind] for kind in kinds), spread, known)

    def simulate(
        self, counts: Mapping[str, int], steps: int, rng: np.random.Generator
    ) -> CrowdResult:
        """Simulate the training with other numbers of workers.

        Args:
            counts: number of workers by tier; other tiers keep theirs.
            steps: number of steps.
            rng: source of the durations of steps.

        Raises:
            InputError: a tier has no workers, a number is impossible, or all workers leave.
        """
        crowd, name = self.scale(counts), self.strategy.name
        if name in ALONE:
            return simulate_alone(crowd, steps, rng)
        if name in SERVED:
            return self._simulate_server(crowd, steps, rng)
        if name == "hierarchical":
            return self._simulate_tiers(crowd, steps, rng)
        if name in ALL_REDUCE_STRATEGIES:
            return self._simulate_ring(crowd, steps, rng)
        if name == "gossip" and crowd.workers > 2:
            forward, backward = self._build_ring_links(crowd)
            return simulate_ring_neighbors(crowd, forward, backward, steps, rng)
        return self._simulate_stand_ins(counts, rng)

    def _simulate_server(self, crowd: Crowd, steps: int, rng: np.random.Generator) -> CrowdResult:
        server, settings = self._build_server(), self.strategy.settings
        if self.strategy.name == "parameter_server":
            return simulate_server_rounds(crowd, server, steps, rng)
        if self.strategy.name == "backup_workers":
            create_rule: CreateRule = partial(
                _create_backup_rule, int(settings["backups"]), crowd.workers
            )
        else:
            staleness = settings.get("staleness")
            bound = None if staleness is None else int(staleness)
            create_rule = partial(BoundedStalenessRule, staleness=bound)
        return simulate_served_workers(crowd, server, steps, rng, create_rule)

    def _simulate_tiers(self, crowd: Crowd, steps: int, rng: np.random.Generator) -> CrowdResult:
        self._require_equal_tiers()
        settings = self.strategy.settings
        rules = (
            PeriodicSynchronization(int(settings["tier_steps"])),
            PeriodicSynchronization(int(settings["wan_steps"]), steps - 1),
        )
        tiers = tuple(self._build_ring([each]) for each in crowd.classes)
        leaders = self._build_ring([replace(each, workers=1) for each in crowd.classes])
        broadcast_s = self._slowest_hop(crowd.classes, 0.0).message_s(self.sim_input.wire_bytes)
        return simulate_tier_rounds(crowd, tiers, leaders, broadcast_s, rules, steps, rng)

    def _simulate_ring(self, crowd: Crowd, steps: int, rng: np.random.Generator) -> CrowdResult:
        settings = self.strategy.settings
        rule = PeriodicSynchronization(
            int(settings.get("steps", 1)), steps - 1, int(settings.get("after", 0))
        )
        ring = self._build_ring(crowd.classes)
        ring = replace(ring, start_s=ring.start_s + self._broadcasts_s(crowd))
        return simulate_all_reduce_rounds(crowd, ring, rule, steps, rng)

    def _simulate_stand_ins(
        self, counts: Mapping[str, int], rng: np.random.Generator
    ) -> CrowdResult:
        tiers = self.sim_input.tiers
        workers = {tier: counts.get(tier, tiers.count(tier)) for tier in dict.fromkeys(tiers)}
        # Each worker of `hop` knows all others.
        most = _MAX_HOP if self.strategy.name == "hop" else MAX_PLAYED
        found = simulate_stand_ins(self.strategy, self.sim_input, workers, self.spread, rng, most)
        firsts = [self.classes.index(number) for number in dict.fromkeys(self.classes)]
        return replace(found, computed_share=found.computed_share[firsts])

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
        up_s, up_slowness = self._plan_own_message((host, server))
        down_s, down_slowness = self._plan_own_message((server, host))
        return CrowdClass(
            name=host,
            workers=workers,
            step_s=recorded.fixed_s,
            spread=self.spread,
            packing_s=sim_input.packing_s(rank),
            up_s=up_s,
            down_s=down_s,
            delay_s=sim_input.network.hop((host, server)).rtt_ms / 2e3
            if self.strategy.name in SERVED
            else 0.0,
            slowness=Slowness(tuple(recorded.edges_s.tolist()), tuple(recorded.factors.tolist())),
            up_slowness=up_slowness,
            down_slowness=down_slowness,
            absences=self.absences.get(rank),
        )

    def _plan_own_message(self, way: HopEnds) -> tuple[float, Slowness]:
        """Return the seconds that a message takes longer than on the link that all share.

        It passes both at once, at the rate of the slower one.
        """
        if self.strategy.name not in SERVED:
            return 0.0, CONSTANT
        network, bits = self.sim_input.network, self.sim_input.wire_bytes * 8e-6
        shared_s = bits / self._find_shared_mbps(
            self._list_ways(to_server=way[1] == self.sim_input.server)
        )

        def longer_s(at_s: float) -> float:
            return max(bits / network.hop(way, at_s).rate_mbps - shared_s, _LEAST_S)

        return self._follow_rates(longer_s)

    def _follow_rates(self, seconds_at: Callable[[float], float]) -> tuple[float, Slowness]:
        """Return seconds at the beginning, and their slowness as the rates of links change.

        Args:
            seconds_at: seconds, above 0, at a time.
        """
        periods = self.sim_input.network.slow_periods
        edges_s = sorted(
            {
                edge
                for each in periods
                for edge in (each.first_s, each.last_s)
                if 0 < edge < math.inf
            }
        )
        base_s = seconds_at(0.0)
        factors = [1.0, *(seconds_at(edge_s) / base_s for edge_s in edges_s)]
        changes = [place for place, (a, b) in enumerate(pairwise(factors)) if a != b]
        return base_s, Slowness(
            tuple(edges_s[place] for place in changes),
            (1.0, *(factors[place + 1] for place in changes)),
        )

    def _list_ways(self, *, to_server: bool) -> list[HopEnds]:
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

    def _find_shared_mbps(self, ways: Sequence[HopEnds]) -> float:
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
        workers, handling_s = sum(each.workers for each in classes), sim_input.handling.ring_part_s

        def parts_at(at_s: float) -> RingParts:
            hop = self._slowest_hop(classes, at_s)
            return RingParts.over(workers, hop, sim_input.wire_bytes, handling_s / share)

        _, slowness = self._follow_rates(lambda at_s: max(parts_at(at_s).seconds, _LEAST_S))
        return replace(parts_at(0.0), slowness=slowness)

    def _broadcasts_s(self, crowd: Crowd) -> float:
        """Return the seconds of the broadcasts that follow an all-reduce of DDP."""
        sim_input, rounds = self.sim_input, math.ceil(math.log2(crowd.workers))
        part_s = sim_input.handling.ring_part_s / min(sim_input.shares_of_core)
        hop = self._slowest_hop(crowd.classes, 0.0)
        return sum(
            rounds * (hop.message_s(size * FRAMING_OVERHEAD) + part_s)
            for size in sim_input.step_broadcasts
        )

    def _slowest_hop(self, classes: Sequence[CrowdClass], at_s: float) -> NetworkHop:
        """Return the slowest link of a ring through all workers of these classes at a time."""
        part_bytes = self.sim_input.wire_bytes / len(self.sim_input.hosts)
        counts = self._count_ring_links(classes)
        hops = [self._share_hop(ends, counts, at_s) for ends in counts]
        slowest = max(hops, key=lambda hop: hop.part_s(part_bytes))
        return replace(slowest, rate_mbps=min(slowest.rate_mbps, 1e9))

    def _share_hop(self, ends: HopEnds, counts: Mapping[HopEnds, int], at_s: float) -> NetworkHop:
        """Return a link at a time, with its part of the bottlenecks that links share.

        Args:
            ends: ends of the link.
            counts: number of links of all kinds that are used at once, by their ends.
            at_s: the time.
        """
        network = self.sim_input.network
        hop = network.hop(ends, at_s)
        parts = [
            each.rate_mbps / sum(count for other, count in counts.items() if other in each.ends)
            for each in network.bottlenecks
            if ends in each.ends
        ]
        return replace(hop, rate_mbps=min([hop.rate_mbps, *parts]))

    def _count_ring_links(self, classes: Sequence[CrowdClass]) -> Mapping[HopEnds, int]:
        """Return the numbers of the links of a ring through all workers, class after class."""
        names = [each.name for each in classes]
        counts: dict[HopEnds, int] = {}
        if len(names) > 1:
            counts = dict.fromkeys(zip(names, [*names[1:], names[0]], strict=True), 1)
        for each in classes:
            inside = each.workers - (len(names) > 1)
            if inside and each.workers > 1:
                counts[each.name, self._find_other(each.name)] = inside
        return counts or {(names[0], names[0]): 1}

    def _find_other(self, name: str) -> str:
        """Return another host of the tier of a host."""
        hosts, tiers = self.sim_input.hosts, self.sim_input.tiers
        tier = tiers[hosts.index(name)]
        others = (
            host for host, own in zip(hosts, tiers, strict=True) if own == tier and host != name
        )
        other = next(others, None)
        if other is None:
            raise InputError(
                f"{tier}: has one worker, so the links between several of them are unknown —"
                " give the tier two workers in layers_services.yaml"
            )
        return other

    def _build_ring_links(self, crowd: Crowd) -> tuple[list[NeighborLinks], list[NeighborLinks]]:
        """Return the links of a ring through all workers, from each to the next and back."""
        classes, slices = crowd.classes, crowd.slices()
        used = self._count_ring_links(classes)
        counts = {**used, **{ends[::-1]: count for ends, count in used.items()}}

        def plan(ends: HopEnds, senders: slice) -> NeighborLinks:
            bits = self.sim_input.wire_bytes * 8e-6
            message_s, slowness = self._follow_rates(
                lambda at_s: max(bits / self._share_hop(ends, counts, at_s).rate_mbps, _LEAST_S)
            )
            delay_s = self.sim_input.network.hop(ends).rtt_ms / 2e3
            return NeighborLinks(senders, message_s, delay_s, slowness)

        forward, backward = [], []
        for place, (each, own) in enumerate(zip(classes, slices, strict=True)):
            following, before = classes[(place + 1) % len(classes)], classes[place - 1]
            if each.workers > 1:
                inside = each.name, self._find_other(each.name)
                forward.append(plan(inside, slice(own.start, own.stop - 1)))
                backward.append(plan(inside[::-1], slice(own.start + 1, own.stop)))
            onward = following.name if following is not each else self._find_other(each.name)
            back = before.name if before is not each else self._find_other(each.name)
            forward.append(plan((each.name, onward), slice(own.stop - 1, own.stop)))
            backward.append(plan((each.name, back), slice(own.start, own.start + 1)))
        return forward, backward


def _create_backup_rule(backups: int, workers: int, played: int) -> ServerUpdateRule:
    """Return the rule of played workers, with as large a part of backups as all have."""
    return BackupWorkersRule(played, min(round(backups * played / workers), played - 1))


def _describe(sim_input: SimulationInput, rank: int, absences: Absences | None) -> Hashable:
    """Return everything that distinguishes a worker from others."""
    recorded, host, network = sim_input.work.ranks[rank], sim_input.hosts[rank], sim_input.network
    ways = (host, sim_input.server), (sim_input.server, host)
    hops = [network.hop(way) for way in ways]
    return (
        sim_input.tiers[rank],
        recorded.fixed_s,
        sim_input.shares_of_core[rank],
        tuple(recorded.edges_s.tolist()),
        tuple(recorded.factors.tolist()),
        absences,
        *((hop.rate_mbps, hop.rtt_ms) for hop in hops),
        *(
            (each.first_s, each.last_s, each.rate_mbps, way == ways[0])
            for each in network.slow_periods
            for way in ways
            if way in each.ends
        ),
    )
