"""Requests to several agents at once, over sessions that are queues."""

from __future__ import annotations

import json
from collections import deque
from pathlib import Path
from typing import cast

import pytest

from laggard.layers_services.ssh.remote_processes import OutputLine, RemoteProcesses
from laggard.remote.agent.messages import AgentPlan, AgentReply, format_line
from laggard.remote.agent_pool import AgentPool
from laggard.workloads.coordination.barrier_relay import BarrierHub
from laggard.workloads.coordination.progress_relay import ProgressHub

HOSTS = ("cloud.trainer.1.1", "edge.trainer.1.1", "edge.trainer.1.2")


class Sessions:
    """Sessions of agents that reply to every request with its argument."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self._lines: deque[OutputLine] = deque()

    def write(self, machine: str, line: str) -> None:
        message = json.loads(line)
        if message["kind"] == "request":
            self.asked.append(machine)
            reply = AgentReply(number=message["number"], result=message["argument"])
            self._lines.append(OutputLine(machine, format_line(reply)))

    def poll_events(self, timeout_s: float) -> OutputLine | None:
        return self._lines.popleft() if self._lines else None


@pytest.mark.parametrize(
    ("arguments", "asked"),
    [
        (None, HOSTS),
        ({}, ()),  # `leave` of a run whose data could not be fetched from any node
        ({HOSTS[1]: {}}, HOSTS[1:2]),
        ({host: {"of": host} for host in HOSTS[1:]}, HOSTS[1:]),
    ],
)
def test_only_the_chosen_hosts_are_asked(
    arguments: dict[str, dict[str, str]] | None, asked: tuple[str, ...], tmp_path: Path
) -> None:
    sessions = Sessions()
    plans = cast("dict[str, AgentPlan]", dict.fromkeys(HOSTS))
    hubs = (cast("BarrierHub", None), cast("ProgressHub", None))
    pool = AgentPool(cast("RemoteProcesses", sessions), plans, *hubs, tmp_path)
    results = pool.call_all("leave", cast("dict", arguments))
    assert tuple(sessions.asked) == asked
    assert results == {host: (arguments or {}).get(host, {}) for host in asked}
