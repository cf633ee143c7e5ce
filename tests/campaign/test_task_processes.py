"""Processes that compute cells: one dies, the campaign dies, somebody else connects."""

from __future__ import annotations

import getpass
import json
import os
import pwd
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest

import laggard
from laggard.analysis.evaluate.trace_grid import build_trace_grid, evaluate_trace
from laggard.campaign.campaign_state import Row
from laggard.campaign.cells import Cell
from laggard.campaign.progress import CampaignProgress
from laggard.campaign.run_campaign import CampaignOptions, run_campaign
from laggard.campaign.tasks import task_loop
from laggard.campaign.tasks.evaluate_task import summarize_judgments
from laggard.campaign.tasks.pools import LocalPool
from laggard.campaign.tasks.remote_pools import OarPool, SshPool
from laggard.layers_services.machine import Access
from tests.campaign.campaign_folders import SilentDisplay
from tests.campaign.test_tasks import CELLS, read_rows, run
from tests.processes import find_below, is_alive

pytestmark = pytest.mark.long

SSHD = "/usr/sbin/sshd"


def list_workers(parent: psutil.Process) -> list[psutil.Process]:
    """The processes of a campaign that compute."""
    return find_below(parent, lambda each: any("spawn_main" in word for word in each.cmdline()))


class KillingDisplay(SilentDisplay):
    """A display that kills a worker process when the third cell has ended."""

    killed: int = 0

    def show_row(self, cell: Cell, row: Row, progress: CampaignProgress) -> None:
        super().show_row(cell, row, progress)
        if len(self.rows) == 3:
            self.killed = list_workers(psutil.Process())[0].pid
            os.kill(self.killed, signal.SIGKILL)


def test_a_killed_worker_costs_nothing(tmp_path: Path) -> None:
    """Twenty cells in two processes give what one process gives, although one of them dies."""
    (tmp_path / "many.yaml").write_text(CELLS)
    display = KillingDisplay()
    options = CampaignOptions(tmp_path / "runs", choose_pool=lambda: LocalPool(2))
    result = run_campaign(tmp_path / "many.yaml", options, display)
    assert display.killed
    rows = read_rows(result.table)
    assert sorted(int(row["case"]) for row in rows) == list(range(20))
    assert {row["status"] for row in rows} == {"done"}
    cases = build_trace_grid(1)
    for row in rows:
        expected = summarize_judgments([evaluate_trace(cases[int(row["case"])])])
        assert {name: row[name] for name in expected} == {
            name: "" if value is None else str(value) for name, value in expected.items()
        }
    assert list_workers(psutil.Process()) == []


def die(_command: str, values: Mapping[str, object], _folder: str) -> Mapping[str, object]:
    """Kill the process for case 1, and be done for every other one."""
    if values["case"] == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return {"status": "done"}


def test_a_cell_that_kills_its_processes_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It fails alone, and says why."""
    monkeypatch.setattr(task_loop, "run_task", die)
    result, _ = run(tmp_path, CELLS.replace("0-19", "0-5"), lambda: LocalPool(2))
    rows = {int(row["case"]): row for row in read_rows(result.table)}
    assert [rows[n]["status"] for n in range(6)] == ["done", "failed", *["done"] * 4]
    assert "died 3 times" in rows[1]["reason"]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_campaign_that_ended_goes_on(tmp_path: Path, number: signal.Signals) -> None:
    """No process is left behind, and the next call computes what is left, once."""
    (tmp_path / "many.yaml").write_text(CELLS)
    command = [sys.executable, "-m", "laggard", "campaign", str(tmp_path / "many.yaml"), "--json"]
    command += ["--runs", str(tmp_path / "runs"), "--processes", "2"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        done = 0
        while done < 3:
            done += json.loads(process.stdout.readline())["event"] == "row"
        workers = list_workers(psutil.Process(process.pid))
        assert len(workers) == 2
        process.send_signal(number)
    assert process.returncode == (130 if number is signal.SIGINT else -9)
    assert psutil.wait_procs(workers, timeout=120)[1] == []
    finished = subprocess.run(command, check=True, capture_output=True, text=True)
    events = [json.loads(line) for line in finished.stdout.splitlines()]
    assert len([each for each in events if each["event"] == "row"]) <= 17
    rows = read_rows(Path(events[-1]["table"]))
    assert sorted(int(row["case"]) for row in rows) == list(range(20))
    assert {row["status"] for row in rows} == {"done"}


def test_a_stranger_cannot_connect() -> None:
    """Scheduler and workers listen on this machine only, and want a certificate of the pool."""
    with LocalPool(1).open_client() as client:
        addresses = [client.scheduler.address, *client.scheduler_info()["workers"]]
        for address in addresses:
            where = urlsplit(address)
            assert (where.scheme, where.hostname) == ("tls", "127.0.0.1")
            assert where.port is not None
            with socket.create_connection(("127.0.0.1", where.port), 30) as plain:
                plain.sendall(b"\0" * 64)
                assert is_closed(plain)
            context = ssl.create_default_context()
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
            # TLS 1.3 reports a refused certificate at the first read.
            with (
                socket.create_connection(("127.0.0.1", where.port), 30) as plain,
                pytest.raises(ssl.SSLError),
                context.wrap_socket(plain) as encrypted,
            ):
                encrypted.recv(1)
        listening = [
            connection.laddr.ip
            for process in (psutil.Process(), *list_workers(psutil.Process()))
            for connection in process.net_connections()
            if connection.status == psutil.CONN_LISTEN
        ]
        assert set(listening) == {"127.0.0.1"}
        assert client.run(os.getenv, "OMP_NUM_THREADS") == {addresses[1]: "1"}


@pytest.mark.skipif(not Path(SSHD).exists(), reason="needs an SSH server")
def test_machines_over_ssh_compute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An SSH server of this machine stands for two machines; no certificate is left there."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    for name in ("host", "id"):
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / name)]
        subprocess.run(command, check=True)
    (tmp_path / "home/.ssh").mkdir(parents=True)
    host_key = (tmp_path / "host.pub").read_text()
    (tmp_path / "home/.ssh/known_hosts").write_text(f"[127.0.0.1]:{port} {host_key}")
    (tmp_path / "sshd_config").write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {tmp_path}/host\nStrictModes no\n"
        f"AuthorizedKeysFile {tmp_path}/id.pub\nUsePAM no\nPidFile none\n"
        f"SetEnv PYTHONPATH={Path(laggard.__file__).parents[1]}\n"
    )
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)
    machine = Access("127.0.0.1", getpass.getuser(), port, tmp_path / "id")
    command = [SSHD, "-D", "-e", "-f", str(tmp_path / "sshd_config")]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server_process:
        assert server_process.stderr is not None
        assert "listening" in server_process.stderr.readline()
        try:
            text = CELLS.replace("0-19", "0-5")
            result, _ = run(tmp_path, text, lambda: SshPool((machine, machine), 1))
        finally:
            server_process.terminate()
    assert result.progress.done == 6
    home = Path(pwd.getpwuid(os.geteuid()).pw_dir)
    assert list(home.glob(".laggard-*.pem")) == []


def is_running(pid: int) -> bool:
    try:
        return is_alive(psutil.Process(pid))
    except psutil.NoSuchProcess:
        return False


OARSUB = """#!/bin/bash
# Stand-in for OAR's oarsub: it keeps the options and starts the job, the last argument, at once.
printf '%s\\n' "${*:1:$#-1}" >> "$JOBS/submitted"
setsid bash -c "${!#}" > "$JOBS/output.$$" 2>&1 &
echo "OAR_JOB_ID=$!"
"""
OARDEL = """#!/bin/bash
echo "$1" >> "$JOBS/deleted"
kill -- "-$1"
"""


def test_jobs_of_oar_compute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every job is submitted with its options, computes, and is deleted at the end."""
    commands, jobs, shared = (tmp_path / name for name in ("bin", "jobs", "shared"))
    for folder in (commands, jobs, shared):
        folder.mkdir()
    for name, text in {"oarsub": OARSUB, "oardel": OARDEL}.items():
        (commands / name).write_text(text)
        (commands / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{commands}:{os.environ['PATH']}")
    monkeypatch.setenv("JOBS", str(jobs))
    monkeypatch.setenv("PYTHONPATH", str(Path(laggard.__file__).parents[1]))
    pool = OarPool(2, shared, "02:00:00", "default", "me", ("besteffort",))
    result, _ = run(tmp_path, CELLS.replace("0-19", "0-5"), lambda: pool)
    assert result.progress.done == 6
    submitted = (jobs / "submitted").read_text().splitlines()
    assert len(submitted) == 2
    for options in submitted:
        assert "-q default --project me -l /nodes=1/core=1,walltime=02:00:00" in options
        assert "-t besteffort" in options
    deleted = (jobs / "deleted").read_text().split()
    assert len(deleted) == 2
    give_up_s = time.monotonic() + 60
    while any(is_running(int(job)) for job in deleted):
        assert time.monotonic() < give_up_s
        time.sleep(0.05)
    assert list(shared.iterdir()) == []


def is_closed(connection: socket.socket) -> bool:
    """Whether the other end gives nothing but a TLS alert and closes the connection."""
    received = b""
    try:
        while data := connection.recv(4096):
            received += data
    except ConnectionResetError:
        pass
    return received == b"" or received[0] == 21
