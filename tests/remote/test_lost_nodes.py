"""An agent is killed or stops, or its node vanishes, while machines with real SSH servers train."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from tests.faults import Fault, holds
from tests.remote.remote_scenario import run_script
from tests.testbed.nodes import lacking
from tests.users import Runner

pytestmark = [
    pytest.mark.skipif(lacking() is not None, reason=str(lacking())),
    pytest.mark.remote,
]

SCRIPT = """
    def play():
        with ssh_machines(environment=install_once(wheels)) as (nodes, names, options, on):
            def left(name):
                # What a run leaves on a node, once its agent had time to end.
                until = time.monotonic() + 90
                while (seen := look(name))["processes"] and time.monotonic() < until:
                    time.sleep(0.2)
                return seen

            def look(name):
                shaped = on(name, "tc", "qdisc", "show") + on(name, "tc", "filter", "show", "dev", "eth0", "ingress")
                return {
                    "shaped": shaped + on(name, "ip", "-o", "link", "show"),
                    "processes": on(name, "ps", "-eo", "stat,comm,args", "--no-headers", "|", "grep", "-E", "'laggard.remote|laggard-janitor|laggard-fork|rank-|sampler'", "|", "grep", "-v", "grep"),
                }

            long = ("workload.stop={steps: 100000, time: 90s}", "heterogeneity.dynamic=[]")
            agent = "laggard.remote.agent.main"
            strikes = {
                "killed": lambda: on(names[1], "pkill", "-9", "-o", "-f", f"'python.*{agent}'"),
                "stopped": lambda: on(names[1], "pkill", "-STOP", "-o", "-f", f"'python.*{agent}'"),
                "vanished": lambda: nodes.crash(names[1]),
            }
            found = {}
            for strike in STRIKES:
                found[strike] = {"run": run(options, *long, strike=strikes[strike])}
                there = [name for name in names if strike != "vanished" or name != names[1]]
                found[strike]["left"] = {name: left(name) for name in there}
            return found

    inside(play)
"""


@holds(Fault.NODE_LOST, Fault.AGENT_STOPPED)
@pytest.mark.timeout(1200)
def test_a_lost_agent_costs_its_own_node_alone(own_runner: Runner) -> None:
    script = SCRIPT.replace("STRIKES", repr(["killed", "stopped", "vanished"]))
    found = run_script(own_runner, script, timeout_s=1100)
    _is_collected(found["killed"], "the connection to its agent was closed", {0, 1, 2})
    _is_collected(found["stopped"], "no message for", {0, 1, 2})
    _is_collected(found["vanished"], "edge.trainer.1.1", {0, 2})


def _is_collected(found: dict[str, Any], reason: str, ranks: set[int]) -> None:
    """The run names the node and has the data of the ranks, and nothing runs on the nodes."""
    run = found["run"]
    assert run["status"] == "failed"
    assert "edge.trainer.1.1" in run["error"]
    assert reason in run["error"]
    folder = Path(run["folder"])
    assert (folder / "answer.json").exists()
    steps = pd.read_parquet(folder / "steps.parquet")
    assert set(steps["rank"]) == ranks
    for name, left in found["left"].items():
        assert left["processes"] == "", name
        assert not re.search("htb|tbf|ingress|filter|laggard", left["shaped"]), name
