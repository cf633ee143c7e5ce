"""Reservations on a stand-in Grid'5000, through EnOSlib's own provider, with every fault that the
stand-in knows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.testbed.nodes import lacking
from tests.testbed.scripts import Scripts

needs_nodes = pytest.mark.skipif(lacking() is not None, reason=str(lacking()))
PARASILO = ["parasilo-1.rennes.grid5000.fr", "parasilo-2.rennes.grid5000.fr"]
IN_VLAN = ["parasilo-1-kavlan-4.rennes.grid5000.fr", "parasilo-2-kavlan-4.rennes.grid5000.fr"]
GEMINI = "gemini-1.lyon.grid5000.fr"
ADDRESSES = dict(
    zip(
        [GEMINI, *PARASILO, *IN_VLAN],
        ["172.16.53.1/20", "172.16.97.1/20", "172.16.97.2/20", "10.24.7.1/18", "10.24.7.2/18"],
        strict=True,
    )
)

HEAD = """
    import datetime, os, sys, time
    from contextlib import contextmanager
    from pathlib import Path
    import enoslib
    from benchmarks import g5k_faults
    from laggard.core.errors import LaggardError
    from laggard.layers_services.compile import compile_hosts
    from laggard.layers_services.g5k.api import Pace
    from laggard.layers_services.g5k.plan import plan_g5k
    from laggard.layers_services.g5k.request import G5kOptions
    from laggard.layers_services.model import LayersServices
    from laggard.layers_services.g5k.release import destroy, find_jobs, how_to_release, release_jobs, still_held
    from laggard.core.run_schema import ReservedJob
    from tests.testbed.faults import Fault
    from tests.testbed.stand_in import stand_in
    from tests.testbed.scripts import in_sandbox

    PACE = Pace(request_timeout_s=20.0, attempts=2, backoff_s=0.1, poll_s=0.1)

    def document(cluster="parasilo", quantity=2, **g5k):
        return LayersServices.model_validate({
            "environment": {"g5k": {"cluster": cluster, **g5k}},
            "layers": [{"name": "edge", "services": [{"name": "trainer", "quantity": quantity}]}],
        })

    def submit(grid, site="rennes", name="laggard-a", cluster="parasilo", types=(), hours=1):
        from enoslib.infra.enos_g5k.g5k_api_utils import get_api_client
        resources = f"{{cluster='{cluster}'}}/nodes=1,walltime={hours}"
        wish = {"name": name, "types": list(types), "resources": resources, "command": "sleep 1"}
        return get_api_client().sites[site].jobs.create(wish)

    def shown(jobs):
        return [[job.site, job.job_id, job.name, job.released] for job in jobs]

    def states(grid):
        return [[held.site, held.uid, held.state] for held in grid.held_jobs()]

    def raised(function):
        try:
            function()
        except LaggardError as error:
            return [type(error).__name__, str(error)]
        return None

    @contextmanager
    def on_paper():
        with stand_in(None, {"gemini": 2, "parasilo": 3}) as grid:
            home = Path.cwd() / "home"
            grid.write_account(home)
            os.environ["HOME"] = str(home)
            yield grid
"""


@pytest.fixture(scope="module")
def scripts() -> Iterator[Scripts]:
    with Scripts(HEAD) as scripts:
        yield scripts


def played(scripts: Scripts, case: str) -> Any:
    """The row of `benchmarks/g5k_faults.py` for a case."""
    return scripts.answer(f"sys.exit(g5k_faults.one({case!r}))", timeout_s=480)


@needs_nodes
@pytest.mark.long
@pytest.mark.parametrize(
    ("case", "machines", "made"),
    [
        ("none, two sites", [GEMINI, *PARASILO], 2),
        ("none, deployed, in a VLAN", IN_VLAN, 1),
        ("none, in a job that is there", PARASILO, 1),
        ("three 500s", PARASILO, 1),
        ("three 500s to the submission", PARASILO, 1),
        ("slow answers", PARASILO, 1),
        (
            "slow answer to the submission",
            PARASILO,
            2,
        ),  # the first one is carried out after all, and ended
        ("Reservation not valid, two sites", [GEMINI, *PARASILO], 2),
        ("a node fails to deploy once", PARASILO, 1),
        ("a release that fails twice", PARASILO, 1),
    ],
)
def test_what_passes_ends_in_a_reservation_that_is_given_back(
    scripts: Scripts, case: str, machines: list[str], made: int
) -> None:
    row = played(scripts, case)
    assert row["error"] == "", row["seen"]
    assert row["machines"] == machines
    plain = [name.replace("-kavlan-4", "") for name in machines]
    there = [
        f"root {name} {ADDRESSES[address]}" for name, address in zip(plain, machines, strict=True)
    ]
    assert row["reached"] == there
    assert row["addresses"] == [ADDRESSES[name].partition("/")[0] for name in machines]
    assert row["made"] == made
    assert row["held"] == (2 if GEMINI in machines else 1)
    assert row["kept"] == (1 if case == "none, in a job that is there" else 0)
    assert row["left"] == 0
    assert all(job["released"] for job in row["told"])
    if case.startswith("none, "):
        assert row["statuses"] == [200, 201, 202]


@needs_nodes
@pytest.mark.long
@pytest.mark.parametrize(
    ("case", "error", "said"),
    [
        (
            "wrong password",
            "PrerequisiteError",
            "rejects your user name or password (401)\n  to fix this: write `username:`",
        ),
        ("401 in between", "PrerequisiteError", "~/.python-grid5000.yaml"),
        ("500 for ever", "DeploymentError", "too many 500 error responses"),
        (
            "a job that never starts",
            "DeploymentError",
            "not started within 3 s: job 1800001 at rennes, state waiting",
        ),
        ("killed by the walltime", "DeploymentError", "job 1800001 at rennes ended"),
        (
            "Reservation not valid",
            "DeploymentError",
            "these nodes are available from 2031-03-04 19:05:00 on — --reservation",
        ),
        (
            "a node fails to deploy",
            "DeploymentError",
            "deployment failed three times on parasilo-2.rennes.grid5000.fr",
        ),
        (
            "a node that stops answering SSH",
            "DeploymentError",
            "do not answer SSH: parasilo-2.rennes.grid5000.fr",
        ),
        ("interrupted while it waits", "KeyboardInterrupt", ""),
    ],
)
def test_what_does_not_pass_ends_in_one_clear_message_and_no_job(
    scripts: Scripts, case: str, error: str, said: str
) -> None:
    row = played(scripts, case)
    assert row["error"] == error
    assert said in str(row["seen"])
    assert row["left"] == 0
    assert "Traceback" not in str(row["seen"])
    assert all(job["released"] for job in row["told"])


def test_jobs_are_found_by_name_and_released(scripts: Scripts) -> None:
    found = scripts.answer("""
    def act(grid):
        submit(grid), submit(grid, "lyon", cluster="gemini", types=["exotic"]), submit(grid, name="laggard-b"), submit(grid, name="mine")
        by_name = find_jobs("laggard-a", pace=PACE)
        return {
            "by name": shown(by_name),
            "at a site": shown(find_jobs("laggard-a", ["rennes"], PACE)),
            "all": shown(find_jobs(pace=PACE)),
            "other": shown(find_jobs("laggard-c", pace=PACE)),
            "released": shown(release_jobs(by_name, PACE)),
            "again": shown(release_jobs(by_name, PACE)),
            "destroyed": shown(destroy(name="", pace=PACE)),
            "left": [held[1] for held in states(grid)],
            "deletions": [[call.path, call.status] for call in grid.calls() if call.method == "DELETE"],
        }
    in_sandbox(on_paper, act)
""")
    one, two, three, mine = 1800001, 1800002, 1800003, 1800004
    assert found == {
        "by name": [["lyon", two, "laggard-a", False], ["rennes", one, "laggard-a", False]],
        "at a site": [["rennes", one, "laggard-a", False]],
        "all": [
            ["lyon", two, "laggard-a", False],
            ["rennes", three, "laggard-b", False],
            ["rennes", one, "laggard-a", False],
        ],
        "other": [],
        "released": [["lyon", two, "laggard-a", True], ["rennes", one, "laggard-a", True]],
        "again": [["lyon", two, "laggard-a", True], ["rennes", one, "laggard-a", True]],
        "destroyed": [["rennes", three, "laggard-b", True]],
        "left": [mine],
        "deletions": [  # each job's once
            [f"/sites/lyon/jobs/{two}", 202],
            [f"/sites/rennes/jobs/{one}", 202],
            [f"/sites/rennes/jobs/{three}", 202],
        ],
    }


def test_a_job_of_another_name_owner_or_run_is_not_ended(scripts: Scripts) -> None:
    """A record may be wrong, or forged: what it lists is compared with what the testbed has."""
    found = scripts.answer("""
    from laggard.core.run_schema import RunRecord
    from laggard.layers_services.g5k.release import ForeignJobError
    from laggard.remote.destroy import destroy_runs

    def job(number, name="laggard-a", site="rennes"):
        return ReservedJob(testbed="g5k", site=site, job_id=number, name=name, nodes=1)

    def refused(function):
        try:
            return shown(function())
        except ForeignJobError as error:
            return str(error)

    def record(run, *jobs):
        folder = Path.cwd() / "runs" / "small" / run
        folder.mkdir(parents=True)
        made = RunRecord(id=run, scenario="small", status="failed", command=(), seed=1, versions={},
                         git=None, started="", testbed="g5k", hosts=(), stages=(), jobs=jobs)
        (folder / "run.json").write_text(made.model_dump_json())

    def act(grid):
        from enoslib.infra.enos_g5k import g5k_api_utils
        submit(grid, name="mine"), submit(grid), submit(grid, "lyon", "laggard-b", "gemini", ["exotic"])
        record("a", job(1800001, "laggard-a"))
        record("b", job(1800003, "laggard-b", "lyon"))
        record("c", job(1800001, "mine"))
        found = {
            "other name": refused(lambda: release_jobs([job(1800001), job(1800002)], PACE)),
            "others ended": states(grid),
            "other run": refused(lambda: destroy([job(1800001, "mine")], "laggard-a", pace=PACE)),
            "no site": refused(lambda: destroy([job(1, site="rennes/jobs/7?x=")], "laggard-a", pace=PACE)),
            "no site of a job that is over": refused(lambda: destroy([], "laggard-a", ["../lyon"], PACE)),
        }
        report = destroy_runs(Path.cwd() / "runs")
        found["report"] = [shown(report.released), shown(report.held), len(report.refused)]
        found["text"] = report.text()
        submit(grid, name="laggard-d")
        user = g5k_api_utils.get_api_username
        g5k_api_utils.get_api_username = lambda: "eve"
        found["other owner"] = refused(lambda: release_jobs([job(1800004, "laggard-d")], PACE))
        g5k_api_utils.get_api_username = user
        found["left"] = [held[1] for held in states(grid)]
        return found
    in_sandbox(on_paper, act)
""")
    mine = "job 1800001 at rennes is named mine and belongs to jdoe on Grid'5000; the run's job is"
    assert found["other name"].startswith(mine)
    assert [held[1] for held in found["others ended"]] == [1800001, 1800003]
    assert "the jobs of this run are named laggard-a" in found["other run"]
    assert "nothing was released" in found["no site"]
    assert "nothing was released" in found["no site of a job that is over"]
    assert found["report"] == [[["lyon", 1800003, "laggard-b", True]], [], 2]
    assert mine in found["text"]
    assert "may still hold nodes" not in found["text"]
    assert (
        "belongs to jdoe on Grid'5000; the run's job is named laggard-d and belongs to eve"
        in (found["other owner"])
    )
    assert found["left"] == [1800001, 1800004]


def test_a_job_known_by_name_only_or_not_at_all_is_released(scripts: Scripts) -> None:
    found = scripts.answer("""
    def job(number, name="laggard-a", site="rennes"):
        return ReservedJob(testbed="g5k", site=site, job_id=number, name=name, nodes=1)

    def act(grid):
        submit(grid)
        return [shown(release_jobs([job(0), job(0, "laggard-never"), job(77)], PACE)), states(grid)]
    in_sandbox(on_paper, act)
""")
    assert found == [
        [
            ["rennes", 0, "laggard-never", True],
            ["rennes", 1800001, "laggard-a", True],
            ["rennes", 77, "laggard-a", True],
        ],
        [],
    ]


@pytest.mark.long
def test_what_cannot_be_released_is_returned_with_the_command_that_does(scripts: Scripts) -> None:
    found = scripts.answer("""
    def act(grid):
        submit(grid)
        found = find_jobs("laggard-a", pace=PACE)
        grid.inject(Fault.RELEASE_FAILS, times=1000)
        after = release_jobs(found, PACE, wait_s=1.0)
        grid.clear_faults()
        grid.inject(Fault.SERVER_ERRORS, times=1000)
        unasked = find_jobs("laggard-a", ["rennes"], Pace(attempts=1))
        grid.clear_faults()
        return [shown(after), how_to_release(still_held(after)), shown(unasked), how_to_release(unasked), shown(release_jobs(after, PACE))]
    in_sandbox(on_paper, act)
""")
    assert found == [
        [["rennes", 1800001, "laggard-a", False]],
        (
            "job 1800001 at rennes may still hold nodes: run `laggard destroy`, or `oardel 1800001` on"
            " rennes's frontend"
        ),
        [["rennes", 0, "laggard-a", False]],
        (
            "a job named laggard-a at rennes may still hold nodes: run `laggard destroy`,"
            " or `oarstat -u, then oardel` on rennes's frontend"
        ),
        [["rennes", 1800001, "laggard-a", True]],
    ]


def test_a_job_that_is_there_must_exist_run_and_fit(scripts: Scripts) -> None:
    found = scripts.answer("""
    def act(grid):
        from laggard.layers_services.g5k.reserve import reserve
        submit(grid), submit(grid, types=["deploy"])
        release_jobs(find_jobs("laggard-a", ["rennes"], PACE)[1:], PACE)
        told = []

        def use(job, env_name=None):
            plan = plan_g5k(document(), G5kOptions(jobs=(job,), env_name=env_name))
            return raised(lambda: reserve(plan, compile_hosts(document()), "laggard-b", told.append, Path.cwd(), 1.0, PACE, False))

        return [use("9"), use("1800001"), use("1800002"), told, [held[1] for held in states(grid)]]
    in_sandbox(on_paper, act)
""")
    assert found == [
        [
            "NoSuchJobError",
            "Grid'5000 did not find job 9 at rennes (404) — check the site and the number",
        ],
        [
            "InputError",
            "job 1800001 at rennes is over (error) — give a running job, or omit --job",
        ],
        [
            "InputError",
            (
                "job 1800002 at rennes is of type `deploy`, so its nodes need a system — add"
                " --env-name debian12-nfs, for example"
            ),
        ],
        [],
        [1800002],
    ]


def test_an_estimate_of_the_start_reserves_nothing(scripts: Scripts) -> None:
    found = scripts.answer("""
    def act(grid):
        from laggard.layers_services.g5k.description import start_estimate
        now = datetime.datetime.now(datetime.timezone.utc)

        def estimate(quantity, **options):
            plan = plan_g5k(document(quantity=quantity), G5kOptions(**options))
            return start_estimate(plan, now, horizon_s=3600, pace=PACE)

        soon, later = estimate(3), estimate(3, reservation="2031-03-04 19:00:00")
        submit(grid, hours=2)
        while states(grid)[0][2] != "running":
            time.sleep(0.1)
        made = len([call for call in grid.calls() if call.method == "POST"])
        never = estimate(8)
        grid.inject(Fault.UNAUTHORIZED)
        unknown = estimate(3)
        posts = len([call for call in grid.calls() if call.method == "POST"]) - made
        wait_s = (soon.start - now).total_seconds()
        return [
            59 <= wait_s <= 61, later.start.isoformat(), never.start, never.reason, unknown.start,
            unknown.reason.splitlines()[0], made, posts,
        ]
    in_sandbox(on_paper, act)
""")
    assert found == [
        True,
        "2031-03-04T19:00:00+01:00",
        None,
        "these nodes are not free for 01:00:00 within 1 hours",
        None,
        "Grid'5000's API rejects your user name or password (401)",
        1,
        0,
    ]


@needs_nodes
@pytest.mark.long
def test_enoslib_checks_the_host_keys_of_the_reservation(scripts: Scripts) -> None:
    found = scripts.answer(
        """
    from laggard.layers_services.g5k.api import job_of
    from laggard.layers_services.g5k.nodes import provision_jobs
    from laggard.layers_services.g5k.reserve import reserve
    from laggard.layers_services.ssh.host_keys import ReservationKeys

    @contextmanager
    def on_nodes():
        with stand_in(Path.cwd() / "nodes", {"parasilo": 1}) as grid:
            home = Path.cwd() / "home"
            grid.write_account(home)
            os.environ["HOME"] = str(home)
            yield grid

    def act(grid):
        hosts = compile_hosts(document(quantity=1))
        plan = plan_g5k(document(quantity=1), G5kOptions())
        folder = Path.cwd()
        reservation = reserve(plan, hosts, "laggard-a", lambda jobs: None, folder, 60.0, PACE, False)
        recorded = ReservationKeys(folder / "reservation_known_hosts").path.read_text().split()
        job = reservation.jobs[0]
        (later := folder / "later").mkdir()
        keys = ReservationKeys.create(later)
        other = (folder / "nodes" / "deployed_host_key.pub").read_text()
        keys.path.write_text(f"{reservation.machines[0].access.address} {other}")
        jobs = [job_of(job.site, job.job_id, PACE)]
        os.environ["ANSIBLE_SSH_ARGS"] = ""
        refused = raised(lambda: provision_jobs(plan, hosts, jobs, "laggard-a", keys, 60.0, PACE))
        reservation.release()
        return [recorded[:2], refused]

    in_sandbox(on_nodes, act)
    """,
        timeout_s=240,
    )
    recorded, (kind, said) = found
    assert recorded == [PARASILO[0], "ssh-ed25519"]
    assert kind == "DeploymentError"
    assert f"{PARASILO[0]} shows another host key (SHA256:" in said
    # What it says when it has waited in vain is something else.
    assert "start a new run" in said
