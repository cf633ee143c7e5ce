"""Reservations that a testbed's API finds by the run's unique name: held, recorded, released."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from laggard.remote.testbeds.remote_testbed import ReservedNodes

if TYPE_CHECKING:
    from laggard.core.run_schema import ReservedJob
    from laggard.layers_services.machine import Machine
    from laggard.layers_services.ssh.host_keys import ReservationKeys
    from laggard.run_folder.journal import Journal

    JobsRecorder = Callable[[tuple[ReservedJob, ...]], None]
    Hold = Callable[[str, ReservationKeys, JobsRecorder], "HeldReservation"]


class HeldReservation(Protocol):
    """Machines of a reservation that has begun."""

    @property
    def machines(self) -> tuple[Machine, ...]:
        """One machine per host, in the order of the hosts."""

    @property
    def end_s(self) -> float:
        """`time.monotonic()` at which the reservation ends."""

    def release(self) -> ReservedJob:
        """End the reservation, and return it as it is then."""


@contextmanager
def hold_during(
    journal: Journal, what: str, hold: Hold, describe_release: Callable[[ReservedJob], str]
) -> Iterator[ReservedNodes]:
    """Hold a reservation for the body of a `with`, and release it however that ends.

    Args:
        journal: journal of the run, which records the reservation.
        what: what is reserved, for the user.
        hold: makes the reservation, given its name, its host keys, and what records it.
        describe_release: says how the user can end a reservation.

    Raises:
        LaggardError: the testbed refused, or did not give, the machines.
    """
    from laggard.layers_services.g5k.release import job_name
    from laggard.layers_services.ssh.host_keys import ReservationKeys

    def record_jobs(jobs: tuple[ReservedJob, ...]) -> None:
        journal.update(jobs=jobs)

    with journal.stage("reserve", what):
        keys = ReservationKeys.create(journal.folder.path)
        held = hold(job_name(journal.record.id), keys, record_jobs)
    try:
        yield ReservedNodes(held.machines, held.end_s)
    finally:
        with journal.stage("release"):
            job = held.release()
        journal.update(jobs=(job,))
        if not job.released:
            journal.update(warnings=(*journal.record.warnings, describe_release(job)))


def release_recorded(
    owner_id: str, jobs: Sequence[ReservedJob], release: Callable[[ReservedJob], ReservedJob]
) -> tuple[ReservedJob, ...]:
    """Release the recorded reservations of a run, and return them as they are then.

    Raises:
        InputError: the record lists a reservation of another name; nothing was released.
    """
    from laggard.core.errors import InputError
    from laggard.layers_services.g5k.release import job_name

    foreign = [job.name for job in jobs if job.name != job_name(owner_id)]
    if foreign:
        raise InputError(f"{foreign[0]}: this reservation is not of the run {owner_id}")
    return tuple(job if job.released else release(job) for job in jobs)
