"""Work of ranks with a CPU share, and warnings about ranks that received too little CPU time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from laggard.core.work_counter import WorkCounter, WorkDone
from laggard.network_emulation.compute.efficiency import compute_excess_slowdown
from laggard.workloads.output.worker_output import WorkerOutputDir, of_all_lives
from laggard.workloads.plan import WorkerPlan

MIN_REPORTED_SLOWDOWN = 1.1
"""Smallest slowdown, relative to the share, of a worker that is reported."""


def read_rank_work(
    output_dir: WorkerOutputDir, workers: Sequence[WorkerPlan]
) -> Mapping[int, WorkDone]:
    """Read the work of every rank that had a CPU share.

    Returns:
        CPU time that the rank's computing took, and the time that it takes at full speed, by rank.
    """
    done = {}
    for worker in workers:
        if output_dir.work(worker.rank).exists():
            done[worker.rank] = _sum_work(
                [_read_counter(path) for path in of_all_lives(output_dir.work(worker.rank))]
            )
    return done


def _read_counter(path: Path) -> WorkDone:
    with WorkCounter(path) as counter:
        return counter.read()


def _sum_work(parts: Sequence[WorkDone]) -> WorkDone:
    """Sum the work of the successive processes of one rank."""
    return WorkDone(
        sum(part.steps for part in parts),
        sum(part.full_speed_ns for part in parts),
        sum(part.cpu_ns for part in parts),
    )


def find_slow_ranks(
    work: Mapping[int, WorkDone],
    workers: Sequence[WorkerPlan],
    min_efficiency: Callable[[str], float],
) -> tuple[str, ...]:
    """Return a warning if ranks did not receive the CPU time that their share of the work needs.

    Args:
        work: work of each rank that counts it.
        workers: plans of all workers.
        min_efficiency: lowest assumed efficiency of CPU time on a host, by name of the host.
    """
    hosts = {worker.rank: worker.host for worker in workers}
    slower = {
        rank: compute_excess_slowdown(done, min_efficiency(hosts[rank]))
        for rank, done in work.items()
    }
    slow_workers = [rank for rank, factor in slower.items() if factor > MIN_REPORTED_SLOWDOWN]
    if not slow_workers:
        return ()
    worst = max(slow_workers, key=slower.__getitem__)
    step_ms = work[worst].full_speed_ns / work[worst].steps / 1e6
    cpu_factor = work[worst].cpu_ns / work[worst].full_speed_ns
    warning = (
        f"{len(slow_workers)} of {len(hosts)} workers computed more slowly than their CPU shares"
        f" require; the slowest is rank {worst} on {hosts[worst]}, by a factor of"
        f" {slower[worst]:.1f}: under its share, a step of {step_ms:.2g} ms takes"
        f" {cpu_factor:.1f} times as much CPU time, and the cores have no CPU time left — use a"
        " larger --dilation, smaller shares or larger batches"
    )
    return (warning,)
