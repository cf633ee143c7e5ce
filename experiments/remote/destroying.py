"""`laggard destroy`: what killed runs left on a remote testbed is given back, and their records say
so.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from laggard.experiments.run_store import RECORD, list_runs, load_record, write_atomically
from laggard.run_schema import HeldJob, Record, RunRecord


class Destroyed(Record):
    """What was found, and what became of it."""

    released: tuple[HeldJob, ...]
    held: tuple[HeldJob, ...]

    def json_text(self) -> str:
        """For machines."""
        return json.dumps(self.model_dump(mode="json"), indent=2)

    def text(self) -> str:
        """For people."""
        from laggard.layers_services.release import how_to_release

        if not self.released and not self.held:
            return "nothing is held on a testbed"
        lines = [f"released job {job.job_id} at {job.site} ({job.name})" for job in self.released]
        return "\n".join([*lines, *([how_to_release(self.held)] if self.held else [])])


def held_by(record: RunRecord) -> tuple[HeldJob, ...]:
    """Jobs that a run may still hold; a run that is going on needs its own."""
    return (
        () if record.status == "running" else tuple(job for job in record.jobs if not job.released)
    )


def destroy_run(folder: Path) -> Destroyed:
    """Release what one run holds, by its record and by its name on the testbed.

    Raises:
        LaggardError: the testbed's API refuses the user, or does not answer at all.
    """
    from laggard.layers_services.release import destroy, job_name

    record = load_record(folder)
    if record.testbed != "g5k" or record.status == "running":
        return Destroyed(released=(), held=())
    sites = tuple(dict.fromkeys(job.site for job in record.jobs))
    after = destroy(held_by(record), job_name(record.id), sites)
    _write(folder, record, after)
    return Destroyed(
        released=tuple(job for job in after if job.released),
        held=tuple(job for job in after if not job.released),
    )


def destroy_runs(runs: Path) -> Destroyed:
    """Release what any run of a folder of runs still holds.

    Raises:
        LaggardError: as `destroy_run`.
    """
    records = [(record, folder) for record, folder in list_runs(runs) if held_by(record)]
    reports = [destroy_run(folder) for _, folder in records]
    return Destroyed(
        released=tuple(job for report in reports for job in report.released),
        held=tuple(job for report in reports for job in report.held),
    )


def _write(folder: Path, record: RunRecord, after: Sequence[HeldJob]) -> None:
    known = {(job.site, job.name): job for job in record.jobs}
    known |= {(job.site, job.name): job for job in after}
    updated = record.model_copy(update={"jobs": tuple(known.values())})
    write_atomically(folder / RECORD, updated.model_dump_json(indent=2).encode() + b"\n")
