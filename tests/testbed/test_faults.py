"""The faults of the stand-in Grid'5000: in what its API answers, and on its nodes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.testbed import nodes
from tests.testbed.api_client import PARASILO, await_state, client, submit
from tests.testbed.faults import Fault
from tests.testbed.scripts import Scripts
from tests.testbed.stand_in import PASSWORD, StandIn

real_nodes = pytest.mark.skipif(nodes.lacking() is not None, reason=str(nodes.lacking()))
HEAD = """
    import os, subprocess, time
    from contextlib import contextmanager
    from pathlib import Path
    from tests.testbed.faults import Fault
    from tests.testbed.stand_in import stand_in
    from tests.testbed.oar import Timing
    from tests.testbed.scripts import in_sandbox

    home = Path.cwd() / "home"

    def ssh(target, command="true"):
        quick = ["-o", "ConnectTimeout=2", "-o", "ServerAliveInterval=1", "-o", "ServerAliveCountMax=2"]
        return subprocess.run(["ssh", *quick, target, command], capture_output=True, text=True)

    @contextmanager
    def borrowed():
        with stand_in(Path.cwd() / "nodes", {"parasilo": 2}, Timing(0.1, 0.1, 0.3, 0.5, 0.1)) as testbed:
            testbed.write_account(home)
            os.environ["HOME"] = str(home)
            yield testbed
"""


@pytest.fixture
def scripts() -> Iterator[Scripts]:
    with Scripts(HEAD) as scripts:
        yield scripts


def refused_with(grid: StandIn, **settings: Any) -> str:
    try:
        client(grid, **settings).sites.list()
    except Exception as error:  # noqa: BLE001 - what comes through the client is the question
        return type(error).__name__
    return "well"


def test_fault_unauthorized(grid: StandIn) -> None:
    assert refused_with(grid, password="wrong") == "Grid5000AuthenticationError"
    assert refused_with(grid) == "well"
    grid.inject(Fault.UNAUTHORIZED)
    assert [refused_with(grid) for _ in range(2)] == ["Grid5000AuthenticationError"] * 2
    grid.clear_faults()
    assert refused_with(grid) == "well"


def test_fault_server_errors(grid: StandIn) -> None:
    grid.inject(Fault.SERVER_ERRORS)
    assert refused_with(grid) == "well"
    assert [call.status for call in grid.calls()] == [500, 500, 500, 200]
    grid.inject(Fault.SERVER_ERRORS, times=1, method="POST")
    with pytest.raises(Exception, match="500: Internal Server Error"):
        submit(grid, "{cluster='parasilo'}/nodes=1")
    assert submit(grid, "{cluster='parasilo'}/nodes=1").state == "waiting"


def test_fault_slow_answers(grid: StandIn) -> None:
    import requests

    grid.inject(Fault.SLOW_ANSWERS, delay_s=30.0)
    with pytest.raises(requests.exceptions.ReadTimeout):
        requests.get(f"{grid.url}/sites", auth=(nodes.USER, PASSWORD), timeout=0.3)
    assert refused_with(grid, timeout=5.0) == "well"


def test_fault_a_job_never_starts(grid: StandIn) -> None:
    grid.inject(Fault.JOB_NEVER_STARTS)
    job = submit(grid, "{cluster='parasilo'}/nodes=1")
    until = time.monotonic() + 1.0
    while time.monotonic() < until:
        job.refresh()
        assert job.state == "waiting"
        assert not hasattr(job, "scheduled_at")
    assert [held.uid for held in grid.held_jobs()] == [job.uid]
    job.delete()
    await_state(job, "error")
    assert grid.held_jobs() == ()


def test_fault_killed_by_walltime(grid: StandIn) -> None:
    job = submit(grid, "{cluster='parasilo'}/nodes=1,walltime=10")
    await_state(job, "running")
    grid.inject(Fault.KILLED_BY_WALLTIME)
    await_state(job, "error")
    assert [event["type"] for event in job.events] == ["WALLTIME"]
    assert grid.held_jobs() == ()


def test_fault_reservation_not_valid(grid: StandIn) -> None:
    grid.inject(Fault.RESERVATION_NOT_VALID)
    with pytest.raises(
        Exception, match=r"400: .*Reservation not valid --> KO \(This reservation could run at 20"
    ):
        submit(grid, "{cluster='parasilo'}/nodes=1")
    assert grid.held_jobs() == ()
    assert submit(grid, "{cluster='parasilo'}/nodes=1").state == "waiting"


def test_fault_a_node_fails_to_deploy(grid: StandIn) -> None:
    job = submit(grid, "{cluster='parasilo'}/nodes=2", types=["deploy"])
    await_state(job, "running")
    grid.inject(Fault.DEPLOYMENT_FAILS, node=PARASILO[1])
    deployments = client(grid).sites["rennes"].deployments
    deployment = deployments.create({"nodes": list(PARASILO), "environment": "debian11-min"})
    while deployment.status == "processing":
        deployment.refresh()
    assert {name: each["state"] for name, each in deployment.result.items()} == {
        PARASILO[0]: "OK",
        PARASILO[1]: "KO",
    }


def test_fault_a_release_fails(grid: StandIn) -> None:
    job = submit(grid, "{cluster='parasilo'}/nodes=1")
    grid.inject(Fault.RELEASE_FAILS)
    for _ in range(2):
        with pytest.raises(Exception, match="503: Server Unavailable"):
            job.delete()
        assert [held.uid for held in grid.held_jobs()] == [job.uid]
    job.delete()
    await_state(job, "error")
    assert grid.held_jobs() == ()


@pytest.mark.long
@real_nodes
def test_faults_of_nodes_are_seen_over_ssh(scripts: Scripts) -> None:
    said = scripts.answer("""
    import grid5000
    one, two = (f"parasilo-{number}.rennes.grid5000.fr" for number in (1, 2))

    def until(job, state):
        while job.state != state:
            time.sleep(0.02)
            job.refresh()

    def said(name, user="jdoe", command="true"):
        got = ssh(f"{user}@{name}", command)
        return got.stdout.strip() or got.stderr.strip().splitlines()[-1][-60:] if got.stdout or got.stderr else "well"

    def look(testbed):
        site = grid5000.Grid5000.from_yaml(str(home / ".python-grid5000.yaml")).sites["rennes"]
        wish = dict(name="faults", command="sleep", resources="{cluster='parasilo'}/nodes=2", types=[])
        before = said(one)
        job = site.jobs.create(wish)
        until(job, "running")
        seen = {"before": before, "running": said(one)}
        ssh(f"jdoe@{one}", "echo mine > ~/mine; sudo-g5k tee -a /root/.ssh/authorized_keys < ~/.ssh/id_rsa.pub")
        seen["root"] = said(one, "root", "cat /home/jdoe/mine; touch /home/jdoe/roots; ls /home/jdoe").split()
        seen["other"] = said(two, "jdoe", "ls")
        ssh(f"jdoe@{one}", "nohup sleep 9876 > /dev/null 2>&1 < /dev/null &")
        testbed.inject(Fault.NODE_SILENT, node=two)
        while "timed out" not in (silent := said(two)):
            pass  # a connection that was open before ends otherwise
        testbed.inject(Fault.KILLED_BY_WALLTIME)
        until(job, "error")
        left = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True).stdout.count("sleep 9876")
        while "denied" not in (closed := said(one, "root")):
            pass  # it is taken down, and comes up again
        seen |= {"silent": silent, "left": left, "closed": closed}
        job = site.jobs.create(wish | {"types": ["deploy"]})
        until(job, "running")
        testbed.inject(Fault.DEPLOYMENT_FAILS)
        deployment = site.deployments.create({"nodes": [one, two], "environment": "debian11-min"})
        while deployment.status == "processing":
            time.sleep(0.02)
            deployment.refresh()
        seen["home"] = said(two, "root", "ls /home; echo empty")
        seen["third partition"] = said(two, "root", "mount | grep -c '^/dev/.*3 on / '")
        seen["deployed"] = [said(name, "root", "cat /etc/grid5000/release") for name in (one, two)]
        job.delete()
        until(job, "error")
        seen["held"] = testbed.held_jobs()
        return seen
    in_sandbox(borrowed, look)
""")
    assert "no running job of yours has it" in said["before"]
    assert said["running"] == "well"
    assert "timed out" in said["silent"]
    assert said["left"] == 0
    assert "Permission denied" in said["closed"]
    assert said["third partition"] == "1"
    assert (said["root"], said["other"], said["home"]) == (["mine", "mine"], "mine", "empty")
    assert "Connection refused" in said["deployed"][0]
    assert said["deployed"][1] == "debian11-min-2025010112"
    assert said["held"] == []
