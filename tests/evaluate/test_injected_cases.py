"""What `laggard evaluate --emulated` injects, and how it is told from `events.parquet` what was."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from laggard.analysis.evaluate.ground_truth import InjectedEvent
from laggard.analysis.evaluate.ground_truth import build_events as generated_events
from laggard.analysis.evaluate.synthetic.run_generator import (
    Injection,
    Noise,
    Tier,
    TraceSpec,
    generate_run,
)
from laggard.analysis.findings.analysis_result import analyze_lockstep
from laggard.analysis.tables.load_run import RunData
from laggard.analysis.tables.timelines.step_clock import get_step_clock
from laggard.core.span_schema import event_schema
from laggard.evaluate.ground_truth import pair_drops, read_injected_events
from laggard.evaluate.injected_cases import (
    CPU_PERCENT,
    RATE_MBPS,
    READ_KB_PER_S,
    SCENARIO,
    draw_cases,
)
from laggard.scenario.load import load_scenario

SPEC = TraceSpec(
    tiers=(Tier("cloud", 1), Tier("fog", 1), Tier("edge", 2)),
    steps=150,
    evaluate_every=0,
    fetch_s=0.02,
)


def row(
    kind: str, src: str, dst: str | None, quantity: str, value: float, at_s: float
) -> dict[str, object]:
    return {
        "kind": kind,
        "src": src,
        "dst": dst,
        "quantity": quantity,
        "value": value,
        "requested_s": at_s,
        "effective_s": at_s,
    }


def told(run: RunData, folder: Path, *rows: dict[str, object]) -> tuple[InjectedEvent, ...]:
    pq.write_table(
        pa.Table.from_pylist(list(rows), schema=event_schema()), folder / "events.parquet"
    )
    return read_injected_events(run, folder)


def test_a_real_runs_events_are_told_as_a_generated_ones_are(tmp_path: Path) -> None:
    injections = (
        Injection("compute", 2.0, 40, 69, rank=2),
        Injection("storage", 4.0, 90, 119, rank=1),
        Injection("network", 3.0, 20, 39, tiers=("edge", "cloud")),
    )
    spec = replace(SPEC, injections=injections)
    run = generate_run(spec)
    start_s = get_step_clock(run).start_s
    edge = ("edge.trainer.1.1", "edge.trainer.1.2")
    pairs = [(a, b) for e in edge for a, b in ((e, "cloud.trainer.1.1"), ("cloud.trainer.1.1", e))]
    events = told(
        run,
        tmp_path,
        *(row("begin", *pair, "rate_mbps", 50.0, start_s[20]) for pair in pairs),
        row("begin", edge[0], None, "cpu", 0.08, start_s[40] + 0.001),
        *(row("end", *pair, "rate_mbps", 150.0, start_s[40]) for pair in pairs),
        row("end", edge[0], None, "cpu", 0.16, start_s[70] - 0.001),
        row("begin", "fog.trainer.1.1", None, "read_mb_per_s", 0.05, start_s[90]),
        row("end", "fog.trainer.1.1", None, "read_mb_per_s", 0.2, start_s[120]),
    )
    expected = generated_events(spec)
    assert [replace(event, links=frozenset()) for event in events] == [
        replace(event, links=frozenset()) for event in expected
    ]
    assert events[2].links == set(pairs)
    assert events[2].links >= expected[2].links


def test_a_change_that_no_detector_could_see_is_said_to_be_one(tmp_path: Path) -> None:
    run = generate_run(replace(SPEC, noise=replace(Noise(), sigma=0.15)))
    start_s = get_step_clock(run).start_s
    for ratio, seen in ((1.15, False), (2.0, True)):
        begin = row("begin", "fog.trainer.1.1", None, "cpu", 0.16 / ratio, start_s[50])
        (event,) = told(
            run, tmp_path, begin, row("end", "fog.trainer.1.1", None, "cpu", 0.16, start_s[62])
        )
        assert (event.first, event.last, event.detectable) == (50, 61, seen)


def test_what_never_ends_lasts_as_long_as_the_run(tmp_path: Path) -> None:
    run = generate_run(SPEC)
    begin_s = float(get_step_clock(run).start_s[100])
    (event,) = told(run, tmp_path, row("begin", "cloud.trainer.1.1", None, "cpu", 0.05, begin_s))
    assert (event.rank, event.kind, event.first, event.last) == (0, "dynamic", 100, 149)
    (whole,) = told(run, tmp_path, row("begin", "cloud.trainer.1.1", None, "cpu", 0.05, 0.0))
    assert (whole.kind, whole.first) == ("deterministic", 0)


def test_what_gets_faster_or_is_of_no_family_is_no_event() -> None:
    rows = [
        row("begin", "a", None, "cpu", 0.3, 1.0),
        row("end", "a", None, "cpu", 0.15, 2.0),
        row("begin", "a", "b", "loss_percent", 1.0, 1.0),
        row("end", "a", "b", "loss_percent", 5.0, 2.0),
    ]
    assert pair_drops(rows, 9.0) == ()


def test_a_run_in_which_nothing_changes_has_no_event(tmp_path: Path) -> None:
    assert told(generate_run(SPEC), tmp_path) == ()


@pytest.mark.parametrize("seed", [1, 2])
def test_the_cases_are_scenarios_that_change_what_they_say(seed: int) -> None:
    cases = draw_cases(seed, 6)
    assert cases == draw_cases(seed, 6)
    assert sum(case.family == "none" for case in cases) == 2
    for case in cases:
        scenario = load_scenario(SCENARIO, case.overrides())
        assert {each.family for each in case.slowdowns} == {
            "none": set(),
            "both": {"compute", "network"},
        }.get(case.family, {case.family})
        begins = [change for change in scenario.changes if change.kind == "begin"]
        for change, each in zip(
            begins, sorted(case.slowdowns, key=lambda each: each.at_s), strict=True
        ):
            assert change.at_s == each.at_s
            ((_, value),) = change.values
            usual = {
                "compute": CPU_PERCENT / 100,
                "storage": READ_KB_PER_S / 1000,
                "network": RATE_MBPS,
            }[each.family]
            assert usual / value == pytest.approx(each.magnitude, rel=1e-4)


def test_the_truth_and_the_findings_agree_where_it_is_plain(tmp_path: Path) -> None:
    """The analysis and the truth count steps alike."""
    run = generate_run(replace(SPEC, injections=(Injection("compute", 3.0, 60, 99, rank=3),)))
    start_s = get_step_clock(run).start_s
    begin = row("begin", "edge.trainer.1.2", None, "cpu", 0.05, start_s[60])
    (event,) = told(
        run, tmp_path, begin, row("end", "edge.trainer.1.2", None, "cpu", 0.15, start_s[100])
    )
    (found,) = (each for each in analyze_lockstep(run).findings if each.rank == 3)
    assert (
        np.abs(np.array([found.first_step - event.first, found.last_step - event.last])).max() <= 1
    )
