"""The agent on a node, as a process with its line: what it takes for a controller that has gone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import IO

from laggard.experiments.remote.messages import AgentPlan, Request, line_of
from laggard.workloads.plan import ENVIRONMENT, LinkSamplerPlan

ADDRESS = "127.0.0.1"
LEASE_S = 0.5
"""Shorter than importing torch takes."""


def test_what_takes_longer_than_the_lease_is_no_silence(tmp_path: Path) -> None:
    """On a slow node imports take minutes; the lines that came meanwhile wait unread. Only then does silence count."""
    folder = tmp_path / "run"
    plan = AgentPlan(
        host="edge.trainer.1.1",
        address=ADDRESS,
        folder=str(folder),
        workers=(),
        evaluator=None,
        sampler=LinkSamplerPlan(spool=str(folder / "spool"), interval_s=0.2, hosts=()),
        share=None,
        core=0,
        reference=ADDRESS,
        lease_s=LEASE_S,
    )
    environment = {**os.environ, **ENVIRONMENT}
    command = [sys.executable, "-m", "laggard.experiments.remote.agent"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True) as agent:
        assert agent.stdin is not None
        assert agent.stdout is not None
        agent.stdin.write(f"{line_of(plan)}\n{line_of(Request(number=7, do='wait_imports'))}\n")
        agent.stdin.flush()
        imported = _until(agent.stdout, "answer")
        assert (imported["number"], imported["error"]) == (7, "")
        assert float(str(imported["result"])) > LEASE_S, "the imports did take longer"
        agent.stdin.write(f"{line_of(Request(number=8, do='conclude'))}\n")
        agent.stdin.flush()
        assert _until(agent.stdout, "answer")["number"] == 8, "it is still there"
        assert f"the controller was silent for {LEASE_S:g} s" in str(_until(agent.stdout, "failed")["error"])


def _until(said: IO[str], kind: str) -> dict[str, object]:
    """The next message of a kind; before it, none of a failure."""
    for line in said:
        message: dict[str, object] = json.loads(line)
        if message["kind"] in (kind, "failed"):
            assert message["kind"] == kind, message
            return message
    raise AssertionError(f"the agent ended without {kind}")
