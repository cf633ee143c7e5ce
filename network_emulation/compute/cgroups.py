"""A run's cgroups: made outside the sandbox, their control files kept open, so that they work where
/sys is another one.

The cpu controller is used in version 1 (`cpu.cfs_quota_us`) or 2 (`cpu.max`), whichever holds it
and lets us write; see the kernel's Documentation/scheduler/sched-bwc.rst and
admin-guide/cgroup-v2.rst. Folders are named `laggard-<pid>-<start time>` after the process that
made them, so that a later run can tell and remove what a dead one left.
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
"""Of /proc/<pid>/stat behind the command's name (proc_pid_stat(5))."""

PERIOD_US = 1_000_000
QUOTA_US = 1_000
"""The kernel's longest period and smallest quota: nothing but our own grants refills a group."""

_WEIGHT = 100
"""How many times the weight of an ordinary process the hosts together and a host that loads a whole
core has: what else runs cannot slow them, and they cannot take more than their shares."""


@dataclass(frozen=True)
class _Version:
    quota_file: str
    unlimited: bytes
    grant: str
    weight_file: str
    weight: int
    stopped: bytes


_LEAST_WEIGHT = 2

_V1 = _Version("cpu.cfs_quota_us", b"-1", "{}", "cpu.shares", 1024 * _WEIGHT, b"throttled_time")
_V2 = _Version(
    "cpu.max", b"max", f"{{}} {PERIOD_US}", "cpu.weight", 100 * _WEIGHT, b"throttled_usec"
)


@dataclass(frozen=True)
class HostCgroup:
    """Open control files of one host's group.

    Attributes:
        processes: takes the ids of processes that are to compute in it, and tells those that do.
        quota: takes what `grant_of` returns, and `unlimited`.
        statistics: tells how long it was stopped.
        weight: takes what `weight_of` returns.
        grant: format of a grant.
        unlimited: lifts the limit.
        whole: the weight of a host that loads a whole core.
        stopped: the name of that time there.
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
        """What to write to allow so much CPU time from now, whatever was left; at least
        `QUOTA_US`.
        """
        return self.grant.format(cpu_us).encode()

    def weight_of(self, load: float) -> bytes:
        """What to write for the group to have this part of a core, above 0, while all others of the
        core want it too.
        """
        return str(max(_LEAST_WEIGHT, round(self.whole * min(load, 1.0)))).encode()

    def admit(self, pid: int) -> None:
        """Put a process, with all its threads, into the group (`pid` as this process's PID
        namespace counts).

        Raises:
            EmulationError: the kernel refuses.
        """
        try:
            os.pwrite(self.processes, str(pid).encode(), 0)
        except OSError as error:
            raise EmulationError(
                f"process {pid} cannot be put into its host's cgroup: {error}"
            ) from error

    def stopped_time(self) -> int:
        """For how long the kernel has stopped the group, in a unit of its own; a stop is entered
        when a grant ends it.
        """
        words = os.pread(self.statistics, 1024, 0).split()
        return int(words[words.index(self.stopped) + 1])

    def members(self) -> tuple[int, ...]:
        """Ids of the processes in the group, as this process's PID namespace counts.

        Opened anew each time: in version 1 the kernel shows a file that stays open the list of its
        first reading.
        """
        anew = os.open(f"/proc/self/fd/{self.processes}", os.O_RDONLY | os.O_CLOEXEC)
        with os.fdopen(anew, encoding="ascii") as listed:
            return tuple(int(line) for line in listed)


@dataclass(frozen=True)
class CgroupSet:
    """The cgroups of one run.

    Attributes:
        path: the run's folder; removing it with the folders in it is all there is to clean up.
        hosts: the group of every host.
    """

    path: Path
    hosts: Mapping[str, HostCgroup]

    @property
    def paths(self) -> tuple[Path, ...]:
        """The folders to remove after the run."""
        return (self.path,)

    def close(self) -> None:
        """Close the control files; the folders stay."""
        for group in self.hosts.values():
            os.close(group.processes)
            os.close(group.quota)
            os.close(group.statistics)
            os.close(group.weight)

    def remove(self) -> None:
        """Remove the folders, once no process is left in them."""
        _remove_cgroup(self.path)


def run_folders(run_name: str) -> tuple[Path, ...]:
    """Where `prepare_cgroups` would make its folder: what a janitor is told before they are
    made.
    """
    return tuple(parent / f"laggard-{run_name}" for parent, _ in _list_parent_cgroups())


def prepare_cgroups(hosts: Iterable[str], run_name: str) -> CgroupSet | None:
    """Make a group per host and keep its control files open; call it outside the sandbox.

    Args:
        hosts: names of all hosts.
        run_name: `<pid>-<start time>` of the run.

    Returns:
        The groups, or None where this user may not make any.
    """
    for parent, version in _list_parent_cgroups():
        folder = parent / f"laggard-{run_name}"
        try:
            folder.mkdir()
            groups = _create_host_cgroups(folder, hosts, version)
        except OSError as error:
            _log.info("no cgroups under %s: %s", parent, error)
            _remove_cgroup(folder)
            continue
        return CgroupSet(folder, groups)
    return None


def sweep_cgroups() -> tuple[Path, ...]:
    """Remove the empty folders of runs that are no more, and return them."""
    removed = []
    for parent, _ in _list_parent_cgroups():
        for folder in parent.glob("laggard-*"):
            match = _NAME.fullmatch(folder.name)
            if match and _start_time(int(match[1])) != int(match[2]) and _remove_cgroup(folder):
                removed.append(folder)
    return tuple(removed)


def _create_host_cgroups(
    folder: Path, hosts: Iterable[str], version: _Version
) -> Mapping[str, HostCgroup]:
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
    """Folders to try: our own cgroup in the hierarchy that has the cpu controller, then that
    hierarchy's top.

    In version 2 a cgroup that has processes of its own, as a login session does, cannot pass its
    cpu time on to inner ones.
    """
    own = dict[str, str]()
    for line in Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines():
        _, controllers, path = line.split(":", 2)
        own.update(dict.fromkeys(controllers.split(","), path))
    found = []
    for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines():
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
    return sorted(dict.fromkeys(found), key=lambda each: each[1] is _V2)


def _has_cpu(folder: Path) -> bool:
    controllers = folder / "cgroup.controllers"
    return controllers.exists() and "cpu" in controllers.read_text(encoding="utf-8").split()


def _resolve_cgroup_path(point: str, root: str, path: str) -> Path:
    relative = path.removeprefix(root) if root != "/" else path
    return Path(point) / relative.lstrip("/")


def _remove_cgroup(folder: Path) -> bool:
    if not folder.is_dir():
        return False
    for each in folder.iterdir():
        if each.is_dir():
            with suppress(OSError):  # a process is still in it; the folder above then stays too
                each.rmdir()
    try:
        folder.rmdir()
    except OSError as error:
        _log.debug("%s cannot be removed yet: %s", folder, error)
        return False
    return True


def _start_time(pid: int) -> int | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    return int(stat[stat.rindex(")") + 2 :].split()[_START_TIME_FIELD])
