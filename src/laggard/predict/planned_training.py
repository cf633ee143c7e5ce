"""A scenario as a training to simulate: hosts, links, shares and timed changes as they are planned.

Nothing of it was measured except the seconds of a step on each host. Links have exactly the rates
and delays that the scenario asks for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from laggard.core.cost_model.links import HopEnds, NetworkHop
from laggard.core.cost_model.message_handling import MessageHandling
from laggard.core.simulation.network import SimulatedNetwork, SlowPeriod
from laggard.core.simulation.recorded_durations import RecordedDurations
from laggard.core.simulation.training import SimulationInput, TrainingWork
from laggard.network_emulation.dynamics.changes import Overlay, TimedChange, group_by_time
from laggard.network_emulation.link_plan import LinkPlan
from laggard.run_folder.strategy_estimates import list_bottlenecks
from laggard.scenario.load import Scenario
from laggard.workloads.plan import place_server


@dataclass(frozen=True)
class MessageSizes:
    """Sizes of the messages of a training.

    Attributes:
        model_bytes: size of the model's parameters, or of their gradients.
        buffer_bytes: size of the model's buffers, by their type.
    """

    model_bytes: float
    buffer_bytes: tuple[float, ...] = ()


@dataclass(frozen=True)
class PlannedHops(Mapping[HopEnds, NetworkHop]):
    """Links between all hosts of a plan, each made when it is asked for.

    Attributes:
        links: the plan.
    """

    links: LinkPlan

    def __getitem__(self, ends: HopEnds) -> NetworkHop:
        there = self.links.expected(*ends)
        back = self.links.pairs.get(ends[::-1])
        rate_mbps = float("inf") if there.rate_mbps is None else there.rate_mbps
        return NetworkHop(ends, rate_mbps, there.delay_ms + (back.delay_ms if back else 0.0))

    def __iter__(self) -> Iterator[HopEnds]:
        names = [host.name for host in self.links.hosts]
        return ((src, dst) for src in names for dst in names if src != dst)

    def __len__(self) -> int:
        return len(self.links.hosts) * (len(self.links.hosts) - 1)


def plan_training(
    scenario: Scenario,
    step_s: Sequence[float],
    messages: MessageSizes,
    handling: MessageHandling,
    steps: int,
) -> SimulationInput:
    """Return the training of a scenario as the simulation takes it.

    Args:
        scenario: a loaded scenario that trains.
        step_s: seconds of a usual step of every rank, as its host begins, [W].
        messages: sizes of messages.
        handling: processor time of messages and updates.
        steps: number of steps that process the whole batch.
    """
    ranks, overlay = scenario.ranks, _create_overlay(scenario)
    slowness = _follow_shares(scenario.changes, overlay, {rank.name for rank in ranks})
    server = place_server(scenario.workload.placement, scenario.hosts).name
    batch = scenario.workload.batch_size
    shares = divide_shares(scenario)
    return SimulationInput(
        work=TrainingWork(
            ranks=tuple(
                RecordedDurations(seconds, 0.0, np.ones(1), 0, *slowness[rank.name])
                for rank, seconds in zip(ranks, step_s, strict=True)
            ),
            samples_per_step=np.full(1, batch / len(ranks)),
            goal=float(batch * steps),
            end_s=0.0,
        ),
        hosts=tuple(rank.name for rank in ranks),
        tiers=tuple(rank.layer for rank in ranks),
        shares_of_core=tuple(shares[rank.name] for rank in ranks),
        server=server,
        server_share=scenario.shares[server],
        network=SimulatedNetwork(
            PlannedHops(scenario.links),
            list_bottlenecks(scenario.links),
            tuple(_find_slow_periods(scenario)),
        ),
        message_bytes=messages.model_bytes,
        handling=handling,
        step_broadcasts=messages.buffer_bytes
        if scenario.workload.strategy.name == "allreduce"
        else (),
    )


def divide_shares(scenario: Scenario) -> Mapping[str, float]:
    """Return the share of a core of each worker, by host, whose workers divide its share."""
    workers: dict[str, int] = {}
    for rank in scenario.ranks:
        workers[rank.name] = workers.get(rank.name, 0) + 1
    return {host: scenario.shares[host] / count for host, count in workers.items()}


def _create_overlay(scenario: Scenario) -> Overlay:
    return Overlay(scenario.shares, scenario.links.pairs, scenario.drives)


_Slowness = tuple[np.ndarray[tuple[int], np.dtype[np.float64]], ...]


def _follow_shares(
    changes: Sequence[TimedChange], overlay: Overlay, hosts: set[str]
) -> Mapping[str, _Slowness]:
    """Return the times at which the slowness of each host changes, and the slowness around them."""
    base = {host: overlay.share(host) for host in hosts}
    edges_s: dict[str, list[float]] = {host: [] for host in hosts}
    factors: dict[str, list[float]] = {host: [1.0] for host in hosts}
    for at_s, group in group_by_time(changes):
        for change in group:
            overlay.apply(change)
        for host in {target for change in group for target in change.targets} & hosts:
            assert isinstance(host, str)
            factor = base[host] / overlay.share(host)
            if factor != factors[host][-1]:
                edges_s[host].append(at_s)
                factors[host].append(factor)
    return {host: (np.array(edges_s[host]), np.array(factors[host])) for host in hosts}


def _find_slow_periods(scenario: Scenario) -> Iterator[SlowPeriod]:
    """Yield the periods in which timed changes lower the rates of links."""
    overlay, base = _create_overlay(scenario), scenario.links.pairs
    since: dict[HopEnds, tuple[float, float]] = {}
    for at_s, group in group_by_time(scenario.changes):
        for change in group:
            overlay.apply(change)
        for ends in {
            each for change in group for each in change.targets if isinstance(each, tuple)
        }:
            rate, usual = overlay.constraint(ends).rate_mbps, base[ends].rate_mbps
            if ends in since:
                begun_s, slow_mbps = since.pop(ends)
                yield SlowPeriod(begun_s, at_s, frozenset((ends,)), slow_mbps)
            if rate is not None and (usual is None or rate < usual):
                since[ends] = at_s, rate
    for ends, (begun_s, slow_mbps) in since.items():
        yield SlowPeriod(begun_s, float("inf"), frozenset((ends,)), slow_mbps)
