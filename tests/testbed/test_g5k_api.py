"""The stand-in Grid'5000: its API, its faults, and the unmodified EnOSlib provider on it from reservation to release."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.testbed import nodes, oar, reference
from tests.testbed.faults import Fault
from tests.testbed.g5k_api import PASSWORD, StandIn, stand_in
from tests.testbed.oar import Timing

if TYPE_CHECKING:
    from tests.users import Runner

real_nodes = pytest.mark.skipif(nodes.lacking() is not None, reason=str(nodes.lacking()))
HEAD = f"""
    import json, os, subprocess, sys, time
    from pathlib import Path
    sys.path.insert(0, {str(Path(__file__).resolve().parents[2])!r})
    from laggard.layers_services.local import sandbox
    from tests.testbed.faults import Fault
    from tests.testbed.g5k_api import stand_in
    from tests.testbed.oar import Timing

    here = Path.cwd()
    home = here / "home"

    def ssh(target, command="true"):
        quick = ["-o", "ConnectTimeout=2", "-o", "ServerAliveInterval=1", "-o", "ServerAliveCountMax=2"]
        return subprocess.run(["ssh", *quick, target, command], capture_output=True, text=True)

    def inside(function, counts, **options):
        def entered():
            with stand_in(here / "nodes", counts, **options) as testbed:
                testbed.write_account(home)
                os.environ["HOME"] = str(home)
                os.chdir(home)
                began = time.monotonic()
                said = function(testbed)
                calls = [[call.method, call.path.partition("?")[0], call.status] for call in testbed.calls()]
                held = [list(job) if isinstance(job, tuple) else job.uid for job in testbed.held_jobs()]
                result = dict(said=said, calls=calls, held=held, seconds=time.monotonic() - began)
                print(json.dumps(result), flush=True)
            return 0
        sys.exit(sandbox.call(entered))
"""


def _answer(result: Any) -> dict[str, Any]:
    assert result.stdout, result.stderr
    answer = json.loads(result.stdout.splitlines()[-1])
    assert isinstance(answer, dict), result.stderr
    return answer


@pytest.mark.slow
@real_nodes
def test_enoslib_reserves_two_sites_and_gives_them_back(own_runner: Runner) -> None:
    answer = _answer(
        own_runner.run(
            HEAD
            + """
    def function(testbed):
        import enoslib as en
        en.set_config(g5k_auto_jump=False)
        conf = en.G5kConf.from_settings(job_name="laggard-two", walltime="00:30:00")
        for site in ("lyon", "rennes"):
            conf.add_network(id=f"n-{site}", type="prod", roles=[f"net-{site}"], site=site)
        conf.add_machine(roles=["fog"], cluster="gemini", nodes=1, primary_network=conf.networks[0])
        conf.add_machine(roles=["edge"], cluster="parasilo", nodes=2, primary_network=conf.networks[1])
        provider = en.G5k(conf.finalize())
        roles, networks = provider.init()
        held = len(testbed.held_jobs())
        got = en.run_command("hostname; id -un", roles=roles)
        synced = en.sync_info(roles, networks)
        addresses = {host.alias: [str(each.ip) for each in host.filter_addresses(networks["net-rennes"])] for host in synced["edge"]}
        provider.destroy()
        while (refused := ssh("root@gemini-1.lyon.grid5000.fr")).stderr.count("refused"):
            pass  # it comes up again
        return dict(
            held=held, roles={role: sorted(host.alias for host in hosts) for role, hosts in roles.items()},
            ran={each.host: each.stdout.split() for each in got}, addresses=addresses, refused=refused.stderr,
        )
    inside(function, {"gemini": 2, "parasilo": 3})
""",
            timeout_s=180,
        )
    )
    said = answer["said"]
    edge = [f"parasilo-{number}.rennes.grid5000.fr" for number in (1, 2)]
    fog = "gemini-1.lyon.grid5000.fr"
    assert said["roles"] == {"fog": [fog], "edge": edge}
    assert said["ran"] == {name: [name, "root"] for name in (fog, *edge)}
    assert said["addresses"] == {edge[0]: ["172.16.97.1/20"], edge[1]: ["172.16.97.2/20"]}
    assert (said["held"], answer["held"]) == (2, [])
    assert "Permission denied" in said["refused"]
    # EnOSlib goes through the sites in the order of a set.
    changing = sorted([call[0], call[1].split("/")[2], call[2]] for call in answer["calls"] if call[0] != "GET")
    assert changing == [
        ["DELETE", "lyon", 202],
        ["DELETE", "rennes", 202],
        ["POST", "lyon", 201],
        ["POST", "rennes", 201],
    ]
    assert {call[2] for call in answer["calls"]} == {200, 201, 202}


@pytest.mark.slow
@real_nodes
def test_enoslib_deploys_into_a_vlan(own_runner: Runner) -> None:
    answer = _answer(
        own_runner.run(
            HEAD
            + """
    def function(testbed):
        import enoslib as en
        en.set_config(g5k_auto_jump=False)
        conf = en.G5kConf.from_settings(
            job_name="laggard-vlan", walltime="00:30:00", job_type=["deploy"], env_name="debian11-min",
        )
        conf.add_network(id="inside", type="kavlan", roles=["inside"], site="rennes")
        conf.add_machine(roles=["edge"], cluster="parasilo", nodes=2, primary_network=conf.networks[0])
        provider = en.G5k(conf.finalize())
        roles, networks = provider.init()
        held = len(testbed.held_jobs())
        got = en.run_command("hostname; mount | grep -c '^/dev/.*3 on / '; cat /etc/grid5000/release", roles=roles)
        synced = en.sync_info(roles, networks)
        addresses = {host.alias: [str(each.ip) for each in host.filter_addresses(networks["inside"])] for host in synced["edge"]}
        provider.destroy()
        return dict(held=held, ran={each.host: each.stdout.split() for each in got}, addresses=addresses)
    inside(function, {"parasilo": 2})
""",
            timeout_s=180,
        )
    )
    said = answer["said"]
    names = [f"parasilo-{number}-kavlan-4.rennes.grid5000.fr" for number in (1, 2)]
    assert said["ran"] == {name: [name.replace("-kavlan-4", ""), "1", "debian11-min-2025010112"] for name in names}
    assert said["addresses"] == {names[0]: ["10.24.7.1/18"], names[1]: ["10.24.7.2/18"]}
    assert (said["held"], answer["held"]) == (1, [])


PARASILO = tuple(f"parasilo-{number}.rennes.grid5000.fr" for number in (1, 2))


@pytest.fixture
def grid() -> Iterator[StandIn]:
    """A stand-in with nodes on paper, and quick."""
    timing = Timing(waiting_s=0.3, to_launch_s=0.1, launching_s=0.1, killing_s=0.3, deploying_s=0.5)
    with stand_in(None, {"gemini": 2, "parasilo": 2}, timing) as grid:
        yield grid


def client(grid: StandIn, **settings: Any) -> Any:
    from grid5000 import Grid5000  # type: ignore[import-untyped]

    account = {"username": nodes.USER, "password": PASSWORD, "verify_ssl": True}
    return Grid5000(uri=grid.url, **(account | settings))


def submit(grid: StandIn, resources: str, site: str = "rennes", **details: Any) -> Any:
    wish = {"name": "test", "command": "sleep 1d", "resources": resources, "types": []} | details
    return client(grid).sites[site].jobs.create(wish)


def await_state(job: Any, state: str) -> list[str]:
    """The states a job goes through until it reaches one."""
    seen = [job.state]
    while seen[-1] != state:
        assert seen[-1] not in oar.ENDED
        job.refresh()
        if job.state != seen[-1]:
            seen.append(job.state)
    return seen


def test_a_job_goes_through_the_states_of_oar(grid: StandIn) -> None:
    job = submit(grid, "{cluster='parasilo'}/nodes=2,walltime=00:10:00")
    assert (job.assigned_nodes, job.walltime, job.user) == ([], 600, nodes.USER)
    seen = await_state(job, "running")
    assert seen == [state for state in ("waiting", "tolaunch", "launching", "running") if state in seen]
    assert sorted(job.assigned_nodes) == list(PARASILO)
    assert [(held.uid, held.site, held.state) for held in grid.held_jobs()] == [(job.uid, "rennes", "running")]
    jobs = client(grid).sites["rennes"].jobs
    assert [each.uid for each in jobs.list(name="test", state="waiting,launching,running", user=nodes.USER)] == [
        job.uid
    ]
    assert jobs.list(name="another") == jobs.list(state="waiting") == jobs.list(user="another") == []
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
        ({"resources": "{cluster='parasilo'}/nodes=1", "reservation": "2020-01-01 00:00:00"}, "Reservation too old"),
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
            Exception, match=r"Reservation not valid --> KO \(This reservation could run at ([^)]+)\)"
        ) as caught:
            submit(grid, "{cluster='parasilo'}/nodes=1,walltime=2", reservation=date)
        hint = re.search(r"run at ([^)]+)\)", str(caught.value))
        assert hint is not None
        assert free_from <= oar.parse_date(hint[1]) <= free_from + 120
        assert submit(grid, "{cluster='parasilo'}/nodes=1,walltime=2", reservation=hint[1]).state == "waiting"


def test_vlans_and_deployments_belong_to_jobs(grid: StandIn) -> None:
    site = client(grid).sites["rennes"]
    job = submit(grid, "{cluster='parasilo'}/nodes=1+{type='kavlan'}/vlan=1+slash_22=1", types=["deploy"])
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
    assert got.headers["Content-Type"].startswith("application/json" if status == 200 else "text/plain")
    assert [(call.path, call.status) for call in grid.calls()] == [(path, status)]


def test_requests_are_read_as_enoslib_writes_them() -> None:
    text = (
        "{(type='default' or type='disk') AND cluster='parasilo'}/nodes=2+{network_address in ('a-1.x', 'a-2.x')}/nodes=1"
        "+{type='kavlan-global'}/vlan=1+slash_16=1+slash_22=2,walltime=26:01:05"
    )
    request = oar.parse_request(text)
    assert request.nodes == (oar.NodesWanted(2, "parasilo"), oar.NodesWanted(1, servers=("a-1.x", "a-2.x")))
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
def test_nodes_are_allocated_by_name_first(wanted: list[oar.NodesWanted], chosen: tuple[str, ...] | None) -> None:
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
        1, "rennes", "me", "test", (), "default", "default", "sleep", request, 1000.0, starts_at=1001.0, ends_at=1060.0
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
    with pytest.raises(Exception, match=r"400: .*Reservation not valid --> KO \(This reservation could run at 20"):
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
    assert {name: each["state"] for name, each in deployment.result.items()} == {PARASILO[0]: "OK", PARASILO[1]: "KO"}


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


@real_nodes
def test_faults_of_nodes_are_seen_over_ssh(own_runner: Runner) -> None:
    answer = _answer(
        own_runner.run(
            HEAD
            + """
    import grid5000
    one, two = (f"parasilo-{number}.rennes.grid5000.fr" for number in (1, 2))

    def until(job, state):
        while job.state != state:
            job.refresh()

    def said(name, user="jdoe", command="true"):
        got = ssh(f"{user}@{name}", command)
        return got.stdout.strip() or got.stderr.strip().splitlines()[-1][-60:] if got.stdout or got.stderr else "well"

    def function(testbed):
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
        seen |= {"silent": silent, "left": left}
        job = site.jobs.create(wish | {"types": ["deploy"]})
        until(job, "running")
        testbed.inject(Fault.DEPLOYMENT_FAILS)
        deployment = site.deployments.create({"nodes": [one, two], "environment": "debian11-min"})
        while deployment.status == "processing":
            deployment.refresh()
        seen["home"] = said(two, "root", "ls /home; echo empty")
        seen["deployed"] = [said(name, "root", "cat /etc/grid5000/release") for name in (one, two)]
        job.delete()
        until(job, "error")
        return seen
    inside(function, {"parasilo": 2}, timing=Timing(0.1, 0.1, 0.3, 0.5, 0.1))
""",
            timeout_s=90,
        )
    )
    said = answer["said"]
    assert "no running job of yours has it" in said["before"]
    assert said["running"] == "well"
    assert "timed out" in said["silent"]
    assert said["left"] == 0
    assert (said["root"], said["other"], said["home"]) == (["mine", "mine"], "mine", "empty")
    assert "Connection refused" in said["deployed"][0]
    assert said["deployed"][1] == "debian11-min-2025010112"
    assert answer["held"] == []
