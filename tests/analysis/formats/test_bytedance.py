"""ByteDance's format: there and back, published quirks, and every way in which a file is not what
it says."""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laggard.analysis.evaluate.synthetic.run_generator import (
    Injection,
    Tier,
    TraceSpec,
    generate_run,
)
from laggard.analysis.findings.analysis_result import analyze_lockstep
from laggard.analysis.findings.describe_asynchronous import describe_asynchronous
from laggard.analysis.formats.bytedance.from_run import run_to_operations
from laggard.analysis.formats.bytedance.operations import Operations, OpType
from laggard.analysis.formats.bytedance.parquet_file import read_operations, write_operations
from laggard.analysis.formats.bytedance.step_layout import align_steps
from laggard.analysis.formats.bytedance.to_run import operations_to_run
from laggard.analysis.formats.registry import open_run
from laggard.analysis.replay.bytedance.slowdowns import compute_slowdowns
from laggard.analysis.tables.columns import FloatArray
from laggard.analysis.tables.load_run import RunData, load_run
from laggard.analysis.tables.timelines.build_timeline import build_timeline
from laggard.analysis.tables.write_run import write_run
from laggard.core.errors import InputError, LaggardError, TraceFormatError
from laggard.core.span_schema import Lane, Phase
from tests.analysis.bytedance_traces import STEPS, data_parallel, pipeline
from tests.analysis.traces import LEVEL, keep_spans, quiet

KEPT = [Phase.FORWARD.code, Phase.BACKWARD.code, Phase.OPTIMIZER.code]


def there_and_back(run: RunData, folder: Path) -> RunData:
    path = folder / "trace.parquet"
    write_operations(run_to_operations(run), path)
    return open_run(path)


def measures(run: RunData) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Compute that the format tells, waits and transfers, per step and rank."""
    timeline = build_timeline(run)
    return (
        np.stack([timeline.work.total([code]) for code in KEPT], axis=2),
        timeline.step_wait,
        timeline.step_transfer,
    )


@pytest.mark.parametrize("seed", [0, 1])
def test_steps_compute_waits_and_transfers_come_back(tmp_path: Path, seed: int) -> None:
    run = generate_run(TraceSpec(tiers=LEVEL, steps=60, seed=seed, with_links=False))
    back = there_and_back(run, tmp_path)
    assert np.array_equal(np.unique(back.spans.step), np.arange(60))
    assert back.world_size == run.world_size
    for told, read in zip(measures(run), measures(back), strict=True):
        assert read == pytest.approx(told, abs=5e-9)


def test_the_same_stragglers_are_found(tmp_path: Path) -> None:
    run = generate_run(quiet(4, 80, Injection("compute", 2.0, rank=2)))
    found = [
        (f.rank, f.family, f.kind) for f in analyze_lockstep(there_and_back(run, tmp_path)).findings
    ]
    assert (
        found
        == [(f.rank, f.family, f.kind) for f in analyze_lockstep(run).findings]
        == [(2, "compute", "deterministic")]
    )


def test_an_imported_run_is_a_run_folder(tmp_path: Path) -> None:
    back = there_and_back(generate_run(quiet(2, 30)), tmp_path)
    again = load_run(write_run(back, tmp_path / "run"))
    assert again.record == back.record
    assert np.array_equal(again.spans.start_ns, back.spans.start_ns)


@given(
    gap=st.integers(1, 4),
    slowness=st.lists(st.floats(0.001, 4.0), min_size=1, max_size=4),
    sampled=st.booleans(),
)
@settings(max_examples=25, deadline=None)
def test_operations_survive_the_file(
    tmp_path_factory: pytest.TempPathFactory, gap: int, slowness: list[float], *, sampled: bool
) -> None:
    operations = data_parallel(slowness, gap / 1000, sampled=sampled)
    path = tmp_path_factory.mktemp("file") / "t.parquet"
    write_operations(operations, path)
    read = read_operations(path)
    assert all(
        np.array_equal(a, b)
        for a, b in zip(operations.to_dict().values(), read.to_dict().values(), strict=True)
    )


@given(st.integers(2, 5), st.integers(2, 12), st.integers(0, 3))
@settings(max_examples=15, deadline=None)
def test_any_generated_run_comes_back(world: int, steps: int, seed: int) -> None:
    run = generate_run(
        TraceSpec(
            tiers=(Tier("edge", world, 1.3),),
            steps=steps,
            seed=seed,
            evaluate_every=3,
            with_links=False,
        )
    )
    back = operations_to_run(run_to_operations(run), Path("trace.parquet"))
    for told, read in zip(measures(run), measures(back), strict=True):
        assert read == pytest.approx(told, abs=5e-9)


def test_sampled_steps_are_laid_behind_each_other() -> None:
    operations = data_parallel([1.0, 2.0], sampled=True)
    whole = data_parallel([1.0, 2.0])
    laid = align_steps(operations)
    assert laid.concatenated
    assert not align_steps(whole).concatenated
    assert laid.end_ns.max() - laid.start_ns.min() == pytest.approx(whole.end_s.max() * 1e9, abs=10)
    notes = origin(operations_to_run(operations, Path("t.parquet"))).notes
    assert any("one after the other" in note for note in notes)


def test_a_slower_stage_of_a_pipeline_is_no_straggler() -> None:
    """The embedding's all-reduce is of the two stages that share it."""
    run = operations_to_run(pipeline(3, 4, lambda s: 2.0 if s == 2 else 1.0), Path("t.parquet"))
    assert run.is_lockstep
    assert run.teams == ((0, 3), (1, 4), (2, 5))
    found = analyze_lockstep(run)
    assert found.findings == ()
    assert found.is_reliable
    assert any("pipeline stages" in note for note in found.notes)
    # all wait at the end for the last stage, and nothing is transferred: what is no compute is
    # waiting, or the pipeline's own idling
    assert found.transfer_s == pytest.approx(np.zeros_like(found.transfer_s), abs=1e-9)
    assert [host.tier for host in run.hosts] == ["stage 0", "stage 1", "stage 2"] * 2
    spans = run.spans
    assert {int(lane) for lane in np.unique(spans.lane)} == {Lane.MAIN, Lane.BACKGROUND}
    assert set(spans.phase[spans.lane == Lane.BACKGROUND].tolist()) == {Phase.COMM.code}
    compute = spans.where(spans.phase == Phase.BACKWARD.code)
    per_rank = np.bincount(compute.rank, weights=compute.dur_ns)
    assert per_rank[2] == pytest.approx(2 * per_rank[0], rel=1e-6)


@pytest.mark.parametrize("microbatches", [2, 8])
@pytest.mark.parametrize(("stages", "stage"), [(2, 0), (2, 1), (4, 0), (4, 2), (4, 3)])
def test_cost_of_a_slow_worker_of_a_pipeline(stages: int, stage: int, microbatches: int) -> None:
    """The durations of the pipelines come from a recursion of the generator."""

    def trace(slow: float) -> Operations:
        return pipeline(
            stages,
            microbatches,
            lambda s: 1.5 if s == 1 else 1.0,
            slow_worker=lambda dp, s: slow if (dp, s) == (1, stage) else 1.0,
        )

    slow, healthy = trace(2.0), trace(1.0)
    took, usual = (STEPS * float(each.end_s.max()) for each in (slow, healthy))
    found = analyze_lockstep(operations_to_run(slow, Path("t.parquet")))
    assert [f.host for f in found.stragglers] == [f"worker-{stages + stage}-stage-{stage}"]
    assert found.lost_s / found.makespan_s == pytest.approx((took - usual) / took, abs=0.02)
    assert found.is_reliable
    assert analyze_lockstep(operations_to_run(healthy, Path("t.parquet"))).findings == ()


def test_a_barrier_that_is_not_recorded_is_inferred() -> None:
    """The workers of the middle stage wait for the slow replica, and the trace shows only gaps."""

    def trace(slow: float) -> Operations:
        made = pipeline(3, 4, lambda _: 1.0, slow_worker=lambda dp, _: slow if dp else 1.0)
        middle = made.stage == 1
        released = made.end_s[made.mask_types(OpType.GRADS_REDUCE_SCATTER) & middle].max()
        moved = made.mask_types(OpType.LAYERNORM_ALL_REDUCE, OpType.GRADS_REDUCE_SCATTER) & middle
        start_s = np.where(moved, released, made.start_s)
        duration_s = np.where(moved, 0.0, made.duration_s)
        return replace(made, start_s=start_s, duration_s=duration_s).to_sorted()

    run = operations_to_run(trace(2.0), Path("t.parquet"))
    assert "Workers of stage 1 continue together after gaps" in " ".join(origin(run).notes)
    found = analyze_lockstep(run)
    assert {f.rank for f in found.stragglers} == {3, 4, 5}
    assert found.lost_s / found.makespan_s == pytest.approx(0.5, abs=0.02)
    healthy = operations_to_run(trace(1.0), Path("t.parquet"))
    assert "continue together" not in " ".join(origin(healthy).notes)


def test_stages_of_several_chunks_are_told_and_not_priced() -> None:
    operations = pipeline(2, 4, lambda _: 1.0)
    chunks = operations.where(np.arange(len(operations)))
    run = operations_to_run(
        replace(chunks, mc=np.where(chunks.mb_id >= 0, chunks.mb_id + 1, -1)), Path("t.parquet")
    )
    assert not run.is_lockstep
    assert not origin(run).replayable
    found = describe_asynchronous(run)
    assert not found.costed
    assert any("several chunks" in note for note in found.notes)


def origin(run: RunData) -> Any:
    assert run.record is not None
    assert run.record.origin is not None
    return run.record.origin


def test_what_the_format_cannot_tell_is_refused() -> None:
    run = generate_run(quiet(3, 6))
    alone = keep_spans(
        run, ~((run.spans.group == 1) & (run.spans.rank == 2) & (run.spans.step == 4))
    )
    with pytest.raises(
        InputError, match=r"step 4, 2 of 3 ranks took part in collective 1.*csv or perfetto"
    ):
        run_to_operations(alone)
    seldom = keep_spans(run, ~((run.spans.group == 1) & (run.spans.step == 4)))
    with pytest.raises(
        InputError, match=r"step 4.*grads-reduce-scatter|grads-reduce-scatter operations in step 4"
    ):
        run_to_operations(seldom)
    assert run.record is not None
    own = run.record.strategy.model_copy(update={"sync_mode": "asynchronous"})
    with pytest.raises(InputError, match="did not all take the same steps"):
        run_to_operations(replace(run, record=run.record.model_copy(update={"strategy": own})))


Change = Callable[[pa.Table], pa.Table]


def _set(name: str, row: int, value: Any, kind: pa.DataType | None = None) -> Change:
    def change(table: pa.Table) -> pa.Table:
        column = table.column(name)
        values = column.to_pylist()
        values[row] = value
        return table.set_column(
            table.column_names.index(name), name, pa.array(values, kind or column.type)
        )

    return change


def _keep(keep: Callable[[dict[str, Any]], bool]) -> Change:
    return lambda table: pa.Table.from_pylist(
        [row for row in table.to_pylist() if keep(row)], table.schema
    )


class Fault(enum.Enum):
    """What is done to a good trace, and what must be said of it."""

    MISSING_COLUMN = (
        lambda t: t.drop_columns(["seq_id"]),
        r"column seq_id: is missing \(columns present: .*dp_rank",
    )
    WHOLE_AS_FLOAT = (
        lambda t: t.set_column(
            t.column_names.index("step"), "step", t.column("step").cast(pa.float64())
        ),
        "column step: has type double and must be an integer",
    )
    SECONDS_AS_TEXT = (
        lambda t: t.set_column(
            t.column_names.index("duration"), "duration", t.column("duration").cast(pa.string())
        ),
        "column duration: has type string and must be a number of seconds",
    )
    NUMBERED_TYPES = (
        lambda t: t.set_column(t.column_names.index("optype"), "optype", t.column("step")),
        "column optype: has type int64 and must be text",
    )
    NEGATIVE = (_set("duration", 5, -0.25), "row 5, column duration: -0.25 is negative")
    NOT_A_NUMBER = (
        _set("start_ts", 3, float("nan")),
        "row 3, column start_ts: nan is not a finite number",
    )
    ENDLESS = (
        _set("duration", 3, float("inf")),
        "row 3, column duration: inf is not a finite number",
    )
    EMPTY_CELL = (_set("stage", 7, None), "row 7, column stage: is empty")
    UNKNOWN_TYPE = (
        _set("optype", 2, "dreaming", pa.string()),
        "row 2, column optype: 'dreaming' is not one of forward-compute",
    )
    NEGATIVE_START = (_set("start_ts", 3, -1.0), "row 3, column start_ts: -1.0 is negative")
    OTHER_UNITS = (
        _set("start_ts", 3, 1.7e18),
        "row 3, column start_ts: 1.7e[+]18 is too large for seconds .check the unit.",
    )
    LONG_STEP = (_set("start_ts", 3, 3e9), "columns start_ts, duration: step 0 takes 3e[+]09 s")
    TOO_MANY = (_set("dp_rank", 3, 2**40), "row 3, column dp_rank: 1099511627776 is too large")
    GRID_TOO_LARGE = (
        _set("dp_rank", 3, 2**30),
        "no operation of dp_rank 3, stage 0 .and 1073741820 more.",
    )
    NO_ROWS = (lambda t: t.slice(0, 0), "it has no rows")
    RANK_MISSING = (
        _keep(lambda row: row["dp_rank"] != 1),
        "no operation of dp_rank 1, stage 0 among 3 x 1 workers",
    )
    RANK_TWICE = (
        lambda t: pa.concat_tables([t, t.slice(4, 1)]),
        r"row 72: has the same step, rank, optype and seq_id as row 4",
    )
    TWO_RANKS_AT_A_PLACE = (
        _set("rank", 8, 2),
        "row 8, column rank: 2 is a second rank at one dp_rank and stage",
    )
    STEPS_DO_NOT_MATCH = (
        _keep(lambda row: (row["step"], row["dp_rank"]) != (2, 1)),
        "step 2 has no operation of rank 1, but some of other ranks",
    )


@pytest.mark.parametrize("fault", Fault, ids=lambda fault: fault.name)
def test_a_bad_table_is_refused_with_its_place(tmp_path: Path, fault: Fault) -> None:
    change, says = fault.value
    path = tmp_path / "bad.parquet"
    write_operations(data_parallel([1.0, 1.5, 2.0]), path)
    pq.write_table(change(pq.read_table(path)), path)
    with pytest.raises(TraceFormatError, match=says) as refused:
        open_run(path)
    assert refused.value.path == str(path)
    assert refused.value.fix


@pytest.mark.parametrize("kept", [0, 3, 100, -5])
def test_a_truncated_file_is_refused(tmp_path: Path, kept: int) -> None:
    path = tmp_path / "cut.parquet"
    write_operations(data_parallel([1.0, 2.0]), path)
    content = path.read_bytes()[:kept]
    path.write_bytes(content)
    with pytest.raises(
        TraceFormatError, match=f"byte {len(content)}, its end: not a complete Parquet file"
    ):
        open_run(path)


def test_columns_of_others_are_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "more.parquet"
    write_operations(data_parallel([1.0, 2.0]), path)
    table = pq.read_table(path)
    pq.write_table(table.append_column("colour", pa.array(["red"] * len(table))), path)
    assert isinstance(read_operations(path), Operations)


numbers = st.integers(-(2**63), 2**63 - 1) | st.integers(-1, 5)
seconds = st.floats(allow_nan=True, allow_infinity=True)


@given(
    name=st.sampled_from(["dp_rank", "stage", "rank", "step", "seq_id", "mc", "mb_id", "gmc"]),
    number=numbers,
    time=st.sampled_from(["start_ts", "duration"]),
    moment=seconds,
    row=st.integers(0, 47),
)
@settings(max_examples=100, deadline=None)
def test_whatever_is_in_a_table_it_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory,
    name: str,
    number: int,
    time: str,
    moment: float,
    row: int,
) -> None:
    """Never another exception: that would be a traceback."""
    path = tmp_path_factory.mktemp("any") / "t.parquet"
    write_operations(data_parallel([1.0, 2.0]), path)
    pq.write_table(_set(time, row, moment)(_set(name, row, number)(pq.read_table(path))), path)
    try:
        run = open_run(path)
    except TraceFormatError:
        return
    assert (run.spans.dur_ns >= 0).all()
    with contextlib.suppress(LaggardError):
        compute_slowdowns(read_operations(path))
