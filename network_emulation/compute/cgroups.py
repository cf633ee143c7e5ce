"""Control groups of a run, created outside the sandbox.

Their control files stay open, so they remain usable inside the sandbox, where /sys is a different
mount.

The cpu controller is used in version 1 (`cpu.cfs_quota_us`) or 2 (`cpu.max`), whichever is mounted
with it and writable. See the kernel's Documentation/scheduler/sched-bwc.rst and
admin-guide/cgroup-v2.rst. Folders are named `laggard-<pid>-<start time>` after the process that
created them, so a later run can recognize and remove the folders of a dead one.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from laggard.core.errors import EmulationError

_log = logging.getLogger(__name__)
_NAME = re.compile(r"laggard-(\d{1,10})-(\d{1,20})", re.ASCII)
_START_TIME_FIELD = 19
"""Index of the start time in /proc/<pid>/stat, counted after the command's name
(proc_pid_stat(5))."""

PERIOD_US = 1_000_000
QUOTA_US = 1_000
"""Smallest quota that the kernel accepts. `PERIOD_US` is its longest period: within it, only
grants written by the limiter refill a group."""

_WEIGHT = 100
"""Weight relative to an ordinary process, for all hosts together and for a host that loads a
whole core. Other programs cannot slow the hosts down, and the hosts cannot exceed their shares."""


@dataclass(frozen=True)
class _Version:
    quota_file: str
    unlimited: bytes
    grant: str
    weight_file: str
    weight: int
    stopped: bytes


_LEAST_WEIGHT = 2
"""Smallest weight that is written; the kernel's minimum for `cpu.shares` in version 1."""

_V1 = _Version("cpu.cfs_quota_us", b"-1", "{}", "cpu.shares", 1024 * _WEIGHT, b"throttled_time")
_V2 = _Version(
    "cpu.max", b"max", f"{{}} {PERIOD_US}", "cpu.weight", 100 * _WEIGHT, b"throttled_usec"
)


@dataclass(frozen=True)
class HostCgroup:
    """Open control files of one host's group.

    Attributes:
        processes: descriptor of `cgroup.procs`; lists the members and accepts process ids.
        quota: descriptor of the quota file; accepts the result of `grant_of` and `unlimited`.
        statistics: descriptor of `cpu.stat`, which contains the stopped time.
        weight: descriptor of the weight file; accepts the result of `weight_of`.
        grant: format of a grant.
        unlimited: value for `quota` that lifts the limit.
        whole: weight of a host that loads a whole core.
        stopped: name of the stopped time in `statistics`.
    """

    processes: int
    quota: int
    statistics: int
    weight: int
    grant: str
    unlimited: bytes
    whole: int
    stopped: bytes

    def grant_of(self, cpu_us: int) -> bytes:
        """Return the quota text that allows `cpu_us` of CPU time from now on.

        The write replaces whatever was left of the previous grant. `cpu_us` must be at least
        `QUOTA_US`.
        """
        return self.grant.format(cpu_us).encode()

    def weight_of(self, load: float) -> bytes:
        """Return the weight text for a group that needs `load` of a core while others compete.

        `load` is above 0; values above 1 count as 1.
        """
        return str(max(_LEAST_WEIGHT, round(self.whole * min(load, 1.0)))).encode()

    def admit(self, pid: int) -> None:
        """Move a process with all its threads into the group.

        Args:
            pid: process id in this process's PID namespace.

        Raises:
            EmulationError: if the kernel refuses.
        """
        try:
            os.pwrite(self.processes, str(pid).encode(), 0)
        except OSError as error:
            raise EmulationError(
                f"cannot move process {pid} into the cgroup of its host: {error}"
            ) from error

    def stopped_time(self) -> int:
        """Return the total time for which the kernel has stopped the group.

        The unit depends on the cgroup version. The kernel adds a stop when the next grant ends it.
        """
        words = os.pread(self.statistics, 1024, 0).split()
        return int(words[words.index(self.stopped) + 1])

    def members(self) -> tuple[int, ...]:
        """Return the ids of the processes in the group, in this process's PID namespace.

        The file is opened anew each time: in version 1, an open file keeps showing the list of its
        first read.
        """
        anew = os.open(f"/proc/self/fd/{self.processes}", os.O_RDONLY | os.O_CLOEXEC)
        with os.fdopen(anew, encoding="ascii") as listed:
            return tuple(int(line) for line in listed)


@dataclass(frozen=True)
class CgroupSet:
    """Control groups of one run.

    Attributes:
        path: the run's folder; cleaning up means removing it with its subfolders.
        hosts: group of every host.
    """

    path: Path
    hosts: Mapping[str, HostCgroup]

    @property
    def paths(self) -> tuple[Path, ...]:
        """Return the folders to remove after the run."""
        return (self.path,)

    def close(self) -> None:
        """Close the control files; the folders stay."""
        for group in self.hosts.values():
            os.close(group.processes)
            os.close(group.quota)
            os.close(group.statistics)
            os.close(group.weight)

    def remove(self) -> None:
        """Remove the folders, provided that they contain no process any more."""
        _remove_cgroup(self.path)


def run_folders(run_name: str) -> tuple[Path, ...]:
    """Return the folders that `prepare_cgroups` may create for a run.

    The janitor receives them before they exist, so it can remove them after any kill.
    """
    return tuple(parent / f"laggard-{run_name}" for parent, _ in _list_parent_cgroups())


def prepare_cgroups(hosts: Iterable[str], run_name: str) -> CgroupSet | None:
    """Create a group per host and keep its control files open; call it outside the sandbox.

    Args:
        hosts: names of all hosts.
        run_name: `<pid>-<start time>` of the run.

    Returns:
        The groups, or None if this user may not create any.
    """
    for parent, version in _list_parent_cgroups():
        folder = parent / f"laggard-{run_name}"
        try:
            folder.mkdir()
            groups = _create_host_cgroups(folder, hosts, version)
        except OSError as error:
            _log.info("cannot create cgroups in %s: %s", parent, error)
            _remove_cgroup(folder)
            continue
        return CgroupSet(folder, groups)
    return None


def sweep_cgroups() -> tuple[Path, ...]:
    """Remove the empty folders of runs that have ended, and return them."""
    removed = []
    for parent, _ in _list_parent_cgroups():
        # A reused process id has another start time, so both must match.
        for folder in parent.glob("laggard-*"):
            match = _NAME.fullmatch(folder.name)
            if match and _start_time(int(match[1])) != int(match[2]) and _remove_cgroup(folder):
                removed.append(folder)
    return tuple(removed)


def _create_host_cgroups(
    folder: Path, hosts: Iterable[str], version: _Version
) -> Mapping[str, HostCgroup]:
    # Version 2 enables a controller for child groups only through the parent's subtree_control.
    if version is _V2:
        for each in (folder.parent, folder):
            (each / "cgroup.subtree_control").write_text("+cpu")
    (folder / version.weight_file).write_text(str(version.weight))
    groups: dict[str, HostCgroup] = {}
    try:
        for host in hosts:
            groups[host] = _host_group(folder / host, version)
    except OSError:
        CgroupSet(folder, groups).close()
        raise
    return groups


def _host_group(folder: Path, version: _Version) -> HostCgroup:
    folder.mkdir()
    weight = os.open(folder / version.weight_file, os.O_WRONLY)
    os.pwrite(weight, str(version.weight).encode(), 0)
    if version is _V1:
        (folder / "cpu.cfs_period_us").write_text(str(PERIOD_US))
    processes = os.open(folder / "cgroup.procs", os.O_RDWR)
    quota = os.open(folder / version.quota_file, os.O_WRONLY)
    os.pwrite(quota, version.unlimited, 0)
    statistics = os.open(folder / "cpu.stat", os.O_RDONLY)
    return HostCgroup(
        processes,
        quota,
        statistics,
        weight,
        version.grant,
        version.unlimited,
        version.weight,
        version.stopped,
    )


def _list_parent_cgroups() -> list[tuple[Path, _Version]]:
    """Return the folders to try: our own cgroup with the cpu controller, then the root above it.

    In version 2, a cgroup that contains processes, such as a login session, cannot distribute its
    CPU time to inner cgroups.
    """
    own = dict[str, str]()
    for line in Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines():
        _, controllers, path = line.split(":", 2)
        own.update(dict.fromkeys(controllers.split(","), path))
    found = []
    for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines():
        # proc_pid_mountinfo(5): the fourth field is the root of the mount, the fifth its mount
        # point; file system type and options follow " - ".
        mounted, _, described = line.partition(" - ")
        kind, _, options = described.split(" ", 2)
        root, point = mounted.split(" ")[3:5]
        if kind == "cgroup" and "cpu" in options.split(","):
            found += [
                (_resolve_cgroup_path(point, root, own.get("cpu", "/")), _V1),
                (Path(point), _V1),
            ]
        elif kind == "cgroup2":
            found += [
                (folder, _V2)
                for folder in (_resolve_cgroup_path(point, root, own.get("", "/")), Path(point))
                if _has_cpu(folder)
            ]
    # Version 1 is tried first; `dict.fromkeys` removes duplicates and keeps the order.
    return sorted(dict.fromkeys(found), key=lambda each: each[1] is _V2)


def _has_cpu(folder: Path) -> bool:
    controllers = folder / "cgroup.controllers"
    return controllers.exists() and "cpu" in controllers.read_text(encoding="utf-8").split()


def _resolve_cgroup_path(point: str, root: str, path: str) -> Path:
    # A container mounts only the part of the hierarchy below `root`.
    relative = path.removeprefix(root) if root != "/" else path
    return Path(point) / relative.lstrip("/")


def _remove_cgroup(folder: Path) -> bool:
    if not folder.is_dir():
        return False
    for each in folder.iterdir():
        if each.is_dir():
            with suppress(OSError):  # a process is still inside; then the parent folder stays too
                each.rmdir()
    try:
        folder.rmdir()
    except OSError as error:
        _log.debug("cannot remove the cgroup %s yet: %s", folder, error)
        return False
    return True


def _start_time(pid: int) -> int | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The command's name may contain spaces and parentheses, so fields are counted after the last
    # ")".
    return int(stat[stat.rindex(")") + 2 :].split()[_START_TIME_FIELD])
