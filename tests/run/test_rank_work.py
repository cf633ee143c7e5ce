"""Who is told to have been slower than its share."""

from __future__ import annotations

from pathlib import Path

from laggard.core.hosts import Host
from laggard.core.work_counter import WorkCounter, WorkDone
from laggard.run.rank_work import find_slow_ranks, read_rank_work
from laggard.workloads.output.worker_output import WorkerOutputDir
from laggard.workloads.plan import WorkerPlan, plan_workers
from laggard.workloads.workload import Workload

_MS = 1_000_000


def _workers(folder: Path) -> tuple[WorkerPlan, ...]:
    hosts = [Host(f"edge.trainer.1.{i}", "edge", "trainer", 1, i, "127.0.0.1") for i in (1, 2)]
    return plan_workers(
        Workload.model_validate({"model": "mlp", "dataset": "digits"}), hosts, folder
    )


def test_ranks_that_had_their_share_are_not_told_of(tmp_path: Path) -> None:
    enough = WorkDone(10, 100 * _MS, 180 * _MS)
    assert find_slow_ranks({0: enough, 1: enough}, _workers(tmp_path), lambda host: 0.5) == ()
    assert find_slow_ranks({}, _workers(tmp_path), lambda host: 0.5) == ()


def test_the_worst_is_named_with_what_would_help(tmp_path: Path) -> None:
    work = {0: WorkDone(10, 100 * _MS, 180 * _MS), 1: WorkDone(10, 3 * _MS, 24 * _MS)}
    (told,) = find_slow_ranks(work, _workers(tmp_path), lambda host: 0.5)
    assert "1 of 2 workers" in told
    assert (
        "rank 1 on edge.trainer.1.2, by a factor of 4.0: under its share, a step of 0.3 ms takes"
        " 8.0 times as much CPU time" in told
    )
    assert "larger --dilation" in told


def test_only_ranks_that_count_are_read(tmp_path: Path) -> None:
    with WorkCounter(WorkerOutputDir(tmp_path).work(1)) as counter:
        counter.add(5, 9)
    assert read_rank_work(WorkerOutputDir(tmp_path), _workers(tmp_path)) == {1: WorkDone(1, 5, 9)}
