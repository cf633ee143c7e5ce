"""Which alarm told of which finding, and that the report says when."""

from __future__ import annotations

import dataclasses

import pytest

from laggard.analysis.findings import analyse
from laggard.analysis.generate import Injection, Tier, TraceSpec, generate_run
from laggard.analysis.load import Run
from laggard.analysis.online.replayed import alarms_of
from laggard.analysis.report.stragglers import alarm_of, straggler_rows
from laggard.run_schema import Alarm, Finding

TIERS = (Tier("cloud", 2), Tier("fog", 2), Tier("edge", 4))


@pytest.fixture(scope="module")
def run() -> Run:
    slow = (
        Injection("compute", 2.0, 120, 179, rank=5),
        Injection("network", 4.0, 0, None, tiers=("fog", "edge")),
    )
    generated = generate_run(TraceSpec(tiers=TIERS, steps=240, injections=slow, seed=3))
    told = tuple(
        alarm.model_copy(update={"told_s": alarm.raised_s + 1.0}) for alarm in alarms_of(generated)
    )
    return dataclasses.replace(generated, alarms=told)


def test_every_straggler_says_when_it_was_told_of(run: Run) -> None:
    analysis = analyse(run)
    whens = {row.what: row.when for row in straggler_rows(run, analysis)}
    assert set(whens) == {"compute", "network"}
    assert all("; told of at " in when for when in whens.values())
    untold = dataclasses.replace(run, alarms=())
    assert not any("told of" in row.when for row in straggler_rows(untold, analysis))


def changed(finding: Finding, **changes: object) -> Finding:
    return finding.model_copy(update=changes)


def test_an_alarm_tells_of_its_own_place_and_time(run: Run) -> None:
    compute, network = (
        next(finding for finding in analyse(run).findings if finding.family == family)
        for family in ("compute", "network")
    )
    alarm: Alarm | None = alarm_of(run, compute)
    assert alarm is not None
    assert (alarm.rank, alarm.family) == (5, "compute")
    assert alarm_of(run, changed(compute, rank=4)) is None
    assert alarm_of(run, changed(compute, family="storage")) is None
    assert alarm_of(run, changed(compute, first_step=20, last_step=60)) is None
    assert alarm_of(run, changed(compute, first_step=200, last_step=230)) is None
    back = ("edge.trainer.1.4", "cloud.trainer.1.1")
    assert alarm_of(run, network) is not None
    assert alarm_of(run, changed(network, link=back)) is None
