"""One reservation for many cells, on a testbed in memory: made once, released once, whatever
happens."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from laggard.campaign.cell_runners.reserved_cells import (
    ReservedCells,
    SharedMachines,
    reserve_cells,
)
from laggard.campaign.run_subprocess import SubprocessRun
from laggard.core.errors import DeploymentError, InputError
from laggard.core.run_schema import ReservedJob
from laggard.remote.destroy import destroy_named, destroy_runs
from laggard.remote.reservations_file import (
    ReservationRecord,
    load_reservations,
    lock_reservations,
    store_reservation,
)
from laggard.remote.testbeds import g5k
from laggard.remote.testbeds.g5k import G5kTestbed
from laggard.remote.testbeds.remote_testbed import (
    JobsRecorder,
    MachinePlan,
    OptionValue,
    SharedReservation,
)
from laggard.scenario.load import Scenario, load_scenario

FILES = {
    "layers_services.yaml": """
environment: {g5k: {cluster: parasilo, walltime: "01:00:00"}}
layers:
  - {name: cloud, services: [{name: trainer, quantity: 1}]}
  - {name: edge, services: [{name: trainer, quantity: 2}]}
""",
    "network.yaml": "networks: []\n",
    "workflow.yaml": "[]\n",
    "workload.yaml": """
model: mlp
dataset: digits
placement: {workers: ["cloud.*", "edge.*"]}
stop: {steps: 90}
""",
}


@dataclass(frozen=True)
class Cell:
    """Cell of one of the setups."""

    setup_digest: str


@dataclass
class Site:
    """Site whose jobs are a list: every reservation and release in order."""

    events: list[str] = field(default_factory=list)
    longest_s: float = 3600.0

    def reserve(self, owner_id: str, on_jobs_changed: JobsRecorder) -> ReservedJob:
        name = f"laggard-{owner_id}"
        job = ReservedJob(testbed="g5k", site="rennes", job_id=0, name=name, nodes=3)
        on_jobs_changed((job,))
        number = 1 + sum(event.startswith("reserve") for event in self.events)
        self.events.append(f"reserve {number}")
        job = job.model_copy(update={"job_id": number})
        on_jobs_changed((job,))
        return job


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Site:
    """Put a site in the place of Grid'5000's API."""
    site = Site()

    @contextmanager
    def reserve_together(
        _self: G5kTestbed,
        plans: Sequence[MachinePlan],
        owner_id: str,
        on_jobs_changed: JobsRecorder,
    ) -> Iterator[SharedReservation]:
        assert plans
        job = site.reserve(owner_id, on_jobs_changed)
        try:
            yield g5k.SharedJobs(time.monotonic() + site.longest_s, (job,))
        finally:
            site.events.append(f"release {job.job_id}")
            on_jobs_changed((job.model_copy(update={"released": True}),))

    def release_jobs(
        _self: G5kTestbed, owner_id: str, jobs: Sequence[ReservedJob]
    ) -> tuple[ReservedJob, ...]:
        assert all(job.name == f"laggard-{owner_id}" for job in jobs)
        site.events += [f"destroy {job.job_id}" for job in jobs if not job.released]
        return tuple(job.model_copy(update={"released": True}) for job in jobs)

    monkeypatch.setattr(G5kTestbed, "reserve_together", reserve_together)
    monkeypatch.setattr(G5kTestbed, "release_jobs", release_jobs)
    return site


@pytest.fixture
def scenario(tmp_path: Path) -> Scenario:
    folder = tmp_path / "small"
    folder.mkdir()
    for name, text in FILES.items():
        (folder / name).write_text(text)
    return load_scenario(folder)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "runs" / "campaigns" / "night"
    folder.mkdir(parents=True)
    return folder


Answer = Callable[[tuple[str, ...]], SubprocessRun]


@contextmanager
def run_cells(
    scenario: Scenario,
    folder: Path,
    answer: Answer,
    budget: float | None = None,
    **options: OptionValue,
) -> Iterator[ReservedCells[Cell]]:
    @dataclass(frozen=True)
    class Runner:
        options: tuple[str, ...]

        def run(self, cell: Cell, token: str) -> SubprocessRun:
            del cell, token
            return answer(self.options)

    machines = SharedMachines(
        G5kTestbed.from_options(options), {"a": scenario}, folder, ("--on=g5k",), budget
    )
    with reserve_cells(machines, Runner) as runner:
        yield runner


def _finish(stopped_by: str = "steps") -> SubprocessRun:
    return SubprocessRun(0, {"status": "done", "outcome": {"stopped_by": stopped_by}})


def test_two_cells_use_one_reservation(scenario: Scenario, folder: Path, site: Site) -> None:
    given: list[tuple[str, ...]] = []

    def answer(options: tuple[str, ...]) -> SubprocessRun:
        given.append(options)
        site.events.append("cell")
        return _finish()

    with run_cells(scenario, folder, answer) as runner:
        assert site.events == [], "nothing is reserved before the first cell"
        for token in ("one", "two"):
            assert runner.find_stop_reason(Cell("a")) is None
            assert runner.run(Cell("a"), token).status == 0
    assert site.events == ["reserve 1", "cell", "cell", "release 1"]
    assert given == [("--on=g5k", "--job=rennes:1")] * 2
    (record,) = load_reservations(folder)
    assert all(job.released for job in record.jobs)
    assert record.ended_s is not None
    assert (record.nodes, record.walltime_s) == (3, 3600.0)


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt("SIGTERM"), DeploymentError("lost"), OSError()]
)
def test_whatever_ends_the_campaign_releases(
    scenario: Scenario, folder: Path, site: Site, error: BaseException
) -> None:
    def answer(_options: tuple[str, ...]) -> SubprocessRun:
        raise error

    with pytest.raises(type(error)), run_cells(scenario, folder, answer) as runner:
        runner.run(Cell("a"), "one")
    assert site.events == ["reserve 1", "release 1"]


def test_a_cell_that_does_not_fit_gets_another_reservation(
    scenario: Scenario, folder: Path, site: Site
) -> None:
    def answer(_options: tuple[str, ...]) -> SubprocessRun:
        site.events.append("cell")
        return _finish()

    with run_cells(scenario, folder, answer) as runner:
        site.longest_s = 0.0
        runner.run(Cell("a"), "one")
        runner.run(Cell("a"), "two")
    assert site.events == ["reserve 1", "cell", "release 1", "reserve 2", "cell", "release 2"]


def test_training_that_the_walltime_cut_off_is_repeated_once(
    scenario: Scenario, folder: Path, site: Site
) -> None:
    endings = iter(["steps", "walltime", "walltime"])

    def answer(_options: tuple[str, ...]) -> SubprocessRun:
        site.events.append("cell")
        ended = _finish(next(endings))
        # The rest of the walltime has passed.
        runner._held = g5k.SharedJobs(time.monotonic())
        return ended

    with run_cells(scenario, folder, answer) as runner:
        runner.run(Cell("a"), "one")
        runner._held = g5k.SharedJobs(time.monotonic() + 1e4)
        assert runner.run(Cell("a"), "two").status == 0
    assert site.events == [
        "reserve 1",
        "cell",
        "cell",
        "release 1",
        "reserve 2",
        "cell",
        "release 2",
    ]


def test_the_budget_allows_no_further_reservation(
    scenario: Scenario, folder: Path, site: Site
) -> None:
    with run_cells(scenario, folder, lambda _options: _finish(), budget=3.5) as runner:
        site.longest_s = 0.0
        runner.run(Cell("a"), "one")
        reason = runner.find_stop_reason(Cell("a"))
        assert reason is None, "3 nodes for some milliseconds and for one more hour"
    with run_cells(scenario, folder, lambda _options: _finish(), budget=2.9) as runner:
        reason = runner.find_stop_reason(Cell("a"))
        assert reason is not None
        assert "stop.node_hours" in reason
        with pytest.raises(DeploymentError, match=r"stop\.node_hours"):
            runner.run(Cell("a"), "two")
    assert site.events == ["reserve 1", "release 1"]


def _kill_campaign(folder: Path) -> str:
    """Leave what a campaign that was killed leaves; return the id of its reservation."""
    record = ReservationRecord(id="20261126T000000.000Z-abcdef", testbed="g5k")
    jobs = ReservedJob(testbed="g5k", site="rennes", job_id=7, name=f"laggard-{record.id}", nodes=3)
    store_reservation(folder, record.model_copy(update={"jobs": (jobs,)}))
    return record.id


def test_what_a_killed_call_holds_is_released_by_the_next(
    scenario: Scenario, folder: Path, site: Site
) -> None:
    _kill_campaign(folder)
    with run_cells(scenario, folder, lambda _options: _finish()) as runner:
        assert site.events == ["destroy 7"]
        runner.run(Cell("a"), "one")
    assert site.events == ["destroy 7", "reserve 1", "release 1"]
    assert all(job.released for record in load_reservations(folder) for job in record.jobs)


@pytest.mark.parametrize("name", [None, "night", "FOLDER"])
def test_destroy_releases_what_a_killed_campaign_holds(
    folder: Path, site: Site, name: str | None
) -> None:
    _kill_campaign(folder)
    runs = folder.parents[1]
    named = str(folder) if name == "FOLDER" else name
    report = destroy_runs(runs) if named is None else destroy_named(named, runs)
    assert [job.job_id for job in report.released] == [7]
    assert site.events == ["destroy 7"]
    assert destroy_runs(runs).released == ()


def test_a_running_campaign_keeps_its_nodes(scenario: Scenario, folder: Path, site: Site) -> None:
    def answer(_options: tuple[str, ...]) -> SubprocessRun:
        report = destroy_runs(folder.parents[1])
        assert (report.released, report.held) == ((), ())
        return _finish()

    with run_cells(scenario, folder, answer) as runner:
        runner.run(Cell("a"), "one")
    assert site.events == ["reserve 1", "release 1"]


def test_a_second_process_is_refused(scenario: Scenario, folder: Path) -> None:
    with (
        lock_reservations(folder),
        pytest.raises(InputError, match="another process"),
        run_cells(scenario, folder, lambda _options: _finish()),
    ):
        pass


def test_a_damaged_record_is_named(folder: Path) -> None:
    (folder / "reservations.json").write_text('{"reservations": 3}')
    with pytest.raises(InputError, match=r"reservations\.json: not a record of reservations"):
        destroy_runs(folder.parents[1])
