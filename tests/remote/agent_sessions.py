"""Agents' sessions that are queues, and plans of their nodes."""

from __future__ import annotations

import json
from collections import deque
from pathlib import Path
from typing import cast

from laggard.core.hosts import Host
from laggard.layers_services.ssh.remote_processes import OutputLine, RemoteProcesses
from laggard.remote.agent.messages import AgentPlan, AgentReply
from laggard.remote.agent_pool import AgentPool
from laggard.workloads.coordination.barrier_relay import BarrierHub
from laggard.workloads.coordination.progress_relay import ProgressHub
from laggard.workloads.plan import LinkSamplerPlan, plan_evaluator, plan_workers
from laggard.workloads.workload import Workload

HOSTS = ("cloud.trainer.1.1", "edge.trainer.1.1", "edge.trainer.1.2")
"""Host i has rank i; the first one evaluates."""

_WORKLOAD = {
    "model": "mlp",
    "dataset": "digits",
    "batch_size": 64,
    "placement": {"workers": ["*"]},
    "stop": {"steps": 10},
}


class Sessions:
    """Sessions of agents; each replies to every request with the same result."""

    def __init__(self, result: object = None) -> None:
        self.asked: list[str] = []
        self.ended: dict[str, str] = {}
        self.written: list[tuple[str, dict[str, object]]] = []
        self._result = result
        self._lines: deque[OutputLine] = deque()

    def say(self, machine: str, line: bytes | None) -> None:
        """Let a machine write a line, or end."""
        self._lines.append(OutputLine(machine, line))

    def write(self, machine: str, line: str) -> None:
        message = json.loads(line)
        self.written.append((machine, message))
        if message["kind"] == "request":
            self.asked.append(machine)
            reply = {**AgentReply(number=message["number"]).model_dump(), "result": self._result}
            self.say(machine, json.dumps(reply).encode())

    def end(self, machine: str, fault: str) -> None:
        self.ended[machine] = fault

    def poll_events(self, timeout_s: float) -> OutputLine | None:
        return self._lines.popleft() if self._lines else None


def build_plans() -> dict[str, AgentPlan]:
    """Plans of a training with one rank per host."""
    hosts = [
        Host(name, name.partition(".")[0], "trainer", 1, number, f"10.0.0.{number}")
        for number, name in enumerate(HOSTS, 1)
    ]
    folder = Path("/var/tmp/run")
    workload = Workload.model_validate(_WORKLOAD)
    workers = plan_workers(workload, hosts, folder, init_method="tcp://10.0.0.1:1", interface="lo")
    return {
        host.name: AgentPlan(
            host=host.name,
            address=host.address,
            folder=str(folder),
            workers=tuple(worker for worker in workers if worker.host == host.name),
            evaluator=plan_evaluator(workers) if host is hosts[0] else None,
            sampler=LinkSamplerPlan(output_dir=str(folder), interval_s=0.2, hosts=()),
            share=None,
            core=0,
            reference_address=hosts[0].address,
        )
        for host in hosts
    }


def make_pool(sessions: Sessions, logs: Path) -> AgentPool:
    """Agents of all hosts behind the sessions."""
    return AgentPool(
        cast("RemoteProcesses", sessions),
        build_plans(),
        BarrierHub(HOSTS, HOSTS[0]),
        ProgressHub(HOSTS, HOSTS[0]),
        logs,
    )
