"""One clock exchange, as nodes make and send it.

This module does not import numpy, because numpy starts threads, and a process that forks must not
have any.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from laggard.core.errors import RunFolderError

_LARGEST_NS = 1 << 62
_LONGEST_LINE = 200


@dataclass(frozen=True, slots=True)
class ClockExchange:
    """Request to the reference and its answer, in nanoseconds of two machines' CLOCK_MONOTONIC.

    Attributes:
        sent_ns: local time just before the request left.
        received_ns: reference time just after the request arrived.
        answered_ns: reference time just before the answer left.
        returned_ns: local time just after the answer arrived.
    """

    sent_ns: int
    received_ns: int
    answered_ns: int
    returned_ns: int

    def __post_init__(self) -> None:
        stamps = (self.sent_ns, self.received_ns, self.answered_ns, self.returned_ns)
        if any(abs(stamp) > _LARGEST_NS for stamp in stamps):
            raise ValueError(
                f"clock exchange {stamps}: every stamp must be within ± 2^62 nanoseconds"
            )
        if self.returned_ns < self.sent_ns or self.answered_ns < self.received_ns:
            raise ValueError(f"clock exchange {stamps}: a monotonic clock never runs backwards")

    def to_json(self) -> str:
        """Return the exchange as one line of JSON, without a line break."""
        return json.dumps([self.sent_ns, self.received_ns, self.answered_ns, self.returned_ns])

    @classmethod
    def from_json(cls, line: str | bytes) -> Self:
        """Parse a line that `to_json` wrote.

        Raises:
            RunFolderError: the line is not an exchange.
        """
        try:
            # A longer line, as of a damaged file, is cut, so that it cannot be parsed.
            return cls(*_require_four_integers(json.loads(line[:_LONGEST_LINE])))
        except ValueError as error:
            raise RunFolderError(f"{line[:200]!r} is not a clock exchange: {error}") from error


def _require_four_integers(value: object) -> Sequence[int]:
    if (
        not isinstance(value, list)
        or len(value) != 4
        or any(type(stamp) is not int for stamp in value)
    ):
        raise ValueError(
            "an exchange is a list of four whole numbers: sent, received, answered, returned, in ns"
        )
    return value
