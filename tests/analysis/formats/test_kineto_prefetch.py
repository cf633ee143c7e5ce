"""Collectives beside work, as in FSDP, which fetches parameters ahead: costs in closed form."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from laggard.analysis.findings.analyze_run import analyze_run
from laggard.analysis.formats.registry import open_run
from tests.analysis.kineto_traces import NCCL, STREAM, Document, annotation, document, event, write

WORLD, STEPS, LAYERS, USUAL_US, HOST_US = 4, 12, 10, 900.0, 100.0


def prefetch(slow_us: float, transfer_us: float) -> tuple[list[Document], float]:
    """Return documents and the end of a job: each layer's kernel starts with the all-gather for the
    next layer, which ends `transfer_us` after its last launch. Rank 0 takes `slow_us` a layer."""
    events: list[list[dict[str, Any]]] = [[] for _ in range(WORLD)]
    begin = [HOST_US] * WORLD
    for step in range(STEPS):
        at = [own - HOST_US for own in begin]
        for rank in range(WORLD):
            events[rank] += [
                annotation(f"ProfilerStep#{step}", at[rank], at[rank] + 95),
                annotation("DistributedDataParallel.forward", at[rank] + 20, at[rank] + 30),
            ]
        for layer in range(LAYERS):
            gathered = max(begin) + transfer_us
            for rank in range(WORLD):
                done = begin[rank] + (slow_us if rank == 0 else USUAL_US)
                number = 2 * (step * LAYERS + layer)
                events[rank] += _launch("gemm", number, at[rank], begin[rank], done, STREAM)
                kernel = "ncclDevKernel_AllGather_RING_LL(x)"
                events[rank] += _launch(kernel, number + 1, at[rank], begin[rank], gathered, NCCL)
                begin[rank] = max(done, gathered)
    documents = [document(rank, own, WORLD) for rank, own in enumerate(events)]
    return documents, max(begin) - HOST_US


def _launch(
    name: str, number: int, at: float, start: float, end: float, stream: int
) -> list[dict[str, Any]]:
    return [
        event("cudaLaunchKernel", at + 25, at + 26, cat="cuda_runtime", correlation=number),
        event(name, start, end, cat="kernel", tid=stream, correlation=number),
    ]


@pytest.mark.parametrize("slow_us", [900.0, 1000.0, 1500.0, 3000.0])
@pytest.mark.parametrize("transfer_us", [200.0, 600.0, 900.0, 990.0, 1400.0, 2900.0])
def test_the_cost_of_a_slow_rank_beside_its_transfers(
    tmp_path: Path, slow_us: float, transfer_us: float
) -> None:
    documents, took_us = prefetch(slow_us, transfer_us)
    _, usual_us = prefetch(USUAL_US, transfer_us)
    result = analyze_run(open_run(write(tmp_path / "traces", documents)))
    lost = result.lost_s / result.makespan_s
    assert lost == pytest.approx((took_us - usual_us) / took_us, abs=0.02)
    assert {each.rank for each in result.stragglers} <= {0}
