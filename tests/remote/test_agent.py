"""The agent on a node, as a process with its line: what it takes for a controller that has gone,
and what it holds its worker to."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

import psutil
import pytest

from laggard.core.emulated_drive import Drive, DriveLimits
from laggard.core.hosts import Host
from laggard.remote.agent.messages import AgentPlan, AgentRequest, NodeSample, format_line
from laggard.remote.agent.request_handlers import build_manifest, end_agent
from laggard.workloads.plan import ENVIRONMENT, LinkSamplerPlan, plan_evaluator, plan_workers
from laggard.workloads.workload import Workload
from tests.faults import Fault, holds
from tests.processes import find_below, is_alive

HOST = "edge.trainer.1.1"
ADDRESS = "127.0.0.1"
LEASE_S = 0.5
"""Shorter than importing torch takes."""

MEMORY_BYTES = 64 << 20
"""Less than any worker holds."""

WORKLOAD = {
    "model": "mlp",
    "dataset": "digits",
    "batch_size": 64,
    "placement": {"workers": ["edge.*"]},
    "stop": {"steps": 10},
}


class Agent:
    """A running agent, and its line."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._stdin, self.said = process.stdin, process.stdout
        self._number = 0

    def ask(self, operation: str, argument: Mapping[str, Any] | None = None) -> Any:
        self._number += 1
        self._stdin.write(
            f"{format_line(AgentRequest(number=self._number, operation=operation, argument=dict(argument or {})))}\n"
        )
        self._stdin.flush()
        answer = self.until("reply")
        assert (answer["number"], answer["error"]) == (self._number, "")
        return answer["result"]

    def until(self, kind: str) -> dict[str, Any]:
        return _until(self.said, kind)


@contextmanager
def agent(plan: AgentPlan) -> Iterator[Agent]:
    environment = {**os.environ, **ENVIRONMENT}
    command = [sys.executable, "-m", "laggard.remote.agent.main"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True
    ) as process:
        assert process.stdin is not None
        process.stdin.write(f"{format_line(plan)}\n")
        process.stdin.flush()
        yield Agent(process)
        process.stdin.close()


def agent_plan(folder: Path, **settings: Any) -> AgentPlan:
    return AgentPlan(
        host=HOST,
        address=ADDRESS,
        folder=str(folder),
        sampler=LinkSamplerPlan(output_dir=str(folder / "workers"), interval_s=0.2, hosts=()),
        core=0,
        reference_address=ADDRESS,
        **{"workers": (), "evaluator": None, "share": None, **settings},
    )


@pytest.mark.long
def test_what_takes_longer_than_the_lease_is_no_silence(tmp_path: Path) -> None:
    """On a slow node imports take minutes; the lines that came meanwhile wait unread. Only then
    does silence count."""
    with agent(agent_plan(tmp_path / "run", lease_s=LEASE_S)) as node:
        assert float(node.ask("wait_imports")) > LEASE_S, "the imports did take longer"
        node.ask("finalize_clock")  # it is still there
        assert f"no message from the controller for {LEASE_S:g} s" in str(
            node.until("agent_failed")["error"]
        )


def test_no_process_is_left_when_files_are_listed(tmp_path: Path) -> None:
    """A file that grows meanwhile could not be fetched."""
    host = Host(HOST, "edge", "trainer", 1, 1, ADDRESS)
    folder = tmp_path / "run"
    workers = plan_workers(
        Workload.model_validate(WORKLOAD),
        [host],
        folder / "workers",
        init_method=f"file://{tmp_path}/meeting",
        interface="lo",
    )
    with agent(agent_plan(folder, workers=workers, evaluator=plan_evaluator(workers))) as node:
        pid = node.until("agent_started")["pid"]
        node.ask("wait_imports")
        node.ask("start_processes")
        node.until("rank_ready")
        names = {"rank-0", f"sampler-{HOST}"[:15]}
        # A process takes its name some time after it was forked.
        while len(_find_named(pid, names)) < len(names):
            time.sleep(0.05)
        node.ask("finalize_clock")
        assert not _find_named(pid, names)
        assert "workers/rank-0.steps.arrow" in node.ask("manifest")


def _find_named(pid: int, names: set[str]) -> list[psutil.Process]:
    return find_below(
        psutil.Process(pid), lambda each: is_alive(each) and each.name()[:15] in names
    )


@holds(Fault.AGENT_STOPPED)
def test_a_stopped_agent_is_ended_and_its_changes_are_undone(tmp_path: Path) -> None:
    undone = tmp_path / "undone"
    with agent(agent_plan(tmp_path / "run")) as node:
        pid = node.until("agent_started")["pid"]
        node.ask("undo_at_end", {"words": ["touch", str(undone)]})
        os.kill(pid, signal.SIGSTOP)
        assert not undone.exists()
        end_agent(tmp_path / "run")
        assert undone.exists()
        assert node.said.read() == ""
    end_agent(tmp_path / "run")  # it does nothing without an agent


@pytest.mark.long
def test_a_worker_is_held_to_its_drive_and_memory_and_its_node_is_sampled(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    host = Host(HOST, "edge", "trainer", 1, 1, ADDRESS)
    drives = {HOST: folder / "drives" / HOST}
    workload = Workload.model_validate(WORKLOAD)
    workers = plan_workers(
        workload,
        [host],
        folder / "workers",
        init_method=f"file://{tmp_path}/meeting",
        interface="lo",
        drives=drives,
    )
    plan = agent_plan(
        folder,
        workers=workers,
        evaluator=plan_evaluator(workers),
        share=0.5,
        drive=DriveLimits(read_mb_per_s=2.0, write_latency_ms=3.0),
        memory_bytes=MEMORY_BYTES,
    )
    with agent(plan) as node:
        node.ask("wait_imports")
        checks = {check["unit"]: check for check in node.ask("verify_drive")}
        assert {unit: check["requested"] for unit, check in checks.items()} == {
            "MB/s": 2.0,
            "ms": 3.0,
        }
        assert 0 < checks["MB/s"]["measured"] <= 2.01, "never faster than requested"
        assert checks["ms"]["measured"] >= 3.0, "nor sooner"
        before_ns = time.monotonic_ns()
        effective_ns = node.ask("set_drive", asdict(DriveLimits(read_mb_per_s=50.0)))
        assert before_ns <= effective_ns <= time.monotonic_ns()
        with Drive(drives[HOST]) as drive:
            began_s = time.monotonic()
            drive.transfer("read", 2_000_000)
            assert time.monotonic() - began_s >= 0.04
        assert {check["kind"] for check in node.ask("apply_shares")} == {"cpu"}
        node.ask("start_processes")
        told = node.until("memory_exceeded")
        assert told["rank"] == 0
        assert f"but {HOST} has only {MEMORY_BYTES >> 20} MiB of memory" in told["text"]
        usage = node.ask("usage")
        assert usage["peak_bytes"] > MEMORY_BYTES
        assert usage["drive"]["read_bytes"] >= 2_000_000
        node.ask("begin_training")
        sample, later = (NodeSample.model_validate(node.until("node_sample")) for _ in range(2))
        assert sample.at_ns < later.at_ns
        assert later.at_ns <= time.monotonic_ns()
        assert later.use is not None
        assert later.use.due_ns > 0, "a worker of half a core imports and computes"
        assert (later.share, later.reference_ns) == (0.5, later.at_ns)
        assert all("drives" not in path for path in node.ask("manifest"))


def test_shared_memory_and_snapshots_do_not_travel_home(tmp_path: Path) -> None:
    kept = ["rank-0.spans.arrow", "evaluations.jsonl", "done.json", "traffic-0", "checkpoint.pt"]
    passing = [
        "heartbeat",
        "start_barrier",
        "progress_board",
        "snapshot-3.pt",
        "snapshot-4.rank-1",
        ".snapshot-4.rank-1.coming",
    ]
    (tmp_path / "workers" / "data").mkdir(parents=True)
    for name in (*kept, *passing, "data/train"):
        (tmp_path / "workers" / name).touch()
    assert set(build_manifest(tmp_path)) == {f"workers/{name}" for name in kept}


def _until(said: IO[str], kind: str) -> dict[str, object]:
    """The next message of a kind; before it, none of a failure."""
    for line in said:
        message: dict[str, object] = json.loads(line)
        if message["kind"] in (kind, "agent_failed"):
            assert message["kind"] == kind, message
            return message
    raise AssertionError(f"the agent ended without {kind}")
