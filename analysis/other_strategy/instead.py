"""What if a run had trained by another strategy: how long the same work would have taken.

*The same work* is as many samples, in steps of as many for each worker: for strategies in lockstep
the same number of steps of the whole, for others as many samples learnt from by all together,
whoever learns from them. It is not the same accuracy: how many samples a strategy needs for that,
no replay can say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from laggard.analysis.counterfactual import Replay, replay_of
from laggard.analysis.link_change import Hop
from laggard.analysis.load import Run
from laggard.analysis.other_strategy.catalogue import ALL_REDUCING, STRATEGIES, Other
from laggard.analysis.other_strategy.network import (
    Bottleneck,
    Network,
    SlowTime,
    between_tiers,
    network_of_run,
    require_named,
)
from laggard.analysis.other_strategy.repeated import Repeated, repeated
from laggard.analysis.other_strategy.scene import Scene
from laggard.analysis.other_strategy.work import measure_work
from laggard.analysis.own_pace.study import MOST_STEPS
from laggard.analysis.replay.ring import find_ring, slowed_ring
from laggard.analysis.step_clock import step_clock
from laggard.analysis.study import Study
from laggard.errors import RunFolderError
from laggard.span_schema import Lane, Phase


@dataclass(frozen=True)
class Surroundings:
    """What a run's tables do not tell of its continuum.

    Attributes:
        shared: rates that several ways share.
        server: the host that a server would be on; None: that of rank 0.
        server_share: of a core, that the server's host has; None: as rank 0's, or that of a worker
            there.
    """

    shared: tuple[Bottleneck, ...] = ()
    server: str | None = None
    server_share: float | None = None


@dataclass(frozen=True)
class Instead:
    """How long the same work would have taken by another strategy.

    Attributes:
        strategy: which.
        makespan_s: virtual seconds; None where the run does not tell.
        steps: that each rank would have taken.
        beyond_s: of the makespan, what lies behind the end of the run, where no time is known to be
            slow.
        why_not: why the run does not tell, as a sentence.
    """

    strategy: Other
    makespan_s: float | None
    steps: tuple[int, ...] = ()
    beyond_s: float = 0.0
    why_not: str = ""


def instead(
    run: Run, others: Sequence[Other] | None = None, surroundings: Surroundings | None = None
) -> tuple[Instead, ...]:
    """How long the same work would have taken by other strategies.

    Args:
        run: of any strategy that can be replayed.
        others: which; all there are, with their defaults, when absent.
        surroundings: what else is known of the continuum.

    Raises:
        RunFolderError: the run does not tell what its workers computed or sent.
    """
    known = surroundings or Surroundings()
    scenes = _Scenes(run, known)
    wanted = [Other(name) for name in STRATEGIES] if others is None else others
    return tuple(_one(scenes, other) for other in wanted)


def _one(scenes: _Scenes, other: Other) -> Instead:
    try:
        scene = scenes.of(other)
        played = other.play(scene)
    except RunFolderError as error:
        return Instead(other, None, why_not=str(error))
    return Instead(
        other, played.makespan_s, played.steps, max(played.end_s - scene.work.end_s, 0.0)
    )


class _Scenes:
    """The scene of each strategy: what most have in common is worked out once."""

    def __init__(self, run: Run, known: Surroundings) -> None:
        if run.record is not None and run.record.origin is not None:
            raise RunFolderError(
                f"{run.folder}: a trace of another tool does not say what its workers sent, so no"
                " other strategy can be played with it"
            )
        if len(run.steps) > MOST_STEPS:
            raise RunFolderError(
                f"{run.folder}: all workers together took {len(run.steps)} steps, and up to"
                f" {MOST_STEPS} are played — record fewer"
            )
        self._run, self._replay = run, replay_of(run)
        self._name = run.record.strategy.name if run.record is not None else "allreduce"
        server = known.server or run.hosts[0].host
        shares = {host.host: host.cpu_share for host in run.hosts}
        self._base = Scene(
            work=measure_work(run),
            hosts=tuple(host.host for host in run.hosts),
            tiers=tuple(host.tier for host in run.hosts),
            shares_of_core=tuple(host.cpu_share for host in run.hosts),
            server=server,
            server_share=known.server_share or shares.get(server, run.hosts[0].cpu_share),
            network=Network({}),
            message_bytes=message_bytes(run),
            pauses=_pauses(self._replay.part) if isinstance(self._replay.part, Study) else {},
        )
        self._shared = known.shared

    def of(self, other: Other) -> Scene:
        """What a strategy is played with.

        Raises:
            RunFolderError: the run does not tell of the links that it would use.
        """
        part = self._replay.part
        if other.name in ALL_REDUCING and self._name in ALL_REDUCING and isinstance(part, Study):
            whole = other.name == self._name == "allreduce"
            exchange, leaves_s = _exchange(part, whole_step=whole)
            return replace(self._base, exchange=exchange, leaves_s=leaves_s)
        network = network_of_run(self._run, self._shared)
        return replace(
            self._base,
            network=replace(network, slow=_slow_times(self._run, self._replay, network.hops)),
        )


def message_bytes(run: Run) -> float:
    """Bytes of a run's model, or of all its gradients, which are as many but for buffers.

    Raises:
        RunFolderError: what was sent was something else.
    """
    strategy = run.record.strategy if run.record is not None else None
    name, told = (strategy.name, strategy.parameters) if strategy is not None else ("allreduce", {})
    if told.get("compress") is not None:
        raise RunFolderError(
            f"{run.folder}: its workers sent less than their models (compress), so other"
            " strategies' messages are not known"
        )
    spans = run.spans
    carrying = (spans.phase == Phase.COMM.code) & (spans.bytes > 0)
    sizes = spans.bytes[carrying & (spans.lane == Lane.MAIN)]
    if name == "ad_psgd":
        sizes = spans.bytes[carrying & (spans.lane == Lane.BESIDE)]
    if name not in STRATEGIES or not len(sizes):
        raise RunFolderError(
            f"{run.folder}: the spans of {name} do not say how large its model is, so no other"
            " strategy can be played with it"
        )
    whole = float(np.median(sizes[sizes >= sizes.max() / 2]))
    group = told.get("group")
    if name == "partial_reduce" and isinstance(group, int):
        return whole * group / (2 * (group - 1))
    if name in ("gossip", "hop"):
        return float(sizes.min())
    return whole


def _pauses(part: Study) -> Mapping[int, float]:
    timeline = part.timeline
    steps = timeline.steps[timeline.barrier_step]
    return {
        int(steps[place]): float(timeline.outside[place])
        for place in np.flatnonzero(timeline.pause)
    }


def _exchange(part: Study, *, whole_step: bool) -> tuple[Repeated, tuple[float, ...]]:
    """The all-reduces of all ranks: the dearest of each step, or all that DDP does in one; and how
    much later than the middle one each rank was through.
    """
    timeline, transfers = part.timeline, part.transfers
    of_all = ~timeline.pause & timeline.member.all(axis=1)
    groups = np.unique(timeline.group[of_all])
    dearest = max(groups, key=lambda group: float(transfers.seconds[timeline.group == group].sum()))
    rows = np.flatnonzero(of_all & (timeline.group == dearest))
    step = timeline.barrier_step[rows]
    seconds = transfers.step_seconds[step] if whole_step else transfers.seconds[rows]
    start_s, warm_up = timeline.latest[rows], timeline.warm_up[step]
    usual_s = float(np.median(seconds[~warm_up] if (~warm_up).any() else seconds))
    later_s = np.median(timeline.transfer[rows] - transfers.seconds[rows][:, None], axis=0)
    exchange = repeated(
        usual_s, 0.0, start_s, start_s + seconds, seconds / max(usual_s, 1e-9), warm_up
    )
    return exchange, tuple(later_s.tolist())


def _slow_times(
    run: Run, replay: Replay, hops: Mapping[tuple[str, str], Hop]
) -> tuple[SlowTime, ...]:
    """When links were slower than usual, as far as the analysis found it."""
    causes = [
        cause for cause in replay.causes if cause.family == "network" and cause.kind == "dynamic"
    ]
    require_named(causes, run.folder)
    tiers = {host.host: host.tier for host in run.hosts}
    found = []
    for cause in causes:
        if isinstance(replay.part, Study):
            assert cause.link is not None
            ring = find_ring(run, replay.part.timeline, replay.part.transfers)
            ways = between_tiers(cause.link, tiers)
            slowed = [
                hop.rate_mbps for hop in slowed_ring(ring, cause, run, tiers) if hop.ends in ways
            ]
            if not slowed:
                raise RunFolderError(
                    f"{run.folder}: {cause.link[0]} to {cause.link[1]} was slow for a while, and is"
                    " no part of the ring"
                )
            steps = replay.part.timeline.steps
            window = step_clock(run).window_s(int(steps[cause.first]), int(steps[cause.last]))
            found.append(SlowTime(*window, ways, min(slowed)))
        elif cause.rank is not None:
            host, pace = run.hosts[cause.rank].host, replay.part.race.paces[cause.rank]
            ways = frozenset(ends for ends in hops if host in ends)
            rate = min(hops[ends].rate_mbps for ends in ways) / cause.slowdown
            found.append(
                SlowTime(
                    float(pace.start_s[cause.first]), float(pace.end_s[cause.last]), ways, rate
                )
            )
    return tuple(found)
