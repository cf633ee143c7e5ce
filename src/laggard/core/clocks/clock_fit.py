"""What one machine's clock says in the time of another's, and how wrong that can be at most.

Every node stamps its spans with its own CLOCK_MONOTONIC. To compare them, a node exchanges small
messages with one reference node, and `fit_clock` turns the stamps into a map from local to
reference time with a bound on its error.

Only one thing is taken for granted of the network: no message arrives before it was sent. A request
sent at local t1 and received at reference t2 then says that the offset (reference minus local) was
at most t2 - t1 at t1; its answer, sent at reference t3 and received at local t4, that it was at
least t3 - t4 at t4. Nothing is assumed of the delays, neither symmetry nor a distribution. With a
constant drift the offset is a line a + b t below all upper points and above all lower ones; all
such lines form a convex polygon, and at each time the middle between the highest and the lowest of
them is the estimate with the smallest possible worst error, which is half their distance:

    A. Duda, G. Harrus, Y. Haddad, G. Bernard, "Estimating global time in distributed systems",
    ICDCS 1987 S. Moon, P. Skelly, D. Towsley, "Estimation and removal of clock skew from network
    delay measurements", INFOCOM 1999 J.-M. Berthaud, "Time synchronization over networks using
    convex closures", IEEE/ACM Trans. Networking 8(2), 2000

No exchange needs to be filtered out: each can only remove lines from the set, so one that queued
for long removes none, and never widens the bound.

No real clock keeps its drift for ever. There are three models, the wider ones only for where the
narrower is contradicted:

*steady*    the drift stays within `wander_ppm` of a constant (unsteered oscillators stay within 0.1
            ppm: D. Veitch, J. Ridoux,
            S. Korada, "Robust synchronization of absolute and difference clocks over networks",
            IEEE/ACM Trans. Networking 17(2), 2009);
*changing*  the drift is anything within `drift_limit_ppm`: around a change of the drift (NTP's
            slewing, temperature);
*jumped*    no clock runs backwards: around a jump (a suspended machine, whose
            CLOCK_MONOTONIC stands still). These
            intervals are `ClockFit.suspect_intervals`.

Where a change is, is not guessed. With the fewest pieces that fit, pieces made as long as possible
from the left tell the latest place of each change, and from the right the earliest; between the two
the wider model holds, and what was observed there tells nothing about the pieces on either side. A
change too small to contradict any exchange cannot be told; it moves the truth out of the bound by
less than the round trips around it. A `wander_ppm` equal to `drift_limit_ppm` gives a bound that
holds through all such changes too, but is wider between exchanges.
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
"""How much faster or slower than the reference a clock can run: the most that ntpd steers by, far
above any oscillator.

Clocks that chrony or two daemons steer apart even faster show as jumps."""

WANDER_PPM = 1.0
"""How far the drift of a clock that nobody steers may stray from its mean: ten times what was
published for PCs."""

_READING_NS = 1.0

Nanoseconds = NDArray[np.int64]


@dataclass(frozen=True)
class DriftPiece:
    """A stretch of local time through which the drift was steady.

    Attributes:
        start_ns: its first observation, in local time.
        end_ns: its last.
        drift_ppm: how much faster than the local clock the reference ran, in the middle of what is
            possible.
        drift_error_ppm: how far from that the mean drift can have been.
    """

    start_ns: int
    end_ns: int
    drift_ppm: float
    drift_error_ppm: float


@dataclass(frozen=True, eq=False)
class ClockFit:
    """The map from a machine's own clock to the reference's; monotone, and defined for every time.

    Attributes:
        origin_ns: the local time that `curve` counts from.
        offset_ns: the offset that `curve` counts from; near the true one at the origin.
        drift_pieces: where the drift was steady, in order; between two of them it changed,
            somewhere.
        suspect_intervals: local times (first, last) between which the clock jumped: what was
            observed before and after cannot both be true, whatever the drift did within its limit.
        exchange_count: how many the fit was made from.
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
        """The reference's own clock, which is exact."""
        zero = np.zeros(1)
        return cls(
            0, 0, (), (), 0, OffsetCurve(zero, zero, zero, zero, zero, (0.0, 0.0), (0.0, 0.0))
        )

    def to_reference(self, local_ns: Nanoseconds) -> Nanoseconds:
        """Reference time of local times, both in ns of CLOCK_MONOTONIC."""
        reference_times = self.curve.reference_at(self._relative(local_ns))
        return np.int64(self.origin_ns + self.offset_ns) + _round_to_ns(reference_times)

    def to_local(self, reference_ns: Nanoseconds) -> Nanoseconds:
        """Local time of reference times: the inverse of `to_reference`, to 1 ns."""
        reference = np.asarray(reference_ns, dtype=np.int64) - np.int64(
            self.origin_ns + self.offset_ns
        )
        return np.int64(self.origin_ns) + _round_to_ns(
            self.curve.local_at(reference.astype(np.float64))
        )

    def offset_at(self, local_ns: Nanoseconds) -> Nanoseconds:
        """Reference minus local, in ns, at local times."""
        return self.to_reference(local_ns) - np.asarray(local_ns, dtype=np.int64)

    def error_ns(self, local_ns: Nanoseconds) -> Nanoseconds:
        """How far from the truth `to_reference` and `offset_at` are at most, in ns, at local times.

        Beyond the observed times the bound grows with the uncertainty of the drift there.
        """
        # One more, since the estimate is rounded to whole nanoseconds.
        return _round_to_ns(np.ceil(self.curve.error_at(self._relative(local_ns)))) + 1

    def is_suspect(self, local_ns: Nanoseconds, threshold_ns: int) -> Bools:
        """Which local times cannot be trusted: within a jump, or with an error bound above
        `threshold_ns`.
        """
        local = np.asarray(local_ns, dtype=np.int64)
        found = self.error_ns(local) > threshold_ns
        if self.suspect_intervals:
            starts, ends = np.array(self.suspect_intervals, dtype=np.int64).T
            jump = np.searchsorted(starts, local, "right") - 1
            found |= (jump >= 0) & (local <= ends[jump])
        return found

    def span_flags(self, start_ns: Nanoseconds, threshold_ns: int) -> NDArray[np.uint8]:
        """`Flag.CLOCK_SUSPECT` for spans that begin at suspect local times, else 0: to be or-ed
        into the column `flags`.
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
    """Everything that the exchanges allow about the local clock.

    Args:
        exchanges: between the local machine and the reference, in any order, at least one.
        drift_limit_ppm: the two clocks' speeds always differ by at most this.
        wander_ppm: within a piece the drift stays this close to a constant; 0 for an ideal clock.

    Raises:
        LaggardError: there is no exchange, or the clock jumped within every single one.
    """
    if not 0.0 <= wander_ppm <= drift_limit_ppm < 1e6 or drift_limit_ppm == 0.0:
        raise ValueError(
            f"wander {wander_ppm} ppm, drift limit {drift_limit_ppm} ppm: 0 <= wander <= limit, 0 <"
            " limit < 1e6"
        )
    if not exchanges:
        raise LaggardError(
            "no clock exchange was answered, and without one a machine's times mean nothing to the"
            " others"
        )
    model = DriftModel(drift_limit_ppm * 1e-6, wander_ppm * 1e-6)
    points = _build_bounds(exchanges)
    parts = split_at_jumps(points, model.limit)
    if not parts:
        raise LaggardError(
            f"none of {len(exchanges)} clock exchanges can be true if drift stays within"
            f" {drift_limit_ppm:g} ppm: repeat them"
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
    """Bounds of the offset, relative to the first exchange: small integers, which floats hold
    exactly.
    """
    stamps = np.array(
        [(e.sent_ns, e.received_ns, e.answered_ns, e.returned_ns) for e in exchanges],
        dtype=np.int64,
    )
    sent, returned = stamps[:, 0] - stamps[0, 0], stamps[:, 3] - stamps[0, 0]
    received, answered = stamps[:, 1] - stamps[0, 1], stamps[:, 2] - stamps[0, 1]
    # A reading is the true time without its fraction of a nanosecond, so a difference of two is off
    # by up to one.
    times = np.concatenate([sent, returned]).astype(np.float64)
    values = np.concatenate([received - sent + _READING_NS, answered - returned - _READING_NS])
    upper = np.arange(len(times)) < len(exchanges)
    return OffsetBounds(times, values, upper).where(np.argsort(times, kind="stable"))


def _find_jumps(points: OffsetBounds, parts: Sequence[OffsetBounds]) -> list[tuple[float, float]]:
    """What lies between the parts that have no jump, and before and after them all."""
    starts = [points.times[0], *(part.times[-1] for part in parts)]
    ends = [*(part.times[0] for part in parts), points.times[-1]]
    return [(first, last) for first, last in zip(starts, ends, strict=True) if first < last]


def _make_drift_piece(
    origin_ns: int, start: float, end: float, low: float, high: float
) -> DriftPiece:
    return DriftPiece(
        origin_ns + int(start), origin_ns + int(end), (low + high) / 2 * 1e6, (high - low) / 2 * 1e6
    )
