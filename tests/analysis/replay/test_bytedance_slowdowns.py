"""ByteDance's reference against closed forms: data parallelism with slow workers, a pipeline with a
slow last stage."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laggard.analysis.formats.bytedance.operations import Operations, OpType
from laggard.analysis.replay.bytedance.slowdowns import compute_slowdowns
from laggard.core.errors import RunFolderError
from tests.analysis.bytedance_traces import (
    BACKWARD_S,
    FORWARD_S,
    OPTIMIZER_S,
    TRANSFER_S,
    data_parallel,
    pipeline,
)

COMPUTE_S = FORWARD_S + BACKWARD_S + OPTIMIZER_S


@pytest.mark.parametrize("gap_s", [0.0, 0.007])
@pytest.mark.parametrize("sampled", [False, True])
@pytest.mark.parametrize(
    ("workers", "slow", "m"), [(8, 1, 3.0), (8, 5, 3.0), (4, 4, 2.0), (2, 1, 1.05), (16, 0, 1.0)]
)
def test_data_parallel_slowdown_in_closed_form(
    workers: int, slow: int, m: float, *, sampled: bool, gap_s: float
) -> None:
    """T is the slow worker's compute and one transfer; the ideal one's compute is the mean over
    workers. Gaps are dropped."""
    found = compute_slowdowns(
        data_parallel([m] * slow + [1.0] * (workers - slow), gap_s, sampled=sampled)
    )
    mean = (workers - slow + slow * m) / workers
    most = m if slow else 1.0
    took, ideal = most * COMPUTE_S + TRANSFER_S, mean * COMPUTE_S + TRANSFER_S
    assert found.step_s == pytest.approx(took, rel=1e-6)
    assert found.slowdown == pytest.approx(took / ideal, rel=1e-6)
    assert all(s == pytest.approx(took / ideal, rel=1e-6) for s in found.by_step.values())


def test_one_type_and_one_worker_in_closed_form() -> None:
    """All ideal but one type, or one worker."""
    m, workers = 3.0, 8
    found = compute_slowdowns(data_parallel([m] + [1.0] * (workers - 1)))
    mean = (workers - 1 + m) / workers
    ideal = mean * COMPUTE_S + TRANSFER_S
    for optype, own in (
        (OpType.FORWARD, FORWARD_S),
        (OpType.BACKWARD, BACKWARD_S),
        (OpType.OPTIMIZER, OPTIMIZER_S),
    ):
        assert found.by_type[optype.value] == pytest.approx(
            (ideal + (m - mean) * own) / ideal, rel=1e-6
        )
    assert found.by_type[OpType.GRADS_REDUCE_SCATTER.value] == pytest.approx(1.0, rel=1e-6)
    assert found.by_worker[0, 0] == pytest.approx((m * COMPUTE_S + TRANSFER_S) / ideal, rel=1e-6)
    # a fast worker alone changes nothing before the collective, which waits for the others, and
    # less after it
    assert found.by_worker[1, 0] == pytest.approx(1.0, rel=1e-6)
    assert found.slowest_workers_share == pytest.approx((m - mean) / (m - mean), rel=1e-6)


@given(
    st.lists(st.floats(1.0, 5.0), min_size=2, max_size=6),
    st.floats(0.0, 0.02),
)
@settings(max_examples=30, deadline=None)
def test_any_data_parallel_job(slowness: list[float], gap_s: float) -> None:
    found = compute_slowdowns(data_parallel(slowness, gap_s))
    ideal = float(np.mean(slowness)) * COMPUTE_S + TRANSFER_S
    assert found.slowdown == pytest.approx(
        (max(slowness) * COMPUTE_S + TRANSFER_S) / ideal, rel=1e-6
    )
    assert max(found.by_worker.values()) <= found.slowdown * (1 + 1e-9)


@pytest.mark.parametrize(
    ("stages", "microbatches", "m"), [(2, 4, 2.0), (4, 8, 1.5), (4, 4, 1.0), (3, 6, 3.0)]
)
def test_a_pipeline_with_a_slow_last_stage_in_closed_form(
    stages: int, microbatches: int, m: float
) -> None:
    """The last stage is never idle but while the first microbatch comes and its last gradient goes:
    T = (P - 1 + M m)(f + b)."""
    found = compute_slowdowns(
        pipeline(stages, microbatches, lambda s: m if s == stages - 1 else 1.0)
    )
    mean = (stages - 1 + m) / stages
    took = (stages - 1 + microbatches * m) * (FORWARD_S + BACKWARD_S)
    ideal = (stages - 1 + microbatches) * mean * (FORWARD_S + BACKWARD_S)
    assert found.step_s == pytest.approx(took, rel=1e-6)
    assert found.slowdown == pytest.approx(took / ideal, rel=1e-6)
    if m > 1:
        assert max(found.by_stage, key=lambda stage: found.by_stage[stage]) == stages - 1


def _without(operations: Operations, row: int) -> Operations:
    return operations.where(np.arange(len(operations)) != row)


def _chunked(operations: Operations) -> Operations:
    chunks = operations.mc.copy()
    chunks[0] = 1
    columns = dict(operations.to_dict()) | {"mc": chunks}
    return Operations(**columns)


@pytest.mark.parametrize(
    ("operations", "says"),
    [
        (
            _without(data_parallel([1.0, 2.0]), 7),
            "step 0, dp_rank 1 has no backward-compute 0 of stage 0",
        ),
        (_chunked(data_parallel([1.0, 2.0])), "several chunks"),
        (
            data_parallel([1.0, 2.0]).where(
                ~data_parallel([1.0, 2.0]).mask_types(OpType.OPTIMIZER)
            ),
            "no optimizer",
        ),
        (
            data_parallel([1.0, 2.0]).where(~data_parallel([1.0, 2.0]).mask_types(OpType.FORWARD)),
            "no forward-compute",
        ),
    ],
)
def test_what_has_no_dependencies_is_refused(operations: Operations, says: str) -> None:
    with pytest.raises(RunFolderError, match=says):
        compute_slowdowns(operations)
