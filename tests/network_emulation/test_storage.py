"""Drives planned from the entries, dilated, and measured against what was asked for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from laggard.core.corrections.model_problems import validate_model
from laggard.core.emulated_drive import DriveCounters, DriveLimits
from laggard.core.errors import EmulationError
from laggard.core.hosts import Host
from laggard.core.virtual_time import Dilation
from laggard.core.yaml_source import parse_yaml
from laggard.network_emulation.model import Heterogeneity
from laggard.network_emulation.storage import measure
from laggard.network_emulation.storage.drives import DriveSet
from laggard.network_emulation.storage.measure import ATTEMPTS, DriveQuantity, verify_drives
from laggard.network_emulation.storage.plan import dilate_limits, plan_drives, storage_warnings

HOSTS = (
    *(Host(f"edge.w.1.{i}", "edge", "w", 1, i) for i in (1, 2)),
    Host("cloud.w.1.1", "cloud", "w", 1, 1),
)


def test_later_entries_win_and_only_named_hosts_have_a_drive() -> None:
    heterogeneity = Heterogeneity.model_validate(
        {
            "deterministic": [
                {"hosts": "edge.*", "cpu": "20%"},
                {"hosts": "edge.*", "read": "20MB/s", "write_latency": "5ms"},
                {
                    "hosts": "edge.w.1.2",
                    "read": "500kB/s",
                    "write": "1MB/s",
                    "read_latency": "200us",
                },
            ]
        }
    )
    assert plan_drives(heterogeneity, HOSTS) == {
        "edge.w.1.1": DriveLimits(20.0, None, 0.0, 5.0),
        "edge.w.1.2": DriveLimits(0.5, 1.0, 0.2, 5.0),
    }


def test_a_host_that_only_an_event_names_has_an_unlimited_drive_until_then() -> None:
    heterogeneity = Heterogeneity.model_validate(
        {
            "dynamic": [
                {"at": "1s", "for": "1s", "hosts": "cloud.*", "read": "1MB/s"},
                {
                    "random": {"every": "9s", "for": "1s", "seed": 1},
                    "hosts": "edge.w.1.1",
                    "write_latency": "1ms",
                },
                {"at": "1s", "for": "1s", "hosts": "edge.w.1.2", "cpu": "5%"},
            ]
        }
    )
    assert plan_drives(heterogeneity, HOSTS) == {
        "edge.w.1.1": DriveLimits(),
        "cloud.w.1.1": DriveLimits(),
    }


def test_an_entry_that_acts_on_no_worker_is_warned_of() -> None:
    text = """\
deterministic:
  - {hosts: "edge.*", read: 20MB/s, write_latency: 1ms}
dynamic:
  - {at: 1s, for: 1s, hosts: "*", read: 1MB/s}
"""
    source = parse_yaml(text, "heterogeneity.yaml")
    heterogeneity = validate_model(source, Heterogeneity)

    def warned(
        *workers: str, writers: tuple[str, ...] = (), rule: str = "the limit has no effect"
    ) -> list[tuple[int, str]]:
        problems = tuple(storage_warnings(heterogeneity, workers, writers, HOSTS, source))
        assert all(problem.rule.startswith(rule) for problem in problems)
        return [(problem.line, problem.value.partition(":")[0]) for problem in problems]

    idle = [(2, "deterministic.0.read"), (2, "deterministic.0.write_latency")]
    assert warned("edge.w.1.2", writers=("edge.w.1.2",)) == []
    assert (
        warned("edge.w.1.2", rule="the limit has no effect: only the first worker writes")
        == idle[1:]
    )
    assert warned("cloud.w.1.1") == idle
    assert warned() == [*idle, (4, "dynamic.0.read")]


def test_a_slower_continuum_has_slower_drives() -> None:
    assert dilate_limits(DriveLimits(8.0, None, 1.0, 0.5), Dilation(4.0)) == DriveLimits(
        2.0, None, 4.0, 2.0
    )


ASKED = DriveLimits(12.0, 6.0, 7.0, 90.0)
REQUESTED = [("MB/s", 12.0), ("MB/s", 6.0), ("ms", 7.0), ("ms", 90.0)]


@pytest.mark.parametrize("factor", [1.0, 3.0])
def test_a_drive_is_never_found_faster_than_asked_for_and_counts_anew_afterwards(
    tmp_path: Path, factor: float
) -> None:
    dilation = Dilation(factor)
    with DriveSet.make(tmp_path, {"a": dilate_limits(ASKED, dilation)}, {}) as drives:
        checks = verify_drives({"a": ASKED}, drives.paths, dilation)
        assert drives.counters()["a"].read_bytes > 0
        drives.reset_counters()
        assert drives.counters()["a"] == DriveCounters()
    assert {(check.kind, check.src, check.dst) for check in checks} == {("storage", "a", None)}
    assert [(check.unit, check.requested) for check in checks] == [
        (unit, pytest.approx(requested)) for unit, requested in REQUESTED
    ]
    for check in checks:
        factor_of_asked = check.measured / check.requested
        slower = 1 / factor_of_asked if check.unit == "MB/s" else factor_of_asked
        assert slower > 1 - 1e-4, check


def test_slower_drives_are_found_out(tmp_path: Path) -> None:
    """Each at every attempt, since nothing makes a drive faster than it is."""
    given = DriveLimits(10.8, 5.4, 8.0, 99.0)
    with DriveSet.make(tmp_path, {"a": given}, {}) as drives:
        checks = verify_drives({"a": ASKED}, drives.paths, Dilation())
    assert [check.ok for check in checks] == [False] * 4
    assert all(check.detail.endswith(f"measured {ATTEMPTS} times") for check in checks)


@pytest.mark.parametrize(
    ("off", "attempts", "ok"), [([1.0], 1, True), ([1.2, 1.04], 2, True), ([1.06] * 3, 3, False)]
)
def test_what_misses_is_measured_again(
    off: list[float], attempts: int, ok: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With measurements made up: how far off the latency is, attempt by attempt."""
    asked: list[list[DriveQuantity]] = []

    def measure_as_told(
        missed: list[DriveQuantity], _: Mapping[str, Path]
    ) -> Mapping[DriveQuantity, float]:
        asked.append(missed)
        return {
            each: off[len(asked) - 1] * each.limit / 1e3
            if each.is_latency
            else each.size_bytes / 1e6 / each.limit
            for each in missed
        }

    monkeypatch.setattr(measure, "_measure_quantities", measure_as_told)
    checks = verify_drives({"a": DriveLimits(12.0, None, 40.0)}, {}, Dilation(3.0))
    assert [(check.requested, check.ok) for check in checks] == [
        (pytest.approx(12.0), True),
        (pytest.approx(40.0), ok),
    ]
    assert checks[1].measured == pytest.approx(off[-1] * 40.0)
    assert [len(each) for each in asked] == [2, *[1] * (attempts - 1)]


def test_what_nothing_limits_is_not_measured(tmp_path: Path) -> None:
    with DriveSet.make(tmp_path, {"a": DriveLimits()}, {}) as drives:
        assert verify_drives({"a": DriveLimits()}, drives.paths, Dilation()) == ()


def test_a_host_without_a_drive_cannot_be_given_limits(tmp_path: Path) -> None:
    with (
        DriveSet.make(tmp_path, {}, {}) as drives,
        pytest.raises(EmulationError, match=r"edge\.w\.1\.1 has no emulated drive"),
    ):
        drives.set_limits("edge.w.1.1", DriveLimits(1.0))
