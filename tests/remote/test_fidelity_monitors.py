"""What the guards of remote nodes make of samples, and which changes are late: as values."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from laggard.core.virtual_time import Dilation
from laggard.network_emulation.compute.host_counters import HostUse
from laggard.network_emulation.dynamics import EventRecord
from laggard.remote.agent.messages import NodeSample
from laggard.remote.fidelity_monitors import NodeFidelityMonitors
from laggard.run_folder.fidelity_violations import find_late_changes, format_violation

S = 1_000_000_000
AHEAD = 1000 * S
ZERO = AHEAD + 10 * S
NODES = ("cloud", "edge")

Change = Callable[[int, NodeSample], NodeSample]


def quiet(second: int) -> NodeSample:
    """A node whose clock is 1000 s behind the head's, and whose host computes half of the time."""
    return NodeSample(
        reference_ns=AHEAD + (10 + second) * S,
        at_ns=(10 + second) * S,
        wall_ns=(5000 + second) * S,
        awake_ns=(30 + second) * S,
        stolen_ns={3: 0},
        use=HostUse(due_ns=second * S // 2),
        share=0.25,
        mechanism="cgroup-quota",
    )


def told(change: Change, end_ns: int | None = None) -> list[tuple[str, str, float, float]]:
    """What is found where the samples of `edge` are changed and those of `cloud` are not."""
    guards = NodeFidelityMonitors()
    guards.start_monitoring()
    for second in range(30):
        guards.add("cloud", quiet(second))
        guards.add("edge", change(second, quiet(second)))
    return [
        (each.violation.kind, each.violation.where, each.first_s, each.last_s)
        for each in guards.violations(ZERO, end_ns)
    ]


def missed(second: int, sample: NodeSample) -> NodeSample:
    lost_ns = min(max(second - 10, 0), 6) * S // 5
    return sample.model_copy(update={"use": HostUse(due_ns=second * S // 2, lost_ns=lost_ns)})


def stolen(second: int, sample: NodeSample) -> NodeSample:
    return sample.model_copy(update={"stolen_ns": {3: min(max(second - 10, 0), 6) * S // 4}})


def stood_still(second: int, sample: NodeSample) -> NodeSample:
    return quiet(second + 3) if second > 10 else sample


def clock_set(second: int, sample: NodeSample) -> NodeSample:
    return sample.model_copy(update={"wall_ns": sample.wall_ns + (2 * S if second > 10 else 0)})


def unlimited(_: int, sample: NodeSample) -> NodeSample:
    return sample.model_copy(update={"use": None, "share": None, "mechanism": None})


def test_what_comes_after_the_end_is_not_told() -> None:
    assert told(missed, ZERO + 10 * S) == []
    assert told(missed, ZERO + 14 * S) == [("cpu starved", "edge", 10.0, 14.0)]


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda _, sample: sample, []),
        (unlimited, []),
        (missed, [("cpu starved", "edge", 10.0, 16.0)]),
        (stolen, [("cpu stolen", "core 3 of edge", 10.0, 16.0)]),
        (stood_still, [("machine suspended", "edge", 10.0, 14.0)]),
        (clock_set, [("clock stepped", "edge", 10.0, 11.0)]),
    ],
)
def test_a_slip_is_told_with_its_node_and_in_the_heads_time(
    change: Change, found: list[tuple[str, str, float, float]]
) -> None:
    assert told(change) == found


def test_what_happens_before_the_first_step_does_not_count_and_its_first_second_does() -> None:
    guards = NodeFidelityMonitors()
    for second in (0, 5, 10):
        guards.add("edge", quiet(second))
    guards.start_monitoring()
    guards.add("edge", quiet(14))
    (still,) = guards.violations(ZERO)
    assert (still.violation.kind, still.first_s, still.last_s) == ("machine suspended", 10.0, 14.0)


def test_a_change_that_takes_effect_late_is_told() -> None:
    events = [
        EventRecord("begin", "edge", "", "cpu", 0.2, 3.0, 3.2),
        EventRecord("begin", "edge", "cloud", "delay_ms", 9.0, 4.0, 6.5),
        EventRecord("begin", "edge", "cloud", "rate_mbps", 9.0, 4.0, 6.5),
        EventRecord("end", "edge", "", "cpu", 1.0, 8.0, 9.5),
    ]
    late = find_late_changes(events, 0, Dilation(2.0))
    assert [format_violation(each) for each in late] == [
        "4.0 to 6.5 s: a timed event changed edge -> cloud 2.5 s too late",
        "8.0 to 9.5 s: a timed event changed edge 1.5 s too late",
    ]
    assert (late[0].violation.first_ns, late[0].violation.last_ns) == (8 * S, 13 * S)
    assert find_late_changes(events, 0, Dilation(2.0), 15 * S) == late[:1], (
        "what was asked for after the end changed nothing"
    )
