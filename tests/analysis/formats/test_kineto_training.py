"""Traces that torch.profiler records of a real training over loopback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from laggard.analysis.findings.analysis_result import analyze_lockstep
from laggard.analysis.formats.kineto.ranks.trace_format import KINETO
from laggard.analysis.formats.registry import detect_format, open_run
from laggard.analysis.tables.load_run import RunData, load_run
from laggard.analysis.tables.timelines.build_timeline import build_timeline
from laggard.analysis.tables.write_run import write_run
from laggard.core.span_schema import NO_GROUP, Lane, Phase

REPOSITORY = Path(__file__).resolve().parents[3]
SLEEP_S = 0.15
STEPS = 4


@pytest.fixture(scope="module")
def profiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The real traces of two ranks that train over loopback; rank 1 sleeps in every forward."""
    folder = tmp_path_factory.mktemp("profiled")
    command = [sys.executable, "-W", "ignore", "-m", "tests.analysis.profiled_training"]
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(
            [*command, str(rank), "2", str(folder), "1", str(SLEEP_S)],
            cwd=REPOSITORY,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    said = [rank.communicate(timeout=120)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], said
    return folder


CLOCKS_NS = 200_000
CLOCKS = 1.5
"""The profiler reckons its times from the processor's counter, held against the clock twice: who is
interrupted meanwhile has longer or shorter seconds. A time in the wrong phase is ten times it."""


def told(folder: Path, rank: int) -> Mapping[str, Any]:
    read: Mapping[str, Any] = json.loads((folder / f"told{rank}.txt").read_text())
    return read


def phase_ns(run: RunData, rank: int, phase: Phase, step: int) -> int:
    spans = run.spans
    rows = (
        (spans.rank == rank)
        & (spans.phase == phase.code)
        & (spans.step == step)
        & (spans.lane == Lane.MAIN)
    )
    return int(spans.dur_ns[rows].sum())


@pytest.mark.long
def test_a_real_training_is_read(profiled: Path) -> None:
    assert detect_format(profiled) is KINETO
    run = open_run(profiled)
    assert run.world_size == 2
    assert len(np.unique(run.steps.step)) == STEPS
    main = run.spans.where(run.spans.lane == Lane.MAIN)
    for rank in range(2):
        own = main.where(main.rank == rank)
        assert (own.start_ns[1:] >= own.end_ns[:-1]).all()
        for phase in (Phase.FETCH, Phase.FORWARD, Phase.BACKWARD, Phase.COMM, Phase.OPTIMIZER):
            assert set(own.step[own.phase == phase.code].tolist()) == set(
                np.unique(run.steps.step).tolist()
            ), phase


@pytest.mark.long
def test_real_phases_are_what_the_process_itself_measured(profiled: Path) -> None:
    """Never longer than the process saw them; and the sleep is in the forward of the rank that
    slept."""
    run = open_run(profiled)
    steps = np.unique(run.steps.step).tolist()
    for rank in range(2):
        for step, own in zip(steps, told(profiled, rank)["steps"], strict=True):
            assert phase_ns(run, rank, Phase.FETCH, step) <= CLOCKS * own["fetch"] + CLOCKS_NS
            assert phase_ns(run, rank, Phase.FORWARD, step) <= CLOCKS * own["forward"] + CLOCKS_NS
            assert phase_ns(run, rank, Phase.BACKWARD, step) <= CLOCKS * own["backward"] + CLOCKS_NS
            assert (
                phase_ns(run, rank, Phase.OPTIMIZER, step) <= CLOCKS * own["optimizer"] + CLOCKS_NS
            )
            assert (
                sum(phase_ns(run, rank, phase, step) for phase in Phase)
                <= CLOCKS * sum(own.values()) + CLOCKS_NS
            )
    assert all(phase_ns(run, 1, Phase.FORWARD, step) >= SLEEP_S / CLOCKS * 1e9 for step in steps)
    slept, other = (
        sum(phase_ns(run, rank, Phase.FORWARD, step) for step in steps) for rank in (1, 0)
    )
    assert other < slept


@pytest.mark.long
def test_real_collectives_meet_and_the_sleeper_is_waited_for(profiled: Path) -> None:
    run = open_run(profiled)
    timeline = build_timeline(run)
    assert timeline.member.all()
    gradients = run.spans.where(
        (run.spans.lane == Lane.MAIN)
        & (run.spans.phase == Phase.COMM.code)
        & (run.spans.group != NO_GROUP)
    )
    assert {4 * told(profiled, 0)["parameters"]} <= set(gradients.bytes.tolist())
    for step in np.unique(gradients.step).tolist():
        groups = [
            gradients.where((gradients.step == step) & (gradients.rank == rank))
            for rank in range(2)
        ]
        assert sorted(zip(groups[0].group, groups[0].bytes, strict=True)) == sorted(
            zip(groups[1].group, groups[1].bytes, strict=True)
        )
    wait = timeline.step_wait
    assert (wait[:, 0].sum() - wait[:, 1].sum()) >= 0.25 * SLEEP_S * STEPS


@pytest.mark.long
def test_a_real_training_becomes_a_run_folder_that_is_analysed(
    profiled: Path, tmp_path: Path
) -> None:
    run = load_run(write_run(open_run(profiled), tmp_path / "run"))
    found = analyze_lockstep(run)
    assert found.costed
    assert found.compute_s[:, 1].min() > SLEEP_S / CLOCKS
    assert found.makespan_s > SLEEP_S * STEPS / CLOCKS
    assert found.replayed_s == pytest.approx(found.makespan_s, rel=1e-6)
