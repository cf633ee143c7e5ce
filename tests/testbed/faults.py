"""What can go wrong on a testbed, to be made to go wrong on the stand-in."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum


class Fault(Enum):
    """A way in which Grid'5000 fails its users."""

    UNAUTHORIZED = "every request is answered 401, as with a wrong password"
    SERVER_ERRORS = "some requests are answered 500, later ones well"
    SLOW_ANSWERS = "some requests are answered only after a while"
    JOB_NEVER_STARTS = "jobs stay in `waiting`, without a date"
    KILLED_BY_WALLTIME = (
        "running jobs are ended as if their walltime were over, their nodes with all processes"
    )
    RESERVATION_NOT_VALID = "some submissions are answered 400, `Reservation not valid`"
    DEPLOYMENT_FAILS = "a node comes out of deployments as KO"
    NODE_SILENT = "a node of a running job stops answering SSH: its packets are lost"
    RELEASE_FAILS = "some deletions are answered 503"


_DEFAULT_TIMES = {
    Fault.SERVER_ERRORS: 3,
    Fault.SLOW_ANSWERS: 1,
    Fault.RESERVATION_NOT_VALID: 1,
    Fault.RELEASE_FAILS: 2,
    Fault.KILLED_BY_WALLTIME: 1,
    Fault.NODE_SILENT: 1,
}


@dataclass(frozen=True)
class Injection:
    """A fault to inject.

    Attributes:
        fault: which.
        times: how often; None: as often as is typical (three errors, one slow answer, two failed
            releases, ...), which for the rest is always.
        method: only requests of this HTTP method; empty: any. python-grid5000 itself repeats GET
            and DELETE after a 500, 502 or 504, up to five times; never a POST.
        delay_s: of a slow answer; of a silent node and of the walltime: seconds after the job began
            to run.
        node: which node; empty: the first of the job or deployment.
    """

    fault: Fault
    times: int | None = None
    method: str = ""
    delay_s: float = 0.0
    node: str = ""


class Faults:
    """The faults still to come; safe to use from several threads."""

    def __init__(self, injections: Sequence[Injection] = ()) -> None:
        self._lock = threading.Lock()
        self._open: list[tuple[Injection, float]] = []
        for injection in injections:
            self.inject(injection)

    def inject(self, injection: Injection) -> None:
        """Add a fault."""
        usual = _DEFAULT_TIMES.get(injection.fault, float("inf"))
        with self._lock:
            self._open.append((injection, usual if injection.times is None else injection.times))

    def clear(self) -> None:
        """Let everything go well from now on."""
        with self._lock:
            self._open.clear()

    def peek(self, fault: Fault) -> Injection | None:
        """A fault that is still to come, left as it is."""
        with self._lock:
            return next((each for each, _ in self._open if each.fault is fault), None)

    def take(self, fault: Fault, method: str = "", node: str = "") -> Injection | None:
        """A fault that strikes this request or node now, counted."""
        with self._lock:
            for number, (injection, left) in enumerate(self._open):
                fits = (
                    injection.fault is fault
                    and injection.method in ("", method)
                    and injection.node in ("", node)
                )
                if fits:
                    self._open[number : number + 1] = [(injection, left - 1)] if left > 1 else []
                    return injection
        return None
