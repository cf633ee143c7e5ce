"""Costs of slow ranks of pipelines in torch.profiler traces, against a simulation of the job."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from laggard.analysis.findings.analysis_result import AnalysisResult
from laggard.analysis.findings.analyze_run import analyze_run
from laggard.analysis.findings.answer import format_answer
from laggard.analysis.formats.registry import open_run
from laggard.analysis.tables.load_run import RunData
from tests.analysis.kineto_traces import write
from tests.analysis.pipeline_traces import Pipeline, measure_lost_share, pipeline_documents

BASE = Pipeline(stage_us=lambda stage: 1500.0 if stage == 1 else 1000.0)
"""A pipeline whose second stage does more than the others."""
MODES = {
    "batched": BASE,
    "separate": replace(BASE, blocking=False),
    "prefetched": replace(BASE, blocking=False, prefetch=True),
}
LONG = pytest.mark.long


def analyze(job: Pipeline, folder: Path) -> tuple[RunData, AnalysisResult]:
    run = open_run(write(folder, pipeline_documents(job)))
    return run, analyze_run(run)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("stages", "slow", "steps", "microbatches"),
    [
        (2, 0, 3, 4),
        (2, 3, 10, 4),
        (4, 7, 3, 4),
        pytest.param(4, 0, 10, 8, marks=LONG),
        pytest.param(4, 4, 10, 2, marks=LONG),
        pytest.param(4, 3, 24, 4, marks=LONG),
    ],
)
def test_found_costs_are_true_costs(
    tmp_path: Path, mode: str, stages: int, slow: int, steps: int, microbatches: int
) -> None:
    job = replace(
        MODES[mode], stages=stages, steps=steps, microbatches=microbatches, slow={slow: 2.0}
    )
    run, analysis = analyze(job, tmp_path / "slow")
    assert run.teams == tuple((2 * stage, 2 * stage + 1) for stage in range(stages))
    assert {(f.rank, f.family) for f in analysis.stragglers} == {(slow, "compute")}
    found = analysis.lost_s / analysis.makespan_s
    assert found == pytest.approx(measure_lost_share(job), abs=0.02 if steps > 9 else 0.05)
    assert analysis.is_reliable
    _, twin = analyze(job.healthy, tmp_path / "twin")
    assert twin.findings == ()
    assert not twin.has_unexplained_waits


def test_a_rank_is_compared_with_its_stage(tmp_path: Path) -> None:
    run, analysis = analyze(replace(BASE, steps=4, slow={3: 2.0}), tmp_path / "traces")
    sentences = format_answer(run, analysis)
    assert "2.0x slower than the others of its stage in all four steps" in sentences[0]
    assert "The stages of the pipeline wait for one another for" in " ".join(sentences)


def test_a_pipeline_without_replicas_has_nobody_to_compare(tmp_path: Path) -> None:
    _, analysis = analyze(replace(BASE, replicas=1, steps=4), tmp_path / "traces")
    assert analysis.findings == ()
    assert not analysis.has_unexplained_waits
