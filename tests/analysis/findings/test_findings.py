"""Whole runs: what was injected is found, with its class, rank, interval and link; and nothing
else."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from pydantic import TypeAdapter

from laggard.analysis.evaluate.synthetic.run_generator import (
    QUIET,
    Injection,
    Noise,
    Tier,
    TraceSpec,
    generate_run,
)
from laggard.analysis.findings.analysis_result import (
    AnalysisResult,
    analyze_lockstep,
    write_findings,
)
from laggard.core.run_schema import Finding
from tests.analysis.traces import CONTINUUM, HARSH, LEVEL, keep_spans


def analysed(*injections: Injection, **changes: object) -> AnalysisResult:
    spec = TraceSpec(tiers=LEVEL, injections=injections)
    return analyze_lockstep(generate_run(dataclasses.replace(spec, **changes)))  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(60))
def test_a_level_run_has_no_straggler(seed: int) -> None:
    analysis = analysed(seed=seed, steps=300 + 10 * seed)
    assert analysis.stragglers == ()
    assert analysis.replayed_s == pytest.approx(analysis.makespan_s, rel=1e-3)
    assert analysis.explained == pytest.approx(1.0, abs=0.03)


@pytest.mark.parametrize("seed", range(20))
def test_a_level_run_on_a_bad_machine_has_no_straggler(seed: int) -> None:
    assert analysed(seed=seed, noise=HARSH).stragglers == ()
    assert analysed(seed=seed, noise=Noise(episode=0.005)).stragglers == ()


@pytest.mark.parametrize("seed", range(30))
def test_a_slowed_rank_is_found(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rank, first, length = (
        int(rng.integers(8)),
        int(rng.integers(30, 450)),
        int(rng.integers(15, 100)),
    )
    factor = float(rng.uniform(1.3, 3.0))
    analysis = analysed(
        Injection("compute", factor, first, first + length - 1, rank=rank), seed=seed
    )
    (finding,) = [
        f for f in analysis.findings if f.rank == rank and f.last_step - f.first_step > 12
    ]
    assert (finding.family, finding.kind, finding.host) == (
        "compute",
        "dynamic",
        analysis.hosts[rank].host,
    )
    assert finding.first_step == pytest.approx(first, abs=5)
    assert finding.last_step == pytest.approx(first + length - 1, abs=5)
    assert finding.slowdown == pytest.approx(factor, rel=0.1)
    assert finding.confidence > 0.95
    assert [f for f in analysis.stragglers if f != finding] == []


@pytest.mark.parametrize("seed", range(30))
def test_a_slowed_link_is_found_and_named(seed: int) -> None:
    rng = np.random.default_rng(seed)
    pair = (("cloud", "fog"), ("edge", "fog"), ("cloud", "edge"))[seed % 3]
    first, length, factor = (
        int(rng.integers(30, 450)),
        int(rng.integers(20, 100)),
        float(rng.uniform(2.0, 8.0)),
    )
    analysis = analysed(
        Injection("network", factor, first, first + length - 1, tiers=pair), seed=seed
    )
    (finding,) = [
        f for f in analysis.findings if f.family == "network" and f.last_step - f.first_step > 12
    ]
    assert (finding.rank, finding.host, finding.kind) == (None, None, "dynamic")
    assert finding.link is not None
    assert tuple(sorted(end.split(".")[0] for end in finding.link)) == pair
    assert finding.first_step == pytest.approx(first, abs=6)
    assert finding.last_step == pytest.approx(first + length - 1, abs=6)
    assert [f for f in analysis.stragglers if f != finding] == []


def test_the_continuum_by_design() -> None:
    analysis = analysed(tiers=CONTINUUM)
    lasting = {f.rank: f for f in analysis.stragglers}
    assert {rank for rank, f in lasting.items() if f.slowdown > 3} == {4, 5, 6, 7}
    assert all(f.kind == "deterministic" and f.family == "compute" for f in analysis.stragglers)
    assert all(f.last_step - f.first_step > 0.9 * 600 for f in analysis.stragglers)
    assert np.median(analysis.slowdown[:, 4:]) == pytest.approx(4.0, rel=0.05)
    assert analysis.is_reliable


def test_an_edge_heavy_fleet_is_held_against_its_fastest_class() -> None:
    analysis = analysed(tiers=(Tier("cloud", 1), Tier("edge", 7, 3.0)), steps=300)
    assert {f.rank for f in analysis.stragglers} == set(range(1, 8))


def test_one_slow_member_does_not_make_its_class_slow() -> None:
    analysis = analysed(
        Injection("compute", 2.0, rank=1), tiers=(Tier("cloud", 2), Tier("edge", 2))
    )
    assert [(f.rank, f.kind) for f in analysis.stragglers] == [(1, "deterministic")]


@pytest.mark.parametrize("seed", range(5))
def test_a_host_slow_all_along_may_be_slower_still_for_a_moment(seed: int) -> None:
    """Eight steps of sixty are too short to be a slowness of their own, and no reason to overlook
    the one that lasts."""
    tiers = (Tier("cloud", 1), Tier("edge", 2, 2.3))
    moment = Injection("compute", 1.7, 24, 31, rank=1)
    found = analysed(moment, tiers=tiers, steps=60, seed=seed).findings
    assert {f.rank for f in found if (f.family, f.kind) == ("compute", "deterministic")} == {1, 2}


def test_slow_storage_is_storage() -> None:
    analysis = analysed(Injection("storage", 100.0, 100, 180, rank=6))
    (finding,) = analysis.stragglers
    assert (finding.rank, finding.family, finding.kind) == (6, "storage", "dynamic")


@pytest.mark.parametrize("factor", [1.5, 4.0])
def test_drives_are_held_against_the_fastest_drives(factor: float) -> None:
    """All tiers compute alike, and two of three read slowly."""
    slow = tuple(Injection("storage", factor, rank=rank) for rank in range(2, 8))
    found = analysed(*slow, fetch_s=0.02, steps=200).findings
    assert {(f.rank, f.family, f.kind) for f in found} == {
        (rank, "storage", "deterministic") for rank in range(2, 8)
    }


def test_most_ranks_slow_for_half_of_the_run_are_slow_then_and_the_others_never() -> None:
    slow = tuple(Injection("compute", 4.0, 150, 369, rank=rank) for rank in range(5))
    found = analysed(*slow, steps=400).stragglers
    assert {(f.rank, f.family, f.kind) for f in found} == {
        (rank, "compute", "dynamic") for rank in range(5)
    }


def test_a_short_slowness_is_masked() -> None:
    analysis = analysed(Injection("compute", 1.4, 300, 314, rank=2))
    (finding,) = [f for f in analysis.findings if f.rank == 2]
    assert finding.masked
    assert finding not in analysis.stragglers


def test_without_samples_no_link_is_named() -> None:
    analysis = analysed(
        Injection("network", 5.0, 200, 260, tiers=("cloud", "edge")), with_links=False
    )
    (finding,) = analysis.stragglers
    assert (finding.family, finding.link) == ("network", None)
    assert any("links.parquet" in note for note in analysis.notes)


def test_a_collective_slowed_by_a_starved_host_is_not_the_networks() -> None:
    both = (
        Injection("compute", 10.0, 200, 260, rank=3),
        Injection("network", 3.0, 200, 260, tiers=("cloud", "edge")),
    )
    starved = analysed(*both, with_links=False)
    assert [(f.rank, f.family) for f in starved.stragglers] == [(3, "compute")]
    evident = analysed(*both)
    assert {(f.rank, f.family) for f in evident.stragglers} == {(3, "compute"), (None, "network")}


def test_a_link_slow_all_along_is_found_by_the_samples_alone() -> None:
    rates = {("edge", "fog"): 50.0}
    (finding,) = analysed(tier_rates_mbps=rates).stragglers
    assert (finding.family, finding.kind, finding.rank) == ("network", "deterministic", None)
    assert finding.link == ("fog.trainer.1.2", "edge.trainer.1.1")
    assert finding.slowdown == pytest.approx(4.0, rel=0.1)
    assert analysed(tier_rates_mbps=rates, with_links=False).stragglers == ()


def test_what_a_slow_link_costs_is_what_a_fast_one_would_have_saved() -> None:
    slow = analysed(tier_rates_mbps={("edge", "fog"): 50.0}, noise=QUIET)
    fast = analysed(noise=QUIET)
    assert slow.stragglers[0].cost_s == pytest.approx(slow.makespan_s - fast.makespan_s, rel=0.05)


def test_what_a_slow_rank_costs_is_what_a_paired_run_saves() -> None:
    slow = analysed(Injection("compute", 3.0, 100, 399, rank=5), seed=4)
    paired = analysed(seed=4)
    assert slow.stragglers[0].cost_s == pytest.approx(slow.makespan_s - paired.makespan_s, rel=0.1)


@pytest.mark.parametrize("sigma", [0.02, 0.15])
@pytest.mark.parametrize("kind", ["deterministic", "dynamic"])
def test_what_most_ranks_cost_is_what_a_paired_run_saves_however_noisy(
    sigma: float, kind: str
) -> None:
    """Without their slowness they still jitter, and a barrier waits for the worst of all."""
    first, last = (0, None) if kind == "deterministic" else (100, 249)
    slow = tuple(Injection("compute", 2.0, first, last, rank=rank) for rank in range(3, 8))
    noise = dataclasses.replace(Noise(), sigma=sigma)
    with_them, paired = (analysed(*each, noise=noise, seed=2, steps=300) for each in (slow, ()))
    assert with_them.lost_s == pytest.approx(
        with_them.makespan_s - paired.makespan_s, abs=0.02 * with_them.makespan_s
    )


def test_the_costs_add_up_and_come_dearest_first() -> None:
    analysis = analysed(
        Injection("network", 5.0, 100, 160, tiers=("cloud", "edge")),
        Injection("compute", 3.0, 300, 350, rank=2),
        tiers=CONTINUUM,
    )
    costs = [f.cost_s for f in analysis.findings]
    assert costs == sorted(costs, reverse=True)
    assert sum(costs) == pytest.approx(analysis.lost_s, rel=1e-3)
    assert analysis.lost_s == pytest.approx(
        analysis.makespan_s - analysis.without_causes_s, rel=1e-3
    )


def test_slow_drift_of_everything_is_left_unexplained_but_said() -> None:
    run = generate_run(TraceSpec(tiers=LEVEL, steps=400))
    spans = run.spans
    stretched = np.where(spans.step >= 250, 1.6, 1.0)
    longer = dataclasses.replace(
        spans,
        start_ns=(
            spans.start_ns
            + np.where(
                spans.step >= 250,
                0.6 * (spans.start_ns - spans.start_ns[spans.step == 250].min()),
                0,
            )
        ).astype(np.int64),
        dur_ns=(spans.dur_ns * stretched).astype(np.int64),
    )
    analysis = analyze_lockstep(dataclasses.replace(run, spans=longer))
    assert analysis.stragglers == ()
    assert not analysis.is_reliable
    assert any("do not rely on them" in note for note in analysis.notes)


def drifting(seed: int, *injections: Injection) -> AnalysisResult:
    """Of a level run on a machine whose speed drifts by 15 % both ways, while the links do not."""
    noise = dataclasses.replace(Noise(), drift=0.15)
    return analyze_lockstep(
        generate_run(
            TraceSpec(tiers=LEVEL, steps=103, seed=seed, noise=noise, injections=injections)
        )
    )


def test_a_drifting_machine_does_not_make_steady_links_slow() -> None:
    assert [drifting(seed).stragglers for seed in range(10)] == [()] * 10


@pytest.mark.parametrize("seed", range(10))
def test_a_slow_network_is_found_on_a_drifting_machine(seed: int) -> None:
    found = drifting(seed, Injection("network", 2.5, 50, 80, tiers=("cloud", "edge"))).stragglers
    assert [(each.family, each.kind) for each in found] == [("network", "dynamic")]
    assert abs(found[0].first_step - 50) <= 3
    assert abs(found[0].last_step - 79) <= 3


def test_a_run_too_short_says_so() -> None:
    analysis = analysed(steps=8)
    assert analysis.findings == ()
    assert any("Eight steps" in note for note in analysis.notes)


def test_a_hole_in_the_spans_does_not_break_the_rest() -> None:
    run = generate_run(TraceSpec(tiers=CONTINUUM, steps=200))
    holed = analyze_lockstep(keep_spans(run, ~((run.spans.rank == 3) & (run.spans.step == 50))))
    assert {f.rank for f in holed.stragglers if f.slowdown > 3} == {4, 5, 6, 7}


def test_findings_are_written_as_the_schema_says(tmp_path: Path) -> None:
    analysis = analysed(tiers=CONTINUUM, steps=100)
    path = tmp_path / "stragglers.json"
    write_findings(analysis.findings, path)
    assert TypeAdapter(tuple[Finding, ...]).validate_json(path.read_bytes()) == analysis.findings
    assert set(json.loads(path.read_text())[0]) == set(Finding.model_fields)


def test_the_same_run_gives_the_same_analysis() -> None:
    many = (Tier("cloud", 2), Tier("edge", 12, 2.0))
    assert analysed(tiers=many, steps=100).findings == analysed(tiers=many, steps=100).findings


def test_importing_the_analysis_loads_nothing_heavy() -> None:
    code = (
        "import sys, laggard.analysis.findings.analysis_result\nheavy = {'pandas', 'pyarrow',"
        " 'matplotlib', 'torch', 'enoslib'} & set(sys.modules)\nsys.exit(',"
        " '.join(sorted(heavy)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
