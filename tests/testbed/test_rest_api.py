"""The REST API of the stand-in Grid'5000, and the jobs of OAR behind it."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest

from tests.testbed import nodes, oar, reference
from tests.testbed.api_client import PARASILO, await_state, client, submit
from tests.testbed.oar import Timing
from tests.testbed.stand_in import PASSWORD, StandIn, stand_in


def test_a_job_goes_through_the_states_of_oar(grid: StandIn) -> None:
    job = submit(grid, "{cluster='parasilo'}/nodes=2,walltime=00:10:00")
    assert (job.assigned_nodes, job.walltime, job.user) == ([], 600, nodes.USER)
    seen = await_state(job, "running")
    assert seen == [
        state for state in ("waiting", "tolaunch", "launching", "running") if state in seen
    ]
    assert sorted(job.assigned_nodes) == list(PARASILO)
    assert [(held.uid, held.site, held.state) for held in grid.held_jobs()] == [
        (job.uid, "rennes", "running")
    ]
    jobs = client(grid).sites["rennes"].jobs
    assert [
        each.uid
        for each in jobs.list(name="test", state="waiting,launching,running", user=nodes.USER)
    ] == [job.uid]
    assert (
        jobs.list(name="another") == jobs.list(state="waiting") == jobs.list(user="another") == []
    )
    job.delete()
    assert await_state(job, "error") == ["running", "error"]
    assert [event["type"] for event in job.events] == ["FRAG_JOB_REQUEST"]
    assert grid.held_jobs() == ()
    with pytest.raises(Exception, match="This job was already killed"):
        job.delete()


def test_a_job_waits_until_there_are_nodes_for_it(grid: StandIn) -> None:
    first = submit(grid, "{cluster='parasilo'}/nodes=1,walltime=1")
    await_state(first, "running")
    second = submit(grid, "{cluster='parasilo'}/nodes=2,walltime=1")
    status = client(grid).sites["rennes"].clusters["parasilo"].status.list()
    assert {status.nodes[name]["soft"] for name in PARASILO} == {"busy", "free"}
    assert status.nodes["parasilo-3.rennes.grid5000.fr"]["soft"] == "busy"
    second.refresh()
    assert second.state == "waiting"
    first.delete()
    await_state(second, "running")
    assert sorted(second.assigned_nodes) == list(PARASILO)


def test_a_job_ends_with_its_walltime(grid: StandIn) -> None:
    job = submit(grid, f"{{network_address in ('{PARASILO[1]}')}}/nodes=1,walltime=0:00:01")
    await_state(job, "running")
    assert job.assigned_nodes == [PARASILO[1]]
    await_state(job, "error")
    assert [event["type"] for event in job.events] == ["WALLTIME"]
    assert job.stopped_at - job.started_at >= 1


@pytest.mark.parametrize(
    ("details", "words"),
    [
        ({"resources": "{cluster='parasilo'}/nodes=9"}, "not enough resources"),
        ({"resources": "{cluster='gemini'}/nodes=1"}, "not enough resources"),
        ({"resources": "{cluster='gemini'}/nodes=1", "site": "lyon"}, "exotic"),
        ({"resources": "{cluster='graffiti'}/nodes=1", "site": "nancy"}, "not in queue default"),
        ({"resources": "{cluster='parasilo'}/nodes=1+{type='kavlan'}/vlan=1"}, "job type deploy"),
        ({"resources": "/core=3"}, "Bad resource request"),
        ({"resources": "{cluster='parasilo'}/nodes=1,walltime=soon"}, "Bad walltime"),
        (
            {"resources": "{cluster='parasilo'}/nodes=1", "reservation": "2020-01-01 00:00:00"},
            "Reservation too old",
        ),
    ],
)
def test_what_oar_refuses_is_refused(grid: StandIn, details: dict[str, Any], words: str) -> None:
    with pytest.raises(Exception, match=f"400: Request to .*{words}") as caught:
        submit(grid, **details)
    assert type(caught.value).__name__ == "Grid5000CreateError"
    assert grid.held_jobs() == ()


def test_a_date_is_given_to_one_job_only() -> None:
    timing = Timing(waiting_s=0.1, honours_reservations=True)
    date = oar.date_of(time.time() + 3600)
    with stand_in(None, {"parasilo": 2}, timing) as grid:
        job = submit(grid, "{cluster='parasilo'}/nodes=2,walltime=2", reservation=date)
        assert (job.state, job.scheduled_at) == ("waiting", int(oar.parse_date(date)))
        free_from = oar.parse_date(date) + 2 * 3600
        with pytest.raises(
            Exception,
            match=r"Reservation not valid --> KO \(This reservation could run at ([^)]+)\)",
        ) as caught:
            submit(grid, "{cluster='parasilo'}/nodes=1,walltime=2", reservation=date)
        hint = re.search(r"run at ([^)]+)\)", str(caught.value))
        assert hint is not None
        assert free_from <= oar.parse_date(hint[1]) <= free_from + 120
        assert (
            submit(grid, "{cluster='parasilo'}/nodes=1,walltime=2", reservation=hint[1]).state
            == "waiting"
        )


def test_vlans_and_deployments_belong_to_jobs(grid: StandIn) -> None:
    site = client(grid).sites["rennes"]
    job = submit(
        grid, "{cluster='parasilo'}/nodes=1+{type='kavlan'}/vlan=1+slash_22=1", types=["deploy"]
    )
    wish = {"nodes": [PARASILO[0]], "environment": "debian11-min", "key": "ssh-ed25519 AAAA"}
    with pytest.raises(Exception, match="Cannot launch deployment"):
        site.deployments.create(wish)
    await_state(job, "running")
    assert job.resources_by_type["vlans"] == ["4"]
    assert len(job.resources_by_type["subnets"]) == 1
    with pytest.raises(Exception, match="Cannot launch deployment"):
        site.deployments.create(wish | {"vlan": "5"})
    deployment = site.deployments.create(wish | {"vlan": "4"})
    assert (deployment.status, deployment.result) == ("processing", None)
    while deployment.status == "processing":
        deployment.refresh()
    assert (deployment.status, deployment.result[PARASILO[0]]["state"]) == ("terminated", "OK")
    assert site.vlans["DEFAULT"].type == "DEFAULT"
    in_vlan = site.vlans["4"].nodes
    asked = ["parasilo-1-eth1.rennes.grid5000.fr", "nobody-1-eth1.rennes.grid5000.fr"]
    assert [each["status"] for each in in_vlan.submit(asked).values()] == ["success", "failure"]
    assert [each["status"] for each in in_vlan.submit(asked[:1]).values()] == ["unchanged"]
    assert [each.uid for each in in_vlan.list()] == asked[:1]


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/sites/atlantis", 404),
        ("/sites/lyon/clusters/parasilo", 404),
        ("/sites/lyon/jobs/12", 404),
        ("/sites/lyon/jobs/twelve", 404),
        ("/sites/lyon/vlans/44", 404),
        ("/sites/lyon/deployments/D-1", 404),
        ("/sites/lyon/weather", 404),
        ("/sites/lyon/servers/dns", 200),
        ("/sites/lyon/vlans", 200),
        ("/sites/lyon/status", 200),
        ("/sites/lyon/clusters/gemini/nodes/gemini-2", 200),
    ],
)
def test_paths_are_there_or_not(grid: StandIn, path: str, status: int) -> None:
    import requests

    got = requests.get(grid.url + path, auth=(nodes.USER, PASSWORD), timeout=5)
    assert got.status_code == status
    assert got.headers["Content-Type"].startswith(
        "application/json" if status == 200 else "text/plain"
    )
    assert [(call.path, call.status) for call in grid.calls()] == [(path, status)]


def test_requests_are_read_as_enoslib_writes_them() -> None:
    text = (
        "{(type='default' or type='disk') AND cluster='parasilo'}/nodes=2+{network_address in"
        " ('a-1.x',"
        " 'a-2.x')}/nodes=1+{type='kavlan-global'}/vlan=1+slash_16=1+slash_22=2,walltime=26:01:05"
    )
    request = oar.parse_request(text)
    assert request.nodes == (
        oar.NodesWanted(2, "parasilo"),
        oar.NodesWanted(1, servers=("a-1.x", "a-2.x")),
    )
    assert (request.vlans, request.subnets, request.walltime_s) == (("kavlan-global",), 66, 93665)


@pytest.mark.parametrize(
    ("wanted", "chosen"),
    [
        ([oar.NodesWanted(2, "a")], ("a-1", "a-2")),
        ([oar.NodesWanted(1, "a"), oar.NodesWanted(1, servers=("a-1",))], ("a-1", "a-2")),
        ([oar.NodesWanted(1, "b"), oar.NodesWanted(1, servers=("a-3", "a-2"))], ("a-2", "b-1")),
        ([oar.NodesWanted(3, "a"), oar.NodesWanted(1, servers=("a-2",))], None),
        ([oar.NodesWanted(1, "c")], None),
        ([], ()),
    ],
)
def test_nodes_are_allocated_by_name_first(
    wanted: list[oar.NodesWanted], chosen: tuple[str, ...] | None
) -> None:
    assert oar.allocate(wanted, ["a-1", "a-2", "a-3", "b-1"]) == chosen


@pytest.mark.parametrize(
    ("after_s", "state"),
    [
        (0.0, "waiting"),
        (0.9, "waiting"),
        (1.1, "tolaunch"),
        (1.3, "launching"),
        (1.6, "running"),
        (59.9, "running"),
        (60.1, "error"),
    ],
)
def test_a_job_is_in_one_state_at_a_time(after_s: float, state: str) -> None:
    request = oar.parse_request("{cluster='parasilo'}/nodes=1,walltime=1")
    job = oar.Job(
        1,
        "rennes",
        "me",
        "test",
        (),
        "default",
        "default",
        "sleep",
        request,
        1000.0,
        starts_at=1001.0,
        ends_at=1060.0,
    )
    timing = Timing(to_launch_s=0.2, launching_s=0.3)
    assert job.state(1000.0 + after_s, timing) == state
    shown = oar.as_json(job, 1000.0 + after_s, timing, resources=True)
    assert shown["state"] == state
    assert shown["started_at"] == (1001 if after_s > 1.5 else 0)
    assert ("stopped_at" in shown) == (state == "error")


def test_dates_are_french() -> None:
    assert oar.parse_date("2026-07-01 12:00:00") == 1782900000.0
    assert oar.date_of(1782900000.0) == "2026-07-01 12:00:00"


def test_the_pool_has_the_names_and_addresses_of_grid5000() -> None:
    specs = reference.pool({"gemini": 1, "graffiti": 2})
    assert [(spec.name, spec.address, spec.prefix_length, spec.site) for spec in specs] == [
        ("gemini-1.lyon.grid5000.fr", "172.16.53.1", 20, "lyon"),
        ("graffiti-1.nancy.grid5000.fr", "172.16.64.1", 20, "nancy"),
        ("graffiti-2.nancy.grid5000.fr", "172.16.64.2", 20, "nancy"),
    ]
    assert specs[0].vlans == {"1": "192.168.197.1/20", "4": "10.12.5.1/18", "5": "10.12.69.1/18"}
    with pytest.raises(ValueError, match="gemini: 3 nodes asked for, and the facts have 2"):
        reference.pool({"gemini": 3})
