"""Steps of one asynchronous rank: work, waiting for other ranks, and samples.

Step n is the rank's own n-th step. It has one moment at which the rank may wait until other ranks
are as far as the strategy requires. Work and sending come before this moment, the rest comes after
it. While the rank waits, the awaited message is in flight; a message that arrived earlier is only
read. Waiting for a server's answer does not count as waiting for a rank.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from laggard.analysis.tables.columns import BoolArray, FloatArray, IntArray, SpanColumns
from laggard.analysis.tables.load_run import RunData
from laggard.core.errors import RunFolderError
from laggard.core.span_schema import Flag, Lane, Phase

PHASES = len(Phase)
_S = 1e-9
_COMM = Phase.COMM.code


@dataclass(frozen=True)
class RankTimeline:
    """N steps of one rank; times are virtual seconds since the first-step barrier.

    Attributes:
        number: step numbers in the run's tables, ascending, [N].
        start_s: start of each step, which is the end of the one before, [N].
        ready_s: end of all work before the wait, [N]; what the rank sends is in flight then.
        resume_s: end of the wait, [N].
        end_s: end of the step, [N].
        before: seconds of each phase before the wait, [N, P]; communication counts if it carries
            data or waits for a server.
        after: seconds of each phase after the wait, [N, P].
        awaited: rank whose arrival ended the wait, [N]; -1 if there was none.
        message_s: part of the wait in which the awaited message was in flight, [N].
        partners: ranks that data came from or went to, by step.
        samples: samples that were trained on, [N].
        taken: samples of the step's batch, [N].
        warm_up: mask of steps that no reference may use, [N].
    """

    number: IntArray
    start_s: FloatArray
    ready_s: FloatArray
    resume_s: FloatArray
    end_s: FloatArray
    before: FloatArray
    after: FloatArray
    awaited: IntArray
    message_s: FloatArray
    partners: tuple[frozenset[int], ...]
    samples: FloatArray
    taken: IntArray
    warm_up: BoolArray

    def __len__(self) -> int:
        return len(self.number)

    @property
    def is_peer_to_peer(self) -> bool:
        """Return whether data was exchanged with other ranks instead of a server."""
        return any(self.partners)

    @property
    def wait_s(self) -> FloatArray:
        """Return the seconds of waiting for other ranks, [N]."""
        return self.resume_s - self.ready_s


def build_rank_timelines(run: RunData) -> tuple[RankTimeline, ...]:
    """Build the timeline of every rank.

    Raises:
        RunFolderError: some rank finished no step.
    """
    whole = (run.spans.flags & Flag.TRUNCATED) == 0
    spans = run.spans.where(
        whole & (run.spans.lane == Lane.MAIN) & (run.spans.start_ns >= 0) & (run.spans.step >= 0)
    )
    rank_timelines = []
    for host in run.hosts:
        own = spans.where(spans.rank == host.rank)
        samples_learned = run.steps.where(run.steps.rank == host.rank)
        # Only finished steps have a row in the table of steps.
        own = own.where(np.isin(own.step, samples_learned.step))
        if not len(own):
            raise RunFolderError(
                f"{run.folder}: {host.host} finished no training step — use a run in which every"
                " worker finished one"
            )
        rank_timelines.append(
            build_rank_timeline(
                own,
                dict(
                    zip(
                        samples_learned.step.tolist(), samples_learned.samples.tolist(), strict=True
                    )
                ),
                run.world_size,
            )
        )
    return tuple(rank_timelines)


def build_rank_timeline(
    spans: SpanColumns, samples_learned: dict[int, int], world: int
) -> RankTimeline:
    """Build the timeline of one rank from its spans.

    Args:
        spans: spans of steps that the rank finished, at least one.
        samples_learned: samples that were trained on, by step.
        world: number of ranks.
    """
    spans = spans.where(np.argsort(spans.start_ns, kind="stable"))
    number, step = np.unique(spans.step, return_inverse=True)
    count = len(number)
    pausing = (spans.phase == _COMM) & (spans.bytes == 0)
    with_rank = (spans.phase == _COMM) & (spans.peer >= 0) & (spans.peer < world)
    # A step waits for a rank if some communication with a rank carries no data and takes time.
    is_waiting = np.isin(step, step[pausing & with_rank & (spans.dur_ns > 0)])
    end_s = np.zeros(count)
    np.maximum.at(end_s, step, spans.end_ns * _S)
    first_s = np.full(count, np.inf)
    np.minimum.at(first_s, step, spans.start_ns * _S)
    # A step starts when the one before ended, so that time between spans belongs to a step.
    start_s = np.concatenate([first_s[:1], end_s[:-1]])
    ready_s = _find_ready_s(spans, step, pausing, end_s)
    is_before = spans.start_ns * _S < ready_s[step]
    for_rank = with_rank & is_waiting & ~is_before
    resume_s = ready_s.copy()
    np.maximum.at(resume_s, step[for_rank], spans.end_ns[for_rank] * _S)
    awaited = np.full(count, -1, dtype=np.int64)
    # Spans are ordered by start, so the last wait of a step overwrites earlier ones.
    awaited[step[for_rank & pausing]] = spans.peer[for_rank & pausing]
    carrying = for_rank & ~pausing
    counted = ~for_rank
    taken = np.zeros(count, dtype=np.int64)
    np.maximum.at(taken, step, spans.work)
    warm_up = np.zeros(count, dtype=np.bool_)
    warm_up[step[(spans.flags & Flag.WARM_UP) != 0]] = True
    return RankTimeline(
        number=number,
        start_s=start_s,
        ready_s=ready_s,
        resume_s=resume_s,
        end_s=end_s,
        before=_sum_by_phase(spans, step, counted & is_before, count),
        after=_sum_by_phase(spans, step, counted & ~is_before, count),
        awaited=awaited,
        message_s=np.bincount(step[carrying], spans.dur_ns[carrying] * _S, count).astype(
            np.float64
        ),
        partners=_find_partners(spans, step, count, world),
        samples=np.array([samples_learned.get(int(n), 0) for n in number], dtype=np.float64),
        taken=taken,
        warm_up=warm_up,
    )


def _find_ready_s(
    spans: SpanColumns, step: IntArray, pausing: BoolArray, end_s: FloatArray
) -> FloatArray:
    """Return the end of the work before the wait, [N].

    It is the start of the step's first communication without data, else of its first
    communication, else the end of the step.
    """
    ready_s = np.full(len(end_s), np.inf)
    for chosen in (pausing, spans.phase == _COMM):
        found = np.full(len(end_s), np.inf)
        np.minimum.at(found, step[chosen], spans.start_ns[chosen] * _S)
        ready_s = np.where(np.isfinite(ready_s), ready_s, found)
    return np.where(np.isfinite(ready_s), ready_s, end_s)


def _sum_by_phase(spans: SpanColumns, step: IntArray, chosen: BoolArray, count: int) -> FloatArray:
    cell = step[chosen] * PHASES + spans.phase[chosen]
    total = np.bincount(cell, weights=spans.dur_ns[chosen] * _S, minlength=count * PHASES).astype(
        np.float64
    )
    return np.asarray(total.reshape(count, PHASES), dtype=np.float64)


def _find_partners(
    spans: SpanColumns, step: IntArray, count: int, world: int
) -> tuple[frozenset[int], ...]:
    partners: list[set[int]] = [set() for _ in range(count)]
    carries = (spans.phase == _COMM) & (spans.bytes > 0) & (spans.peer >= 0) & (spans.peer < world)
    for at, peer in zip(step[carries].tolist(), spans.peer[carries].tolist(), strict=True):
        partners[at].add(peer)
    return tuple(frozenset(each) for each in partners)
