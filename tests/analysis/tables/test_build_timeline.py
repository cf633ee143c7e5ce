"""Work is before the barrier that it was done before, however barriers cut through a step's phases:
against spans followed one by one."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from laggard.analysis.evaluate.synthetic.run_generator import Tier, TraceSpec, generate_run
from laggard.analysis.tables.columns import SpanColumns
from laggard.analysis.tables.load_run import RunData
from laggard.analysis.tables.timelines.build_timeline import build_timeline
from laggard.analysis.tables.timelines.phase_times import PHASES
from laggard.core.span_schema import Lane, Phase

WORLD = 3
WORK = (Phase.FETCH, Phase.FORWARD, Phase.BACKWARD)
MEET_ALL, MEET_TWO = "all", "the first two"
steps_drawn = st.lists(
    st.lists(st.sampled_from([*WORK, MEET_ALL, MEET_TWO]), min_size=1, max_size=7),
    min_size=1,
    max_size=5,
)
durations = st.lists(st.integers(1, 50), min_size=40, max_size=40)


class Drawn:
    """Spans of ranks that do the same, each in its own time; and the work of each before each
    barrier, counted span by span."""

    def __init__(self, steps: list[list[Phase | str]], taken: list[int]) -> None:
        self.rows: list[tuple[int, int, int, int, int, int]] = []
        self.before: list[list[int]] = [[0] * WORLD]
        self._clock = [0] * WORLD
        self._taken = iter(taken * 20)
        for step, items in enumerate(steps):
            for group, item in enumerate(items):
                if isinstance(item, Phase):
                    self._work(step, item)
                else:
                    self._meet(step, group, range(WORLD if item == MEET_ALL else 2))

    def _work(self, step: int, phase: Phase) -> None:
        for rank in range(WORLD):
            length = next(self._taken)
            self.rows.append((step, rank, phase.code, self._clock[rank], length, -1))
            self._clock[rank] += length
            self.before[-1][rank] += length

    def _meet(self, step: int, group: int, members: range) -> None:
        over = max(self._clock[rank] for rank in members) + next(self._taken)
        for rank in members:
            self.rows.append(
                (step, rank, Phase.COMM.code, self._clock[rank], over - self._clock[rank], group)
            )
            self._clock[rank] = over
        # Who is no part of it goes on with what comes before its next one.
        others = [0 if rank in members else self.before[-1][rank] for rank in range(WORLD)]
        self.before[-1] = [self.before[-1][rank] if rank in members else 0 for rank in range(WORLD)]
        self.before.append(others)

    def run(self) -> RunData:
        columns = np.array(
            sorted(self.rows, key=lambda row: (row[0], row[1], row[3])), dtype=np.int64
        ).T
        told = dict(
            zip(("step", "rank", "phase", "start_ns", "dur_ns", "group"), columns, strict=True)
        )
        none = np.zeros(len(columns[0]), dtype=np.int64)
        table = {f.name: told.get(f.name, none) for f in fields(SpanColumns)} | {
            "lane": none + Lane.MAIN,
            "peer": none - 1,
        }
        generated = generate_run(TraceSpec(tiers=(Tier("cloud", WORLD),), steps=1))
        return replace(generated, spans=SpanColumns(**table))


@given(steps_drawn, durations)
def test_work_is_before_the_barrier_it_was_done_before(
    steps: list[list[Phase | str]], taken: list[int]
) -> None:
    drawn = Drawn([[*step, Phase.FETCH] for step in steps], taken)
    timeline = build_timeline(drawn.run())
    found = np.stack(
        [
            timeline.work_before_barriers(rank, np.ones((len(timeline.steps), PHASES)))
            for rank in range(WORLD)
        ],
        axis=1,
    )
    np.testing.assert_allclose(found * 1e9, drawn.before, rtol=1e-6)
    np.testing.assert_allclose(timeline.local * 1e9, drawn.before, atol=1e-3)


@given(steps_drawn, durations)
def test_a_share_of_one_phase_in_one_step_is_that_of_its_spans(
    steps: list[list[Phase | str]], taken: list[int]
) -> None:
    drawn = Drawn([[*step, Phase.BACKWARD] for step in steps], taken)
    timeline, code, step = build_timeline(drawn.run()), Phase.BACKWARD.code, len(steps) - 1
    share = np.zeros((len(timeline.steps), 1))
    share[step] = 0.5
    for rank in range(WORLD):
        spans = [
            length
            for at, whose, phase, _, length, _ in drawn.rows
            if (at, whose, phase) == (step, rank, code)
        ]
        np.testing.assert_allclose(
            timeline.work_before_barriers(rank, share, [code]).sum() * 1e9,
            0.5 * sum(spans),
            rtol=1e-6,
        )
