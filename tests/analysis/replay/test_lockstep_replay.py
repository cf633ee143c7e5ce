"""The replay against what was measured, closed forms and a slow simulator of its own."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from laggard.analysis.evaluate.synthetic.run_generator import Injection, TraceSpec, generate_run
from laggard.analysis.findings.analysis_result import analyze_lockstep
from laggard.analysis.replay.lockstep.observed_schedule import build_observed_schedule
from laggard.analysis.replay.lockstep.residual_waits import measure_waits
from laggard.analysis.tables.columns import BoolArray, FloatArray, SpanColumns
from laggard.analysis.tables.load_run import RunData
from laggard.analysis.tables.timelines.build_timeline import build_timeline
from laggard.analysis.tables.timelines.time_split import get_tier_placement, split_time
from laggard.core.errors import RunFolderError
from laggard.core.simulation.maxplus import Schedule, compute_makespan
from laggard.core.span_schema import Flag, Phase
from tests.analysis.traces import CONTINUUM, HARSH, LEVEL, keep_spans, quiet


def simulate(schedule: Schedule) -> float:
    """One barrier after another, one rank after another: the definition, slowly."""
    return _simulate(schedule)[0]


def _simulate(schedule: Schedule) -> tuple[float, float]:
    """The makespan, and the seconds that ranks wait before its end."""
    clock = [0.0] * schedule.local.shape[1]
    reached: list[float] = []
    waited = 0.0
    for barrier in range(len(schedule.local)):
        arrival = [at + float(schedule.local[barrier, rank]) for rank, at in enumerate(clock)]
        latest = max(at for rank, at in enumerate(arrival) if schedule.member[barrier, rank])
        if schedule.posted[barrier] >= 0:
            latest = max(latest, reached[int(schedule.posted[barrier])])
        reached.append(latest)
        if barrier < len(schedule.local) - 1:
            waited += sum(
                latest - at
                for at, waits in zip(arrival, schedule.depends[barrier], strict=True)
                if waits
            )
        clock = [
            (
                latest + float(schedule.transfer[barrier, rank])
                if schedule.depends[barrier, rank]
                else own + float(schedule.own[barrier, rank])
            )
            for rank, own in enumerate(arrival)
        ]
    return reached[-1], waited


def schedules(max_barriers: int = 12) -> st.SearchStrategy[Schedule]:
    @st.composite
    def build(draw: st.DrawFn) -> Schedule:
        barriers, world = draw(st.integers(1, max_barriers)), draw(st.integers(1, 4))
        seconds = arrays(np.float64, (barriers, world), elements=st.floats(0, 10))
        depends: BoolArray = draw(arrays(np.bool_, (barriers, world)))
        member: BoolArray = draw(arrays(np.bool_, (barriers, world)))
        member[:, draw(st.integers(0, world - 1))] = True
        depends &= member
        depends[-1] = member[-1] = True
        posted = np.array([draw(st.integers(-1, max(n - 1, -1))) for n in range(barriers)])
        posted[-1] = -1
        return Schedule(draw(seconds), draw(seconds), draw(seconds), depends, member, posted)

    return build()


@given(schedules())
@settings(deadline=None, max_examples=200)
def test_blocks_replay_like_the_slow_simulator(schedule: Schedule) -> None:
    assert compute_makespan(schedule) == pytest.approx(simulate(schedule), abs=1e-9)


@given(schedules())
@settings(deadline=None, max_examples=200)
def test_waits_are_those_of_the_slow_simulator(schedule: Schedule) -> None:
    world = schedule.local.shape[1]
    assert measure_waits(schedule).wait_s * world == pytest.approx(_simulate(schedule)[1], abs=1e-9)


@given(schedules(), st.integers(0, 2**32 - 1))
@settings(deadline=None, max_examples=100)
def test_shorter_durations_never_make_a_run_longer(schedule: Schedule, seed: int) -> None:
    share = np.random.default_rng(seed).random(schedule.local.shape)
    shorter = dataclasses.replace(
        schedule, local=schedule.local * share, transfer=schedule.transfer * share
    )
    assert compute_makespan(shorter) <= compute_makespan(schedule) + 1e-9


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("tiers", [LEVEL, CONTINUUM])
def test_the_observed_makespan_is_reproduced(tiers: tuple[object, ...], seed: int) -> None:
    run = generate_run(
        dataclasses.replace(TraceSpec(seed=seed, noise=HARSH, steps=300), tiers=tiers)
    )
    timeline = build_timeline(run)
    assert run.record is not None
    assert run.record.outcome is not None
    assert timeline.makespan == pytest.approx(run.record.outcome.makespan_s, rel=1e-4)
    assert compute_makespan(build_observed_schedule(timeline)) == pytest.approx(
        timeline.makespan, rel=1e-9
    )


@pytest.mark.parametrize("seed", range(3))
def test_the_time_split_adds_up_for_every_rank(seed: int) -> None:
    run = generate_run(TraceSpec(tiers=CONTINUUM, seed=seed, steps=200))
    timeline = build_timeline(run)
    split = split_time(timeline, get_tier_placement(run))
    assert split.total_s == pytest.approx(np.full(8, timeline.makespan + timeline.outside.sum()))
    assert min(part.min() for part in dataclasses.astuple(split)) >= -1e-9
    assert split.evaluate_s == pytest.approx(np.full(8, 3 * 0.5), rel=0.01)


def test_waiting_is_the_fast_ranks_and_evaluation_is_outside() -> None:
    run = generate_run(
        dataclasses.replace(quiet(4, 50, Injection("compute", 3.0, rank=2)), evaluate_every=10)
    )
    timeline = build_timeline(run)
    wait = timeline.step_wait.sum(axis=0)
    assert wait[2] < 0.01 * wait[[0, 1, 3]].min()
    bare = generate_run(quiet(4, 50, Injection("compute", 3.0, rank=2)))
    assert timeline.makespan == pytest.approx(build_timeline(bare).makespan, rel=1e-3)


def test_ranks_of_a_tier_wait_for_each_other_alone() -> None:
    """Even steps are barriers of two pairs, odd ones of nobody, the last of all: by hand, rank 3
    costs its own pair at first."""
    work = {0: 1.0, 1: 2.0, 2: 1.0, 3: 4.0}
    run = _run_of_pairs(work, steps=8, transfer_s=0.5)
    timeline = build_timeline(run)
    assert timeline.member.sum(axis=1).tolist() == [2, 2] * 4 + [4]
    # Every second step a pair leaves when its slower one has worked twice, and half a second later;
    # at the end all meet.
    assert timeline.makespan == pytest.approx(4 * (2 * 4.0 + 0.5) + 0.5)
    assert timeline.wait.sum(axis=0) == pytest.approx([8.0 + 16.0, 16.0, 24.0, 0.0])
    schedule = build_observed_schedule(timeline)
    assert compute_makespan(schedule) == pytest.approx(timeline.makespan)
    lighter = np.where(np.arange(4) == 3, schedule.local / 4, schedule.local)
    assert compute_makespan(dataclasses.replace(schedule, local=lighter)) == pytest.approx(
        4 * (2 * 2.0 + 0.5) + 0.5
    )


def test_meetings_that_are_seldom_and_unlike_explain_a_run_all_the_same() -> None:
    """What a meeting takes is little, or several steps, as links fade."""
    fading = np.random.default_rng(2).random(400) < 0.4
    run = _run_of_pairs(
        dict.fromkeys(range(4), 1.0),
        steps=400,
        transfer_s=lambda step: 6.0 if fading[step // 2] else 0.2,
    )
    assert analyze_lockstep(run).explained == pytest.approx(1.0, abs=0.02)


def test_meetings_of_a_tier_say_nothing_of_those_of_all() -> None:
    """Pairs meet in every step, for a tenth of a second; all in every tenth, for five or
    fifteen."""
    fading = np.random.default_rng(7).random(400) < 0.4
    run = _run_of_pairs(
        dict.fromkeys(range(4), 1.0),
        steps=400,
        transfer_s=0.1,
        every=1,
        of_all_s=lambda step: 15.0 if fading[step] else 5.0,
    )
    assert analyze_lockstep(run).explained == pytest.approx(1.0, abs=0.02)


def test_slow_times_of_links_slow_what_ranks_send_for_themselves_too() -> None:
    """Half a second of sending before a meeting of half a second; both take two in 40 steps, of two
    ranks that send there."""
    fading = range(60, 100)
    run = _run_of_pairs(
        dict.fromkeys(range(4), 1.0),
        steps=200,
        transfer_s=lambda step: 2.0 if step in fading else 0.5,
        send_s=lambda step, rank: 2.0 if step in fading and rank in (2, 3) else 0.5,
        every=1,
    )
    analysis = analyze_lockstep(run)
    (found,) = analysis.findings
    assert (found.family, found.kind) == ("network", "dynamic")
    assert (found.first_step, found.last_step) == (60, 99)
    assert found.cost_s == pytest.approx(40 * 3.0, rel=0.02)
    assert analysis.explained == pytest.approx(1.0, abs=0.01)


def _run_of_pairs(
    work_s: dict[int, float],
    steps: int,
    transfer_s: float | Callable[[int], float],
    send_s: Callable[[int, int], float] | None = None,
    every: int = 2,
    of_all_s: Callable[[int], float] | None = None,
) -> RunData:
    """Spans of four ranks: ranks 0 and 1 average in every second step, or so, and so do 2 and 3;
    after the last step all do."""
    rows, clock = [], dict.fromkeys(work_s, 0.0)

    def add(step: int, rank: int, phase: Phase, until_s: float, group: int = -1) -> None:
        rows.append((step, rank, phase.code, clock[rank], until_s - clock[rank], group))
        clock[rank] = until_s

    def meet(step: int, ranks: tuple[int, ...], group: int, takes_s: float | None = None) -> None:
        usual_s = transfer_s(step) if callable(transfer_s) else transfer_s
        leave = max(clock[rank] for rank in ranks) + (usual_s if takes_s is None else takes_s)
        for rank in ranks:
            add(step, rank, Phase.COMM, leave, group)

    for step in range(steps):
        for rank, seconds in work_s.items():
            add(step, rank, Phase.FORWARD, clock[rank] + seconds)
            if send_s is not None:
                add(step, rank, Phase.COMM, clock[rank] + send_s(step, rank))
        if of_all_s is not None and step % 10 == 9:
            meet(step, (0, 1, 2, 3), 2, of_all_s(step))
        elif step % every == every - 1:
            meet(step, (0, 1), 0)
            meet(step, (2, 3), 1)
    meet(steps - 1, (0, 1, 2, 3), 2)
    step, rank, phase, start, duration, group = (
        np.array(column) for column in zip(*rows, strict=True)
    )
    zeros = np.zeros(len(rows), dtype=np.int64)
    spans = SpanColumns(
        step=step, rank=rank, lane=zeros, phase=phase, seq=zeros, start_ns=np.rint(start * 1e9).astype(np.int64),
        dur_ns=np.rint(duration * 1e9).astype(np.int64), group=group, peer=zeros - 1, bytes=zeros, work=zeros, flags=zeros,
    )  # fmt: skip
    order = np.lexsort((spans.start_ns, spans.rank, spans.step))
    return dataclasses.replace(generate_run(quiet(4, 5)), spans=spans.where(order))


def compute_s(spec: TraceSpec) -> FloatArray:
    """Compute of a healthy rank per step."""
    short = (np.arange(spec.steps) + 1) % spec.steps_per_epoch == 0
    load = spec.fixed_share + (1 - spec.fixed_share) * np.where(short, 0.25, 1.0)
    return (spec.prep_s + spec.forward_s + spec.backward_s) * load + spec.optimizer_s


@pytest.mark.parametrize(
    ("world", "slow", "factor"), [(4, 1, 2.0), (8, 1, 1.5), (8, 4, 3.0), (6, 2, 1.2), (12, 11, 2.0)]
)
def test_k_of_w_ranks_slowed_share_the_loss_equally(world: int, slow: int, factor: float) -> None:
    spec = quiet(
        world, 120, *(Injection("compute", factor, rank=world - 1 - rank) for rank in range(slow))
    )
    if slow == world - 1:
        spec = dataclasses.replace(
            spec,
            tiers=tuple(
                dataclasses.replace(spec.tiers[0], name=f"t{r}", hosts=1) for r in range(world)
            ),
        )
    analysis = analyze_lockstep(generate_run(spec))
    lost = float(compute_s(spec).sum()) * (factor - 1.0)
    assert analysis.lost_s == pytest.approx(lost, rel=0.02)
    assert {f.rank for f in analysis.findings} == set(range(world - slow, world))
    # Random orders, for more than ten, leave some scatter.
    assert [f.cost_s for f in analysis.findings] == pytest.approx(
        [lost / slow] * slow, rel=0.03 if slow <= 10 else 0.25
    )
    assert all(
        f.slowdown == pytest.approx(factor, rel=0.01) and f.kind == "deterministic"
        for f in analysis.findings
    )
    assert analysis.explained == pytest.approx(1.0, abs=0.005)


def test_the_slower_of_two_pays_for_the_difference() -> None:
    spec = quiet(6, 120, Injection("compute", 2.0, rank=4), Injection("compute", 3.0, rank=5))
    analysis = analyze_lockstep(generate_run(spec))
    work = float(compute_s(spec).sum())
    cost = {f.rank: f.cost_s for f in analysis.findings}
    assert cost[4] == pytest.approx(work / 2, rel=0.02)
    assert cost[5] == pytest.approx(work / 2 + work, rel=0.02)


def test_a_rank_can_be_both_and_the_costs_still_add_up() -> None:
    spec = quiet(
        4, 200, Injection("compute", 2.0, rank=3), Injection("compute", 3.0, 80, 119, rank=3)
    )
    analysis = analyze_lockstep(generate_run(spec))
    work = compute_s(spec)
    kinds = {f.kind: f for f in analysis.findings}
    assert set(kinds) == {"deterministic", "dynamic"}
    assert (kinds["dynamic"].first_step, kinds["dynamic"].last_step) == (80, 119)
    assert kinds["dynamic"].slowdown == pytest.approx(3.0, rel=0.01)
    burst, rest = float(work[80:120].sum()), float(np.delete(work, range(80, 120)).sum())
    # In the burst work takes 6; without the dynamic cause 2, without the deterministic one 3,
    # without both 1.
    assert kinds["deterministic"].cost_s == pytest.approx(rest + burst * 2.0, rel=0.02)
    assert kinds["dynamic"].cost_s == pytest.approx(burst * 3.0, rel=0.02)


def test_spans_that_a_killed_run_left_behind() -> None:
    run = generate_run(TraceSpec(steps=100, evaluate_every=30))
    spans = run.spans
    cut = keep_spans(
        run, ~((spans.rank == 3) & ((spans.step > 60) | ((spans.step == 60) & (spans.seq > 4))))
    )
    timeline = build_timeline(cut)
    assert timeline.steps[-1] == 60
    assert compute_makespan(build_observed_schedule(timeline)) == pytest.approx(timeline.makespan)
    with pytest.raises(RunFolderError, match=r"edge\.trainer\.1\.2"):
        build_timeline(keep_spans(run, spans.rank != 5))


def test_truncated_spans_and_other_lanes_are_left_out() -> None:
    run = generate_run(TraceSpec(steps=30))
    spans = run.spans
    last = (spans.step == 29) & (spans.phase == Phase.OTHER.code)
    flagged = dataclasses.replace(
        run,
        spans=dataclasses.replace(
            spans,
            flags=np.where(last, int(Flag.TRUNCATED), spans.flags),
            dur_ns=np.where(last, 10**12, spans.dur_ns),
        ),
    )
    assert build_timeline(flagged).makespan == pytest.approx(build_timeline(run).makespan, abs=0.1)
    buckets = dataclasses.replace(
        run, spans=dataclasses.replace(spans, lane=np.where(last, 1, spans.lane))
    )
    assert build_timeline(buckets).makespan == pytest.approx(build_timeline(run).makespan, abs=0.1)
