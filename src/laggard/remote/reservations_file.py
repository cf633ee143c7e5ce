"""Record of the reservations that a campaign makes for its runs, in the campaign's folder.

Each is recorded before it is made, so that `laggard destroy` finds the jobs of a killed campaign. A
campaign locks the file `reservations.lock` while it may hold nodes, as a run does with its folder.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from laggard.core.errors import InputError
from laggard.core.files.input_files import parse_json, read_bounded
from laggard.core.files.output_files import write_atomically
from laggard.core.run_schema import Record, ReservedJob

RESERVATIONS_FILE = "reservations.json"
LOCK_FILE = "reservations.lock"


class ReservationRecord(Record):
    """One reservation of a campaign.

    Attributes:
        id: unique id, from which its jobs have their name.
        testbed: name of the testbed, as on the command line.
        jobs: its jobs.
        nodes: number of its nodes.
        walltime_s: seconds after which the testbed takes them back.
        began_s: Unix time of its start, or of its request if it has not started.
        ended_s: Unix time of its release; None if it was not released in order.
    """

    id: str
    testbed: str
    jobs: tuple[ReservedJob, ...] = ()
    nodes: int = 0
    walltime_s: float = 0.0
    began_s: float = 0.0
    ended_s: float | None = None

    def count_node_seconds(self, now_s: float) -> float:
        """Return nodes x seconds until now, a Unix time."""
        end_s = now_s if self.ended_s is None else self.ended_s
        return self.nodes * min(self.walltime_s, max(0.0, end_s - self.began_s))


class _Reservations(Record):
    reservations: tuple[ReservationRecord, ...] = ()


def load_reservations(folder: Path) -> tuple[ReservationRecord, ...]:
    """Return the reservations that a campaign has recorded; none without a file.

    Raises:
        InputError: the file is damaged.
    """
    path = folder / RESERVATIONS_FILE
    if not path.exists():
        return ()
    try:
        return _Reservations.model_validate(parse_json(read_bounded(path))).reservations
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"{path}: not a record of reservations — restore it from a copy; `oarstat -u` on a"
            " frontend lists your jobs, and those of Laggard begin with `laggard-`"
        ) from error


def store_reservation(folder: Path, record: ReservationRecord) -> None:
    """Add a reservation to the file, or replace the one with its id."""
    known = {each.id: each for each in load_reservations(folder)} | {record.id: record}
    document = _Reservations(reservations=tuple(known.values()))
    content = document.model_dump_json(indent=1).encode() + b"\n"
    write_atomically(folder / RESERVATIONS_FILE, content)


def find_reservation_folders(runs: Path) -> Sequence[Path]:
    """Return the folders of all campaigns in a folder of runs that have made reservations."""
    return sorted(path.parent for path in runs.glob(f"campaigns/*/{RESERVATIONS_FILE}"))


@contextmanager
def lock_reservations(folder: Path) -> Iterator[bool]:
    """Hold the lock of a campaign's reservations; yield False if another process holds it."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        lock = os.open(folder / LOCK_FILE, flags, 0o644)
    except OSError as error:
        raise InputError(
            f"{folder / LOCK_FILE}: {error.strerror} — check the folder's owner and permissions"
        ) from error
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(lock)
