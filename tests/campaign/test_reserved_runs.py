"""Cells on a stand-in Grid'5000: one reservation for both, no state between them, and nothing left
of a campaign that was killed."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.command_line import UNFAITHFUL
from tests.remote.remote_scenario import run_script
from tests.testbed.nodes import lacking
from tests.users import Runner

pytestmark = [
    pytest.mark.skipif(lacking() is not None, reason=str(lacking())),
    pytest.mark.remote,
    pytest.mark.long,
    pytest.mark.timeout(1200),
]

SCRIPT = """
    def play():
        from tests.testbed.stand_in import stand_in
        with stand_in(here / "n", {"gemini": 2, "parasilo": 3}, environment=install_once(wheels)) as grid:
            enter_account(grid)
            import enoslib
            enoslib.set_config(g5k_auto_jump=False)
            from dataclasses import dataclass
            from laggard.campaign.cell_runners.reserved_cells import SharedMachines, reserve_cells
            from laggard.campaign.run_subprocess import SubprocessRun
            from laggard.remote.testbeds.g5k import G5kTestbed
            from laggard.scenario.load import load_scenario

            runs = here / "runs"
            folder = runs / "campaigns" / "night"
            folder.mkdir(parents=True)
            sizes = {"small": ("layers_services.layers.1.services.0.quantity=1",), "large": ()}
            jobs, left = [], []

            def on(name, command):
                words = ["ssh", "-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", f"root@{name}"]
                done = subprocess.run([*words, command], capture_output=True, text=True)
                assert done.returncode == 0, done.stderr
                return done.stdout

            def look(name):
                shaped = "tc qdisc show; tc filter show dev eth0 ingress 2>/dev/null; ip -o link show"
                return [on(name, shaped), on(name, "ls -A /var/tmp/laggard-root/runs; pgrep -f '[l]aggard.remote' || true")]

            @dataclass(frozen=True)
            class Cell:
                setup_digest: str

            @dataclass(frozen=True)
            class Runner:
                options: tuple

                def run(self, cell, token):
                    command = [sys.executable, "-c", CLI, "run", str(scenario_folder), "--json", "--runs", str(runs)]
                    sets = [word for each in sizes[cell.setup_digest] for word in ("--set", each)]
                    done = subprocess.run([*command, *self.options, *sets], capture_output=True, text=True, cwd=here)
                    jobs.append(sorted([job.site, job.uid] for job in grid.held_jobs()))
                    assert done.stdout, done.stderr
                    result = json.loads(done.stdout)
                    # Root's account is open on the nodes that a cell has used.
                    left.append({host["machine"]: look(host["machine"]) for host in result["hosts"]})
                    return SubprocessRun(done.returncode, result, done.stderr)

            scenarios = {key: load_scenario(scenario_folder, words) for key, words in sizes.items()}
            given = ("--on=g5k", "--fidelity=record", "--no-report")
            machines = SharedMachines(G5kTestbed(), scenarios, folder, given)
            found = {"cells": []}
            with reserve_cells(machines, Runner) as runner:
                for key in ("small", "large"):
                    done = runner.run(Cell(key), key)
                    found["cells"].append({"status": done.status, "result": done.result, "error": done.errors[-2000:]})
            found |= {"jobs": jobs, "left": left, "after": len(grid.held_jobs())}
            submissions = [call for call in grid.calls() if call.method == "POST" and call.path.endswith("/jobs")]
            found["submissions"] = sorted(call.path for call in submissions)

            # A child is killed while it holds the nodes; `laggard destroy` releases them.
            child = os.fork()
            if child == 0:
                with reserve_cells(machines, Runner) as runner:
                    runner._reserve()
                    (here / "held").touch()
                    time.sleep(600)
            while not (here / "held").exists():
                time.sleep(0.05)
            os.kill(child, 9)
            os.waitpid(child, 0)
            found["killed"] = len(grid.held_jobs())
            done = subprocess.run([sys.executable, "-c", CLI, "destroy", "night", "--runs", str(runs)],
                                  capture_output=True, text=True, cwd=here)
            found["destroy"] = [done.returncode, done.stdout + done.stderr]
            found["destroyed"] = len(grid.held_jobs())
            return found

    inside(play)
"""


def test_cells_share_a_reservation_and_leave_nothing(own_runner: Runner) -> None:
    found = run_script(own_runner, SCRIPT, timeout_s=900)
    records = [cell["result"] for cell in found["cells"]]
    assert all(cell["status"] in {0, UNFAITHFUL} for cell in found["cells"]), found["cells"]
    assert found["submissions"] == ["/sites/lyon/jobs", "/sites/rennes/jobs"], "one job per site"
    first, second = found["jobs"]
    assert first == second
    assert [site for site, _ in first] == ["lyon", "rennes"]
    assert found["after"] == 0
    assert [len(record["hosts"]) for record in records] == [2, 3]
    assert len({record["folder"] for record in records}) == 2
    for record in records:
        assert record["jobs"] == [], "the jobs belong to the campaign"
        assert record["fidelity"], "every cell is verified"
        assert (Path(record["folder"]) / "answer.json").exists()
    for after_cell in found["left"]:
        for shaped, remains in after_cell.values():
            assert not re.search("htb|tbf|netem|ingress|filter|laggard", shaped)
            assert remains == ""
    assert found["killed"] == 2
    assert found["destroy"][0] == 0, found["destroy"]
    assert json.dumps(found["destroy"][1]).count("released job") == 2
    assert found["destroyed"] == 0
