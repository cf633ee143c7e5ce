"""Real processes held to real shares, by both mechanisms."""

from __future__ import annotations

import mmap
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from laggard.core.errors import EmulationError
from laggard.core.work_counter import WorkCounter
from laggard.network_emulation.compute import (
    CgroupSet,
    Mechanism,
    ShareController,
    open_shares,
    prepare_cgroups,
)
from laggard.network_emulation.compute.cpu_plan import usable_cores
from laggard.network_emulation.forked import end_companion, fork_companion

pytestmark = pytest.mark.alone

_LOOK_S = 0.005
_BOTH = pytest.mark.parametrize("mechanism", ["cgroup-quota", "stop-signal"])


def _own_name() -> str:
    stat = Path("/proc/self/stat").read_text()
    return f"{os.getpid()}-{stat[stat.rindex(')') + 2 :].split()[19]}"


@contextmanager
def _controller(mechanism: Mechanism, shares: dict[str, float]) -> Iterator[ShareController]:
    cgroups: CgroupSet | None = None
    if mechanism == "cgroup-quota":
        cgroups = prepare_cgroups(shares, _own_name())
        if cgroups is None:
            pytest.skip("this user may not make cgroups")
    cores = usable_cores()
    cpus = {host: cores[i % len(cores)] for i, host in enumerate(shares)}
    try:
        with open_shares(shares, cgroups, cpus) as controller:
            assert controller.mechanism == mechanism
            yield controller
    finally:
        if cgroups is not None:
            cgroups.close()
            _remove_with_patience(cgroups)


def _remove_with_patience(cgroups: CgroupSet) -> None:
    deadline = time.monotonic() + 5
    while cgroups.path.exists():
        cgroups.remove()
        assert time.monotonic() < deadline, "a process is left in the run's cgroups"
        time.sleep(0.02)


@contextmanager
def _busy(threads: int = 1) -> Iterator[int]:
    def body() -> int:
        os.setsid()  # as workers do: the kernel's autogroups weigh it like a session
        for _ in range(threads - 1):
            threading.Thread(target=_spin, daemon=True).start()
        return _spin()

    pid = fork_companion("laggard-test", body)
    try:
        yield pid
    finally:
        end_companion(pid)


def _spin() -> int:
    while True:
        sum(range(10_000))


def _speed(pids: tuple[int, ...], seconds: float) -> float:
    clocks = [(~pid << 3) | 2 for pid in pids]
    cpu_ns, wall_ns = sum(map(time.clock_gettime_ns, clocks)), time.monotonic_ns()
    time.sleep(seconds)
    return (sum(map(time.clock_gettime_ns, clocks)) - cpu_ns) / (time.monotonic_ns() - wall_ns)


def _settles_at(pids: int | tuple[int, ...], share: float) -> bool:
    """Whether the speed comes within 15 % of a share; several looks, since a machine that is busy
    otherwise takes from it."""
    found = (pids,) if isinstance(pids, int) else pids
    return any(abs(_speed(found, 0.4) / share - 1) < 0.15 for _ in range(10))


def _eventually(condition: Callable[[], bool], seconds: float = 5.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    return condition()


@_BOTH
@pytest.mark.parametrize("threads", [1, 3])
def test_a_busy_process_gets_its_share_with_all_its_threads(
    mechanism: Mechanism, threads: int
) -> None:
    with _controller(mechanism, {"a": 0.2}) as controller, _busy(threads) as pid:
        controller.attach("a", pid)
        time.sleep(0.2)
        assert _settles_at(pid, 0.2)
        assert os.sched_getaffinity(pid) == {controller.cpus["a"]}


@_BOTH
def test_processes_of_one_host_share_its_share(mechanism: Mechanism) -> None:
    with _controller(mechanism, {"a": 0.15}) as controller, _busy() as one, _busy() as other:
        controller.attach("a", one)
        controller.attach("a", other)
        time.sleep(0.2)
        assert _settles_at((one, other), 0.15)


def _count_work(path: Path, worth: float) -> int:
    """Compute for ever, in steps of 4 ms of CPU time that do the work of `worth` times as much."""
    with WorkCounter(path) as counter:
        counter.set_computing(True)
        while True:
            began_ns = time.thread_time_ns()
            while time.thread_time_ns() - began_ns < 4_000_000:
                sum(range(1_000))
            cpu_ns = time.thread_time_ns() - began_ns
            counter.add(round(cpu_ns * worth), cpu_ns)


@_BOTH
@pytest.mark.parametrize("worth", [0.5, 1.3])
def test_a_share_is_of_work_where_work_is_counted(
    mechanism: Mechanism, worth: float, tmp_path: Path
) -> None:
    with _controller(mechanism, {"a": 0.2}) as controller:
        pid = fork_companion("laggard-test", lambda: _count_work(tmp_path / "work", worth))
        try:
            controller.attach("a", pid, work=tmp_path / "work")
            time.sleep(0.3)
            assert _settles_at(pid, 0.2 / worth)
        finally:
            end_companion(pid)


_FORKS = """
import os
while True:
    child = os.fork()
    if child == 0:
        sum(range(30_000))
        os._exit(0)
    os.waitpid(child, 0)
"""


@contextmanager
def _forking() -> Iterator[int]:
    """A process whose children compute for a millisecond or less, one after the other.

    It is a small one, as shells are: children of one as large as this would spend most of their
    time on their parent's pages.
    """
    process = subprocess.Popen([sys.executable, "-S", "-c", _FORKS])
    try:
        yield process.pid
    finally:
        process.kill()
        process.wait()


def test_children_that_end_before_anybody_looks_are_held_too() -> None:
    with _controller("cgroup-quota", {"a": 0.2}) as controller, _forking() as pid:
        controller.attach("a", pid, family=True)
        time.sleep(0.3)
        process, began_s = psutil.Process(pid), time.monotonic()
        before = sum(process.cpu_times()[:4])
        time.sleep(2.0)
        assert (sum(process.cpu_times()[:4]) - before) / (
            time.monotonic() - began_s
        ) == pytest.approx(0.2, rel=0.3)


def _stood(count: memoryview, seconds: float) -> float:
    """What part of the time a count that grows did not for 0.3 s and more, in looks of 5 ms: one
    that comes late, as on a machine that stood still, is one look."""
    stood, seen = [0], -1
    for _ in range(round(seconds / _LOOK_S)):
        if count[0] != seen:
            seen = count[0]
            stood.append(0)
        stood[-1] += 1
        time.sleep(_LOOK_S)
    return sum(looks for looks in stood if looks * _LOOK_S > 0.3) / sum(stood)


def test_a_thread_that_ends_holds_up_nobody() -> None:
    """What a thread uses after it has ended no clock of its process counts, and the kernel does:
    the slice is used up before it seems to be."""
    rounds = memoryview(mmap.mmap(-1, 8)).cast("q")

    def body() -> int:
        while True:
            ending = threading.Thread(target=sum, args=(range(10_000),))
            ending.start()
            ending.join()
            rounds[0] += 1

    stood = []
    for _ in range(3):  # what else the machine does can hold a thread up, now and then
        with _controller("cgroup-quota", {"a": 0.1}) as controller:
            pid = fork_companion("laggard-threads", body)
            try:
                controller.attach("a", pid)
                stood.append((_stood(rounds, 4.0), controller.uses()["a"].lost_ns))
            finally:
                end_companion(pid)
        if stood[-1][0] < 0.3 and stood[-1][1] < 0.1 * 4e9:
            return
    raise AssertionError(
        f"the kernel's period is a second, of which a share of 0.1 would stand 0.9: {stood}"
    )


@pytest.mark.skipif(
    os.geteuid() != 0, reason="only root may start a process that is preferred to all others"
)
def test_a_family_that_something_else_keeps_from_its_core_says_so() -> None:
    def rival() -> int:
        os.sched_setaffinity(0, {core})
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(5))
        while True:
            until = time.monotonic() + 0.06
            while time.monotonic() < until:
                pass
            time.sleep(0.04)

    with _controller("cgroup-quota", {"a": 0.3}) as controller, _busy() as pid:
        core = controller.cpus["a"]
        controller.attach("a", pid, family=True)
        stealing = fork_companion("laggard-rival", rival)
        try:
            time.sleep(1.5)
            use = controller.uses()["a"]
        finally:
            end_companion(stealing)
        assert use.lost_ns > 0.1 * 1.5e9, use


@_BOTH
def test_a_share_changes_while_the_process_computes(mechanism: Mechanism) -> None:
    with _controller(mechanism, {"a": 1.0}) as controller, _busy() as pid:
        controller.attach("a", pid)
        asked_ns = time.monotonic_ns()
        effective_ns = controller.set_share("a", 0.1)
        assert asked_ns <= effective_ns <= time.monotonic_ns()
        assert _settles_at(pid, 0.1)
        controller.set_share("a", 0.2)
        assert _settles_at(pid, 0.2)
        assert controller.shares == {"a": 0.2}


@_BOTH
def test_a_change_takes_a_few_milliseconds(mechanism: Mechanism) -> None:
    with _controller(mechanism, {"a": 0.3}) as controller, _busy() as pid:
        controller.attach("a", pid)
        taken_ms = []
        for i in range(11):
            asked_ns = time.monotonic_ns()
            taken_ms.append((controller.set_share("a", 0.1 + 0.02 * i) - asked_ns) / 1e6)
        assert sorted(taken_ms)[5] < 5


def test_a_host_has_what_it_needs_of_a_core_that_others_move_data_on(tmp_path: Path) -> None:
    """Moving data is not held back; where that of a small host wants the whole core, a large one
    still computes at its share."""
    shares, cores = {"large": 0.7, "small": 0.1}, usable_cores()
    cgroups = prepare_cgroups(shares, _own_name())
    if cgroups is None:
        pytest.skip("this user may not make cgroups")
    try:
        with (
            open_shares(shares, cgroups, dict.fromkeys(shares, cores[0])) as controller,
            WorkCounter(tmp_path / "work"),
            _busy() as moving,
            _busy() as computing,
        ):
            controller.attach("small", moving, work=tmp_path / "work")
            controller.attach("large", computing)
            time.sleep(0.2)
            assert _settles_at(computing, 0.7)
            assert _speed((moving,), 0.4) > 0.15, "it is there, and not held to its share"
    finally:
        cgroups.close()
        _remove_with_patience(cgroups)


@_BOTH
def test_closing_lets_the_process_go(mechanism: Mechanism) -> None:
    with _busy() as pid, _controller_kept_open(mechanism) as controller:
        controller.attach("a", pid)
        time.sleep(0.3)
        controller.close()
        clock = (~pid << 3) | 2
        before_ns = time.clock_gettime_ns(clock)
        assert _eventually(lambda: time.clock_gettime_ns(clock) - before_ns > 300_000_000)
        end_companion(pid)


@contextmanager
def _controller_kept_open(mechanism: Mechanism) -> Iterator[ShareController]:
    with _controller(mechanism, {"a": 0.01}) as controller:
        yield controller


@_BOTH
def test_limiters_die_with_their_parent(mechanism: Mechanism) -> None:
    reading, writing = os.pipe()

    def parent() -> int:
        cgroups = prepare_cgroups(["a"], _own_name()) if mechanism == "cgroup-quota" else None
        controller = open_shares({"a": 0.2}, cgroups, {"a": usable_cores()[0]})
        os.write(writing, str(controller._processes[0].pid).encode())
        time.sleep(60)
        return 0

    pid = fork_companion("laggard-test", parent)
    limiter = int(os.read(reading, 20))
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    os.close(reading)
    os.close(writing)
    assert _eventually(lambda: not Path(f"/proc/{limiter}").exists() or _is_zombie(limiter))
    from laggard.network_emulation.compute import sweep_cgroups

    sweep_cgroups()


def _is_zombie(pid: int) -> bool:
    with suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    return True


@_BOTH
def test_a_process_that_ends_leaves_the_others_held(mechanism: Mechanism) -> None:
    with _controller(mechanism, {"a": 0.2}) as controller, _busy() as lasting:
        with _busy() as short:
            controller.attach("a", short)
            controller.attach("a", lasting)
            time.sleep(0.2)
        time.sleep(0.2)
        assert _settles_at(lasting, 0.2)


def test_a_limiter_that_died_is_told() -> None:
    with _controller("stop-signal", {"a": 0.2}) as controller:
        os.kill(controller._processes[0].pid, signal.SIGKILL)
        with pytest.raises(EmulationError, match=r"limiter of CPU shares .* is gone"):
            controller.set_share("a", 0.3)


def test_what_cannot_be_held_is_refused() -> None:
    with pytest.raises(EmulationError, match="no core or cgroup"):
        open_shares({"a": 0.2}, None, {})
    with pytest.raises(EmulationError, match="share of 0 of one core"):
        open_shares({"a": 0.0}, None, {"a": 0})
    with _controller("stop-signal", {"a": 0.2}) as controller:
        with pytest.raises(EmulationError, match="b: no such host"):
            controller.set_share("b", 0.2)
        with pytest.raises(EmulationError, match=r"share of 1\.5"):
            controller.set_share("a", 1.5)
        with pytest.raises(EmulationError, match="cannot be held to a share"):
            controller.attach("a", 4_000_000)


def test_an_ordinary_user_holds_shares_too() -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root to become another user; without it the other tests are this one")

    def unprivileged() -> int:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
        with _controller("stop-signal", {"a": 0.2}) as controller, _busy() as pid:
            controller.attach("a", pid)
            time.sleep(0.2)
            return 0 if not controller.realtime and _settles_at(pid, 0.2) else 1

    pid = fork_companion("laggard-test", unprivileged)
    assert os.waitpid(pid, 0)[1] == 0


@_BOTH
@pytest.mark.parametrize("share", [0.8, 1.0])
def test_two_hosts_that_a_core_cannot_both_serve_tell_what_they_lost(
    mechanism: Mechanism, share: float
) -> None:
    """Both would compute all the time: what their computing should not have taken of it, they have
    waited."""
    cores = usable_cores()
    shares = {"a": share, "b": share}
    cgroups = prepare_cgroups(shares, _own_name()) if mechanism == "cgroup-quota" else None
    if mechanism == "cgroup-quota" and cgroups is None:
        pytest.skip("this user may not make cgroups")
    try:
        with (
            open_shares(shares, cgroups, dict.fromkeys(shares, cores[0])) as controller,
            _busy() as a,
            _busy() as b,
        ):
            controller.attach("a", a)
            controller.attach("b", b)
            time.sleep(0.3)
            before, began_ns = controller.uses(), time.monotonic_ns()
            time.sleep(2.0)
            after, passed_ns = controller.uses(), time.monotonic_ns() - began_ns
    finally:
        if cgroups is not None:
            cgroups.close()
            _remove_with_patience(cgroups)
    lost = sum(after[host].lost_ns - before[host].lost_ns for host in shares) / passed_ns
    due = sum(after[host].due_ns - before[host].due_ns for host in shares) / passed_ns
    assert 0.8 / share < due < 1.05 / share
    assert lost == pytest.approx(2 - due, rel=0.15)


@_BOTH
def test_a_host_with_a_core_of_its_own_loses_nothing(mechanism: Mechanism) -> None:
    with _controller(mechanism, {"a": 0.5}) as controller, _busy() as pid:
        controller.attach("a", pid)
        time.sleep(1.0)
        use = controller.uses()["a"]
    assert use.due_ns > 800_000_000
    assert use.lost_ns < 0.1 * use.due_ns


@_BOTH
def test_cores_stay_awake_and_give_way(mechanism: Mechanism) -> None:
    """Something idle-priority computes on each host's core, and takes nothing from who has a use
    for the core."""
    with _controller(mechanism, {"a": 1.0}) as controller:
        core = controller.cpus["a"]
        warmers = [
            int(p.name)
            for p in Path("/proc").glob("[0-9]*")
            if _is_warmer(int(p.name), os.getpid())
        ]
        assert [os.sched_getscheduler(pid) for pid in warmers] == [os.SCHED_IDLE]
        assert os.sched_getaffinity(warmers[0]) == {core}
        with _busy() as pid:
            controller.attach("a", pid)
            time.sleep(0.2)
            assert _speed((pid,), 1.0) > 20 * _speed((warmers[0],), 1.0)
    assert not Path(f"/proc/{warmers[0]}").exists()


def _is_warmer(pid: int, parent: int) -> bool:
    with suppress(FileNotFoundError, ProcessLookupError):
        stat = Path(f"/proc/{pid}/stat").read_text()
        name, fields = (
            stat[stat.index("(") + 1 : stat.rindex(")")],
            stat[stat.rindex(")") + 2 :].split(),
        )
        return name.startswith("laggard-warme") and int(fields[1]) == parent
    return False
