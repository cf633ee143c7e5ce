"""Measuring shares: what is measured, that an honest share passes and a dishonest one does not."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laggard.core.virtual_time import Dilation
from laggard.network_emulation.compute import CgroupSet, open_shares, prepare_cgroups
from laggard.network_emulation.compute.cpu_plan import plan_cpus, usable_cores
from laggard.network_emulation.compute.measure import QUOTA_TOLERANCE, get_tolerance, verify_shares
from laggard.network_emulation.compute.phases import MANY_ALIKE, plan_phases, plan_probes

pytestmark = pytest.mark.alone

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


@pytest.fixture
def cgroups() -> Iterator[CgroupSet]:
    stat = Path("/proc/self/stat").read_text()
    found = prepare_cgroups(_SHARES, f"{os.getpid()}-{stat[stat.rindex(')') + 2 :].split()[19]}")
    if found is None:
        pytest.skip("this user may not make cgroups")
    yield found
    found.close()
    found.remove()


def test_honest_shares_pass_in_virtual_time_and_a_wrong_one_fails(cgroups: CgroupSet) -> None:
    cpus = plan_cpus(_SHARES, usable_cores(), 0.5).cpus
    with open_shares(_SHARES, cgroups, cpus) as controller:
        # Several looks: a machine that something else keeps busy cannot keep its promises, and the
        # check is to say so.
        rounds = (verify_shares(_SHARES, controller, Dilation(2.0), seed) for seed in range(4))
        checks = next((each for each in rounds if all(check.ok for check in each)), ())
        controller.set_share("fog", 0.16 * 1.15)
        wrong = verify_shares({"fog": 0.16}, controller, Dilation(2.0))
    assert [(check.src, check.kind, check.unit) for check in checks] == [
        (h, "cpu", "x") for h in sorted(_SHARES) for _ in "abc"
    ]
    by_host = {check.src: check for check in checks}
    assert by_host["cloud"].requested == pytest.approx(1 / 0.32 / 2)
    assert by_host["cloud"].tolerance == pytest.approx(QUOTA_TOLERANCE / 0.32 / 2)
    assert not all(check.ok for check in wrong), wrong
    assert "measured 3 times" in wrong[2].detail


def test_a_limit_that_is_not_there_fails(cgroups: CgroupSet) -> None:
    with open_shares({"cloud": 1.0}, cgroups, {"cloud": usable_cores()[0]}) as controller:
        checks = verify_shares({"cloud": 0.4}, controller, Dilation())
    assert not any(check.ok for check in checks), checks


def test_signals_have_a_wider_tolerance_of_their_own() -> None:
    assert get_tolerance("stop-signal") > get_tolerance("cgroup-quota") == QUOTA_TOLERANCE == 0.05
