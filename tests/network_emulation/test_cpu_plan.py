"""Hosts on cores."""

from __future__ import annotations

import os

import pytest

from laggard.core.errors import InputError
from laggard.network_emulation.compute.cpu_plan import plan_cpus, usable_cores
from laggard.network_emulation.dilation import ShareKind

_QUICKSTART = {
    "c1": 0.2,
    "c2": 0.2,
    "f1": 0.1,
    "f2": 0.1,
    "e1": 0.05,
    "e2": 0.05,
    "e3": 0.05,
    "e4": 0.05,
}


def test_loads_are_level_and_cores_are_those_given() -> None:
    plan = plan_cpus(_QUICKSTART, (3, 5), reserve=0.5)
    loads = {
        core: sum(_QUICKSTART[h] for h, c in plan.cpus.items() if c == core) for core in (3, 5)
    }
    assert loads == {3: pytest.approx(0.4), 5: pytest.approx(0.4)}
    assert plan.dilation == 1.0
    assert list(plan.cpus) == list(_QUICKSTART)


def test_programs_that_count_cpu_time_fit_where_a_training_needs_dilation() -> None:
    shares = {f"h{i}": 0.15 for i in range(9)}
    assert plan_cpus(shares, (0, 1), 0.5).dilation > 1.5
    assert plan_cpus(shares, (0, 1), 0.5, kind=ShareKind.TIME).dilation == 1.0


def test_a_fixed_dilation_is_kept() -> None:
    assert plan_cpus(_QUICKSTART, (0, 1), 0.5, dilation=4.0).dilation == 4.0


def test_a_fixed_dilation_that_is_too_small_is_refused_with_value_rule_and_fix() -> None:
    with pytest.raises(
        InputError,
        match=r"dilation 2 is too low: .* 8 cores need .* at least 10\.14 on 2 cores, .* — use `auto`",
    ):
        plan_cpus({f"h{i}": 1.0 for i in range(8)}, (0, 1), 0.5, dilation=2.0)


def test_the_automatic_dilation_is_accepted_as_a_fixed_one() -> None:
    shares = {f"h{i}": 0.7 for i in range(7)}
    auto = plan_cpus(shares, (0, 1), 0.5).dilation
    assert plan_cpus(shares, (0, 1), 0.5, dilation=auto).dilation == auto


def test_usable_cores_are_this_process_s() -> None:
    assert set(usable_cores()) == os.sched_getaffinity(0)
