"""Drives planned from the entries, dilated, and measured against what was asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from laggard.core.emulated_drive import DriveLimits
from laggard.core.errors import EmulationError
from laggard.core.hosts import Host
from laggard.core.virtual_time import Dilation
from laggard.core.yaml_source import parse_yaml, validate_model
from laggard.network_emulation.model import Heterogeneity
from laggard.network_emulation.storage.drives import DriveSet
from laggard.network_emulation.storage.measure import verify_drives
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
        *workers: str, writers: tuple[str, ...] = (), rule: str = "only Laggard's"
    ) -> list[tuple[int, str]]:
        problems = tuple(storage_warnings(heterogeneity, workers, writers, HOSTS, source))
        assert all(problem.rule.startswith(rule) for problem in problems)
        return [(problem.line, problem.value.partition(":")[0]) for problem in problems]

    idle = [(2, "deterministic.0.read"), (2, "deterministic.0.write_latency")]
    assert warned("edge.w.1.2", writers=("edge.w.1.2",)) == []
    assert warned("edge.w.1.2", rule="nothing is written there") == idle[1:]
    assert warned("cloud.w.1.1") == idle
    assert warned() == [*idle, (4, "dynamic.0.read")]


def test_a_slower_continuum_has_slower_drives() -> None:
    assert dilate_limits(DriveLimits(8.0, None, 1.0, 0.5), Dilation(4.0)) == DriveLimits(
        2.0, None, 4.0, 2.0
    )


def _verify(
    folder: Path, asked: DriveLimits, given: DriveLimits, factor: float
) -> list[tuple[str, float, float, bool]]:
    dilation = Dilation(factor)
    with DriveSet.make(folder, {"a": dilate_limits(given, dilation)}, {}) as drives:
        checks = verify_drives({"a": asked}, drives.paths, dilation)
        assert drives.counters()["a"].read_bytes > 0
        drives.reset_counters()
        assert drives.counters()["a"].read_bytes == 0
    assert {(check.kind, check.src, check.dst) for check in checks} == {("storage", "a", None)}
    return [(check.unit, check.requested, check.measured, check.ok) for check in checks]


@pytest.mark.alone
@pytest.mark.parametrize("factor", [1.0, 3.0])
def test_drives_as_asked_for_are_found_so(tmp_path: Path, factor: float) -> None:
    asked = DriveLimits(12.0, 6.0, 7.0, 90.0)
    checks = _verify(tmp_path, asked, asked, factor)
    assert [(unit, requested) for unit, requested, _, _ in checks] == [
        ("MB/s", pytest.approx(12.0)),
        ("MB/s", pytest.approx(6.0)),
        ("ms", pytest.approx(7.0)),
        ("ms", pytest.approx(90.0)),
    ]
    for _, requested, measured, ok in checks:
        assert measured == pytest.approx(requested, rel=0.1)
        assert ok


@pytest.mark.alone
def test_other_drives_are_found_out(tmp_path: Path) -> None:
    asked, given = DriveLimits(12.0, 6.0, 7.0, 0.0), DriveLimits(10.8, 6.6, 8.0, 0.0)
    for (_, requested, measured, ok), truth in zip(
        _verify(tmp_path, asked, given, 1.0), (0.9, 1.1, 8 / 7), strict=True
    ):
        assert measured / requested == pytest.approx(truth, rel=0.1)
        assert not ok


def test_what_nothing_limits_is_not_measured(tmp_path: Path) -> None:
    with DriveSet.make(tmp_path, {"a": DriveLimits()}, {}) as drives:
        assert verify_drives({"a": DriveLimits()}, drives.paths, Dilation()) == ()


def test_a_host_without_a_drive_cannot_be_given_limits(tmp_path: Path) -> None:
    with (
        DriveSet.make(tmp_path, {}, {}) as drives,
        pytest.raises(EmulationError, match=r"edge\.w\.1\.1 has no drive"),
    ):
        drives.set_limits("edge.w.1.1", DriveLimits(1.0))
