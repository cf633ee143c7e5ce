"""`laggard emulate`, `ssh` and `links`: the continuum for programs of one's own, as root and as an
ordinary user."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tests.command_line import MORE_ATTEMPTS, SMALL, UNFAITHFUL, needs_tun
from tests.users import Runner, as_self

pytestmark = pytest.mark.alone

COMMAND = """
    import sys
    from laggard.cli.main import main
    sys.argv[0] = "laggard"
    main()
"""
ENDS = {(0, "done"), (UNFAITHFUL, "unfaithful")}
EVENT = """
deterministic:
  - {hosts: "cloud.*", cpu: 40%}
  - {hosts: "edge.*", cpu: 20%, read: 1MB/s}
dynamic:
  - {at: 0s, for: 1h, src: "edge.trainer.1.2", dst: "cloud.*", delay: 45ms}
"""
ECHO_SERVER = """
import os, socket, sys
address = os.environ[sys.argv[1]]
family = socket.AF_INET6 if ":" in address else socket.AF_INET
with socket.create_server((address, 0), family=family) as server:
    print(*server.getsockname()[:2], flush=True)
    for _ in range(5):
        server.accept()[0].close()
"""
CONNECT = """
import socket, statistics, sys, time
took = []
for _ in range(5):
    began = time.perf_counter()
    socket.create_connection((sys.argv[1], int(sys.argv[2]))).close()
    took.append(time.perf_counter() - began)
print(1e3 * statistics.median(took))
"""
# The shell waits, its child computes half a CPU second: both belong to the host.
BURN = """
import time
began = time.perf_counter()
while time.process_time() < 0.5:
    pass
print(time.process_time() / (time.perf_counter() - began))
"""


@dataclass(frozen=True)
class Emulation:
    """A running `laggard emulate`, and how its user starts the commands beside it."""

    runner: Runner
    process: subprocess.Popen[str]
    up: dict[str, object]

    @property
    def runs(self) -> tuple[str, str]:
        return "--runs", str(self.runner.folder / "runs")

    def start(self, command: str, *arguments: str) -> subprocess.Popen[str]:
        return self.runner.start(COMMAND, command, *self.runs, *arguments)

    def ssh(self, *arguments: str, status: int = 0) -> str:
        done = self.runner.run(COMMAND, "ssh", *self.runs, *arguments)
        assert done.returncode == status, done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        return done.stdout + done.stderr if status else done.stdout

    def links(self) -> list[dict[str, object]]:
        done = self.runner.run(COMMAND, "links", "--json", *self.runs)
        assert done.returncode == 0, done.stderr
        links: list[dict[str, object]] = json.loads(done.stdout)
        return links

    def ended(self) -> dict[str, object]:
        """Its last line, when it has ended well, or as well as it can where other programs have the
        cores."""
        output, errors = self.process.communicate(timeout=30)
        record: dict[str, object] = json.loads(output.splitlines()[-1])
        assert (self.process.returncode, record["status"]) in ENDS, output + errors
        return record


@contextmanager
def emulated(runner: Runner, *arguments: str) -> Iterator[Emulation]:
    """The small scenario without its workload, up; brought up again where a busy machine made it
    miss its tolerance."""
    scenario = runner.folder / "small"
    scenario.mkdir()
    for name, text in SMALL.items():
        if name != "workload.yaml":
            (scenario / name).write_text(EVENT if name == "heterogeneity.yaml" else text)
    command = (
        "emulate",
        str(scenario),
        "--json",
        "--runs",
        str(runner.folder / "runs"),
        *arguments,
    )
    for _ in range(1 + MORE_ATTEMPTS):
        process = runner.start(COMMAND, *command)
        assert process.stdout is not None
        line = process.stdout.readline()
        up = json.loads(line) if line else {"status": "nothing said"}
        if up["status"] == "up":
            break
        process.wait(30)
        assert process.returncode == UNFAITHFUL, (
            f"{line}\n{process.stderr.read() if process.stderr else ''}"
        )
    assert up["status"] == "up"
    try:
        yield Emulation(runner, process, up)
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(20)


@pytest.fixture(scope="module")
def as_root() -> Iterator[Emulation]:
    with as_self() as runner, emulated(runner) as emulation:
        yield emulation


def round_trip_ms(emulation: Emulation, host: str, at: str = "LAGGARD_ADDRESS") -> float:
    """The time to connect from a host to the cloud, at the address in that variable of it: one
    round trip."""
    server = emulation.start("ssh", "cloud.*", emulation.runner.command[0], "-c", ECHO_SERVER, at)
    assert server.stdout is not None
    address, port = server.stdout.readline().split()
    took_ms = float(emulation.ssh(host, emulation.runner.command[0], "-c", CONNECT, address, port))
    server.wait(20)
    return took_ms


def share_got(emulation: Emulation, host: str) -> float:
    """The part of a core that a grandchild of `laggard ssh` gets."""
    script = emulation.runner.folder / "burn.py"
    script.write_text(BURN)
    return float(
        emulation.ssh(host, "/bin/sh", "-c", f"{emulation.runner.command[0]} {script}; true")
    )


@needs_tun
def test_programs_run_in_hosts_on_their_links_and_shares(as_root: Emulation) -> None:
    assert [host["name"] for host in as_root.up["hosts"]] == [  # type: ignore[attr-defined]
        "cloud.trainer.1.1",
        "edge.trainer.1.1",
        "edge.trainer.1.2",
    ]
    (warning,) = as_root.up["warnings"]  # type: ignore[misc]
    assert "your own programs read and write as fast as this machine does" in str(warning)
    assert as_root.ssh("edge.trainer.1.2", "hostname").strip() == "edge.trainer.1.2"
    assert as_root.ssh("edge.trainer.1.1", "pwd").strip() == str(as_root.runner.folder)
    assert [host["ipv6"] for host in as_root.up["hosts"]] == [["fd77::1"], ["fd77::2"], ["fd77::3"]]  # type: ignore[attr-defined]
    assert 10.0 <= round_trip_ms(as_root, "edge.trainer.1.1") < 20.0
    assert 50.0 <= round_trip_ms(as_root, "edge.trainer.1.2", at="LAGGARD_IPV6") < 60.0
    assert (
        50.0 <= round_trip_ms(as_root, "edge.trainer.1.2") < 60.0
    )  # the event lengthens one way by 40 ms
    assert share_got(as_root, "edge.trainer.1.1") == pytest.approx(0.2, rel=0.25)
    as_root.ssh("edge.trainer.1.1", "/bin/sh", "-c", "exit 7", status=7)
    as_root.ssh("edge.trainer.1.1", "no-such-program", status=127)
    assert "one is entered at a time" in as_root.ssh("edge.*", "true", status=2)
    shown = {
        (link["src_layer"], link["dst_layer"], len(link["pairs"])): link for link in as_root.links()
    }  # type: ignore[arg-type]
    assert set(shown) == {("cloud", "edge", 2), ("edge", "cloud", 1)}


def test_an_ordinary_user_has_it_too(nobody_with_tun: Runner) -> None:
    with emulated(nobody_with_tun) as emulation:
        assert emulation.ssh("edge.trainer.1.2", "hostname").strip() == "edge.trainer.1.2"
        assert 50.0 <= round_trip_ms(emulation, "edge.trainer.1.2") < 75.0
        assert share_got(emulation, "edge.trainer.1.1") == pytest.approx(0.2, rel=0.35)
        emulation.process.terminate()
        assert emulation.ended()["outcome"] is None


@needs_tun
def test_links_show_what_was_asked_for_and_what_holds(as_root: Emulation) -> None:
    links = {tuple(link["pairs"][0]): link for link in as_root.links()}  # type: ignore[index]
    delayed = links["edge.trainer.1.2", "cloud.trainer.1.1"]
    assert (delayed["requested"], delayed["current"]) == (
        {
            "delay_ms": 5.0,
            "jitter_ms": 0.0,
            "rate_mbps": 50.0,
            "loss_percent": 0.0,
            "distribution": "uniform",
            "burst_packets": 1.0,
        },
        {
            "delay_ms": 45.0,
            "jitter_ms": 0.0,
            "rate_mbps": 50.0,
            "loss_percent": 0.0,
            "distribution": "uniform",
            "burst_packets": 1.0,
        },
    )
    assert delayed["requested_rtt_ms"] == 50.0
    assert 49.5 <= float(str(delayed["rtt_ms"])) < 53.0
    table = as_root.runner.run(COMMAND, "links", *as_root.runs).stdout
    assert re.search(
        r"edge.trainer.1.2 → cloud.trainer.1.1 .* 5 ms, 50 Mbit/s .* 45 ms, 50 Mbit/s .* 50\.0 ",
        table,
    ), table


@needs_tun
def test_a_shell_on_a_terminal(as_root: Emulation) -> None:
    """The prompt, the host's name, job control, and the shell's exit status."""
    arguments = [
        *as_root.runner.command,
        "-m",
        "laggard.cli.main",
        "ssh",
        *as_root.runs,
        "edge.trainer.1.1",
    ]
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ.update(
            SHELL="/bin/bash", HOME=str(as_root.runner.folder)
        )  # no start files of whoever runs this
        os.execv(sys.executable, arguments)
    said = b""
    os.write(terminal, b"hostname; sleep 30 & jobs; kill %1; exit 5\n")
    deadline = time.monotonic() + 60
    with suppress(OSError):  # the end of a terminal whose last process has gone
        while time.monotonic() < deadline and select.select([terminal], [], [], 20)[0]:
            said += os.read(terminal, 4096)
    _, status = os.waitpid(pid, 0)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(status) == 5, said
    assert b"\redge.trainer.1.1\r\n" in said
    assert b"Running" in said
    assert b"no job control" not in said


@needs_tun
@pytest.mark.parametrize("how", ["killed", "its time is over"])
def test_whatever_runs_in_it_ends_with_it(own_runner: Runner, how: str) -> None:
    with emulated(own_runner, *(() if how == "killed" else ("--for", "3s"))) as emulation:
        command = emulation.start(
            "ssh", "edge.trainer.1.1", "/bin/sh", "-c", "sleep 300 & echo here; wait"
        )
        assert command.stdout is not None
        assert command.stdout.readline() == "here\n"
        inside = [child.pid for child in psutil.Process(command.pid).children(recursive=True)]
        assert len(inside) == 2
        if how == "killed":
            emulation.process.kill()
        else:
            record = emulation.ended()
            assert record["outcome"] is None
            left = {path.name for path in Path(str(record["folder"])).iterdir()}
            assert {
                "fidelity.json",
                "fidelity_violations.json",
                "events.parquet",
                "counters.json",
                "run.json",
            } <= left
            assert "control.sock" not in left
        command.wait(20)
        assert command.returncode == 128 + signal.SIGKILL
        psutil.wait_procs(
            [psutil.Process(pid) for pid in inside if psutil.pid_exists(pid)], timeout=5
        )
        assert not any(psutil.pid_exists(pid) for pid in inside)


def test_without_an_emulation_the_commands_say_so(own_runner: Runner) -> None:
    runs = ("--runs", str(own_runner.folder / "runs"))
    for command in (("ssh", *runs, "edge.*"), ("links", *runs)):
        done = own_runner.run(COMMAND, *command)
        assert done.returncode == 2
        assert "laggard emulate" in done.stderr
