"""A run's cgroups: made, used through descriptors, removed, swept."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from laggard.network_emulation.compute import CgroupSet, prepare_cgroups, run_folders, sweep_cgroups
from laggard.network_emulation.forked import end_companion, fork_companion


def _own_name() -> str:
    stat = Path("/proc/self/stat").read_text()
    return f"{os.getpid()}-{stat[stat.rindex(')') + 2 :].split()[19]}"


@pytest.fixture
def cgroups() -> Iterator[CgroupSet]:
    found = prepare_cgroups(["edge.w.1.1", "edge.w.1.2"], _own_name())
    if found is None:
        pytest.skip("this user may not make cgroups")
    yield found
    found.close()
    found.remove()


def test_folders_are_named_after_the_run(cgroups: CgroupSet) -> None:
    assert cgroups.path in run_folders(_own_name())
    assert cgroups.paths == (cgroups.path,)
    assert sorted(each.name for each in cgroups.path.iterdir() if each.is_dir()) == [
        "edge.w.1.1",
        "edge.w.1.2",
    ]


def test_a_process_is_admitted_through_the_descriptor_and_the_folder_goes_after_it(
    cgroups: CgroupSet,
) -> None:
    pid = fork_companion("laggard-test", _sleep)
    cgroups.hosts["edge.w.1.1"].admit(pid)
    assert (cgroups.path / "edge.w.1.1" / "cgroup.procs").read_text().split() == [str(pid)]
    cgroups.remove()
    assert cgroups.path.exists()
    end_companion(pid)
    _remove_with_patience(cgroups)
    assert not cgroups.path.exists()


def test_a_sweep_removes_what_dead_runs_left_and_nothing_else(cgroups: CgroupSet) -> None:
    pid = fork_companion("laggard-test", lambda: 0)
    os.waitpid(pid, 0)
    left = prepare_cgroups(["a"], f"{pid}-1")
    assert left is not None
    left.close()
    sweep_cgroups()
    assert not left.path.exists()
    assert cgroups.path.exists()


def test_without_the_right_there_are_none() -> None:
    def unprivileged() -> int:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
        return 0 if prepare_cgroups(["a"], _own_name()) is None else 1

    if os.geteuid() != 0:
        pytest.skip("needs root to become another user")
    pid = fork_companion("laggard-test", unprivileged)
    assert os.waitpid(pid, 0)[1] == 0


def _sleep() -> int:
    time.sleep(600)
    return 0


def _remove_with_patience(cgroups: CgroupSet) -> None:
    deadline = time.monotonic() + 60
    while cgroups.path.exists() and time.monotonic() < deadline:
        cgroups.remove()
        time.sleep(0.02)
