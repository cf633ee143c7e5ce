"""The same training with another number of workers in a tier."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, replace

from laggard.core.cost_model.links import HopEnds, NetworkHop
from laggard.core.errors import InputError
from laggard.core.simulation.network import SimulatedNetwork
from laggard.core.simulation.training import SimulationInput, TrainingWork

MAX_WORKERS = 4096
"""Largest number of workers that are played message by message."""


@dataclass(frozen=True)
class _Worker:
    """A worker after the change: its name, and the rank whose work and links it has."""

    host: str
    rank: int


def resize_tiers(sim_input: SimulationInput, workers: Mapping[str, int]) -> SimulationInput:
    """Return the training with other numbers of workers.

    A batch is shared by all workers, so more workers have fewer samples each. An added worker does
    what a worker of its tier did, at the same times and over links like that worker's. Bottlenecks
    of that worker's links are shared with it. The workers that are removed are the last of a tier.

    Args:
        sim_input: training to change; its links must be known.
        workers: new number of workers by tier; other tiers keep theirs.

    Raises:
        InputError: a tier has no workers, or a number of workers is impossible.
    """
    if not workers:
        return sim_input
    kept = list(_list_workers(sim_input, workers))
    if not kept:
        raise InputError("no worker is left — keep at least one")
    factor = sim_input.world / len(kept)
    work = sim_input.work
    ranks = [worker.rank for worker in kept]
    return replace(
        sim_input,
        work=TrainingWork(
            tuple(work.ranks[rank] for rank in ranks),
            work.samples_per_step * factor,
            work.goal,
            work.end_s,
        ),
        hosts=tuple(worker.host for worker in kept),
        tiers=tuple(sim_input.tiers[rank] for rank in ranks),
        shares_of_core=tuple(sim_input.shares_of_core[rank] for rank in ranks),
        network=_resize_network(sim_input, kept),
        exchange=None,
        exit_delay_s=(),
    )


def _list_workers(sim_input: SimulationInput, workers: Mapping[str, int]) -> Iterator[_Worker]:
    members = {
        tier: [rank for rank, other in enumerate(sim_input.tiers) if other == tier]
        for tier in sim_input.tiers
    }
    for tier, count in workers.items():
        if tier not in members:
            raise InputError(
                f"{tier}: no tier of this run has workers of that name — use one of"
                f" {', '.join(members)}"
            )
        if not 0 <= count <= MAX_WORKERS:
            raise InputError(f"{tier}: {count} workers, which must be 0 to {MAX_WORKERS}")
    for tier, ranks in members.items():
        count = workers.get(tier, len(ranks))
        for place in range(count):
            rank = ranks[place % len(ranks)]
            copy = place // len(ranks)
            yield _Worker(sim_input.hosts[rank] + (f" copy {copy}" if copy else ""), rank)


def _resize_network(sim_input: SimulationInput, kept: list[_Worker]) -> SimulatedNetwork:
    network, hosts = sim_input.network, sim_input.hosts
    like = {worker.host: hosts[worker.rank] for worker in kept} | {
        sim_input.server: sim_input.server
    }
    tiers = dict(zip(hosts, sim_input.tiers, strict=True))
    within: dict[str, HopEnds] = {}
    for ends in network.hops:
        if ends[0] in tiers and tiers.get(ends[1]) == tiers[ends[0]]:
            within[tiers[ends[0]]] = ends
    resized = _ResizedLinks(network.hops, like, tiers, within)
    return SimulatedNetwork(
        resized,
        tuple(replace(each, ends=_ResizedEnds(each.ends, resized)) for each in network.bottlenecks),
        tuple(
            replace(each, ends=_ResizedEnds(each.ends, resized)) for each in network.slow_periods
        ),
    )


@dataclass(frozen=True)
class _ResizedLinks(Mapping[HopEnds, NetworkHop]):
    """Links between workers and their copies, each made when it is asked for.

    Attributes:
        hops: links before the change.
        like: host of before that each host is like.
        tiers: tier of the hosts of before.
        within: one link between two workers of each tier.
    """

    hops: Mapping[HopEnds, NetworkHop]
    like: Mapping[str, str]
    tiers: Mapping[str, str]
    within: Mapping[str, HopEnds]

    def __getitem__(self, ends: HopEnds) -> NetworkHop:
        found = self.find(ends)
        if found is None:
            raise KeyError(ends)
        hop = self.hops[found]
        return NetworkHop(ends, hop.rate_mbps, hop.rtt_ms)

    def find(self, ends: HopEnds) -> HopEnds | None:
        """Return the link of before that a link is like; None if there is none."""
        if ends[0] == ends[1] or ends[0] not in self.like or ends[1] not in self.like:
            return None
        src, dst = self.like[ends[0]], self.like[ends[1]]
        if src != dst and (src, dst) in self.hops:
            return src, dst
        # A worker and its copy are as far apart as two workers of their tier.
        return self.within.get(self.tiers.get(src, ""))

    def __contains__(self, ends: object) -> bool:
        return isinstance(ends, tuple) and self.find((ends[0], ends[1])) is not None

    def __iter__(self) -> Iterator[HopEnds]:
        pairs = ((src, dst) for src in self.like for dst in self.like)
        return (ends for ends in pairs if ends in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)


@dataclass(frozen=True)
class _ResizedEnds(Container[HopEnds]):
    """Ends of links between workers and their copies that are like those of some links.

    Attributes:
        ends: ends before the change.
        links: links after the change.
    """

    ends: Container[HopEnds]
    links: _ResizedLinks

    def __contains__(self, ends: object) -> bool:
        return isinstance(ends, tuple) and self.links.find((ends[0], ends[1])) in self.ends
