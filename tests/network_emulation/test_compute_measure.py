"""Measuring shares: what is measured, that an honest share passes and a dishonest one does not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laggard.core.run_schema import FidelityCheck
from laggard.core.virtual_time import Dilation
from laggard.network_emulation.compute import ShareController, measure
from laggard.network_emulation.compute.measure import (
    QUOTA_TOLERANCE,
    ROUNDS,
    can_verify_on_busy_cores,
    get_tolerance,
    verify_shares,
)
from laggard.network_emulation.compute.phases import (
    MANY_ALIKE,
    PhaseSet,
    Timing,
    plan_phases,
    plan_probes,
)

_SHARES = {"cloud": 0.32, "fog": 0.16, "edge1": 0.1, "edge2": 0.1}


@given(st.floats(0.005, 1.0))
def test_phases_of_every_length_fit_the_time(share: float) -> None:
    phases = plan_phases(share)
    assert [each.cpu_ms for each in phases[:2]] == [1.0, 10.0]
    assert phases[2].cpu_ms == pytest.approx(min(100.0, 1500 * share))
    # What the fewest phases take where the share is small; else three parts of a second, each with
    # half a phase of rounding.
    fewest_ms, parts_ms = (40.0, 30.0, phases[2].cpu_ms), (750.0, 600.0, 800.0)
    for each, least_ms, part_ms in zip(phases, fewest_ms, parts_ms, strict=True):
        assert each.cpu_ms * each.count <= max(least_ms, part_ms * share + each.cpu_ms / 2) + 1e-6


@given(st.integers(1, 60), st.integers(0, 5), st.floats(0.005, 0.5))
def test_many_alike_share_the_lengths_of_phases(many: int, few: int, share: float) -> None:
    alike, others = [f"edge{i}" for i in range(many)], [f"cloud{i}" for i in range(few)]
    plans = plan_probes(dict.fromkeys(alike, share) | dict.fromkeys(others, 0.6))
    assert plans.keys() == {*alike, *others}
    assert all(plans[host] == plan_phases(0.6) for host in others)
    lengths = [sum(plans[host][i].count > 0 for host in alike) for i in range(3)]
    if many < MANY_ALIKE:
        assert all(plans[host] == plan_phases(share) for host in alike)
    else:
        assert sum(lengths) == many
        assert max(lengths) - min(lengths) <= 1


class _Controller:
    """What measuring asks of a `ShareController`."""

    mechanism = "cgroup-quota"


def _verify(
    shares: dict[str, float],
    off: Mapping[str, float],
    dilation: Dilation,
    monkeypatch: pytest.MonkeyPatch,
) -> tuple[tuple[FidelityCheck, ...], list[list[str]]]:
    """The checks, and the hosts of every round, where phases take the wall time of `shares` times
    what `off` says of a host."""
    rounds: list[list[str]] = []

    def run_as_told(
        plans: Mapping[str, Sequence[PhaseSet]], *_: object
    ) -> Mapping[str, tuple[Timing, ...]]:
        rounds.append(list(plans))
        return {
            host: tuple(_timing(each, shares[host] / off.get(host, 1.0)) for each in plan)
            for host, plan in plans.items()
        }

    monkeypatch.setattr(measure, "_run_probes", run_as_told)
    return verify_shares(shares, cast("ShareController", _Controller()), dilation), rounds


def _timing(phases: PhaseSet, speed: float) -> Timing:
    cpu_ns = round(phases.count * phases.cpu_ms * 1e6)
    return Timing(round(cpu_ns / speed), cpu_ns)


def test_honest_shares_pass_in_virtual_time(monkeypatch: pytest.MonkeyPatch) -> None:
    checks, rounds = _verify(_SHARES, {"fog": 1.04, "edge1": 0.96}, Dilation(2.0), monkeypatch)
    assert len(rounds) == 1
    assert all(check.ok for check in checks), checks
    assert [(check.src, check.kind, check.unit) for check in checks] == [
        (h, "cpu", "x") for h in sorted(_SHARES) for _ in "abc"
    ]
    by_host = {check.src: check for check in checks}
    assert by_host["cloud"].requested == pytest.approx(1 / 0.32 / 2)
    assert by_host["cloud"].tolerance == pytest.approx(QUOTA_TOLERANCE / 0.32 / 2)
    assert by_host["fog"].measured == pytest.approx(1.04 / 0.16 / 2)


@pytest.mark.parametrize("off", [1.06, 0.94, 0.4])
def test_a_wrong_share_fails_when_it_was_measured_often_enough(
    off: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    checks, rounds = _verify(_SHARES, {"fog": off}, Dilation(), monkeypatch)
    assert rounds == [list(_SHARES), *[["fog"]] * (ROUNDS - 1)]
    assert {check.src for check in checks if not check.ok} == {"fog"}
    assert all(
        check.detail.endswith(f"measured {ROUNDS} times") == (check.src == "fog")
        for check in checks
    )


def test_signals_have_a_wider_tolerance_of_their_own() -> None:
    assert get_tolerance("stop-signal") > get_tolerance("cgroup-quota") == QUOTA_TOLERANCE == 0.05


@pytest.mark.parametrize(
    ("shares", "expected"),
    [
        ({}, True),
        ({"a": 0.02, "b": 0.1}, True),
        ({"a": 0.02, "b": 0.11}, False),
        ({f"h{i}": 0.05 for i in range(10)}, True),
        ({f"h{i}": 0.05 for i in range(11)}, False),
        ({"a": 1.0}, False),
    ],
)
def test_only_small_shares_that_leave_half_a_core_are_verified_beside_others(
    shares: dict[str, float], expected: bool
) -> None:
    assert can_verify_on_busy_cores(shares, dict.fromkeys(shares, 3)) is expected
    apart = {host: number % 2 for number, host in enumerate(shares)}
    assert can_verify_on_busy_cores(shares, apart) >= expected


def test_others_have_ended_before_a_miss_is_measured_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    happened: list[str] = []

    def run(
        plans: Mapping[str, Sequence[PhaseSet]], *_: object
    ) -> Mapping[str, tuple[Timing, ...]]:
        happened.append("measured")
        off = 2.0 if len(happened) == 1 else 0.99
        return {
            host: tuple(_timing(each, _SHARES[host] / off) for each in plan)
            for host, plan in plans.items()
        }

    monkeypatch.setattr(measure, "_run_probes", run)
    controller = cast("ShareController", _Controller())
    verify_shares(_SHARES, controller, Dilation(), before_retry=lambda: happened.append("waited"))
    assert happened[:3] == ["measured", "waited", "measured"]
    assert happened.count("measured") == happened.count("waited") + 1
