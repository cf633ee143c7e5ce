"""Real processes held to real shares, by both mechanisms.

How exact a share is, `laggard verify` measures. Here is only what holds on a busy machine too: that
nobody is faster than the share, what the kernel was told, and what is counted.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

import pytest

from laggard.core.errors import EmulationError
from laggard.network_emulation.compute import (
    CgroupSet,
    Mechanism,
    ShareController,
    open_shares,
    prepare_cgroups,
    sweep_cgroups,
)
from laggard.network_emulation.compute.cpu_plan import usable_cores
from laggard.network_emulation.compute.pulse import LATE_NS
from laggard.network_emulation.dilation import compute_load
from laggard.network_emulation.forked import end_companion, fork_companion

_PATIENCE_S = 60.0
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
    deadline = time.monotonic() + _PATIENCE_S
    while cgroups.path.exists():
        cgroups.remove()
        assert time.monotonic() < deadline, "a process is left in the run's cgroups"
        time.sleep(0.02)


def _process_cpu_ns(pid: int) -> int:
    return time.clock_gettime_ns((~pid << 3) | 2)


class _Worker:
    """A process that computes on order, with all its threads, until it has used so much CPU time.

    Attributes:
        pid: the process.
    """

    def __init__(self, threads: int = 1) -> None:
        orders, self._order = os.pipe()
        self._answer, answers = os.pipe()
        self.pid = fork_companion("laggard-test", lambda: self._work(threads, orders, answers))
        os.close(orders)
        os.close(answers)
        self._wait()

    def compute(self, cpu_ms: int) -> None:
        os.write(self._order, cpu_ms.to_bytes(4, "big"))

    def wait(self) -> None:
        """Until it has computed."""
        self._wait()

    def _wait(self) -> None:
        assert os.read(self._answer, 1) == b"."

    @staticmethod
    def _work(threads: int, orders: int, answers: int) -> int:
        os.setsid()  # as workers do: the kernel's autogroups weigh it like a session
        everybody = threading.Barrier(threads)
        until_ns = [0]

        def compute() -> None:
            while True:
                everybody.wait()
                while time.process_time_ns() < until_ns[0]:
                    sum(range(1_000))
                everybody.wait()

        for _ in range(threads - 1):
            threading.Thread(target=compute, daemon=True).start()
        os.write(answers, b".")
        while order := os.read(orders, 4):
            until_ns[0] = time.process_time_ns() + int.from_bytes(order, "big") * 1_000_000
            everybody.wait()
            while time.process_time_ns() < until_ns[0]:
                sum(range(1_000))
            everybody.wait()
            os.write(answers, b".")
        return 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        end_companion(self.pid)
        os.close(self._order)
        os.close(self._answer)


def _assert_held(
    controller: ShareController, host: str, share: float, cpu_ms: int, *workers: _Worker
) -> None:
    """That workers of a host which compute at the same time take at least the time of its share
    together, and that what they were due is counted.

    A limiter that comes late, as on a busy machine, lets them compute for longer before it holds
    them back for longer: what is still owed at the end is not waited for, and half is left to it.
    """
    before = controller.uses()[host].due_ns
    cpu_ns = -sum(_process_cpu_ns(worker.pid) for worker in workers)
    began_ns = time.monotonic_ns()
    for worker in workers:
        worker.compute(cpu_ms)
    for worker in workers:
        worker.wait()
    took_ns = time.monotonic_ns() - began_ns
    assert took_ns > 0.5 * len(workers) * cpu_ms * 1e6 / share

    def is_counted() -> bool:
        cpu_now_ns = cpu_ns + sum(_process_cpu_ns(worker.pid) for worker in workers)
        counted_ns = (controller.uses()[host].due_ns - before) * share
        return counted_ns == pytest.approx(cpu_now_ns, rel=0.05)

    assert _eventually(is_counted)


def _eventually(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + _PATIENCE_S
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    return condition()


@_BOTH
def test_processes_and_threads_of_a_host_are_held_to_its_share_together(
    mechanism: Mechanism,
) -> None:
    with _controller(mechanism, {"a": 1.0}) as controller, _Worker() as lasting:
        controller.attach("a", lasting.pid)
        with _Worker(threads=3) as threaded:
            controller.attach("a", threaded.pid)
            for thread in Path(f"/proc/{threaded.pid}/task").iterdir():
                assert os.sched_getaffinity(int(thread.name)) == {controller.cpus["a"]}
            asked_ns = time.monotonic_ns()
            effective_ns = controller.set_share("a", 0.1)
            assert asked_ns <= effective_ns <= time.monotonic_ns()
            assert controller.shares == {"a": 0.1}
            _assert_held(controller, "a", 0.1, 30, lasting, threaded)
        _assert_held(controller, "a", 0.1, 30, lasting)
        controller.set_share("a", 0.2)
        assert controller.shares == {"a": 0.2}
        _assert_held(controller, "a", 0.2, 60, lasting)


_FORKS = """
import os, sys
sys.stdin.readline()
while sum(os.times()[:4]) < 0.2:
    child = os.fork()
    if child == 0:
        sum(range(30_000))
        os._exit(0)
    os.waitpid(child, 0)
print("done", flush=True)
sys.stdin.readline()
"""


def test_children_that_end_before_anybody_looks_are_held_too() -> None:
    """They compute for a millisecond or less, one after the other.

    Their parent is a small process, as shells are: children of one as large as this would spend
    most of their time on its pages.
    """
    command = [sys.executable, "-S", "-c", _FORKS]
    with (
        _controller("cgroup-quota", {"a": 0.1}) as controller,
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        controller.attach("a", process.pid, family=True)
        began_ns = time.monotonic_ns()
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "done\n"
        assert time.monotonic_ns() - began_ns > 0.4 * 0.2e9 / 0.1
        process.kill()


def test_hosts_of_a_core_weigh_what_they_need_of_it() -> None:
    """Where the data that a small host moves want the whole core, a large one still computes at its
    share."""
    shares, cores = {"large": 0.7, "small": 0.1}, usable_cores()
    cgroups = prepare_cgroups(shares, _own_name())
    if cgroups is None:
        pytest.skip("this user may not make cgroups")
    try:
        with (
            open_shares(shares, cgroups, dict.fromkeys(shares, cores[0])) as controller,
            _Worker() as small,
            _Worker() as large,
        ):
            controller.attach("small", small.pid)
            controller.attach("large", large.pid)
            weights = {host: _weight(cgroups.path / host) for host in shares}
            assert cgroups.hosts["large"].members() == (large.pid,)
    finally:
        cgroups.close()
        _remove_with_patience(cgroups)
    for host, share in shares.items():
        assert weights[host] == int(cgroups.hosts[host].weight_of(compute_load(share)))
    assert weights["large"] > 3 * weights["small"]


def _weight(folder: Path) -> int:
    files = (folder / name for name in ("cpu.weight", "cpu.shares"))
    return next(int(file.read_text()) for file in files if file.exists())


@_BOTH
def test_closing_lets_the_process_go(mechanism: Mechanism) -> None:
    with _controller(mechanism, {"a": 0.001}) as controller, _Worker() as worker:
        controller.attach("a", worker.pid)
        worker.compute(300)
        assert _eventually(lambda: controller.uses()["a"].due_ns > 0)
        controller.close()
        worker.wait()  # five minutes, were it held still


@_BOTH
def test_limiters_die_with_their_parent(mechanism: Mechanism) -> None:
    reading, writing = os.pipe()

    def parent() -> int:
        cgroups = prepare_cgroups(["a"], _own_name()) if mechanism == "cgroup-quota" else None
        controller = open_shares({"a": 0.2}, cgroups, {"a": usable_cores()[0]})
        os.write(writing, str(controller._processes[0].pid).encode())
        time.sleep(600)
        return 0

    pid = fork_companion("laggard-test", parent)
    limiter = int(os.read(reading, 20))
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    os.close(reading)
    os.close(writing)
    assert _eventually(lambda: not Path(f"/proc/{limiter}").exists() or _is_zombie(limiter))
    sweep_cgroups()


def _is_zombie(pid: int) -> bool:
    with suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    return True


def test_a_limiter_that_died_is_told() -> None:
    with _controller("stop-signal", {"a": 0.2}) as controller:
        os.kill(controller._processes[0].pid, signal.SIGKILL)
        with pytest.raises(EmulationError, match=r"limiter of CPU shares .* has exited"):
            controller.set_share("a", 0.3)


def test_a_limiter_that_stood_still_tells() -> None:
    """It stands for a machine that was suspended."""
    with _controller("stop-signal", {"a": 0.2}) as controller, _Worker() as worker:
        controller.attach("a", worker.pid)
        limiter = controller._processes[0].pid
        before = controller.pulses()[0]
        assert _eventually(lambda: controller.pulses()[0].beat_ns > before.beat_ns)
        os.kill(limiter, signal.SIGSTOP)
        time.sleep(0.4)
        os.kill(limiter, signal.SIGCONT)
        assert _eventually(lambda: controller.pulses()[0].stalled_ns > before.stalled_ns + LATE_NS)


def test_what_cannot_be_held_is_refused() -> None:
    with pytest.raises(EmulationError, match="no core or no cgroup"):
        open_shares({"a": 0.2}, None, {})
    with pytest.raises(EmulationError, match="share of 0 cores"):
        open_shares({"a": 0.0}, None, {"a": 0})
    with _controller("stop-signal", {"a": 0.2}) as controller:
        with pytest.raises(EmulationError, match="b: unknown host"):
            controller.set_share("b", 0.2)
        with pytest.raises(EmulationError, match=r"share of 1\.5"):
            controller.set_share("a", 1.5)
        with pytest.raises(EmulationError, match="cannot limit process 4000000 of"):
            controller.attach("a", 4_000_000)


def test_an_ordinary_user_holds_shares_too() -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root to become another user; without it the other tests are this one")

    def unprivileged() -> int:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
        with _controller("stop-signal", {"a": 0.1}) as controller, _Worker() as worker:
            controller.attach("a", worker.pid)
            _assert_held(controller, "a", 0.1, 30, worker)
            return int(controller.realtime)

    pid = fork_companion("laggard-test", unprivileged)
    assert os.waitpid(pid, 0)[1] == 0


@_BOTH
@pytest.mark.parametrize("share", [0.8, 1.0])
def test_two_hosts_that_a_core_cannot_both_serve_tell_what_they_lost(
    mechanism: Mechanism, share: float
) -> None:
    cores = usable_cores()
    shares = {"a": share, "b": share}
    cgroups = prepare_cgroups(shares, _own_name()) if mechanism == "cgroup-quota" else None
    if mechanism == "cgroup-quota" and cgroups is None:
        pytest.skip("this user may not make cgroups")
    try:
        with (
            open_shares(shares, cgroups, dict.fromkeys(shares, cores[0])) as controller,
            _Worker() as a,
            _Worker() as b,
        ):
            controller.attach("a", a.pid, family=True)
            controller.attach("b", b.pid)
            for worker in (a, b):
                worker.compute(600_000)
            assert _eventually(
                lambda: sum(use.lost_ns for use in controller.uses().values()) > 300_000_000
            )
    finally:
        if cgroups is not None:
            cgroups.close()
            _remove_with_patience(cgroups)


@_BOTH
def test_cores_stay_awake_and_give_way(mechanism: Mechanism) -> None:
    """Something idle-priority computes on each host's core, and the kernel gives whoever has
    a use for the core the core."""
    with _controller(mechanism, {"a": 1.0}) as controller:
        core = controller.cpus["a"]
        warmers = [
            int(p.name)
            for p in Path("/proc").glob("[0-9]*")
            if _is_warmer(int(p.name), os.getpid())
        ]
        assert [os.sched_getscheduler(pid) for pid in warmers] == [os.SCHED_IDLE]
        assert os.sched_getaffinity(warmers[0]) == {core}
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
