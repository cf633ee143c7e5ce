"""Which alarm told of which finding, and that the report says when."""

from __future__ import annotations

import dataclasses

import pytest

from laggard.analysis.detection.online.recorded_run import replay_alarms
from laggard.analysis.evaluate.synthetic.run_generator import (
    Injection,
    Tier,
    TraceSpec,
    generate_run,
)
from laggard.analysis.findings.analysis_result import analyze_lockstep
from laggard.analysis.report.stragglers import build_straggler_rows, find_alarm
from laggard.analysis.tables.load_run import RunData
from laggard.core.run_schema import Alarm, Finding

TIERS = (Tier("cloud", 2), Tier("fog", 2), Tier("edge", 4))


@pytest.fixture(scope="module")
def run() -> RunData:
    slow = (
        Injection("compute", 2.0, 120, 179, rank=5),
        Injection("network", 4.0, 0, None, tiers=("fog", "edge")),
    )
    generated = generate_run(TraceSpec(tiers=TIERS, steps=240, injections=slow, seed=3))
    told = tuple(
        alarm.model_copy(update={"reported_s": alarm.raised_s + 1.0})
        for alarm in replay_alarms(generated)
    )
    return dataclasses.replace(generated, alarms=told)


def test_every_straggler_says_when_it_was_told_of(run: RunData) -> None:
    analysis = analyze_lockstep(run)
    whens = {row.what: row.when for row in build_straggler_rows(run, analysis)}
    assert set(whens) == {"compute", "network"}
    assert all("; reported live at " in when for when in whens.values())
    untold = dataclasses.replace(run, alarms=())
    assert not any("reported live" in row.when for row in build_straggler_rows(untold, analysis))


def changed(finding: Finding, **changes: object) -> Finding:
    return finding.model_copy(update=changes)


def test_an_alarm_tells_of_its_own_place_and_time(run: RunData) -> None:
    compute, network = (
        next(finding for finding in analyze_lockstep(run).findings if finding.family == family)
        for family in ("compute", "network")
    )
    alarm: Alarm | None = find_alarm(run, compute)
    assert alarm is not None
    assert (alarm.rank, alarm.family) == (5, "compute")
    assert find_alarm(run, changed(compute, rank=4)) is None
    assert find_alarm(run, changed(compute, family="storage")) is None
    assert find_alarm(run, changed(compute, first_step=20, last_step=60)) is None
    assert find_alarm(run, changed(compute, first_step=200, last_step=230)) is None
    back = ("edge.trainer.1.4", "cloud.trainer.1.1")
    assert find_alarm(run, network) is not None
    assert find_alarm(run, changed(network, link=back)) is None
