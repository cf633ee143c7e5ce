"""Parts of a job: subsets of ranks, profiling cycles, traces without annotated steps, and files that
do not belong together."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from laggard.analysis.findings.analyze_run import analyze_run
from laggard.analysis.formats.registry import detect_format, open_run
from laggard.analysis.tables.load_run import RunData
from laggard.analysis.tables.timelines.build_timeline import build_timeline
from laggard.core.errors import TraceFormatError
from tests.analysis.kineto_traces import Document, host_document, write
from tests.analysis.parallel_traces import BASE_US, Job, job_documents

SLOW_US = 600.0
DAY_NS = 86_400_000_000_000


def notes(run: RunData) -> str:
    assert run.record is not None
    assert run.record.origin is not None
    return " ".join(run.record.origin.notes)


def part(job: Job, ranks: Sequence[int]) -> list[Document]:
    documents = job_documents(job)
    return [documents[rank] for rank in ranks]


@pytest.mark.parametrize(
    ("ranks", "world"), [((0,), 8), ((5,), 8), ((0, 1), 128), ((1, 4, 6), 8), ((6, 7), 8)]
)
def test_any_subset_of_ranks_is_read(tmp_path: Path, ranks: tuple[int, ...], world: int) -> None:
    documents = part(Job(world=world, steps=15), ranks)
    run = open_run(write(tmp_path / "traces", documents))
    assert [host.rank for host in run.hosts] == list(range(len(ranks)))
    shown = ", ".join(str(rank) for rank in ranks)
    verb = "is" if len(ranks) == 1 else "are"
    assert f"Only {len(ranks)} of {world} ranks {verb} in the traces: {shown}." in notes(run)
    assert "Stragglers among the other ranks cannot be found" in notes(run)
    renumbered = ranks != tuple(range(len(ranks)))
    assert ("numbered from 0" in notes(run)) == renumbered
    if renumbered:
        assert [host.host for host in run.hosts] == [f"node-1-rank-{rank}" for rank in ranks]
    assert analyze_run(run).findings == ()


def test_a_slow_rank_of_a_subset_is_found_by_its_own_name(tmp_path: Path) -> None:
    hosts = dict.fromkeys(range(8), "")
    job = Job(world=8, steps=30, slow_us={5: SLOW_US}, hosts=hosts)
    run = open_run(write(tmp_path / "traces", part(job, (2, 5, 7))))
    found = analyze_run(run).stragglers
    assert [(each.rank, each.host) for each in found] == [(1, "rank-5")]
    assert build_timeline(run).step_wait[:, 0] * 1e6 == pytest.approx(2 * SLOW_US, abs=0.01)


def test_a_pair_without_its_other_rank(tmp_path: Path) -> None:
    """Ranks 0 and 2 of tensor-parallel pairs: only their data-parallel group can be compared."""
    job = Job(world=4, tensor=2, steps=30, slow_us={3: SLOW_US})
    run = open_run(write(tmp_path / "traces", part(job, (0, 2))))
    timeline = build_timeline(run)
    assert timeline.member.all()
    assert len(timeline.group) == job.steps
    assert all(each.rank is None for each in analyze_run(run).stragglers)


def test_all_ranks_have_no_such_note(tmp_path: Path) -> None:
    run = open_run(write(tmp_path / "traces", job_documents(Job(world=3, steps=3))))
    assert "ranks" not in notes(run).replace("blocked ranks", "")


def test_a_rank_beyond_those_of_unknown_size(tmp_path: Path) -> None:
    documents = part(Job(world=4, steps=3, with_groups=False), (1, 3))
    for made in documents:
        del made["distributedInfo"]["world_size"]
    run = open_run(write(tmp_path / "traces", documents))
    assert "they do not record how many ranks the job had" in notes(run)


# Profiling cycles.


def write_cycles(folder: Path, cycles: Sequence[tuple[int, Sequence[Document]]]) -> Path:
    folder.mkdir()
    for number, documents in cycles:
        write(folder / f"iteration_{number}", documents)
    return folder


def numbered(documents: Sequence[Document], by: int, later_us: float) -> list[Document]:
    """The same steps, with larger numbers, at a later time."""
    text = re.sub(
        r"ProfilerStep#(\d+)",
        lambda found: f"ProfilerStep#{int(found[1]) + by}",
        json.dumps(list(documents)),
    )
    made: list[Document] = json.loads(text)
    for each in made:
        for event in each["traceEvents"]:
            if "ts" in event:
                event["ts"] += later_us
    return made


@pytest.mark.parametrize("by", [100, 0])
def test_cycles_follow_one_another(tmp_path: Path, by: int) -> None:
    """Their step numbers continue, or begin anew in each cycle."""
    job = Job(world=2, steps=10, slow_us={1: SLOW_US})
    documents = job_documents(job)
    cycles = [(10 * n, numbered(documents, by * n, 1e6 * n)) for n in range(1, 4)]
    folder = write_cycles(tmp_path / "traces", cycles)
    assert detect_format(folder).name == "kineto"
    run = open_run(folder)
    steps = np.unique(run.steps.step).tolist()
    assert len(steps) == 30
    assert steps[:10] == list(range(by, by + 10))
    assert "3 profiling cycles (iteration_10, iteration_20, iteration_30)" in notes(run)
    one = open_run(write(tmp_path / "one", documents))
    result, alone = analyze_run(run), analyze_run(one)
    assert result.makespan_s == pytest.approx(3 * alone.makespan_s, rel=1e-3)
    assert [each.rank for each in result.stragglers] == [1]
    lost = 30 * job.layers * SLOW_US / 1e6
    assert result.stragglers[0].cost_s == pytest.approx(lost, rel=0.02)


def test_cycles_of_different_ranks_leave_the_last_one(tmp_path: Path) -> None:
    documents = job_documents(Job(world=2, steps=5))
    cycles = [(10, documents[:1]), (20, numbered(documents, 10, 1e6))]
    run = open_run(write_cycles(tmp_path / "traces", cycles))
    assert run.world_size == 2
    assert np.unique(run.steps.step).tolist() == list(range(10, 15))
    assert "only the last one, iteration_20, was read" in notes(run)


def test_cycles_are_read_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    documents = job_documents(Job(world=1, steps=2))
    cycles = [(100, numbered(documents, 100, 1e6)), (20, numbered(documents, 20, 0.0))]
    run = open_run(write_cycles(tmp_path / "traces", cycles))
    assert np.unique(run.steps.step).tolist() == [20, 21, 100, 101]


# Names of files.


@pytest.mark.parametrize(
    ("names", "ranks"),
    [
        (("rank_3_step_100.json", "rank_5_step_100.json"), [3, 5]),
        (("rank0.1699.pt.trace.json", "rank1.1699.pt.trace.json"), [0, 1]),
        (("step_7-rank-2.json", "step_7-rank-4.json"), [2, 4]),
    ],
)
def test_ranks_in_names(tmp_path: Path, names: Sequence[str], ranks: list[int]) -> None:
    documents = part(Job(world=8, steps=3, with_groups=False), ranks)
    for name, made in zip(names, documents, strict=True):
        del made["distributedInfo"]
        (tmp_path / name).write_text(json.dumps(made))
    assert f"the ranks {ranks[0]}, {ranks[1]};" in notes(open_run(tmp_path)) or ranks == [0, 1]


def test_the_file_s_rank_precedes_that_of_its_name(tmp_path: Path) -> None:
    for made, name in zip(
        job_documents(Job(world=2, steps=3, slow_us={1: 500.0})),
        ("rank_1_step_9.json", "worker0.1699.pt.trace.json"),
        strict=True,
    ):
        (tmp_path / name).write_text(json.dumps(made))
    timeline = build_timeline(open_run(tmp_path))
    assert timeline.step_wait[:, 0].min() > 0
    assert timeline.step_wait[:, 1].max() == 0


def test_a_number_of_a_worker_is_no_rank(tmp_path: Path) -> None:
    for n, made in enumerate(job_documents(Job(world=2, steps=3))):
        del made["distributedInfo"]
        (tmp_path / f"worker{n}.1699.pt.trace.json").write_text(json.dumps(made))
    with pytest.raises(TraceFormatError, match="neither the file nor its name contains its rank"):
        open_run(tmp_path)


# Traces without annotated steps.


def unannotated(documents: Sequence[Document], *dropped: str) -> list[Document]:
    for made in documents:
        made["traceEvents"] = [
            each
            for each in made["traceEvents"]
            if not each["name"].startswith(("ProfilerStep#", *dropped))
        ]
    return list(documents)


@pytest.mark.parametrize(
    ("dropped", "told"),
    [
        ((), "the times between the ends of its optimizer steps"),
        (("Optimizer.",), "the times between the starts of DistributedDataParallel.forward"),
    ],
)
def test_steps_from_repetition(tmp_path: Path, dropped: tuple[str, ...], told: str) -> None:
    job = Job(world=2, steps=30, slow_us={1: SLOW_US})
    run = open_run(write(tmp_path / "traces", unannotated(job_documents(job), *dropped)))
    assert "no ProfilerStep#N annotations" in notes(run)
    assert told in notes(run)
    assert len(np.unique(run.steps.step)) in (29, 30)
    assert [each.rank for each in analyze_run(run).stragglers] == [1]


def test_ranks_that_begin_at_different_steps(tmp_path: Path) -> None:
    """Rank 1 recorded two steps less at the beginning: its steps have the numbers of rank 0's."""
    job = Job(world=2, steps=30, slow_us={1: SLOW_US})
    documents = job_documents(job)
    begin = next(e["ts"] for e in documents[1]["traceEvents"] if e["name"] == "ProfilerStep#2")
    documents[1]["traceEvents"] = [
        each for each in documents[1]["traceEvents"] if each.get("ts", begin) >= begin
    ]
    run = open_run(write(tmp_path / "traces", unannotated(documents)))
    waits = build_timeline(run).step_wait * 1e6
    assert len(waits) >= 27
    assert waits[:, 0] == pytest.approx(2 * SLOW_US, abs=0.01)
    assert waits[:, 1] == pytest.approx(0.0, abs=0.01)
    assert "clocks were aligned" not in notes(run)


def test_a_trace_without_repetition_is_one_step(tmp_path: Path) -> None:
    documents = unannotated(job_documents(Job(world=2, steps=1)))
    for made in documents:
        made["traceEvents"] = [e for e in made["traceEvents"] if "Optimizer" not in e["name"]]
    run = open_run(write(tmp_path / "traces", documents))
    assert np.unique(run.steps.step).tolist() == [0]
    assert "their steps are one, the whole trace" in notes(run)


def test_a_repeated_annotation_that_encloses_its_step(tmp_path: Path) -> None:
    """As an inference server records it: the operations inside determine the phases."""
    made = host_document(0, steps=8)
    made["distributedInfo"]["world_size"] = 1
    for each in made["traceEvents"]:
        if each["name"].startswith("ProfilerStep#"):
            each["name"] = f"execute_context_{each['name'][13:]}(4)"
        elif each["name"].startswith("Optimizer."):
            each["name"] = "optimizer"
    run = open_run(write(tmp_path / "traces", [made]))
    assert "the times between the starts of execute_context_#(#)" in notes(run)
    assert np.unique(run.steps.step).tolist() == list(range(8))
    assert len(np.unique(run.spans.phase)) >= 5


# Files that do not belong together.


def refuse(folder: Path, says: str) -> TraceFormatError:
    with pytest.raises(TraceFormatError, match=says) as refused:
        open_run(folder)
    assert refused.value.fix
    return refused.value


def test_the_same_file_twice(tmp_path: Path) -> None:
    folder = write(tmp_path / "traces", job_documents(Job(world=2, steps=3)))
    shutil.copy(folder / "worker1.json", folder / "worker1 (copy).json")
    error = refuse(folder, r"worker1.json: rank 1 is also in worker1 \(copy\).json, with the same")
    assert error.fix == "remove one of the two files"


def of_another_size(made: dict[str, Any]) -> None:
    made["distributedInfo"]["world_size"] = 4


def of_another_day(made: dict[str, Any]) -> None:
    made["baseTimeNanoseconds"] += 2 * DAY_NS


def of_other_steps(made: dict[str, Any]) -> None:
    for each in made["traceEvents"]:
        each["name"] = each["name"].replace("ProfilerStep#", "ProfilerStep#77")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            of_another_size,
            (
                "worker1.json: distributedInfo.world_size: this rank belongs to a job of 4 ranks, and"
                " the one in worker0.json to a job of 2"
            ),
        ),
        (
            of_another_day,
            "worker1.json: baseTimeNanoseconds: its first step is 2 days after that of worker0.json",
        ),
        (
            of_other_steps,
            "worker1.json: no step occurs in the traces of all ranks: rank 0 has 0, 1, 2",
        ),
    ],
)
def test_ranks_of_two_runs(
    tmp_path: Path, change: Callable[[dict[str, Any]], None], says: str
) -> None:
    documents = job_documents(Job(world=2, steps=3))
    change(documents[1])
    refuse(write(tmp_path / "traces", documents), says)


def test_a_rank_with_annotated_steps_and_one_without(tmp_path: Path) -> None:
    documents = job_documents(Job(world=2, steps=3))
    unannotated(documents[1:])
    refuse(
        write(tmp_path / "traces", documents),
        "worker1.json: it has no ProfilerStep#N annotation; its steps are the times between the"
        " ends of its optimizer steps, but those of worker0.json are its annotations",
    )


def test_a_trace_without_host_events(tmp_path: Path) -> None:
    documents = job_documents(Job(world=2, steps=3))
    documents[1]["traceEvents"] = []
    refuse(write(tmp_path / "traces", documents), "worker1.json: it has no ProfilerStep#N annota")


def test_the_base_of_the_generated_times() -> None:
    first = job_documents(Job(world=1, steps=1))[0]["traceEvents"][0]
    assert first["ts"] == BASE_US - 100.0
