"""Process groups in torch.profiler's traces: only collectives of one group are matched."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laggard.analysis.findings.analyze_run import analyze_run
from laggard.analysis.formats.kineto.process_groups import (
    GroupLabel,
    parse_group_config,
    parse_group_label,
    parse_ranks,
    resolve_labels,
)
from laggard.analysis.formats.registry import open_run
from laggard.analysis.tables.load_run import RunData
from laggard.analysis.tables.timelines.build_timeline import build_timeline
from laggard.core.errors import TraceFormatError
from laggard.core.span_schema import Lane, Phase
from tests.analysis.kineto_traces import Document, event, host_document, write
from tests.analysis.parallel_traces import REDUCE_US, Job, job_documents, run_job


def read(folder: Path, documents: list[Document]) -> RunData:
    return open_run(write(folder / "traces", documents))


def members(run: RunData) -> set[tuple[int, ...]]:
    timeline = build_timeline(run)
    return {tuple(np.flatnonzero(row).tolist()) for row in timeline.member}


def test_a_slow_rank_of_a_tensor_parallel_pair(tmp_path: Path) -> None:
    """Rank 3 is slow in the forward pass: rank 2 waits for it in their pair, and ranks 0 and 1 in
    the data-parallel groups."""
    slow_us = 500.0
    job = Job(world=4, tensor=2, steps=20, slow_us={3: slow_us})
    run = read(tmp_path, job_documents(job))
    assert members(run) == {(0, 1), (2, 3), (0, 2), (1, 3)}
    timeline = build_timeline(run)
    # 2 x 2 all-reduces of each pair and the reduction of each data-parallel group.
    assert len(timeline.group) == job.steps * (2 * 2 * job.layers + 2)
    waits = timeline.step_wait * 1e6
    expected = np.array([2.0, 2.0, 2.0, 0.0]) * slow_us
    assert waits == pytest.approx(np.tile(expected, (job.steps, 1)), abs=0.01)
    transfer = timeline.step_transfer * 1e6
    assert transfer == pytest.approx(np.full((job.steps, 4), 5 * REDUCE_US), abs=0.01)
    result = analyze_run(run)
    assert [(each.rank, each.family) for each in result.stragglers] == [(3, "compute")]
    lost = job.steps * job.layers * slow_us / 1e6
    assert result.stragglers[0].cost_s == pytest.approx(lost, rel=0.02)


@given(
    tensor=st.sampled_from([1, 2]),
    slow_us=st.dictionaries(st.integers(0, 3), st.integers(20, 900).map(float), max_size=3),
    present=st.sets(st.integers(0, 3), min_size=1),
)
@settings(max_examples=25, deadline=None)
def test_waits_are_those_for_the_ranks_that_are_present(
    tmp_path_factory: pytest.TempPathFactory,
    tensor: int,
    slow_us: dict[int, float],
    present: set[int],
) -> None:
    """In every group, each rank waits until the last of its present members has arrived."""
    job = Job(world=4, tensor=tensor, steps=3, slow_us=slow_us)
    kernels, ranks = run_job(job), sorted(present)
    expected = np.zeros((job.steps, len(ranks)))
    for place, rank in enumerate(ranks):
        for n, own in enumerate(kernels[rank]):
            members = [kernels[other][n].start for other in own.group if other in present]
            # One that is alone waits for nobody that could be named.
            if len(members) > 1:
                expected[own.step, place] += max(members) - own.start
    documents = [job_documents(job)[rank] for rank in ranks]
    run = read(tmp_path_factory.mktemp("part"), documents)
    assert build_timeline(run).step_wait * 1e6 == pytest.approx(expected, abs=0.01)


def test_without_a_slow_rank_there_is_no_finding(tmp_path: Path) -> None:
    result = analyze_run(read(tmp_path, job_documents(Job(world=4, tensor=2, steps=20))))
    assert result.findings == ()


def test_every_synchronization_has_one_number_on_all_members_only(tmp_path: Path) -> None:
    run = read(tmp_path, job_documents(Job(world=4, tensor=2, steps=2)))
    spans = run.spans.where(
        (run.spans.phase == Phase.COMM.code) & (run.spans.lane == Lane.MAIN) & (run.spans.step == 0)
    )
    ranks_of = {
        number: tuple(sorted(spans.rank[spans.group == number].tolist()))
        for number in set(spans.group.tolist())
    }
    assert sorted(ranks_of) == list(range(10))
    assert sorted(ranks_of.values()) == [(0, 1)] * 4 + [(0, 2)] + [(1, 3)] + [(2, 3)] * 4


def name_by_rank(rank: int, kind: str) -> str:
    return f"{kind}-of-{rank}"


def equal_names(_rank: int, _kind: str) -> str:
    return "group"


@pytest.mark.parametrize("names", [name_by_rank, equal_names])
def test_names_are_local(tmp_path: Path, names: Callable[[int, str], str]) -> None:
    job = Job(world=4, tensor=2, steps=3, names=names)
    assert members(read(tmp_path, job_documents(job))) == {(0, 1), (2, 3), (0, 2), (1, 3)}


def test_ranks_from_the_configuration_of_the_job(tmp_path: Path) -> None:
    job = Job(world=4, tensor=2, steps=3)
    documents = job_documents(job)
    for rank, made in enumerate(documents):
        made["distributedInfo"]["pg_config"] = [
            {"pg_name": "tp", "pg_desc": "mesh_tp", "ranks": list(job.tensor_group(rank))},
            {"pg_name": "dp", "pg_desc": "mesh_dp", "ranks": list(job.data_group(rank))},
        ]
        for each in made["traceEvents"]:
            each.get("args", {}).pop("Process Group Ranks", None)
    assert members(read(tmp_path, documents)) == {(0, 1), (2, 3), (0, 2), (1, 3)}


def test_a_kernel_takes_the_group_from_the_event_around_its_call(tmp_path: Path) -> None:
    """Older versions of torch describe the collective on the host only."""
    job = Job(world=4, tensor=2, steps=3)
    documents = job_documents(job)
    for made in documents:
        events = made["traceEvents"]
        calls = {e["args"]["correlation"]: e for e in events if e.get("cat") == "cuda_runtime"}
        for each in [e for e in events if e["name"].startswith("nccl")]:
            call, described = calls[each["args"]["correlation"]], dict(each["args"])
            for key in ("Process Group Name", "Process Group Ranks", "Group size"):
                del each["args"][key]
            # Calls of several collectives have one time in these traces; each gets its own.
            call["ts"] += each["args"]["correlation"] % 100 / 20
            described.pop("correlation")
            events.append(
                {**call, "cat": "cpu_op", "name": "record_param_comms", "args": described}
            )
            events[-1]["ts"], events[-1]["dur"] = call["ts"] - 0.01, 0.03
            call["dur"] = 0.01
    assert members(read(tmp_path, documents)) == {(0, 1), (2, 3), (0, 2), (1, 3)}


def test_without_groups_all_ranks_meet(tmp_path: Path) -> None:
    job = Job(world=3, steps=3, with_groups=False)
    assert members(read(tmp_path, job_documents(job))) == {(0, 1, 2)}


def test_unknown_ranks_of_a_group_are_told_and_nothing_is_priced(tmp_path: Path) -> None:
    documents = job_documents(Job(world=4, tensor=2, steps=3))
    for made in documents:
        for each in made["traceEvents"]:
            each.get("args", {}).pop("Process Group Ranks", None)
    run = read(tmp_path, documents)
    assert run.record is not None
    assert run.record.origin is not None
    assert not run.record.origin.replayable
    assert "do not record to which process group some collectives belong" in " ".join(
        run.record.origin.notes
    )
    assert members(run) == set()


PAIRS = ((0, 1), (0, 1), (2, 3), (2, 3))


@pytest.mark.parametrize("place", ["c10d::allreduce_", "gloo:all_reduce", "record_param_comms"])
def test_gloo_s_collectives_of_pairs(tmp_path: Path, place: str) -> None:
    """The group is described by the launch, by the collective, or by an event in the launch."""
    documents = [host_document(rank, late=100 * (rank == 3)) for rank in range(4)]
    for rank, made in enumerate(documents):
        made["distributedInfo"]["world_size"] = 4
        described = {"Process Group Name": "tp", "Process Group Ranks": list(PAIRS[rank])}
        launches = [e for e in made["traceEvents"] if e["name"] == "c10d::allreduce_"]
        made["traceEvents"] += [
            event("record_param_comms", each["ts"] + 1, each["ts"] + 3) for each in launches
        ]
        for each in made["traceEvents"]:
            if each["name"] == place:
                each["args"] = {**each["args"], **described}
    run = read(tmp_path, documents)
    assert members(run) == {(0, 1), (2, 3)}
    waits = build_timeline(run).step_wait * 1e6
    assert waits == pytest.approx(np.array([[0.0, 0.0, 100.0, 0.0]] * 4), abs=1e-3)


def test_a_group_of_one_rank_has_no_collective(tmp_path: Path) -> None:
    """With one group of all ranks there is no doubt about the group of gloo's collectives."""
    documents = [host_document(rank) for rank in range(4)]
    for rank, made in enumerate(documents):
        groups = [[0, 1, 2, 3], [rank]]
        made["distributedInfo"] |= {
            "world_size": 4,
            "pg_config": [{"pg_name": str(n), "ranks": each} for n, each in enumerate(groups)],
        }
    run = read(tmp_path, documents)
    assert members(run) == {(0, 1, 2, 3)}
    assert run.record is not None
    assert run.record.origin is not None
    assert run.record.origin.replayable
    analyze_run(run)


def test_a_member_that_missed_a_collective_is_refused(tmp_path: Path) -> None:
    documents = job_documents(Job(world=4, tensor=2, steps=3))
    events = documents[1]["traceEvents"]
    events.remove(next(e for e in events if e["name"].startswith("nccl")))
    with pytest.raises(
        TraceFormatError,
        match=r"ProfilerStep#0: rank 0 took part in 4 collectives of process group tp and rank 1",
    ):
        read(tmp_path, documents)


def test_messages_between_pipeline_stages_are_no_barriers(tmp_path: Path) -> None:
    documents = job_documents(Job(world=2, steps=3))
    for rank, made in enumerate(documents):
        for each in made["traceEvents"]:
            if each["name"].startswith("nccl"):
                each["name"] = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
                each["args"]["Collective name"] = ("send", "recv")[rank]
    run = read(tmp_path, documents)
    assert members(run) == set()
    assert run.record is not None
    assert run.record.origin is not None
    assert not run.record.origin.replayable
    assert "messages to single other ranks" in " ".join(run.record.origin.notes)


def test_buckets_that_overlap_the_backward_pass_are_one_synchronization(tmp_path: Path) -> None:
    """Two all-reduces of one data-parallel group, the first beside the backward kernels."""
    documents = job_documents(Job(world=2, steps=3, layers=2))
    for made in documents:
        events = made["traceEvents"]
        reduced = [e for e in events if e["name"].startswith("nccl")]
        backward = [e for e in events if e["name"] == "gemm_backward"]
        calls = {e["args"]["correlation"]: e for e in events if e.get("cat") == "cuda_runtime"}
        for n, each in enumerate(reduced):
            last = backward[2 * n + 1]
            copy = {**each, "args": {**each["args"], "correlation": 10_000 + n}}
            copy["ts"], copy["dur"] = last["ts"] + 100, 300
            call = calls[last["args"]["correlation"]]
            events += [copy, {**call, "args": {"correlation": 10_000 + n}}]
            each["ts"], each["dur"] = last["ts"] + last["dur"] - 50, each["dur"] + 50
    run = read(tmp_path, documents)
    assert len(build_timeline(run).group) == 3
    buckets = run.spans.where(run.spans.lane == Lane.BUCKETS)
    assert len(buckets) == 2 * 2 * 3


@given(
    st.integers(0, 1000),
    st.integers(1, 64),
    st.integers(1, 300),
    st.booleans(),
)
def test_a_truncated_list_of_equally_spaced_ranks_is_completed(
    first: int, distance: int, size: int, with_last: bool
) -> None:
    ranks = tuple(range(first, first + distance * size, distance))
    assert parse_ranks(str(list(ranks)), size) == ranks
    shown = ", ".join(str(rank) for rank in ranks[:29])
    cut = f"[{shown}, ..., {ranks[-1]}]" if with_last else f"[{shown}, ...]"
    if size > 30:
        assert parse_ranks(cut, size) == ranks
        assert parse_ranks(cut, size + 1) == (() if with_last else (*ranks, ranks[-1] + distance))
        assert parse_ranks(cut, 0) == ()


@given(
    st.dictionaries(
        st.sampled_from(["Process Group Name", "Process Group Ranks", "Group size", "x"]),
        st.none()
        | st.integers(-5, 1 << 70)
        | st.text(max_size=12)
        | st.lists(st.integers(-3, 9) | st.none() | st.text(max_size=2), max_size=4),
    )
)
def test_any_arguments_are_parsed_or_ignored(arguments: dict[str, Any]) -> None:
    label = parse_group_label(arguments)
    config = parse_group_config({"pg_config": [arguments, 3, None], "x": arguments})
    if label is not None:
        group = resolve_labels([label], config, 4)[0].group
        assert group is None or group.size >= len(group.ranks)


def test_the_default_group_has_all_ranks() -> None:
    config = parse_group_config({})
    labels = [GroupLabel("0", "", 0, ""), GroupLabel("x", "", 4, ""), GroupLabel("x", "", 2, "")]
    groups = [each.group for each in resolve_labels(labels, config, 4).values()]
    assert [group.ranks for group in groups if group] == [(0, 1, 2, 3), (0, 1, 2, 3), ()]
