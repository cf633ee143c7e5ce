"""The verdict over rounds of emulation, and the measurement of quietness that it depends on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from laggard.core.run_schema import FidelityCheck
from laggard.network_emulation.fidelity.quietness import CoreQuietness, measure_quietness
from laggard.verify.verification import VerificationRound, judge
from tests.command_line import needs_tun

QUIET, BUSY = CoreQuietness(0, 0.99, 0.2), CoreQuietness(0, 0.5, 0.2)
LATE = CoreQuietness(0, 0.99, 9.0)


def make_check(measured: float, src: str = "edge.1") -> FidelityCheck:
    return FidelityCheck(
        kind="rtt",
        src=src,
        dst="cloud.1",
        requested=10.0,
        measured=measured,
        unit="ms",
        tolerance=1.0,
        ok=abs(measured - 10.0) <= 1.0,
    )


def make_round(
    *measured: float,
    before: CoreQuietness = QUIET,
    after: CoreQuietness = QUIET,
    late_ms: tuple[float, ...] = (),
    error: str = "",
) -> VerificationRound:
    checks = tuple(make_check(value) for value in measured)
    return VerificationRound((before,), (after,), checks, late_ms, error)


@pytest.mark.parametrize(
    ("rounds", "verdict", "quiet_rounds"),
    [
        ([make_round(10.2), make_round(10.1)], "good", 2),
        ([make_round(12.0), make_round(12.5)], "out of tolerance", 2),
        # One quiet round outvotes any number of disturbed ones.
        (
            [make_round(14.0, after=BUSY), make_round(10.1), make_round(15.0, before=LATE)],
            "good",
            1,
        ),
        ([make_round(10.1, before=BUSY), make_round(14.0, after=LATE)], "not quiet", 0),
        # One miss of three is chance.
        ([make_round(10.0), make_round(12.0), make_round(10.1)], "good", 3),
        ([make_round(10.0, late_ms=(3.0, 4.0, 90.0))], "good", 1),
        ([make_round(10.0, late_ms=(3.0, 40.0, 90.0))], "out of tolerance", 1),
        ([make_round(error="no TUN device")], "out of tolerance", 1),
    ],
)
def test_the_verdict(rounds: list[VerificationRound], verdict: str, quiet_rounds: int) -> None:
    result = judge(rounds)
    assert (result.verdict, result.quiet_rounds) == (verdict, quiet_rounds)
    assert f"{len(rounds)} rounds, {quiet_rounds} of them" in result.text()
    assert json.loads(result.to_json())["verdict"] == verdict


def test_the_table_names_what_was_missed() -> None:
    result = judge([make_round(12.0, late_ms=(1.0,))])
    (rtt, event) = result.quantities
    assert (rtt.median, rtt.requested, rtt.ok, event.ok) == (12.0, 10.0, False, True)
    (line,) = [each for each in result.text().splitlines() if each.endswith("NO")]
    assert line.split()[:4] == ["rtt", "edge.1", "->", "cloud.1"]


def test_a_disturbance_is_described() -> None:
    assert (
        "round 1, core 0: a busy program gets 50 %" in judge([make_round(10.0, before=BUSY)]).text()
    )


def test_quietness_is_measured_on_every_core() -> None:
    cores = sorted(os.sched_getaffinity(0))
    measured = measure_quietness(cores)
    assert [each.core for each in measured] == cores
    assert all(0 < each.share <= 1.01 and each.lateness_ms >= 0 for each in measured)
    assert os.sched_getaffinity(0) == set(cores)


@pytest.mark.long
@needs_tun
def test_the_command_verifies_every_kind_of_quantity(tmp_path: Path) -> None:
    command = ("-m", "laggard.cli.main", "verify", "--rounds", "1", "--json")
    done = subprocess.run(
        [sys.executable, *command, "--runs", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    result = json.loads(done.stdout)
    assert {"good": 0, "out of tolerance": 3, "not quiet": 1}[result["verdict"]] == done.returncode
    assert result["errors"] == []
    kinds = {quantity["kind"] for quantity in result["quantities"]}
    assert kinds == {"rtt", "rate", "loss", "cpu", "storage", "event"}
    assert 1 <= result["rounds"] <= 2
