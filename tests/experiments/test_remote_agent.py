"""The agent on a node, as a process with its line: what it takes for a controller that has gone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from laggard.experiments.remote.messages import AgentPlan, Request, line_of
from laggard.workloads.plan import ENVIRONMENT, LinkSamplerPlan

ADDRESS = "127.0.0.1"
LEASE_S = 0.3
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
        said = [json.loads(line) for line in agent.stdout]
    answer = next(each for each in said if each["kind"] == "answer")
    assert (answer["number"], answer["error"]) == (7, "")
    assert float(answer["result"]) > LEASE_S, "the imports did take longer"
    assert said[-1]["kind"] == "failed"
    assert "the controller was silent for 0.3 s" in said[-1]["error"]
