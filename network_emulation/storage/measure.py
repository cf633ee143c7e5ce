"""Fidelity check of drives: a probe per host waits in its drive, as its workers will.

All hosts are measured at once, and must be idle.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from statistics import median

from laggard.core.emulated_drive import Direction, Drive, DriveLimits
from laggard.core.errors import EmulationError
from laggard.core.linux import minimize_timer_slack
from laggard.core.run_schema import FidelityCheck
from laggard.core.virtual_time import Dilation
from laggard.network_emulation.forked import end_companion, fork_companion
from laggard.network_emulation.storage.plan import dilate_limits

TOLERANCE = 0.05
"""Relative error allowed."""

LATENCY_TOLERANCE_MS = 0.5
"""Absolute error allowed for a short latency: on busy cores, a reader wakes up this much later."""

ATTEMPTS = 3
"""Number of measurements after which a drive counts as out of tolerance."""

_TRANSFER_S = 0.1
_LATENCY_S = 0.1
_ACCESSES = 9
_PATIENCE_S = 30.0


@dataclass(frozen=True)
class DriveQuantity:
    """One quantity of one drive.

    Attributes:
        host: host of the drive.
        direction: read or write.
        limit: real bandwidth in MB/s, or real latency in ms.
        is_latency: True if `limit` is a latency.
    """

    host: str
    direction: Direction
    limit: float
    is_latency: bool

    @property
    def size_bytes(self) -> int:
        """Return the bytes to transfer: a tenth of a second's worth."""
        return 0 if self.is_latency else max(1, round(self.limit * 1e6 * _TRANSFER_S))

    @property
    def accesses(self) -> int:
        """Return the number of accesses: a tenth of a second's worth, at least one."""
        return max(1, min(_ACCESSES, int(_LATENCY_S * 1e3 / self.limit))) if self.is_latency else 1


def verify_drives(
    limits: Mapping[str, DriveLimits], paths: Mapping[str, Path], dilation: Dilation
) -> tuple[FidelityCheck, ...]:
    """Measure every limited drive.

    It takes half a second at most, unless one access takes longer, and three times that if a drive
    is out of tolerance.

    Args:
        limits: requested virtual limits of every drive.
        paths: files of the drives.
        dilation: dilation of the run.

    Returns:
        A check of kind `storage` for every limited quantity. A failed check raises nothing.

    Raises:
        EmulationError: if a probe died.
    """
    asked = [
        each
        for host in limits
        for each in _list_quantities(host, dilate_limits(limits[host], dilation))
    ]
    checks: dict[DriveQuantity, FidelityCheck] = {}
    missed = asked
    for attempt in range(ATTEMPTS):
        for each, seconds in _measure_quantities(missed, paths).items():
            checks[each] = _build_drive_check(each, seconds, dilation, attempt)
        missed = [each for each in asked if not checks[each].ok]
        if not missed:
            break
    return tuple(checks[each] for each in asked)


def _list_quantities(host: str, real: DriveLimits) -> Iterator[DriveQuantity]:
    if real.read_mb_per_s is not None:
        yield DriveQuantity(host, "read", real.read_mb_per_s, is_latency=False)
    if real.write_mb_per_s is not None:
        yield DriveQuantity(host, "write", real.write_mb_per_s, is_latency=False)
    if real.read_latency_ms:
        yield DriveQuantity(host, "read", real.read_latency_ms, is_latency=True)
    if real.write_latency_ms:
        yield DriveQuantity(host, "write", real.write_latency_ms, is_latency=True)


def _build_drive_check(
    asked: DriveQuantity, seconds: float, dilation: Dilation, attempt: int
) -> FidelityCheck:
    again = f"; measured {attempt + 1} times" if attempt else ""
    if asked.is_latency:
        requested, measured = dilation.virtual_s(asked.limit), dilation.virtual_s(seconds) * 1e3
        tolerance = max(TOLERANCE * requested, dilation.virtual_s(LATENCY_TOLERANCE_MS))
        detail = f"latency of {asked.direction}s, {asked.accesses} accesses{again}"
        unit = "ms"
    else:
        # MB per virtual second are MB per real second times D, and `real_s` multiplies by D.
        requested, measured = (
            dilation.real_s(asked.limit),
            dilation.real_s(asked.size_bytes / 1e6 / seconds),
        )
        tolerance = TOLERANCE * requested
        detail = f"{asked.direction} of {asked.size_bytes} bytes{again}"
        unit = "MB/s"
    return FidelityCheck(
        kind="storage",
        src=asked.host,
        dst=None,
        requested=requested,
        measured=measured,
        unit=unit,
        tolerance=tolerance,
        ok=abs(measured - requested) <= tolerance,
        detail=detail,
    )


def _measure_quantities(
    asked: list[DriveQuantity], paths: Mapping[str, Path]
) -> Mapping[DriveQuantity, float]:
    """Return the seconds that each transfer or access took.

    Hosts are measured at the same time, the quantities of one host one after the other.
    """
    probes: dict[str, tuple[int, Connection]] = {}
    measured: dict[DriveQuantity, float] = {}
    try:
        for host in dict.fromkeys(each.host for each in asked):
            probes[host] = _start_probe(paths[host], [each for each in asked if each.host == host])
        for host, (_, connection) in probes.items():
            own = [each for each in asked if each.host == host]
            measured |= zip(
                own, _receive_timings(host, connection, _PATIENCE_S + _expected_s(own)), strict=True
            )
        return measured
    finally:
        for pid, connection in probes.values():
            connection.close()
            end_companion(pid)


def _expected_s(asked: list[DriveQuantity]) -> float:
    return sum(
        each.accesses * each.limit / 1e3 if each.is_latency else _TRANSFER_S for each in asked
    )


def _start_probe(path: Path, asked: list[DriveQuantity]) -> tuple[int, Connection]:
    ours, theirs = Pipe()
    pid = fork_companion("laggard-drive", lambda: _run_probe(path, asked, ours, theirs))
    theirs.close()
    return pid, ours


def _run_probe(
    path: Path, asked: list[DriveQuantity], unrelated: Connection, connection: Connection
) -> int:
    unrelated.close()
    minimize_timer_slack()
    with suppress(BrokenPipeError), Drive(path) as drive:
        connection.send_bytes(pickle.dumps([_time_quantity(drive, each) for each in asked]))
    return 0


def _time_quantity(drive: Drive, asked: DriveQuantity) -> float:
    """Return the seconds of one transfer without latency, or the median of several accesses."""
    took = []
    for _ in range(asked.accesses):
        began_ns = time.monotonic_ns()
        drive.transfer(
            asked.direction,
            asked.size_bytes,
            accesses=1 if asked.is_latency else 0,
            begun_ns=began_ns,
        )
        took.append((time.monotonic_ns() - began_ns) / 1e9)
    return median(took)


def _receive_timings(host: str, connection: Connection, patience_s: float) -> list[float]:
    try:
        if not connection.poll(patience_s):
            raise EmulationError(f"{host}: the measurement of its drive exceeded {patience_s:g} s")
        seconds: list[float] = pickle.loads(connection.recv_bytes())  # noqa: S301 - our own fork's
    except EOFError as error:
        raise EmulationError(
            f"{host}: the probe of its drive died; see its error output on stderr"
        ) from error
    return seconds
