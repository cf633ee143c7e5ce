"""`laggard destroy`: release of nodes that killed runs and campaigns still hold.

Their records are updated.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from laggard.core.errors import InputError
from laggard.core.files.output_files import write_atomically
from laggard.core.run_schema import Record, ReservedJob, RunRecord
from laggard.remote.reservations_file import (
    RESERVATIONS_FILE,
    ReservationRecord,
    find_reservation_folders,
    load_reservations,
    lock_reservations,
    store_reservation,
)
from laggard.remote.testbeds.registry import REMOTE_TESTBEDS
from laggard.run_folder.store import RECORD_FILE, find_run, list_runs, load_record


class DestroyReport(Record):
    """Jobs that were found, and whether they were released.

    Attributes:
        released: jobs whose release the testbed confirmed.
        held: jobs that may still hold nodes.
        refused: reasons for which runs were refused, since their records list jobs of others.
    """

    released: tuple[ReservedJob, ...]
    held: tuple[ReservedJob, ...]
    refused: tuple[str, ...] = ()

    def to_json(self) -> str:
        """Return the report as indented JSON."""
        return json.dumps(self.model_dump(mode="json"), indent=2)

    def text(self) -> str:
        """Return the report as text for a terminal."""
        if not self.released and not self.held and not self.refused:
            return "no testbed holds any nodes for these runs"
        lines = [f"released job {job.job_id} at {job.site} ({job.name})" for job in self.released]
        for name, testbed in REMOTE_TESTBEDS.items():
            if held := [job for job in self.held if job.testbed == name]:
                lines.append(testbed().format_held_jobs(held))
        return "\n".join([*lines, *self.refused])


def list_unreleased_jobs(record: RunRecord) -> tuple[ReservedJob, ...]:
    """Return the jobs that a run may still hold; a running run has none, since it needs its own."""
    return (
        () if record.status == "running" else tuple(job for job in record.jobs if not job.released)
    )


def destroy_run(folder: Path) -> DestroyReport:
    """Release the jobs of one run, found by its record and by its name on the testbed.

    Raises:
        LaggardError: the testbed's API refuses the user, or does not answer.
    """
    record = load_record(folder)
    testbed = REMOTE_TESTBEDS.get(record.testbed)
    if testbed is None or record.status == "running":
        return DestroyReport(released=(), held=())
    try:
        after = testbed().release_jobs(record.id, record.jobs)
    except InputError as error:
        return DestroyReport(released=(), held=(), refused=(f"{folder}: {error}",))
    _update_record(folder, record, after)
    return _report_jobs(after)


def destroy_campaign(folder: Path) -> DestroyReport:
    """Release the jobs of a campaign that is over; a running one needs its own.

    Raises:
        LaggardError: as in `destroy_run`, or the record of its reservations is damaged.
    """
    with lock_reservations(folder) as is_over:
        return destroy_reservations(folder) if is_over else DestroyReport(released=(), held=())


def destroy_reservations(folder: Path) -> DestroyReport:
    """Release the jobs that a campaign's record lists as held; the caller has its lock.

    Raises:
        LaggardError: as in `destroy_campaign`.
    """
    records = load_reservations(folder)
    return _join_reports([_destroy_reservation(folder, record) for record in records])


def _destroy_reservation(folder: Path, record: ReservationRecord) -> DestroyReport:
    testbed = REMOTE_TESTBEDS.get(record.testbed)
    if testbed is None or all(job.released for job in record.jobs):
        return DestroyReport(released=(), held=())
    try:
        after = testbed().release_jobs(record.id, record.jobs)
    except InputError as error:
        return DestroyReport(released=(), held=(), refused=(f"{folder}: {error}",))
    jobs = _merge_jobs(record.jobs, after)
    store_reservation(folder, record.model_copy(update={"jobs": jobs}))
    return _report_jobs(after)


def destroy_runs(runs: Path) -> DestroyReport:
    """Release the jobs that any run or campaign in a folder of runs still holds.

    Raises:
        LaggardError: as in `destroy_run`.
    """
    records = [
        (record, folder) for record, folder in list_runs(runs) if list_unreleased_jobs(record)
    ]
    reports = [destroy_run(folder) for _, folder in records]
    reports += [destroy_campaign(folder) for folder in find_reservation_folders(runs)]
    return _join_reports(reports)


def destroy_named(name: str, runs: Path) -> DestroyReport:
    """Release the jobs of one run or campaign.

    Args:
        name: folder of a run or campaign, name of a campaign, or what `find_run` accepts.
        runs: folder of all runs.

    Raises:
        LaggardError: there is no such run or campaign, or as in `destroy_run`.
    """
    for folder in (Path(name), runs / "campaigns" / name):
        if name and (folder / RESERVATIONS_FILE).is_file():
            return destroy_campaign(folder)
    return destroy_run(find_run(name, runs))


def _report_jobs(jobs: Sequence[ReservedJob]) -> DestroyReport:
    return DestroyReport(
        released=tuple(job for job in jobs if job.released),
        held=tuple(job for job in jobs if not job.released),
    )


def _join_reports(reports: Sequence[DestroyReport]) -> DestroyReport:
    return DestroyReport(
        released=tuple(job for report in reports for job in report.released),
        held=tuple(job for report in reports for job in report.held),
        refused=tuple(reason for report in reports for reason in report.refused),
    )


def _update_record(folder: Path, record: RunRecord, after: Sequence[ReservedJob]) -> None:
    """Merge the jobs after the release into the record of the run."""
    updated = record.model_copy(update={"jobs": _merge_jobs(record.jobs, after)})
    write_atomically(folder / RECORD_FILE, updated.model_dump_json(indent=2).encode() + b"\n")


def _merge_jobs(
    before: Sequence[ReservedJob], after: Sequence[ReservedJob]
) -> tuple[ReservedJob, ...]:
    # The job number is no key: a job is recorded with number 0 before it is reserved.
    return tuple({(job.site, job.name): job for job in (*before, *after)}.values())
