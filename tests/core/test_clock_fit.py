"""Clock fits against clocks whose truth is known exactly, however the network treated the
exchanges."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.optimize import linprog

from laggard.core.clocks.clock_fit import ClockExchange, ClockFit, fit_clock
from laggard.core.errors import LaggardError
from laggard.core.span_schema import Flag
from tests.core.clock_exchanges import SECOND, any_exchange, stamps

steady = settings(deadline=None, derandomize=True)
HOUR = 3600 * SECOND
READING_NS = 2
"""What reading both clocks in whole nanoseconds can hide of the truth."""


@dataclass(frozen=True)
class Clock:
    """A local clock: it shows `start_ns` at true time 0 and gains `ppb` until the next change; at
    `stops_ns` it stands still for `stopped_ns`.

    The reference shows `reference_ns` plus the true time.
    """

    start_ns: int
    reference_ns: int
    changes: tuple[tuple[int, int], ...]
    stops_ns: int = 0
    stopped_ns: int = 0

    def local(self, true_ns: int) -> int:
        true_ns -= min(max(true_ns - self.stops_ns, 0), self.stopped_ns)
        shown = Fraction(self.start_ns)
        starts = [None, *(at for at, _ in self.changes[1:])]
        ends = [*(at for at, _ in self.changes[1:]), None]
        for (_, ppb), start, end in zip(self.changes, starts, ends, strict=True):
            # The first rate also holds before time 0.
            until = true_ns if end is None else min(true_ns, end)
            since = 0 if start is None else start
            if start is None or until > since:
                shown += Fraction((until - since) * (SECOND + ppb), SECOND)
        return shown.__floor__()

    def reference(self, true_ns: int) -> int:
        return self.reference_ns + true_ns

    def exchange(self, flight: Flight) -> ClockExchange:
        arrived = flight.at_ns + flight.forward_ns
        left = arrived + flight.pause_ns
        return ClockExchange(
            self.local(flight.at_ns),
            self.reference(arrived),
            self.reference(left),
            self.local(left + flight.back_ns),
        )


@dataclass(frozen=True)
class Flight:
    at_ns: int
    forward_ns: int
    pause_ns: int
    back_ns: int

    @property
    def round_trip_ns(self) -> int:
        return self.forward_ns + self.pause_ns + self.back_ns


starts = st.integers(-(1 << 60), 1 << 60)
rates = st.integers(-490_000, 490_000)
instants = st.integers(0, HOUR)
queueing = st.one_of(st.just(0), st.integers(0, 100_000), st.integers(0, 5 * SECOND))


@st.composite
def flights(draw: st.DrawFn, least: int = 1, most: int = 30) -> list[Flight]:
    """Exchanges over links of any asymmetry, whose queues may be empty or very full."""
    forward, back = draw(st.tuples(st.integers(0, 50_000_000), st.integers(0, 50_000_000)))
    one = st.builds(
        lambda at, there, pause, home: Flight(at, forward + there, pause, back + home),
        instants, queueing, st.integers(0, 1_000_000), queueing,
    )  # fmt: skip
    return draw(st.lists(one, min_size=least, max_size=most))


steady_clocks = st.builds(
    lambda start, reference, ppb: Clock(start, reference, ((0, ppb),)), starts, starts, rates
)


def errors(
    clock: Clock, fit: ClockFit, at: Sequence[int]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """How wrong the fit is at true times, and how wrong it says it may be."""
    local = np.array([clock.local(each) for each in at], dtype=np.int64)
    truth = np.array([clock.reference(each) for each in at], dtype=np.int64)
    return np.abs(fit.to_reference(local) - truth), fit.error_ns(local)


def assert_inside(clock: Clock, fit: ClockFit, at: Sequence[int]) -> None:
    wrong, bound = errors(clock, fit, at)
    assert (wrong <= bound + READING_NS).all(), (wrong - bound).max()


def instants_around(found: Sequence[Flight]) -> list[int]:
    edges = [flight.at_ns for flight in found] + [
        flight.at_ns + flight.round_trip_ns for flight in found
    ]
    between = [(a + b) // 2 for a, b in itertools.pairwise(sorted(edges))]
    return [*edges, *between, min(edges) - HOUR, max(edges) + HOUR]


@steady
@given(clock=steady_clocks, found=flights(), at=st.lists(instants, max_size=5))
def test_with_a_constant_drift_the_truth_is_always_inside(
    clock: Clock, found: list[Flight], at: list[int]
) -> None:
    fit = fit_clock([clock.exchange(flight) for flight in found])
    assert_inside(clock, fit, at + instants_around(found))
    assert len(fit.drift_pieces) == 1
    assert fit.suspect_intervals == ()
    piece = fit.drift_pieces[0]
    ppm = (1 / (1 + clock.changes[0][1] / SECOND) - 1) * 1e6
    assert abs(piece.drift_ppm - ppm) <= piece.drift_error_ppm + 1.0


@steady
@given(clock=steady_clocks, found=flights())
def test_an_ideal_clock_needs_no_wander(clock: Clock, found: list[Flight]) -> None:
    exchanges = [clock.exchange(flight) for flight in found]
    ideal, fit = fit_clock(exchanges, wander_ppm=0.0), fit_clock(exchanges)
    assert_inside(clock, ideal, instants_around(found))
    at = np.array([each.sent_ns for each in exchanges])
    assert (ideal.error_ns(at) <= fit.error_ns(at) + READING_NS).all()


@st.composite
def changing_clocks(draw: st.DrawFn, spread_ppb: int, most: int = 4) -> Clock:
    """Clocks whose drift changes, each time to within `spread_ppb` of one value."""
    middle = draw(st.integers(-490_000 + spread_ppb, 490_000 - spread_ppb))
    near = st.integers(middle - spread_ppb, middle + spread_ppb)
    when = sorted(draw(st.sets(st.integers(1, HOUR), max_size=most)))
    return Clock(draw(starts), draw(starts), ((0, draw(near)), *((at, draw(near)) for at in when)))


@steady
@given(clock=changing_clocks(990), found=flights())
def test_a_drift_that_wanders_within_its_limit_keeps_the_truth_inside(
    clock: Clock, found: list[Flight]
) -> None:
    fit = fit_clock([clock.exchange(flight) for flight in found])
    assert_inside(clock, fit, instants_around(found))
    assert len(fit.drift_pieces) == 1


@steady
@given(clock=changing_clocks(490_000), found=flights())
def test_the_widest_model_needs_no_steadiness_at_all(clock: Clock, found: list[Flight]) -> None:
    fit = fit_clock([clock.exchange(flight) for flight in found], wander_ppm=500.0)
    assert_inside(clock, fit, instants_around(found))
    assert fit.suspect_intervals == ()


@settings(steady, max_examples=300)
@given(clock=changing_clocks(490_000, most=1), found=flights(least=4))
def test_a_change_of_the_drift_keeps_the_truth_inside_where_it_shows_at_all(
    clock: Clock, found: list[Flight]
) -> None:
    fit = fit_clock([clock.exchange(flight) for flight in found])
    assert fit.suspect_intervals == ()
    if len(fit.drift_pieces) == 2:
        assert_inside(clock, fit, instants_around(found))
    else:
        wrong, _ = errors(clock, fit, [flight.at_ns for flight in found])
        trips = np.array([flight.round_trip_ns for flight in found])
        assert (wrong <= trips * 1.002 + 4 * READING_NS).all()


def bursts(seconds: int, round_trip_ns: int, seed: int) -> list[Flight]:
    """A burst of eight every second, with queueing like that of a used network."""
    random = np.random.default_rng(seed)
    found = []
    for second in range(seconds):
        for i in range(8):
            there, home = (
                (round_trip_ns / 4 + random.exponential(round_trip_ns / 4, 2)).astype(int).tolist()
            )
            found.append(Flight(second * SECOND + i * 2_000_000, there, 20_000, home))
    return found


@pytest.mark.parametrize("step_ppb", [-200_000, -20_000, 20_000, 200_000])
@pytest.mark.parametrize("seed", range(3))
def test_a_change_that_shows_is_found_where_it_happened(step_ppb: int, seed: int) -> None:
    clock = Clock(10**15, 5 * 10**14, ((0, 30_000), (40 * SECOND, 30_000 + step_ppb)))
    found = bursts(100, 200_000, seed)
    fit = fit_clock([clock.exchange(flight) for flight in found])
    before, after = fit.drift_pieces
    assert before.end_ns < clock.local(41 * SECOND)
    assert after.start_ns > clock.local(39 * SECOND)
    assert before.drift_ppm - after.drift_ppm == pytest.approx(step_ppb / 1e3, abs=12.0)
    assert_inside(clock, fit, instants_around(found))
    calm = np.array([clock.local(second * SECOND) for second in (5, 25, 70, 90)])
    assert (fit.error_ns(calm) < 200_000).all()


def test_several_changes_are_told_apart() -> None:
    changes = ((0, 0), (60 * SECOND, 400_000), (120 * SECOND, -400_000), (180 * SECOND, 50_000))
    clock = Clock(0, 1 << 60, changes)
    found = bursts(240, 1_000_000, 1)
    fit = fit_clock([clock.exchange(flight) for flight in found])
    assert len(fit.drift_pieces) == 4
    assert_inside(clock, fit, instants_around(found))


@st.composite
def suspended_clocks(draw: st.DrawFn) -> Clock:
    stopped_ns = draw(st.integers(15 * SECOND, 10**6 * SECOND))
    return Clock(
        draw(starts), draw(starts), ((0, draw(rates)),), draw(st.integers(1, HOUR)), stopped_ns
    )


def quick(at_ns: int) -> list[Flight]:
    """Two exchanges one after the other over an idle network: fewer than any burst."""
    return [Flight(at_ns + i * 1_000_000, 100_000, 0, 100_000) for i in range(2)]


@settings(steady, max_examples=300)
@given(
    clock=suspended_clocks(),
    found=flights(),
    late=flights(),
    when=st.tuples(instants, instants),
    swapped=st.booleans(),
)
def test_a_jump_is_told_and_the_bound_holds_across_it(
    clock: Clock, found: list[Flight], late: list[Flight], when: tuple[int, int], swapped: bool
) -> None:
    """A machine that is suspended, the local one or the reference, with exchanges before and
    after."""
    resumed = clock.stops_ns + clock.stopped_ns
    before = [flight for flight in found if flight.at_ns + flight.round_trip_ns < clock.stops_ns]
    before += quick(clock.stops_ns - when[0] - SECOND)
    after = [
        Flight(each.at_ns + resumed, each.forward_ns, each.pause_ns, each.back_ns) for each in late
    ]
    after += quick(resumed + when[1])
    fit = fit_clock(
        [_swapped(clock, each) if swapped else clock.exchange(each) for each in (*before, *after)]
    )
    at = [*instants_around(before)[:-1], clock.stops_ns, resumed, *instants_around(after)[:-2]]
    one = np.array([clock.local(each) for each in at], dtype=np.int64)
    other = np.array([clock.reference(each) for each in at], dtype=np.int64)
    local, truth = (other, one) if swapped else (one, other)
    ((start, end),) = fit.suspect_intervals
    # What shows the same time as the moment of the jump may have been before or after it.
    inside = np.abs(fit.to_reference(local) - truth) <= fit.error_ns(local) + READING_NS
    assert (inside | (local == start) | (local == end)).all()
    stop, go = (
        (clock.reference if swapped else clock.local)(clock.stops_ns),
        local[at.index(resumed)],
    )
    assert start <= stop <= go <= end
    jump = np.array([start - 1, start, (start + end) // 2, end, end + 1])
    assert fit.is_suspect(jump, 1 << 61).tolist() == [False, True, True, True, False]
    assert fit.span_flags(jump, 1 << 61).tolist() == [0, *[Flag.CLOCK_SUSPECT] * 3, 0]


def _swapped(clock: Clock, flight: Flight) -> ClockExchange:
    """The exchange with the two clocks in each other's place."""
    arrived = flight.at_ns + flight.forward_ns
    left = arrived + flight.pause_ns
    return ClockExchange(
        clock.reference(flight.at_ns),
        clock.local(arrived),
        clock.local(left),
        clock.reference(left + flight.back_ns),
    )


@steady
@given(
    exchanges=st.lists(any_exchange, min_size=1, max_size=12),
    at=st.lists(stamps, min_size=2, max_size=20),
)
def test_whatever_was_observed_the_map_is_monotone_and_total_or_refused(
    exchanges: list[ClockExchange], at: list[int]
) -> None:
    try:
        fit = fit_clock(exchanges)
    except LaggardError as error:
        assert "can be true" in str(error)  # noqa: PT017 - refusing is one of two right answers
        return
    edges = [
        stamp + i
        for each in exchanges
        for stamp in (each.sent_ns, each.returned_ns)
        for i in (-1, 0, 1)
    ]
    local = np.array(sorted({*edges, *at}), dtype=np.int64)
    mapped = fit.to_reference(local)
    assert (np.diff(mapped) >= 0).all()
    assert (fit.error_ns(local) >= 0).all()
    assert (np.diff(fit.to_local(np.sort(mapped))) >= 0).all()


@steady
@given(clock=steady_clocks, found=flights(), at=st.lists(instants, min_size=1))
def test_there_and_back_again(clock: Clock, found: list[Flight], at: list[int]) -> None:
    fit = fit_clock([clock.exchange(flight) for flight in found])
    local = np.array([clock.local(each) for each in at], dtype=np.int64)
    assert (np.abs(fit.to_local(fit.to_reference(local)) - local) <= 1).all()


@steady
@given(clock=steady_clocks, found=flights(least=2), more=flights(least=0))
def test_more_exchanges_never_widen_the_bound(
    clock: Clock, found: list[Flight], more: list[Flight]
) -> None:
    """Nor do late ones: nothing needs to be filtered."""
    few = fit_clock([clock.exchange(flight) for flight in found], wander_ppm=0.0)
    many = fit_clock([clock.exchange(flight) for flight in (*found, *more)], wander_ppm=0.0)
    at = many.origin_ns + np.asarray(many.curve.knots, dtype=np.int64)
    assert (many.error_ns(at) <= few.error_ns(at) + READING_NS).all()


@steady
@given(
    clock=steady_clocks,
    found=flights(),
    late=st.lists(st.integers(1, SECOND), min_size=1, max_size=5),
)
def test_an_outlier_changes_nothing(clock: Clock, found: list[Flight], late: list[int]) -> None:
    best = min(found, key=lambda flight: flight.round_trip_ns)
    slower = [
        Flight(best.at_ns, best.forward_ns + more, best.pause_ns, best.back_ns) for more in late
    ]
    at = np.array([clock.local(each) for each in instants_around(found)], dtype=np.int64)
    without = fit_clock([clock.exchange(flight) for flight in found], wander_ppm=0.0)
    with_them = fit_clock([clock.exchange(flight) for flight in (*found, *slower)], wander_ppm=0.0)
    # The answer of a slow exchange comes later, and so can only add information.
    assert (with_them.error_ns(at) <= without.error_ns(at) + READING_NS).all()


@steady
@given(
    clock=steady_clocks, found=flights(), far=st.integers(0, 1 << 60), there=st.integers(0, 1 << 60)
)
def test_the_arithmetic_is_as_exact_far_from_zero(
    clock: Clock, found: list[Flight], far: int, there: int
) -> None:
    near = Clock(0, 0, clock.changes)
    away = Clock(far, there, clock.changes)
    at = np.array([near.local(each) for each in instants_around(found)], dtype=np.int64)
    one, other = (fit_clock([each.exchange(flight) for flight in found]) for each in (near, away))
    assert (one.to_reference(at) + there == other.to_reference(at + far)).all()
    assert (one.error_ns(at) == other.error_ns(at + far)).all()


@settings(steady, max_examples=50)
@given(clock=steady_clocks, found=flights(least=2, most=12), data=st.data())
def test_the_bound_is_half_the_width_of_all_lines_that_fit(
    clock: Clock, found: list[Flight], data: st.DataObject
) -> None:
    """Linear programming as the oracle, at the ends of the exchanges, where the curve is not
    interpolated."""
    exchanges = [clock.exchange(flight) for flight in found]
    fit = fit_clock(exchanges, wander_ppm=0.0)
    knot = data.draw(st.sampled_from(fit.curve.knots.tolist()))
    first = exchanges[0]
    # Seconds and microseconds keep the solver's numbers of similar size.
    rows, limits = [], []
    for each in exchanges:
        rows.append([1.0, (each.sent_ns - first.sent_ns - knot) / 1e9])
        limits.append(
            (each.received_ns - first.received_ns - each.sent_ns + first.sent_ns + 1) / 1e3
        )
        rows.append([-1.0, -(each.returned_ns - first.sent_ns - knot) / 1e9])
        limits.append(
            -(each.answered_ns - first.received_ns - each.returned_ns + first.sent_ns - 1) / 1e3
        )
    ends = [
        linprog([sign, 0.0], rows, limits, bounds=[(None, None), (-500.0, 500.0)], method="highs")
        for sign in (-1.0, 1.0)
    ]
    assert all(end.success for end in ends)
    width_ns = (-ends[0].fun - ends[1].fun) * 1e3
    error = int(fit.error_ns(np.array([first.sent_ns + int(knot)]))[0])
    assert error == pytest.approx(width_ns / 2, rel=1e-6, abs=5.0)


def test_the_bound_is_finite_from_one_exchange_and_shrinks_as_they_come() -> None:
    clock = Clock(10**15, 3 * 10**14, ((0, 50_000),))
    found = bursts(20, 400_000, 0)
    at = np.array([clock.local(10 * SECOND)])
    counts = (1, 8, 80, 160)
    bounds = [
        int(fit_clock([clock.exchange(flight) for flight in found[:count]]).error_ns(at)[0])
        for count in counts
    ]
    assert bounds == sorted(bounds, reverse=True)
    assert bounds[0] < 10_000_000
    assert bounds[-1] < 200_000


def test_a_long_run_is_fitted_quickly_enough_and_well() -> None:
    clock = Clock(10**15, 10**12, ((0, -40_000),))
    found = bursts(3600, 400_000, 5)
    fit = fit_clock([clock.exchange(flight) for flight in found])
    assert fit.exchange_count == 8 * 3600
    assert_inside(clock, fit, instants_around(found)[::50])
    assert (fit.error_ns(np.arange(clock.local(0), clock.local(HOUR), SECOND)) < 150_000).all()


def test_the_reference_itself_is_exact() -> None:
    at = np.array([-5, 0, 1 << 60])
    fit = ClockFit.identity()
    assert (fit.to_reference(at) == at).all()
    assert (fit.to_local(at) == at).all()
    assert (fit.error_ns(at) <= 1).all()
    assert (fit.span_flags(at, 1000) == Flag.NONE).all()


def test_spans_are_flagged_above_a_threshold() -> None:
    clock = Clock(0, 0, ((0, 0),))
    fit = fit_clock(
        [clock.exchange(Flight(0, 1000, 0, 1000)), clock.exchange(Flight(SECOND, 1000, 0, 1000))]
    )
    flags = fit.span_flags(np.array([0, SECOND, 1000 * SECOND]), 100_000)
    assert flags.dtype == np.uint8
    assert flags.tolist() == [0, 0, Flag.CLOCK_SUSPECT]


def test_nothing_to_fit_is_refused() -> None:
    with pytest.raises(LaggardError, match="no clock exchange"):
        fit_clock([])
    with pytest.raises(LaggardError, match="can be true"):
        fit_clock([ClockExchange(0, 0, 10 * SECOND, SECOND)])


@pytest.mark.parametrize(
    ("limit", "wander"),
    [(0.0, 0.0), (500.0, 501.0), (500.0, -1.0), (1e6, 1.0), (500.0, float("nan"))],
)
def test_models_that_make_no_sense_are_refused(limit: float, wander: float) -> None:
    with pytest.raises(ValueError, match="wander"):
        fit_clock([ClockExchange(0, 0, 0, 0)], drift_limit_ppm=limit, wander_ppm=wander)
