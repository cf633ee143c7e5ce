"""Map from one machine's clock to another's, with a guaranteed bound on its error.

Every node stamps its spans with its own CLOCK_MONOTONIC. To compare them, a node exchanges small
messages with one reference node, and `fit_clock` turns the stamps into a map from local to
reference time with a bound on its error.

The only assumption about the network is that no message arrives before it was sent. Take a request
sent at local time t1 and received at reference time t2. It shows that the offset (reference minus
local) was at most t2 - t1 at t1. The answer, sent at reference time t3 and received at local time
t4, shows that the offset was at least t3 - t4 at t4. Delays need be neither symmetric nor of any
distribution.

With a constant drift the offset is a line a + b t, below all upper points and above all lower
ones. All such lines form a convex polygon. At each time, the middle between the highest and the
lowest line is the estimate with the smallest possible worst error, which is half their distance:

- A. Duda, G. Harrus, Y. Haddad, G. Bernard, "Estimating global time in distributed systems", ICDCS
  1987
- S. Moon, P. Skelly, D. Towsley, "Estimation and removal of clock skew from network delay
  measurements", INFOCOM 1999
- J.-M. Berthaud, "Time synchronization over networks using convex closures", IEEE/ACM Trans.
  Networking 8(2), 2000

No exchange needs to be filtered out, because an exchange can only remove lines from the set. One
that was queued for a long time removes none, and never widens the bound.

No real clock has a constant drift forever. There are three models; a wider one applies only where
the exchanges contradict the narrower one:

- *steady*: the drift stays within `wander_ppm` of a constant. Oscillators that nobody steers stay
  within 0.1 ppm (D. Veitch, J. Ridoux, S. Korada, "Robust synchronization of absolute and
  difference clocks over networks", IEEE/ACM Trans. Networking 17(2), 2009).
- *changing*: the drift is anything within `drift_limit_ppm`. This model covers the time around a
  change of the drift (NTP's slewing, temperature).
- *jumped*: the only rule is that no clock runs backwards. This model covers the time around a
  jump, such as that of a suspended machine, whose CLOCK_MONOTONIC stands still. These intervals
  are `ClockFit.suspect_intervals`.

The time of a change is not guessed. The drift is divided into the fewest pieces that fit. Pieces
made as long as possible from the left give the latest place of each change, and pieces made from
the right give the earliest. Between the two places the wider model applies, and observations made
there say nothing about the pieces on either side.

A change that is too small to contradict any exchange cannot be detected. It moves the truth out of
the bound by less than the round trips around it. A `wander_ppm` equal to `drift_limit_ppm` gives a
bound that includes all such changes, but is wider between exchanges.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from laggard.core.clocks.offset_bounds import (
    Bools,
    DriftModel,
    Floats,
    OffsetBounds,
    OffsetCurve,
    compute_band,
    join_bands,
    split_at_jumps,
)
from laggard.core.clocks.timestamps import ClockExchange
from laggard.core.errors import LaggardError
from laggard.core.span_schema import Flag

__all__ = [
    "DRIFT_LIMIT_PPM",
    "WANDER_PPM",
    "ClockExchange",
    "ClockFit",
    "DriftPiece",
    "Nanoseconds",
    "fit_clock",
]

DRIFT_LIMIT_PPM = 500.0
"""Largest speed difference between a clock and the reference.

ntpd steers a clock by at most this much, and it is far above any oscillator's error. A clock that
chrony, or two daemons at once, steer even faster appears to jump.
"""

WANDER_PPM = 1.0
"""Largest deviation of an unsteered clock's drift from its mean.

It is ten times the value published for PCs.
"""

_READING_NS = 1.0

Nanoseconds = NDArray[np.int64]


@dataclass(frozen=True)
class DriftPiece:
    """Stretch of local time during which the drift was steady.

    Attributes:
        start_ns: local time of its first observation.
        end_ns: local time of its last observation.
        drift_ppm: by how much the reference ran faster than the local clock; the middle of the
            possible range.
        drift_error_ppm: largest possible distance of the mean drift from `drift_ppm`.
    """

    start_ns: int
    end_ns: int
    drift_ppm: float
    drift_error_ppm: float


@dataclass(frozen=True, eq=False)
class ClockFit:
    """Map from a machine's own clock to the reference's; monotone, and defined for every time.

    Attributes:
        origin_ns: local time that `curve` counts from.
        offset_ns: offset that `curve` counts from, close to the true offset at the origin.
        drift_pieces: stretches of steady drift, in order; the drift changed somewhere between two
            of them.
        suspect_intervals: local times (first, last) between which the clock jumped. The
            observations before and after such an interval contradict each other for every drift
            within the limit.
        exchange_count: number of exchanges that the fit was made from.
        curve: estimate and bounds.
    """

    origin_ns: int
    offset_ns: int
    drift_pieces: tuple[DriftPiece, ...]
    suspect_intervals: tuple[tuple[int, int], ...]
    exchange_count: int
    curve: OffsetCurve

    @classmethod
    def identity(cls) -> Self:
        """Return the map of the reference's own clock, which is exact."""
        zero = np.zeros(1)
        return cls(
            0, 0, (), (), 0, OffsetCurve(zero, zero, zero, zero, zero, (0.0, 0.0), (0.0, 0.0))
        )

    def to_reference(self, local_ns: Nanoseconds) -> Nanoseconds:
        """Convert local times to reference times, both in ns of CLOCK_MONOTONIC."""
        reference_times = self.curve.reference_at(self._relative(local_ns))
        return np.int64(self.origin_ns + self.offset_ns) + _round_to_ns(reference_times)

    def to_local(self, reference_ns: Nanoseconds) -> Nanoseconds:
        """Convert reference times to local times; the inverse of `to_reference`, to 1 ns."""
        reference = np.asarray(reference_ns, dtype=np.int64) - np.int64(
            self.origin_ns + self.offset_ns
        )
        return np.int64(self.origin_ns) + _round_to_ns(
            self.curve.local_at(reference.astype(np.float64))
        )

    def offset_at(self, local_ns: Nanoseconds) -> Nanoseconds:
        """Return reference minus local time, in ns, at local times."""
        return self.to_reference(local_ns) - np.asarray(local_ns, dtype=np.int64)

    def error_ns(self, local_ns: Nanoseconds) -> Nanoseconds:
        """Return the largest error of `to_reference` and `offset_at` at local times, in ns.

        Outside the observed times the bound grows with the uncertainty of the drift there.
        """
        # 1 ns more, because the estimate is rounded to whole nanoseconds.
        return _round_to_ns(np.ceil(self.curve.error_at(self._relative(local_ns)))) + 1

    def is_suspect(self, local_ns: Nanoseconds, threshold_ns: int) -> Bools:
        """Mark local times within a jump or with an error bound above `threshold_ns`."""
        local = np.asarray(local_ns, dtype=np.int64)
        found = self.error_ns(local) > threshold_ns
        if self.suspect_intervals:
            starts, ends = np.array(self.suspect_intervals, dtype=np.int64).T
            jump = np.searchsorted(starts, local, "right") - 1
            found |= (jump >= 0) & (local <= ends[jump])
        return found

    def span_flags(self, start_ns: Nanoseconds, threshold_ns: int) -> NDArray[np.uint8]:
        """Return `Flag.CLOCK_SUSPECT` for spans that begin at suspect local times, else 0.

        The result can be combined with the column `flags` by a bitwise or.
        """
        flags = np.where(
            self.is_suspect(start_ns, threshold_ns), int(Flag.CLOCK_SUSPECT), int(Flag.NONE)
        )
        return flags.astype(np.uint8)

    def _relative(self, local_ns: Nanoseconds) -> Floats:
        return (np.asarray(local_ns, dtype=np.int64) - np.int64(self.origin_ns)).astype(np.float64)


def _round_to_ns(values: Floats) -> Nanoseconds:
    return np.rint(values).astype(np.int64)


def fit_clock(
    exchanges: Sequence[ClockExchange],
    *,
    drift_limit_ppm: float = DRIFT_LIMIT_PPM,
    wander_ppm: float = WANDER_PPM,
) -> ClockFit:
    """Fit the local clock to the reference, using everything that the exchanges imply.

    Args:
        exchanges: exchanges between the local machine and the reference, in any order, at least
            one.
        drift_limit_ppm: largest difference between the two clocks' speeds at any time.
        wander_ppm: largest deviation of the drift from a constant within one piece; 0 for an ideal
            clock.

    Raises:
        LaggardError: there is no exchange, or the clock jumped within every single one.
        ValueError: `wander_ppm` or `drift_limit_ppm` is out of range.
    """
    if not 0.0 <= wander_ppm <= drift_limit_ppm < 1e6 or drift_limit_ppm == 0.0:
        raise ValueError(
            f"wander {wander_ppm} ppm, drift limit {drift_limit_ppm} ppm: they must satisfy"
            " 0 <= wander <= limit and 0 < limit < 1e6"
        )
    if not exchanges:
        raise LaggardError(
            "no clock exchange was answered, so this machine's times cannot be compared with those"
            " of other machines: check that it can reach the reference, then run again"
        )
    model = DriftModel(drift_limit_ppm * 1e-6, wander_ppm * 1e-6)
    points = _build_bounds(exchanges)
    parts = split_at_jumps(points, model.limit)
    if not parts:
        raise LaggardError(
            f"none of {len(exchanges)} clock exchanges can be true if the clocks' speeds differ by"
            f" at most {drift_limit_ppm:g} ppm: repeat the exchanges"
        )
    bands = [compute_band(part, model) for part in parts]
    origin_ns = exchanges[0].sent_ns
    return ClockFit(
        origin_ns,
        exchanges[0].received_ns - origin_ns,
        tuple(
            _make_drift_piece(origin_ns, run.start, run.end, run.low, run.high)
            for each in bands
            for run in each.runs
        ),
        tuple(
            (origin_ns + int(first), origin_ns + int(last))
            for first, last in _find_jumps(points, parts)
        ),
        len(exchanges),
        join_bands(bands),
    )


def _build_bounds(exchanges: Sequence[ClockExchange]) -> OffsetBounds:
    """Return the bounds of the offset, relative to the first exchange.

    Relative values are small integers, which floats hold exactly.
    """
    stamps = np.array(
        [(e.sent_ns, e.received_ns, e.answered_ns, e.returned_ns) for e in exchanges],
        dtype=np.int64,
    )
    sent, returned = stamps[:, 0] - stamps[0, 0], stamps[:, 3] - stamps[0, 0]
    received, answered = stamps[:, 1] - stamps[0, 1], stamps[:, 2] - stamps[0, 1]
    # A reading is the true time without its fraction of a nanosecond, so the difference of two
    # readings is wrong by up to 1 ns.
    times = np.concatenate([sent, returned]).astype(np.float64)
    values = np.concatenate([received - sent + _READING_NS, answered - returned - _READING_NS])
    upper = np.arange(len(times)) < len(exchanges)
    return OffsetBounds(times, values, upper).where(np.argsort(times, kind="stable"))


def _find_jumps(points: OffsetBounds, parts: Sequence[OffsetBounds]) -> list[tuple[float, float]]:
    """Return the intervals between the jump-free parts, and before and after all of them."""
    starts = [points.times[0], *(part.times[-1] for part in parts)]
    ends = [*(part.times[0] for part in parts), points.times[-1]]
    return [(first, last) for first, last in zip(starts, ends, strict=True) if first < last]


def _make_drift_piece(
    origin_ns: int, start: float, end: float, low: float, high: float
) -> DriftPiece:
    return DriftPiece(
        origin_ns + int(start), origin_ns + int(end), (low + high) / 2 * 1e6, (high - low) / 2 * 1e6
    )
