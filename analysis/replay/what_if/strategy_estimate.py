"""Estimated duration of the same work under other strategies.

*The same work* is the same number of samples, in steps of the same size for each worker.
Strategies in lockstep take the same number of global steps. With other strategies all ranks
together process as many samples, in any division among the ranks. It is not the same accuracy: no
replay can tell how many samples a strategy needs for that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from laggard.analysis.detection.causes import Cause
from laggard.analysis.replay.asynchronous.async_analysis import MAX_REPLAYED_STEPS
from laggard.analysis.replay.fitted_durations import fit_recorded_durations
from laggard.analysis.replay.lockstep.all_reduce_ring import find_ring, slow_down_ring
from laggard.analysis.replay.lockstep.lockstep_analysis import LockstepAnalysis
from laggard.analysis.replay.run_network import (
    build_network,
    find_ends_between_tiers,
    require_named_links,
)
from laggard.analysis.replay.training_work import measure_work
from laggard.analysis.replay.what_if.counterfactual import RunReplay, build_replay
from laggard.analysis.tables.load_run import RunData
from laggard.analysis.tables.timelines.step_clock import get_step_clock
from laggard.core.cost_model.links import NetworkHop
from laggard.core.errors import RunFolderError
from laggard.core.simulation.network import Bottleneck, SimulatedNetwork, SlowPeriod
from laggard.core.simulation.recorded_durations import RecordedDurations
from laggard.core.simulation.resizing import resize_tiers
from laggard.core.simulation.strategies.catalog import (
    ALL_REDUCE_STRATEGIES,
    STRATEGIES,
    AlternativeStrategy,
    describe_strategy,
)
from laggard.core.simulation.training import SimulationInput
from laggard.core.span_schema import Lane, Phase


@dataclass(frozen=True)
class DeploymentInfo:
    """Facts about the continuum that a run's tables do not contain.

    Attributes:
        bottlenecks: rates that several links share.
        server: host on which a server would run; None means the host of rank 0.
        server_share: share of one core that the server's host has; None means that of the worker
            on that host, or else of rank 0.
    """

    bottlenecks: tuple[Bottleneck, ...] = ()
    server: str | None = None
    server_share: float | None = None


@dataclass(frozen=True)
class StrategyEstimate:
    """Estimated duration of the same work under one strategy.

    Attributes:
        strategy: the strategy.
        makespan_s: virtual seconds; None if the run has too little information.
        steps: number of steps that each rank would have taken.
        extrapolated_s: seconds of the makespan after the end of the run, where no slow period is
            known.
        failure_reason: reason for a missing makespan, as a sentence.
    """

    strategy: AlternativeStrategy
    makespan_s: float | None
    steps: tuple[int, ...] = ()
    extrapolated_s: float = 0.0
    failure_reason: str = ""


def estimate_strategies(
    run: RunData,
    others: Sequence[AlternativeStrategy] | None = None,
    deployment: DeploymentInfo | None = None,
    workers: Mapping[str, int] | None = None,
) -> tuple[StrategyEstimate, ...]:
    """Estimate the duration of the same work under other strategies.

    Args:
        run: run of any strategy that can be replayed.
        others: strategies to estimate; all strategies with their defaults when absent.
        deployment: further facts about the continuum.
        workers: other numbers of workers, by tier (see `resize_tiers`).

    Raises:
        InputError: a tier has no workers, or a number of workers is impossible.
        RunFolderError: the run does not record the work or the messages of its workers.

    Examples:
        >>> from laggard.core.simulation.strategies.catalog import AlternativeStrategy
        >>> from laggard.analysis.tables.load_run import load_run
        >>> run = load_run(Path("runs/quickstart/latest"))
        >>> (estimate,) = estimate_strategies(run, [AlternativeStrategy("local_sgd", {"steps": 4})])
        >>> estimate.makespan_s < 35.0
        True
    """
    known = deployment or DeploymentInfo()
    inputs = _InputBuilder(run, known, workers or {})
    wanted = [AlternativeStrategy(name) for name in STRATEGIES] if others is None else others
    return tuple(_estimate_strategy(inputs, other) for other in wanted)


def get_own_strategy(run: RunData) -> AlternativeStrategy:
    """Return the strategy of a run, with its parameters.

    Raises:
        InputError: the strategy cannot be simulated.
    """
    if run.record is None:
        return AlternativeStrategy("allreduce")
    return describe_strategy(run.record.strategy.name, run.record.strategy.parameters)


def _estimate_strategy(inputs: _InputBuilder, other: AlternativeStrategy) -> StrategyEstimate:
    try:
        sim_input = inputs.build_input(other)
        result = other.simulate(sim_input)
    except RunFolderError as error:
        return StrategyEstimate(other, None, failure_reason=str(error))
    return StrategyEstimate(
        other, result.makespan_s, result.steps, max(result.end_s - sim_input.work.end_s, 0.0)
    )


class _InputBuilder:
    """Builder of simulation inputs; parts that strategies share are computed once."""

    def __init__(self, run: RunData, known: DeploymentInfo, workers: Mapping[str, int]) -> None:
        if run.record is not None and run.record.origin is not None:
            raise RunFolderError(
                f"{run.folder}: a trace of another tool does not record what its workers sent, so"
                " other strategies cannot be simulated from it"
            )
        if len(run.steps) > MAX_REPLAYED_STEPS:
            raise RunFolderError(
                f"{run.folder}: the workers took {len(run.steps)} steps in total, and at most"
                f" {MAX_REPLAYED_STEPS} can be simulated — record a shorter run"
            )
        self._run, self._replay = run, build_replay(run)
        self._name = run.record.strategy.name if run.record is not None else "allreduce"
        server = known.server or run.hosts[0].host
        shares = {host.host: host.cpu_share for host in run.hosts}
        self._base = SimulationInput(
            work=measure_work(run),
            hosts=tuple(host.host for host in run.hosts),
            tiers=tuple(host.tier for host in run.hosts),
            shares_of_core=tuple(host.cpu_share for host in run.hosts),
            server=server,
            server_share=known.server_share or shares.get(server, run.hosts[0].cpu_share),
            network=SimulatedNetwork({}),
            message_bytes=message_bytes(run),
            pauses=_measure_pauses(self._replay.analysis)
            if isinstance(self._replay.analysis, LockstepAnalysis)
            else {},
        )
        self._shared, self._workers = known.bottlenecks, workers

    def build_input(self, other: AlternativeStrategy) -> SimulationInput:
        """Return the simulation input of a strategy.

        Raises:
            RunFolderError: the run does not record the links that the strategy would use.
        """
        part = self._replay.analysis
        # If both strategies all-reduce the whole model, the measured all-reduces are used and no
        # model of the network is needed.
        if (
            other.name in ALL_REDUCE_STRATEGIES
            and not self._workers
            and self._name in ALL_REDUCE_STRATEGIES
            and isinstance(part, LockstepAnalysis)
        ):
            whole = other.name == self._name == "allreduce"
            exchange, exit_delay_s = _measure_exchange(part, whole_step=whole)
            return replace(self._base, exchange=exchange, exit_delay_s=exit_delay_s)
        network = build_network(self._run, self._shared)
        slow_periods = _find_slow_periods(self._run, self._replay, network.hops)
        return resize_tiers(
            replace(self._base, network=replace(network, slow_periods=slow_periods)), self._workers
        )


def message_bytes(run: RunData) -> float:
    """Return the size of a run's model in bytes.

    The size of all gradients is the same, except for buffers.

    Raises:
        RunFolderError: the messages of the run are not whole models or gradients.
    """
    strategy = run.record.strategy if run.record is not None else None
    name, parameters = (
        (strategy.name, strategy.parameters) if strategy is not None else ("allreduce", {})
    )
    if parameters.get("compress") is not None:
        raise RunFolderError(
            f"{run.folder}: its workers sent compressed models (compress), so the size of other"
            " strategies' messages is unknown — use a run without compression"
        )
    spans = run.spans
    carrying = (spans.phase == Phase.COMM.code) & (spans.bytes > 0)
    sizes = spans.bytes[carrying & (spans.lane == Lane.MAIN)]
    if name == "ad_psgd":
        sizes = spans.bytes[carrying & (spans.lane == Lane.BACKGROUND)]
    if name not in STRATEGIES or not len(sizes):
        raise RunFolderError(
            f"{run.folder}: the spans of {name} do not record the size of its model, so other"
            " strategies cannot be simulated from it"
        )
    # Smaller messages, such as buffers, are not whole models.
    whole = float(np.median(sizes[sizes >= sizes.max() / 2]))
    group = parameters.get("group")
    # A ring average of n ranks sends 2 (n - 1) / n of the model per rank.
    if name == "partial_reduce" and isinstance(group, int):
        return whole * group / (2 * (group - 1))
    if name in ("gossip", "hop"):
        return float(sizes.min())
    return whole


def _measure_pauses(part: LockstepAnalysis) -> Mapping[int, float]:
    timeline = part.timeline
    steps = timeline.steps[timeline.barrier_step]
    return {
        int(steps[place]): float(timeline.outside[place])
        for place in np.flatnonzero(timeline.pause)
    }


def _measure_exchange(
    part: LockstepAnalysis, *, whole_step: bool
) -> tuple[RecordedDurations, tuple[float, ...]]:
    """Return the durations of all-reduces of all ranks, and each rank's delay after the median one.

    The durations are those of the most expensive all-reduce of each step, or of all that DDP makes
    in a step.
    """
    timeline, transfers = part.timeline, part.transfers
    of_all = ~timeline.pause & timeline.member.all(axis=1)
    groups = np.unique(timeline.group[of_all])
    costliest = max(
        groups, key=lambda group: float(transfers.seconds[timeline.group == group].sum())
    )
    rows = np.flatnonzero(of_all & (timeline.group == costliest))
    step = timeline.barrier_step[rows]
    seconds = transfers.step_seconds[step] if whole_step else transfers.seconds[rows]
    start_s, warm_up = timeline.latest[rows], timeline.warm_up[step]
    usual_s = float(np.median(seconds[~warm_up] if (~warm_up).any() else seconds))
    later_s = np.median(timeline.transfer[rows] - transfers.seconds[rows][:, None], axis=0)
    exchange = fit_recorded_durations(
        usual_s, 0.0, start_s, start_s + seconds, seconds / max(usual_s, 1e-9), warm_up
    )
    return exchange, tuple(later_s.tolist())


def _find_slow_periods(
    run: RunData, replay: RunReplay, hops: Mapping[tuple[str, str], NetworkHop]
) -> tuple[SlowPeriod, ...]:
    """Return the periods in which links were slower than usual, from the causes that were found."""
    causes = [cause for cause in replay.causes if cause.spec.uses_links and cause.kind == "dynamic"]
    require_named_links(causes, run.folder)
    tiers = {host.host: host.tier for host in run.hosts}
    found = []
    for cause in causes:
        if isinstance(replay.analysis, LockstepAnalysis):
            assert cause.link is not None
            affected_ends = find_ends_between_tiers(cause.link, tiers)
            rate = _find_slow_rate(run, replay.analysis, cause, hops)
            steps = replay.analysis.timeline.steps
            window = get_step_clock(run).window_s(int(steps[cause.first]), int(steps[cause.last]))
            found.append(SlowPeriod(*window, affected_ends, rate))
        elif cause.rank is not None:
            host, rank_timeline = (
                run.hosts[cause.rank].host,
                replay.analysis.async_replay.rank_timelines[cause.rank],
            )
            affected_ends = frozenset(ends for ends in hops if host in ends)
            rate = min(hops[ends].rate_mbps for ends in affected_ends) / cause.slowdown
            found.append(
                SlowPeriod(
                    float(rank_timeline.start_s[cause.first]),
                    float(rank_timeline.end_s[cause.last]),
                    affected_ends,
                    rate,
                )
            )
    return tuple(found)


def _find_slow_rate(
    run: RunData,
    analysis: LockstepAnalysis,
    cause: Cause,
    hops: Mapping[tuple[str, str], NetworkHop],
) -> float:
    """Return the rate of a link in Mbit/s while transfers over it were slow."""
    assert cause.link is not None
    tiers = {host.host: host.tier for host in run.hosts}
    affected_ends = find_ends_between_tiers(cause.link, tiers)
    if run.record is not None and run.record.strategy.server_tier is not None:
        # A message to or from a server has the link for itself, or shares it as in usual steps.
        slowed = [hops[ends].rate_mbps / cause.slowdown for ends in affected_ends & hops.keys()]
    else:
        ring = find_ring(run, analysis.timeline, analysis.transfers)
        slow_hops = slow_down_ring(ring, cause, run, tiers)
        slowed = [hop.rate_mbps for hop in slow_hops if hop.ends in affected_ends]
    if not slowed:
        raise RunFolderError(
            f"{run.folder}: the link {cause.link[0]} to {cause.link[1]} was temporarily slow, and"
            " its usual rate was not measured or is not part of the all-reduce ring, so its rate"
            " then is unknown"
        )
    return min(slowed)
