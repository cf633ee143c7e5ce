"""`laggard destroy`: what killed runs left on a remote testbed is given back, and their records say
so.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from laggard.core.atomic_write import write_atomically
from laggard.core.run_schema import Record, ReservedJob, RunRecord
from laggard.remote.testbeds.registry import REMOTE_TESTBEDS
from laggard.run_folder.store import RECORD_FILE, list_runs, load_record


class DestroyReport(Record):
    """What was found, and what became of it."""

    released: tuple[ReservedJob, ...]
    held: tuple[ReservedJob, ...]

    def to_json(self) -> str:
        """For machines."""
        return json.dumps(self.model_dump(mode="json"), indent=2)

    def text(self) -> str:
        """For people."""
        if not self.released and not self.held:
            return "nothing is held on a testbed"
        lines = [f"released job {job.job_id} at {job.site} ({job.name})" for job in self.released]
        for name, testbed in REMOTE_TESTBEDS.items():
            if held := [job for job in self.held if job.testbed == name]:
                lines.append(testbed().format_held_jobs(held))
        return "\n".join(lines)


def list_unreleased_jobs(record: RunRecord) -> tuple[ReservedJob, ...]:
    """Jobs that a run may still hold; a run that is going on needs its own."""
    return (
        () if record.status == "running" else tuple(job for job in record.jobs if not job.released)
    )


def destroy_run(folder: Path) -> DestroyReport:
    """Release what one run holds, by its record and by its name on the testbed.

    Raises:
        LaggardError: the testbed's API refuses the user, or does not answer at all.
    """
    record = load_record(folder)
    testbed = REMOTE_TESTBEDS.get(record.testbed)
    if testbed is None or record.status == "running":
        return DestroyReport(released=(), held=())
    after = testbed().release_run(record)
    _update_record(folder, record, after)
    return DestroyReport(
        released=tuple(job for job in after if job.released),
        held=tuple(job for job in after if not job.released),
    )


def destroy_runs(runs: Path) -> DestroyReport:
    """Release what any run of a folder of runs still holds.

    Raises:
        LaggardError: as `destroy_run`.
    """
    records = [
        (record, folder) for record, folder in list_runs(runs) if list_unreleased_jobs(record)
    ]
    reports = [destroy_run(folder) for _, folder in records]
    return DestroyReport(
        released=tuple(job for report in reports for job in report.released),
        held=tuple(job for report in reports for job in report.held),
    )


def _update_record(folder: Path, record: RunRecord, after: Sequence[ReservedJob]) -> None:
    known = {(job.site, job.name): job for job in record.jobs}
    known |= {(job.site, job.name): job for job in after}
    updated = record.model_copy(update={"jobs": tuple(known.values())})
    write_atomically(folder / RECORD_FILE, updated.model_dump_json(indent=2).encode() + b"\n")
