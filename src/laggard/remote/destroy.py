"""`laggard destroy`: release of nodes that killed runs still hold, and update of their records."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from laggard.core.errors import InputError
from laggard.core.files.output_files import write_atomically
from laggard.core.run_schema import Record, ReservedJob, RunRecord
from laggard.remote.testbeds.registry import REMOTE_TESTBEDS
from laggard.run_folder.store import RECORD_FILE, list_runs, load_record


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
        after = testbed().release_run(record)
    except InputError as error:
        return DestroyReport(released=(), held=(), refused=(f"{folder}: {error}",))
    _update_record(folder, record, after)
    return DestroyReport(
        released=tuple(job for job in after if job.released),
        held=tuple(job for job in after if not job.released),
    )


def destroy_runs(runs: Path) -> DestroyReport:
    """Release the jobs that any run in a folder of runs still holds.

    Raises:
        LaggardError: as in `destroy_run`.
    """
    records = [
        (record, folder) for record, folder in list_runs(runs) if list_unreleased_jobs(record)
    ]
    reports = [destroy_run(folder) for _, folder in records]
    return DestroyReport(
        released=tuple(job for report in reports for job in report.released),
        held=tuple(job for report in reports for job in report.held),
        refused=tuple(reason for report in reports for reason in report.refused),
    )


def _update_record(folder: Path, record: RunRecord, after: Sequence[ReservedJob]) -> None:
    """Merge the jobs after the release into the record of the run."""
    # The job number is no key: a job is recorded with number 0 before it is reserved.
    known = {(job.site, job.name): job for job in record.jobs}
    known |= {(job.site, job.name): job for job in after}
    updated = record.model_copy(update={"jobs": tuple(known.values())})
    write_atomically(folder / RECORD_FILE, updated.model_dump_json(indent=2).encode() + b"\n")
