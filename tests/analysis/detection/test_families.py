"""The table of families and the registry of detectors: what is added there appears everywhere."""

from __future__ import annotations

from typing import get_args

import pytest

from laggard.analysis.detection.causes import Cause
from laggard.analysis.detection.families import COMPUTE, FAMILIES, FamilySpec
from laggard.analysis.detection.lockstep.cause_detector import DetectionInput
from laggard.analysis.detection.lockstep.local_work import LocalWorkDetector
from laggard.analysis.detection.lockstep.registry import DETECTORS
from laggard.analysis.detection.online.alarm_text import format_alarms
from laggard.analysis.evaluate.case_grid import INJECTED_FAMILIES
from laggard.analysis.evaluate.synthetic.run_generator import Injection, generate_run
from laggard.analysis.findings.analysis_result import analyze_lockstep
from laggard.analysis.findings.answer import format_answer
from laggard.core.run_schema import Alarm, StragglerFamily
from laggard.evaluate.ground_truth import FAMILY_BY_QUANTITY
from tests.analysis.traces import quiet


def test_every_family_of_the_schema_is_in_every_table() -> None:
    names = get_args(StragglerFamily)
    assert tuple(FAMILIES) == names
    # No resource of a scenario stalls a host between its phases.
    injected = tuple(name for name in names if name != "host")
    assert (*injected, "both") == INJECTED_FAMILIES
    assert set(FAMILY_BY_QUANTITY.values()) == set(injected)


def test_a_phase_belongs_to_one_family_and_links_have_none() -> None:
    phases = [phase for family in FAMILIES.values() for phase in family.phases]
    assert len(phases) == len(set(phases))
    assert all(bool(family.phases) != family.uses_links for family in FAMILIES.values())


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES.keys())
def test_an_alarm_is_told_in_the_words_of_its_family(family: FamilySpec) -> None:
    alarm = Alarm(
        number=0,
        rank=0,
        host="a",
        link=None,
        family=family.name,
        kind="dynamic",
        slowdown=2.0,
        confidence=1.0,
        since_step=20,
        since_s=5.0,
        raised_step=26,
        raised_s=6.0,
    )
    (sentence,) = format_alarms([alarm], frozenset(), {})
    assert f"a {family.alarm_verbs[0]} 2.0x slower" in sentence.lower()


def find_slow_reading(run: DetectionInput, found: tuple[Cause, ...]) -> tuple[Cause, ...]:
    """A detector of this test: it knows what was injected."""
    assert run.hosts
    return (*found, Cause("storage", "dynamic", 3, 40, 99, 9.0, 1.0))


def test_a_detector_that_is_added_has_its_cause_priced_and_told() -> None:
    run = generate_run(quiet(6, 160, Injection("storage", 9.0, 40, 99, rank=3)))
    before = (LocalWorkDetector(COMPUTE),)
    assert analyze_lockstep(run, before).findings == ()
    analysis = analyze_lockstep(run, (*before, find_slow_reading))
    (finding,) = analysis.stragglers
    assert finding.cost_s == pytest.approx(analysis.makespan_s - analysis.without_causes_s)
    assert f"{run.hosts[3].host} fetched samples 9.0x slower" in format_answer(run, analysis)[0]
    (usual,) = analyze_lockstep(run, DETECTORS).stragglers
    assert usual.cost_s == pytest.approx(finding.cost_s)
