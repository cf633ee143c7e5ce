"""Fleets of very many workers: against order statistics, and what is refused."""

from __future__ import annotations

import dataclasses
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from laggard.core.cost_model.shared_link import compute_last_delivery_s
from laggard.core.errors import InputError
from laggard.core.rules.synchronization import PeriodicSynchronization
from laggard.core.simulation.fleet import Distribution, Fleet, WorkerClass, simulate_fleet

SPREAD = 0.3


@pytest.mark.parametrize("workers", [10**2, 10**4, 10**6])
@pytest.mark.parametrize("distribution", get_args(Distribution))
def test_the_slowest_of_equal_workers_is_an_order_statistic(
    workers: int, distribution: Distribution
) -> None:
    """The maximum of n draws is F^-1(U^(1/n)), so F(maximum)^n is uniform."""
    fleet = Fleet((WorkerClass(workers // 100, 100, 0.5, SPREAD, distribution),))
    found = simulate_fleet(fleet, 60, np.random.default_rng(7))
    slowest = np.diff(found.sync_s, prepend=0.0) / 0.5
    logs = (
        stats.norm.logcdf(np.log(slowest) / SPREAD)
        if distribution == "lognormal"
        else stats.expon.logcdf((slowest - 1.0) / SPREAD)
    )
    assert stats.kstest(np.exp(workers * logs), "uniform").pvalue > 1e-3


def test_what_workers_do_not_compute_they_wait() -> None:
    """A class that is twice as slow never waits for the other, which waits for half of the time."""
    fleet = Fleet((WorkerClass(2, 3, 1.0), WorkerClass(1, 4, 2.0)))
    found = simulate_fleet(fleet, 10, np.random.default_rng(1))
    assert found.makespan_s == pytest.approx(20.0)
    assert found.waited_s == pytest.approx([10.0, 0.0])
    assert found.times_last.tolist() == [0, 10]


def test_messages_share_the_links_of_their_site_and_of_the_root() -> None:
    """1 MB: 0.1 s on a site's link, 0.01 s on the root's. Four workers at each of five sites take
    4 x 0.1 + 5 x 0.01 s in each direction."""
    fleet = Fleet((WorkerClass(5, 4, 1.0, link_mbps=80.0),), 1e6, root_mbps=800.0)
    found = simulate_fleet(fleet, 3, np.random.default_rng(1))
    assert found.makespan_s == pytest.approx(3 * (1.0 + 2 * 0.45), rel=1e-6)


def test_rare_synchronizations_wait_for_the_slowest_sum() -> None:
    fleet = Fleet((WorkerClass(10, 10, 1.0, SPREAD),))
    often, rarely = (
        simulate_fleet(fleet, 40, np.random.default_rng(3), PeriodicSynchronization(every))
        for every in (1, 8)
    )
    assert len(often.sync_s) == 40
    assert len(rarely.sync_s) == 5
    assert rarely.makespan_s < 0.8 * often.makespan_s


@given(st.lists(st.floats(0.0, 10.0), min_size=1, max_size=12), st.floats(0.0, 3.0))
def test_the_last_delivery_is_that_of_a_queue(arrival_s: list[float], message_s: float) -> None:
    now_s = 0.0
    for arrives_s in sorted(arrival_s):
        now_s = max(now_s, arrives_s) + message_s
    found = float(compute_last_delivery_s(np.array(arrival_s), message_s))
    assert found == pytest.approx(now_s)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"sites": 0}, "sites is 0"),
        ({"workers": -1}, "workers is -1"),
        ({"step_s": 0.0}, "step_s is 0.0"),
        ({"step_s": float("nan")}, "step_s is nan"),
        ({"step_s": float("inf")}, "step_s is inf"),
        ({"link_mbps": float("nan")}, "link_mbps is nan"),
        ({"spread": -0.1}, "spread is -0.1"),
        ({"link_mbps": 0.0}, "link_mbps is 0.0"),
        ({"rtt_ms": float("inf")}, "rtt_ms is inf"),
    ],
)
def test_impossible_workers_are_refused(changed: dict[str, float], said: str) -> None:
    with pytest.raises(InputError, match=said):
        dataclasses.replace(WorkerClass(1, 1, 1.0), **changed)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"classes": ()}, "no worker"),
        ({"root_mbps": 0.0}, "root_mbps is 0.0"),
        ({"message_bytes": -1.0}, "message_bytes is -1.0"),
        ({"root_rtt_ms": float("nan")}, "root_rtt_ms is nan"),
    ],
)
def test_impossible_fleets_are_refused(changed: dict[str, object], said: str) -> None:
    with pytest.raises(InputError, match=said):
        dataclasses.replace(Fleet((WorkerClass(1, 1, 1.0),)), **changed)  # type: ignore[arg-type]


def test_a_training_has_a_step() -> None:
    with pytest.raises(InputError, match="steps is 0"):
        simulate_fleet(Fleet((WorkerClass(1, 1, 1.0),)), 0, np.random.default_rng(1))
