"""What the guard calls a violation, and what it lets pass: samples made by hand, second by
second."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laggard.network_emulation.compute.host_counters import HostUse
from laggard.network_emulation.compute.pulse import Pulse
from laggard.network_emulation.fidelity.monitor import (
    FidelityMonitor,
    FidelitySample,
    FidelityViolation,
    Limits,
    ViolationKind,
)
from laggard.network_emulation.fidelity.violation_text import describe_violation

S = 1_000_000_000
PAIR = ("edge", "cloud")
LIMITS = Limits(late_ns=500_000, compute=0.05, rates={PAIR: 8.0})
ON_TIME, LATE = 17, 22  # bit lengths: below 0.13 ms, and 2 to 4 ms

Change = Callable[[int, FidelitySample], FidelitySample]


def quiet(second: int) -> FidelitySample:
    """A host at a quarter of a core that computes half of the time, and a link that carries half of
    its 8 Mbit/s."""
    late = [0] * 40
    late[ON_TIME] = 900 * second
    late[LATE] = 20 * second
    return FidelitySample(
        at_ns=10 * S + second * S,
        wall_ns=1000 * S + second * S,
        awake_ns=50 * S + second * S,
        stolen_ns={0: second * S // 100},
        hosts={
            "edge": HostUse(due_ns=second * S // 2, lost_ns=second * 1_000_000, owed_ns=5_000_000)
        },
        shares={"edge": 0.25},
        late=tuple(late),
        carried={PAIR: second * 500_000},
    )


def run(
    change: Change, seconds: int = 40, end_s: float | None = None
) -> tuple[FidelityViolation, ...]:
    guard = FidelityMonitor(LIMITS)
    for second in range(seconds):
        guard.add(change(second, quiet(second)))
    return guard.violations(None if end_s is None else 10 * S + round(end_s * S))


def after(second: int, begin: int, end: int) -> int:
    """Seconds of [begin, end) that have passed."""
    return min(max(second - begin, 0), end - begin)


def core_missed(second: int, sample: FidelitySample) -> FidelitySample:
    use = sample.hosts["edge"]
    lost_ns = use.lost_ns + after(second, 20, 26) * S // 5
    return replace(sample, hosts={"edge": replace(use, lost_ns=lost_ns)})


def share_exceeded(second: int, sample: FidelitySample) -> FidelitySample:
    use = sample.hosts["edge"]
    owed_ns = use.owed_ns + after(second, 20, 26) * S // 5
    return replace(sample, hosts={"edge": replace(use, owed_ns=owed_ns)})


def emulator_late(second: int, sample: FidelitySample) -> FidelitySample:
    late = list(sample.late)
    late[LATE] += 300 * after(second, 20, 26)
    return replace(sample, late=tuple(late))


def frames_refused(second: int, sample: FidelitySample) -> FidelitySample:
    return replace(sample, refused=10 * after(second, 20, 26))


def rate_exceeded(second: int, sample: FidelitySample) -> FidelitySample:
    return replace(sample, carried={PAIR: sample.carried[PAIR] + 700_000 * after(second, 20, 26)})


def core_stolen(second: int, sample: FidelitySample) -> FidelitySample:
    return replace(sample, stolen_ns={0: sample.stolen_ns[0] + after(second, 20, 26) * S // 4})


def test_a_quiet_run_is_left_alone() -> None:
    assert run(lambda _, sample: sample) == ()


@pytest.mark.parametrize(
    ("change", "kind", "where"),
    [
        (core_missed, "cpu starved", "edge"),
        (share_exceeded, "share exceeded", "edge"),
        (emulator_late, "emulator late", ""),
        (frames_refused, "frames refused", ""),
        (rate_exceeded, "rate exceeded", "edge -> cloud"),
        (core_stolen, "cpu stolen", "core 0"),
    ],
)
def test_what_lasts_six_seconds_is_found_where_and_when_it_was(
    change: Change, kind: ViolationKind, where: str
) -> None:
    (violation,) = run(change)
    assert (violation.kind, violation.where) == (kind, where)
    assert violation.first_ns == 30 * S
    assert violation.last_ns == 36 * S
    assert where in describe_violation(violation)


@pytest.mark.parametrize(
    ("slept_s", "set_s", "kinds"),
    [(3, 0, ["machine suspended"]), (0, 2, ["clock stepped"]), (0, 0, [])],
)
def test_clocks(slept_s: int, set_s: int, kinds: list[ViolationKind]) -> None:
    """A suspended machine's steady clock stands still while the others go on; setting the clock
    moves one alone."""

    def jump(second: int, sample: FidelitySample) -> FidelitySample:
        if second < 20:
            return sample
        return replace(
            sample,
            awake_ns=sample.awake_ns + slept_s * S,
            wall_ns=sample.wall_ns + (slept_s + set_s) * S,
        )

    violations = run(jump)
    assert [violation.kind for violation in violations] == kinds
    assert all(
        (violation.first_ns, violation.last_ns) == (29 * S, 30 * S) for violation in violations
    )


def test_a_sample_that_comes_late_means_that_the_machine_stood_still() -> None:
    violations = run(
        lambda second, sample: (
            replace(quiet(second + 3), at_ns=sample.at_ns + 3 * S) if second > 20 else sample
        )
    )
    assert [violation.kind for violation in violations] == ["machine suspended"]


@pytest.mark.parametrize(
    ("stalled_s", "silent_s", "kinds"),
    [
        ((0,), 0, []),
        ((3,), 0, ["machine suspended"]),
        # One limiter that was on time is enough.
        ((3, 0), 0, []),
        # A limiter without anything to do knows nothing.
        ((0,), 4, ["machine suspended"]),
    ],
)
def test_a_limiter_knows_whether_the_machine_stood_still(
    stalled_s: tuple[int, ...], silent_s: int, kinds: list[ViolationKind]
) -> None:
    def late(second: int, sample: FidelitySample) -> FidelitySample:
        is_late = second > 20
        at_ns = sample.at_ns + 3 * S * is_late
        pulses = tuple(
            Pulse(at_ns - silent_s * S * is_late, stalled * S * is_late) for stalled in stalled_s
        )
        return replace(quiet(second + 3 * is_late), at_ns=at_ns, pulses=pulses)

    assert [violation.kind for violation in run(late)] == kinds


def test_a_wait_told_at_its_end_began_when_it_began() -> None:
    """The kernel counts a wait in the run queue when it is over."""

    def starved(second: int, sample: FidelitySample) -> FidelitySample:
        use = sample.hosts["edge"]
        return replace(sample, hosts={"edge": replace(use, lost_ns=18 * S if second >= 30 else 0)})

    (violation,) = run(starved)
    assert violation.first_ns <= 22 * S
    assert violation.last_ns >= 40 * S


def test_a_little_all_the_time_is_found_in_the_whole() -> None:
    """3 % of the time never is a tenth of a window, but of a whole run it is to be told."""

    def drain(second: int, sample: FidelitySample) -> FidelitySample:
        use = sample.hosts["edge"]
        return replace(sample, hosts={"edge": replace(use, lost_ns=second * S * 3 // 100)})

    (violation,) = run(drain)
    assert violation.kind == "cpu starved"
    assert violation.is_tolerated
    assert (violation.first_ns, violation.last_ns) == (10 * S, 49 * S)


def test_a_dilated_run_is_looked_at_in_longer_windows() -> None:
    """Half a second lost is a tenth of five real seconds, and a hundredth of five virtual ones at D
    = 10."""

    def blink(second: int, sample: FidelitySample) -> FidelitySample:
        use = sample.hosts["edge"]
        return replace(sample, hosts={"edge": replace(use, lost_ns=S // 2 if second >= 100 else 0)})

    for window, kinds in ((5, ["cpu starved"]), (50, [])):
        guard = FidelityMonitor(replace(LIMITS, window=window))
        for second in range(200):
            guard.add(blink(second, quiet(second)))
        assert [violation.kind for violation in guard.violations()] == kinds


def test_a_run_shorter_than_a_window_is_looked_at() -> None:
    def starved(second: int, sample: FidelitySample) -> FidelitySample:
        use = sample.hosts["edge"]
        return replace(sample, hosts={"edge": replace(use, lost_ns=second * S // 2)})

    assert [violation.kind for violation in run(starved, 3)] == ["cpu starved"]


@pytest.mark.parametrize(("lost_ms", "kinds"), [(70, []), (130, ["cpu starved"])])
def test_what_happened_once_in_a_short_run_is_no_matter_of_the_whole(
    lost_ms: int, kinds: list[ViolationKind]
) -> None:
    """Both are more than a hundredth of 4 s, and less than a twentieth; a tenth of a second is a
    hundredth of two windows."""

    def blink(second: int, sample: FidelitySample) -> FidelitySample:
        use = sample.hosts["edge"]
        return replace(
            sample, hosts={"edge": replace(use, lost_ns=lost_ms * 1_000_000 if second > 1 else 0)}
        )

    assert [violation.kind for violation in run(blink, 5)] == kinds
    assert [violation.kind for violation in run(blink, 20, end_s=4.0)] == kinds


EVERY_CHANGE = (
    core_missed,
    share_exceeded,
    emulator_late,
    frames_refused,
    rate_exceeded,
    core_stolen,
)


@pytest.mark.parametrize("change", EVERY_CHANGE)
def test_what_came_after_the_end_is_nothing_of_the_run(change: Change) -> None:
    """All of them last from second 20 to 26."""
    assert run(change, end_s=20.0) == ()
    assert run(change, end_s=19.4) == ()


@pytest.mark.parametrize("change", EVERY_CHANGE)
def test_what_was_before_the_end_is_told_as_ever(change: Change) -> None:
    assert run(change, end_s=30.5) == run(change)


def test_a_slip_ends_with_the_run() -> None:
    (violation,) = run(core_missed, end_s=24.0)
    assert (violation.first_ns, violation.last_ns) == (30 * S, 34 * S)


@pytest.mark.parametrize(
    ("end_s", "found"), [(29.9, True), (20.0, True), (13.0, True), (12.1, False), (9.0, False)]
)
def test_a_wait_told_after_the_end_counts_with_what_was_surely_before(
    end_s: float, found: bool
) -> None:
    """18 s are told of at second 30: they were in second 12 at the latest."""

    def starved(second: int, sample: FidelitySample) -> FidelitySample:
        use = sample.hosts["edge"]
        return replace(sample, hosts={"edge": replace(use, lost_ns=18 * S if second >= 30 else 0)})

    violations = run(starved, 36, end_s=end_s)
    assert [violation.kind for violation in violations] == (["cpu starved"] if found else [])
    assert all(
        violation.size <= end_s - 11.99 and violation.last_ns <= (10 + end_s) * S
        for violation in violations
    )


@pytest.mark.parametrize(
    ("end_s", "kinds"), [(20.0, []), (23.9, ["machine suspended"]), (30.0, ["machine suspended"])]
)
def test_a_machine_that_stood_still_after_the_end_did_no_harm(
    end_s: float, kinds: list[ViolationKind]
) -> None:
    violations = run(
        lambda second, sample: (
            replace(quiet(second + 3), at_ns=sample.at_ns + 3 * S) if second > 20 else sample
        ),
        end_s=end_s,
    )
    assert [violation.kind for violation in violations] == kinds


@pytest.mark.parametrize(
    ("end_s", "kinds"), [(3.5, ["cpu starved"]), (0.5, ["cpu starved"]), (None, ["cpu starved"])]
)
def test_a_run_that_ended_before_there_was_a_window_is_looked_at(
    end_s: float | None, kinds: list[ViolationKind]
) -> None:
    def starved(second: int, sample: FidelitySample) -> FidelitySample:
        use = sample.hosts["edge"]
        return replace(sample, hosts={"edge": replace(use, lost_ns=min(second, 3) * S // 2)})

    assert [violation.kind for violation in run(starved, 4, end_s)] == kinds
    assert [violation.kind for violation in run(starved, 12, end_s)] == kinds


def test_looks_that_are_too_many_to_keep_apart_are_told_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("laggard.network_emulation.fidelity.monitor._REMEMBERED", 2)
    assert run(core_missed) == run(core_missed, end_s=39.0)
    (violation,) = run(core_missed)
    assert (violation.first_ns, violation.last_ns) == (30 * S, 36 * S)


@given(
    part=st.floats(0, 1),
    begin=st.integers(5, 25),
    length=st.integers(5, 10),
)
def test_a_host_is_found_if_and_only_if_it_missed_what_its_steps_would_show(
    part: float, begin: int, length: int
) -> None:
    def starved(second: int, sample: FidelitySample) -> FidelitySample:
        use = sample.hosts["edge"]
        lost_ns = round(part * after(second, begin, begin + length) * S)
        return replace(sample, hosts={"edge": replace(use, lost_ns=lost_ns)})

    violations = run(starved)
    worst_window = part * min(length, 5) / 5
    whole = part * length / 39
    if worst_window > LIMITS.compute + 1e-6 or whole > 0.01 + 1e-6:
        assert [violation.kind for violation in violations] == ["cpu starved"]
    elif worst_window < LIMITS.compute - 1e-6 and whole < 0.01 - 1e-6:
        assert violations == ()
