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

from tests.command_line import COMMAND, SMALL, UNFAITHFUL, needs_tun
from tests.users import Runner, as_self

PATIENCE_S = 120.0
"""How long a test waits for what ends within seconds where nothing else uses the machine."""

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
import socket, sys, time
took = []
for _ in range(5):
    began = time.perf_counter()
    socket.create_connection((sys.argv[1], int(sys.argv[2]))).close()
    took.append(time.perf_counter() - began)
print(1e3 * min(took))
"""


PRIVILEGES = """
import ctypes, os, socket, subprocess
lines = open("/proc/self/status").read().split("\\n")
masks = [int(line.split()[1], 16) for line in lines if line.startswith(("CapPrm", "CapBnd"))]
needed, refused = (12, 13), (16, 17, 20, 21, 22, 25)  # network; modules, devices, mounts, clock
socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP).close()
libc = ctypes.CDLL(None, use_errno=True)
print(
    all(mask >> number & 1 for mask in masks for number in needed),
    any(mask >> number & 1 for mask in masks for number in refused),
    libc.mount(b"none", b"/mnt", b"tmpfs", 0, b""),
    subprocess.run(["ip", "link", "add", "test0", "type", "dummy"]).returncode
    and subprocess.run(["ip", "link", "set", "lo", "mtu", "1400"]).returncode,
    subprocess.run(["tc", "qdisc", "show"], capture_output=True).returncode,
    os.environ.get("SECRET"),
    os.environ["LC_TIME"],
)
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
        output, errors = self.process.communicate(timeout=PATIENCE_S)
        record: dict[str, object] = json.loads(output.splitlines()[-1])
        assert (self.process.returncode, record["status"]) in ENDS, output + errors
        return record


@contextmanager
def emulated(runner: Runner, *arguments: str) -> Iterator[Emulation]:
    """The small scenario without its workload, up, its links and shares within tolerance or not."""
    scenario = runner.folder / "small"
    scenario.mkdir()
    for name, text in SMALL.items():
        if name != "workload.yaml":
            (scenario / name).write_text(EVENT if name == "heterogeneity.yaml" else text)
    command = (
        "emulate",
        str(scenario),
        "--json",
        "--fidelity",
        "record",
        "--runs",
        str(runner.folder / "runs"),
        *arguments,
    )
    process = runner.start(COMMAND, *command)
    assert process.stdout is not None
    line = process.stdout.readline()
    up = json.loads(line) if line else {"status": "nothing said"}
    assert up["status"] == "up", f"{line}\n{process.stderr.read() if process.stderr else ''}"
    try:
        yield Emulation(runner, process, up)
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(PATIENCE_S)


@pytest.fixture(scope="module")
def as_root() -> Iterator[Emulation]:
    with as_self() as runner, emulated(runner) as emulation:
        yield emulation


def round_trip_ms(emulation: Emulation, host: str, at: str = "LAGGARD_ADDRESS") -> float:
    """The shortest time to connect from a host to the cloud, at the address in that variable of
    it: one round trip."""
    server = emulation.start("ssh", "cloud.*", emulation.runner.command[0], "-c", ECHO_SERVER, at)
    assert server.stdout is not None
    address, port = server.stdout.readline().split()
    took_ms = float(emulation.ssh(host, emulation.runner.command[0], "-c", CONNECT, address, port))
    server.wait(PATIENCE_S)
    return took_ms


def start_sleep(emulation: Emulation, host: str) -> tuple[subprocess.Popen[str], list[int]]:
    """A command in a host, and the numbers of its two processes there: a shell and its child."""
    command = emulation.start("ssh", host, "/bin/sh", "-c", "sleep 300 & echo here; wait")
    assert command.stdout is not None
    assert command.stdout.readline() == "here\n"
    inside = [child.pid for child in psutil.Process(command.pid).children(recursive=True)]
    assert len(inside) == 2
    return command, inside


def check_ended(command: subprocess.Popen[str], inside: list[int]) -> None:
    """Require a command in a host, and its processes there, to have been killed."""
    assert command.wait(PATIENCE_S) == 128 + signal.SIGKILL
    processes = [psutil.Process(pid) for pid in inside if psutil.pid_exists(pid)]
    psutil.wait_procs(processes, timeout=PATIENCE_S)
    assert not any(psutil.pid_exists(pid) for pid in inside)


@needs_tun
def test_programs_run_in_hosts_on_their_links_and_shares(as_root: Emulation) -> None:
    assert [host["name"] for host in as_root.up["hosts"]] == [  # type: ignore[attr-defined]
        "cloud.trainer.1.1",
        "edge.trainer.1.1",
        "edge.trainer.1.2",
    ]
    (warning,) = as_root.up["warnings"]  # type: ignore[misc]
    assert "the limit has no effect: your own programs are not limited" in str(warning)
    assert as_root.ssh("edge.trainer.1.2", "hostname").strip() == "edge.trainer.1.2"
    assert as_root.ssh("edge.trainer.1.1", "pwd").strip() == str(as_root.runner.folder)
    assert [host["ipv6"] for host in as_root.up["hosts"]] == [["fd77::1"], ["fd77::2"], ["fd77::3"]]  # type: ignore[attr-defined]
    # The event lengthens one way by 40 ms. No packet is early, whatever else the machine does.
    assert round_trip_ms(as_root, "edge.trainer.1.1") >= 10.0
    assert round_trip_ms(as_root, "edge.trainer.1.2", at="LAGGARD_IPV6") >= 50.0
    assert round_trip_ms(as_root, "edge.trainer.1.2") >= 50.0
    as_root.ssh("edge.trainer.1.1", "/bin/sh", "-c", "exit 7", status=7)
    as_root.ssh("edge.trainer.1.1", "no-such-program", status=127)
    assert "exactly one must" in as_root.ssh("edge.*", "true", status=2)
    shown = {
        (link["src_layer"], link["dst_layer"], len(link["pairs"])): link for link in as_root.links()
    }  # type: ignore[arg-type]
    assert set(shown) == {("cloud", "edge", 2), ("edge", "cloud", 1)}


def check_privileges(emulation: Emulation) -> None:
    """Require a command to have the network's capabilities, no others, and few variables."""
    emulation.runner.environment.update(SECRET="x", LC_TIME="C")
    python = emulation.runner.command[0]
    said = emulation.ssh("edge.trainer.1.1", python, "-c", PRIVILEGES)
    assert said.split() == ["True", "False", "-1", "0", "0", "None", "C"]
    # A reader that ends early ends the command, as in a shell.
    shell = ("/bin/sh", "-c", "kill -PIPE $$")
    emulation.ssh("edge.trainer.1.1", *shell, status=128 + signal.SIGPIPE)


@needs_tun
def test_privileges_of_programs(as_root: Emulation) -> None:
    check_privileges(as_root)


@pytest.mark.long
def test_an_ordinary_user_has_it_too(nobody_with_tun: Runner) -> None:
    """And what runs in it ends with it when its time is over."""
    with emulated(nobody_with_tun, "--for", "60s") as emulation:
        assert emulation.ssh("edge.trainer.1.2", "hostname").strip() == "edge.trainer.1.2"
        assert round_trip_ms(emulation, "edge.trainer.1.2") >= 50.0
        check_privileges(emulation)
        command, inside = start_sleep(emulation, "edge.trainer.1.1")
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
        check_ended(command, inside)


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
    assert float(str(delayed["rtt_ms"])) >= 50.0
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
    deadline = time.monotonic() + 240
    with suppress(OSError):  # the end of a terminal whose last process has gone
        while time.monotonic() < deadline and select.select([terminal], [], [], PATIENCE_S)[0]:
            said += os.read(terminal, 4096)
    _, status = os.waitpid(pid, 0)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(status) == 5, said
    assert b"\redge.trainer.1.1\r\n" in said
    assert b"Running" in said
    assert b"no job control" not in said


def test_without_an_emulation_the_commands_say_so(own_runner: Runner) -> None:
    runs = ("--runs", str(own_runner.folder / "runs"))
    for command in (("ssh", *runs, "edge.*"), ("links", *runs)):
        done = own_runner.run(COMMAND, *command)
        assert done.returncode == 2
        assert "laggard emulate" in done.stderr


@needs_tun
def test_whatever_runs_in_it_ends_with_it(as_root: Emulation) -> None:
    """The last test of the emulation that the others share: it kills it."""
    command, inside = start_sleep(as_root, "edge.trainer.1.1")
    for pid in inside:
        assert len(psutil.Process(pid).cpu_affinity()) == 1, "on its host's core"
    as_root.process.kill()
    check_ended(command, inside)
