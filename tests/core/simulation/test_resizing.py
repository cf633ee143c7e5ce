"""Trainings with other numbers of workers: against trainings that were made with them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laggard.core.cost_model.links import NetworkHop
from laggard.core.errors import InputError
from laggard.core.simulation.network import Bottleneck, SimulatedNetwork, SlowPeriod
from laggard.core.simulation.recorded_durations import RecordedDurations
from laggard.core.simulation.resizing import MAX_WORKERS, resize_tiers
from laggard.core.simulation.strategies.catalog import AlternativeStrategy
from laggard.core.simulation.training import SimulationInput, TrainingWork

SAMPLE_S = {"cloud": 0.1, "edge": 0.4}
BATCH = 24.0
STEPS = 6


def made(cloud: int, edge: int) -> SimulationInput:
    """So many equal workers of two tiers, which share a batch; the edge has one uplink."""
    hosts = [f"cloud {n}" for n in range(cloud)] + [f"edge {n}" for n in range(edge)]
    tiers = [host.split()[0] for host in hosts]
    tier_of = dict(zip(hosts, tiers, strict=True))
    hops = {
        (src, dst): NetworkHop(
            (src, dst), 50.0, 1.0 if tier_of.get(src) == tier_of.get(dst) else 20.0
        )
        for src in [*hosts, "server"]
        for dst in [*hosts, "server"]
        if src != dst
    }
    up = frozenset(
        ends for ends in hops if tier_of.get(ends[0]) == "edge" and ends[1] not in tier_of
    )
    slow = SlowPeriod(1.0, 3.0, up, 10.0)
    work = tuple(
        RecordedDurations(0.01, SAMPLE_S[tier], np.ones(1), 0, np.zeros(0), np.ones(1))
        for tier in tiers
    )
    return SimulationInput(
        work=TrainingWork(work, np.array([BATCH / len(hosts)]), STEPS * BATCH, float("inf")),
        hosts=tuple(hosts),
        tiers=tuple(tiers),
        shares_of_core=(1.0,) * len(hosts),
        server="server",
        server_share=1.0,
        network=SimulatedNetwork(hops, (Bottleneck("uplink", up, 60.0),), (slow,)),
        message_bytes=2e5,
    )


@settings(deadline=None)
@given(
    st.integers(2, 3),
    st.integers(2, 3),
    st.integers(1, 5),
    st.integers(1, 5),
    st.sampled_from(["allreduce", "hierarchical", "parameter_server", "gossip", "partial_reduce"]),
)
def test_it_takes_what_a_training_of_that_size_takes(
    cloud: int, edge: int, other_cloud: int, other_edge: int, name: str
) -> None:
    strategy = AlternativeStrategy(name)
    resized = resize_tiers(made(cloud, edge), {"cloud": other_cloud, "edge": other_edge})
    expected = strategy.simulate(made(other_cloud, other_edge))
    assert strategy.simulate(resized).makespan_s == pytest.approx(expected.makespan_s)


def test_the_last_workers_of_a_tier_are_removed_first() -> None:
    resized = resize_tiers(made(2, 3), {"edge": 1})
    assert resized.hosts == ("cloud 0", "cloud 1", "edge 0")
    assert resize_tiers(made(2, 3), {"edge": 0}).hosts == ("cloud 0", "cloud 1")


def test_added_workers_share_the_bottleneck_of_those_they_are_like() -> None:
    resized = resize_tiers(made(1, 2), {"edge": 4})
    assert resized.hosts == ("cloud 0", "edge 0", "edge 1", "edge 0 copy 1", "edge 1 copy 1")
    network = resized.network
    assert sum(ends in network.bottlenecks[0].ends for ends in network.hops) == 4
    assert network.hop(("edge 0", "edge 0 copy 1")).rtt_ms == 1.0


@pytest.mark.parametrize(
    ("workers", "said"),
    [
        ({"fog": 2}, "use one of cloud, edge"),
        ({"edge": -1}, "must be 0 to"),
        ({"edge": MAX_WORKERS + 1}, "must be 0 to"),
        ({"edge": 0, "cloud": 0}, "no worker is left"),
    ],
)
def test_impossible_numbers_are_refused(workers: dict[str, int], said: str) -> None:
    with pytest.raises(InputError, match=said):
        resize_tiers(made(1, 1), workers)
