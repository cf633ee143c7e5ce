"""Operations that an agent performs on request, each with the type of its result.

`RequestHandlers`, `HostLimits` and the agent itself have the handlers, by the operation's name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Generic, TypeVar

from pydantic import AfterValidator, Field, TypeAdapter

from laggard.core.emulated_drive import DriveCounters
from laggard.core.node_values import Count, Number, Real, Scalar, ShortText
from laggard.core.run_schema import FidelityCheck
from laggard.layers_services.ssh.fetch_files import MANIFEST, RemoteFile

Result = TypeVar("Result")

_MOST_FACTS = 50
_MOST_HOSTS = 10_000
_MOST_CHECKS = 1000
_MOST_OUTPUT = 4 << 20


@dataclass(frozen=True)
class Operation(Generic[Result]):
    """Operation of an agent.

    Attributes:
        name: name in requests.
        result: type of the result, with bounds.
    """

    name: str
    result: TypeAdapter[Result]


@dataclass(frozen=True)
class HostUsage:
    """Drive counters and peak memory of one host; None where the resource is not limited."""

    drive: DriveCounters | None
    peak_bytes: Count | None


def _require_finite(check: FidelityCheck) -> FidelityCheck:
    _REALS.validate_python((check.requested, check.measured, check.tolerance))
    _TEXTS.validate_python((check.src, check.dst or "", check.unit, check.detail))
    return check


_REALS: TypeAdapter[tuple[Real, ...]] = TypeAdapter(tuple[Real, ...])
_TEXTS: TypeAdapter[tuple[ShortText, ...]] = TypeAdapter(tuple[ShortText, ...])
_CHECKS: TypeAdapter[tuple[FidelityCheck, ...]] = TypeAdapter(
    Annotated[
        tuple[Annotated[FidelityCheck, AfterValidator(_require_finite)], ...],
        Field(max_length=_MOST_CHECKS),
    ]
)
_NOTHING: TypeAdapter[None] = TypeAdapter(None)
_NUMBER: TypeAdapter[int] = TypeAdapter(Number)
_REAL: TypeAdapter[float] = TypeAdapter(Annotated[Real, Field(ge=0)])
_ROUND_TRIPS: TypeAdapter[dict[str, float | None]] = TypeAdapter(
    Annotated[
        dict[ShortText, Annotated[Real, Field(ge=0, le=1e7)] | None], Field(max_length=_MOST_HOSTS)
    ]
)

FINGERPRINT: Operation[dict[str, int | float | str | None]] = Operation(
    "fingerprint",
    TypeAdapter(Annotated[dict[ShortText, Scalar], Field(max_length=_MOST_FACTS)]),
)
MEASURE_ROUND_TRIPS = Operation("measure_round_trips", _ROUND_TRIPS)
OPEN_SINK: Operation[int] = Operation(
    "open_sink", TypeAdapter(Annotated[int, Field(strict=True, gt=0, lt=1 << 16)])
)
RECEIVE = Operation("receive", _REAL)
SEND = Operation("send", _NOTHING)
RUN_COMMAND: Operation[str] = Operation(
    "run_command", TypeAdapter(Annotated[str, Field(max_length=_MOST_OUTPUT)])
)
UNDO_AT_END = Operation("undo_at_end", _NOTHING)
LIST_FILES: Operation[dict[str, RemoteFile]] = Operation("manifest", MANIFEST)
READ_CLOCK = Operation("read_clock", _NUMBER)
WAIT_IMPORTS = Operation("wait_imports", _REAL)
COMPARE_CLOCKS: Operation[int] = Operation("compare_clocks", TypeAdapter(Count))
APPLY_SHARES = Operation("apply_shares", _CHECKS)
SET_SHARE = Operation("set_share", _NUMBER)
VERIFY_DRIVE = Operation("verify_drive", _CHECKS)
SET_DRIVE = Operation("set_drive", _NUMBER)
REPORT_USAGE: Operation[HostUsage] = Operation("usage", TypeAdapter(HostUsage))
START_PROCESSES = Operation("start_processes", _NOTHING)
BEGIN_TRAINING = Operation("begin_training", _NOTHING)
START_JOINING = Operation("start_joining", _NOTHING)
KILL_RANK: Operation[bool] = Operation("kill_rank", TypeAdapter(bool))
END_TRAINING: Operation[bool] = Operation("end_training", TypeAdapter(bool))
FINALIZE_CLOCK = Operation("finalize_clock", _NOTHING)
LEAVE = Operation("leave", _NOTHING)
