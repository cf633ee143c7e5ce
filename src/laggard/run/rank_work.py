"""What ranks that are held to shares have computed, and who could not be given what that takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from laggard.core.work_counter import WorkCounter, WorkDone
from laggard.network_emulation.compute.efficiency import compute_excess_slowdown
from laggard.workloads.output.worker_output import WorkerOutputDir, of_all_lives
from laggard.workloads.plan import WorkerPlan

MIN_REPORTED_SLOWDOWN = 1.1
"""A worker that is slower than its share by less is not told of."""


def read_rank_work(
    output_dir: WorkerOutputDir, workers: Sequence[WorkerPlan]
) -> Mapping[int, WorkDone]:
    """What the computing of every rank that was held to a share took, beside what it would have
    taken at full speed.
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
    """Of the processes that a rank had one after another."""
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
    """A warning where ranks could not be given the CPU time that their share of the work takes.

    Args:
        work: of the ranks that count it.
        workers: all.
        min_efficiency: what CPU time is taken to be worth at least, by host.
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
        f"{len(slow_workers)} of {len(hosts)} workers computed slower than their shares say, rank"
        f" {worst} on {hosts[worst]} {slower[worst]:.1f} times: its steps of {step_ms:.2g} ms take"
        f" {cpu_factor:.1f} times the CPU time where a host is held back, which the cores do not"
        " have — take a larger --dilation, smaller shares or larger batches"
    )
    return (warning,)
