"""`--on g5k`, end to end against the stand-in: the command line as a user starts it, two sites,
every node given back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.command_line import UNFAITHFUL
from tests.faults import Fault, holds
from tests.remote.remote_scenario import run_script
from tests.testbed.nodes import lacking
from tests.testbed.rest_api import power_watts
from tests.users import Runner

pytestmark = [
    pytest.mark.skipif(lacking() is not None, reason=str(lacking())),
    pytest.mark.remote,
]

SCRIPT = """
    import signal
    import psutil

    def play():
        from tests.testbed.faults import Fault
        from tests.testbed.stand_in import stand_in
        with stand_in(here / "n", {"gemini": 2, "parasilo": 3}, environment=install_once(wheels)) as grid:
            home = enter_account(grid)
            command = [sys.executable, "-c", CLI, "--runs", str(here / "runs")]

            def laggard(*words):
                done = subprocess.run([*command[:3], *words, *command[3:]], capture_output=True, text=True, cwd=here)
                return {"status": done.returncode, "said": done.stdout, "error": done.stderr}

            def start(*words):
                return subprocess.Popen([*command[:3], *words, *command[3:]], cwd=here, stdout=subprocess.DEVNULL)

            def records():
                paths = sorted((here / "runs" / "small").glob("2*/run.json"))
                return [json.loads(path.read_text()) for path in paths]

            def until(condition, seconds):
                ends = time.monotonic() + seconds
                while not condition():
                    assert time.monotonic() < ends, records()
                    time.sleep(0.05)

            def left():
                return [[held.site, held.uid] for held in grid.held_jobs()]

            def stand_still(seconds):
                # Stop whatever runs on the nodes, agents and ranks, and let it go on.
                agents = "laggard.remote.agent.main"
                running = psutil.process_iter(["cmdline"])
                there = [each for each in running if agents in (each.info["cmdline"] or ())]
                for number in (signal.SIGSTOP, signal.SIGCONT):
                    for each in there:
                        each.send_signal(number)
                    if number == signal.SIGSTOP:
                        time.sleep(seconds)

            run = ("run", str(scenario_folder), "--on", "g5k", "--fidelity", "record", "--no-report")
            found = {"whole": laggard(*run, "--json"), "calls": len(grid.calls()), "whole left": left()}

            long = (*run, "--set", "workload.stop={steps: 100000, time: 90s}")
            ended = start(*long)
            until(lambda: len(list((here / "runs" / "small").glob("2*/run.json"))) == 2, 30)
            until(lambda: records()[1].get("first_step_s"), 200)
            grid.crash("parasilo-1.rennes.grid5000.fr")
            found["crashed status"] = ended.wait(120)
            found["crashed"], found["crashed left"] = records()[1], left()

            told = start(*long)
            until(lambda: len(list((here / "runs" / "small").glob("2*/run.json"))) == 3, 30)
            until(lambda: records()[2].get("first_step_s"), 200)
            told.terminate()
            told.wait(120)
            found["told"], found["told left"] = records()[2], left()

            killed = start(*long)
            until(lambda: len(list((here / "runs" / "small").glob("2*/run.json"))) == 4, 30)
            until(lambda: any(job["job_id"] for job in records()[3]["jobs"]), 60)
            killed.kill()
            killed.wait()
            found["killed left"] = left()
            found["runs"] = laggard("runs")
            found["destroy"] = laggard("destroy")
            found["destroyed left"] = left()
            found["runs after"] = laggard("runs")
            found["nothing to destroy"] = laggard("destroy")

            from grid5000 import Grid5000
            testbed = Grid5000.from_yaml(str(home / ".python-grid5000.yaml"))
            mine = [
                testbed.sites[site].jobs.create({
                    "name": "mine", "resources": f"{{cluster='{cluster}'}}/nodes={nodes},walltime=0:2:15",
                    "command": "sleep 1d", "types": types,
                })
                for site, cluster, nodes, types in (("lyon", "gemini", 1, ["exotic"]), ("rennes", "parasilo", 2, []))
            ]
            until(lambda: len(grid.held_jobs()) == 2, 30)
            jobs = [word for job in mine for word in ("--job", f"{job.site}:{job.uid}")]
            words = (*run, *jobs, "--set", "workload.stop={steps: 100000}", "--json")
            whole = [*command[:3], *words, *command[3:]]
            process = subprocess.Popen(whole, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=here)
            until(lambda: len(records()) == 5 and records()[4].get("first_step_s"), 200)
            stand_still(3.0)
            said, errors = process.communicate(timeout=300)
            found["in my job"] = {"status": process.returncode, "said": said, "error": errors}
            found["in my job left"] = left()
            found["on record"] = [record["status"] for record in records()]
            return found

    inside(play)
"""


@holds(Fault.NODE_LOST)
def test_every_node_is_given_back(own_runner: Runner) -> None:
    found = run_script(own_runner, SCRIPT, timeout_s=900)
    _a_whole_run(found)
    assert found["crashed status"] == 1
    assert found["crashed"]["status"] == "failed"
    assert "edge.trainer.1." in found["crashed"]["error"]
    assert found["crashed left"] == []
    assert found["told"]["status"] == "interrupted"
    assert found["told left"] == []
    assert found["killed left"], "a killed run holds its nodes"
    assert "interrupted" in found["runs"]["said"]
    assert "laggard destroy" in found["runs"]["said"]
    assert found["destroy"]["status"] == 0
    assert "released job" in found["destroy"]["said"]
    assert found["destroyed left"] == []
    assert "holds" not in found["runs after"]["said"]
    assert "no testbed holds any nodes" in found["nothing to destroy"]["said"]
    _a_run_in_a_reservation(found)
    done, failed, told, _, unfaithful = found["on record"]
    assert done in {"done", "unfaithful"}
    assert (failed, told, unfaithful) == ("failed", "interrupted", "unfaithful"), (
        "records stay as they are"
    )


def _a_whole_run(found: dict[str, object]) -> None:
    whole = found["whole"]
    assert isinstance(whole, dict)
    assert whole["status"] in {0, UNFAITHFUL}, whole
    record = json.loads(whole["said"])
    assert record["status"] in {"done", "unfaithful"}
    assert record["testbed"] == "g5k"
    assert {(job["site"], job["released"]) for job in record["jobs"]} == {
        ("lyon", True),
        ("rennes", True),
    }
    assert found["whole left"] == []
    assert found["calls"] < 120
    assert (Path(record["folder"]) / "spans.parquet").exists()
    _drawn(record)
    assert record["fidelity"]


def _drawn(record: dict[str, Any]) -> None:
    """Every node's constant power times one and the same time: the training's, with its
    evaluations."""
    nodes = {host["host"]: str(host["machine"]).partition(".")[0] for host in record["hosts"]}
    seconds = {
        each["host"]: each["joules"] / power_watts(nodes[each["host"]]) for each in record["energy"]
    }
    assert set(seconds) == set(nodes), "both clusters are metered"
    assert max(seconds.values()) == pytest.approx(min(seconds.values()), rel=0.01)
    (trained_s,) = (stage["seconds"] for stage in record["stages"] if stage["name"] == "train")
    assert record["outcome"]["makespan_s"] < min(seconds.values()) < trained_s + 2.0


def _a_run_in_a_reservation(found: dict[str, object]) -> None:
    """It ends before the walltime does, with a checkpoint, and leaves the jobs that it did not
    make. That its nodes stood still is told."""
    said = found["in my job"]
    assert isinstance(said, dict)
    assert said["status"] == UNFAITHFUL, said
    record = json.loads(said["said"])
    assert record["status"] == "unfaithful"
    assert "the emulation left its tolerances while training ran" in record["error"]
    violations = json.loads((Path(record["folder"]) / "fidelity_violations.json").read_text())
    still = {
        violation["where"]: violation
        for violation in violations
        if violation["kind"] == "machine suspended"
    }
    assert set(still) == {host["host"] for host in record["hosts"]}
    assert all(
        violation["size"] > 1.5 and 0 <= violation["first_s"] < violation["last_s"]
        for violation in still.values()
    ), still
    assert record["outcome"]["stopped_by"] == "walltime"
    assert 1 <= record["outcome"]["steps"] < 100_000
    assert (Path(record["folder"]) / "checkpoint.pt").stat().st_size > 10_000
    assert record["jobs"] == []
    left = found["in my job left"]
    assert isinstance(left, list)
    assert {site for site, _ in left} == {"lyon", "rennes"}
