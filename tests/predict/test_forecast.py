"""Forecasts of scenarios, against times that theory gives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from laggard.core.cost_model.links import NetworkHop
from laggard.core.cost_model.message_handling import MessageHandling
from laggard.core.cost_model.step_seconds import StepSeconds
from laggard.core.errors import InputError
from laggard.core.simulation.network import FRAMING_OVERHEAD
from laggard.predict.forecast import Limit, find_forecast_knee, forecast_scenario
from laggard.predict.host_steps import HostSteps
from laggard.predict.planned_training import MessageSizes, PlannedHops
from laggard.scenario.load import Scenario, load_scenario
from tests.predict.scenario_folder import load, write_scenario

NO_HANDLING = MessageHandling(0.0, 0.0)
ONE_MEGABYTE = MessageSizes(1e6)
STREAM = {"tasks": 2, "passes": 2}


@dataclass(frozen=True)
class KnownSteps:
    """Steps of known seconds at full speed, by host; the others take `usual_s`."""

    usual_s: float = 0.1
    messages: MessageSizes = ONE_MEGABYTE
    handling: MessageHandling = NO_HANDLING
    slow: Mapping[str, float] = ()  # type: ignore[assignment]

    def forecast(self, scenario: Scenario) -> HostSteps:
        slow = dict(self.slow)
        seconds = [slow.get(rank.name, self.usual_s) for rank in scenario.ranks]
        return HostSteps(tuple(StepSeconds(0.9 * each, each, 1.2 * each) for each in seconds))


def test_every_host_has_its_price_as_in_a_run(tmp_path: Path) -> None:
    prices = {"objective": {"prices": {"cloud": 1.0, "edge": 0.25}}}
    found = forecast_scenario(load(tmp_path, edge=4, workload=prices), KnownSteps())
    # The server, which trains nothing, is one of them.
    assert found.cost_per_hour == pytest.approx(1.0 + 4 * 0.25)


def test_an_all_reduce_over_equal_links_takes_the_time_of_its_parts(tmp_path: Path) -> None:
    found = forecast_scenario(load(tmp_path, edge=4, rate="80mbit", delay="5ms"), KnownSteps())
    half_s = 1e6 * FRAMING_OVERHEAD / 8 * 8e-6 / 80
    part_s = max(2 * half_s, half_s + 0.010)
    # The first half of the sums waits for its receiver's request, and that of their distribution.
    assert found.step_s.usual_s == pytest.approx(0.1 + 6 * part_s + 2 * 0.010, rel=0.001)
    assert found.limit is Limit.LINKS
    assert found.workers == 4
    assert found.samples_per_s == pytest.approx(64 / found.step_s.usual_s)


def test_ddp_broadcasts_the_buffers_of_a_model(tmp_path: Path) -> None:
    scenario = load(tmp_path, edge=4, rate="80mbit", delay="5ms")
    without, with_buffers = (
        forecast_scenario(scenario, KnownSteps(messages=MessageSizes(1e6, buffers))).step_s.usual_s
        for buffers in ((), (1e4, 8.0))
    )
    # Two rounds of a doubling broadcast each, and 1 ms for 10 kB.
    expected = 2 * (0.005 + 1e4 * FRAMING_OVERHEAD * 8e-6 / 80) + 2 * 0.005
    assert with_buffers - without == pytest.approx(expected, rel=1e-3)


def test_the_interval_is_that_of_the_steps(tmp_path: Path) -> None:
    found = forecast_scenario(load(tmp_path, rate="10gbit", delay="0ms"), KnownSteps(1.0))
    assert found.step_s.low_s == pytest.approx(0.9, rel=0.01)
    assert found.step_s.high_s == pytest.approx(1.2, rel=0.01)
    assert found.limit is Limit.COMPUTE


def test_the_slowest_worker_is_named(tmp_path: Path) -> None:
    slow = {"edge.trainer.1.3": 0.4}
    found = forecast_scenario(
        load(tmp_path, rate="10gbit", delay="0ms"), KnownSteps(0.1, slow=slow)
    )
    assert found.limit is Limit.SLOW_WORKERS
    assert found.slowest == "edge.trainer.1.3"
    assert found.gains[Limit.SLOW_WORKERS] == pytest.approx(0.75, rel=0.02)


@pytest.mark.parametrize("edge", [2, 4, 8])
def test_an_asynchronous_server_is_a_closed_queue(tmp_path: Path, edge: int) -> None:
    # A whole core serves a message of one megabyte in 10 ms: each request is received and answered.
    handling = MessageHandling(packing_s_per_mb=0.01, applying_s_per_mb=0.0)
    scenario = load(
        tmp_path,
        edge=edge,
        rate="100gbit",
        delay="0ms",
        cpu="100%",
        workload={"strategy": "asynchronous"},
    )
    found = forecast_scenario(scenario, KnownSteps(0.1, handling=handling))
    # Worker: computes, packs, unpacks. Server: unpacks, packs.
    think_s, service_s = 0.1 + 0.02, 0.02
    speed = min(edge / (think_s + service_s), 1 / service_s)
    assert found.step_s.usual_s == pytest.approx(edge / speed, rel=0.06)
    assert found.limit is Limit.SERVER


def test_the_knee_of_a_server_is_its_saturation_point(tmp_path: Path) -> None:
    source = KnownSteps(0.1, handling=MessageHandling(packing_s_per_mb=0.01, applying_s_per_mb=0.0))
    forecasts = [
        forecast_scenario(
            load(
                tmp_path / str(edge),
                edge=edge,
                rate="100gbit",
                delay="0ms",
                cpu="100%",
                workload={"strategy": "asynchronous", "batch_size": 16 * edge},
            ),
            source,
        )
        for edge in (1, 2, 4, 8, 12, 16)
    ]
    assert find_forecast_knee(forecasts) == pytest.approx(0.14 / 0.02, abs=1.0)


def test_a_timed_change_of_the_share_slows_the_steps_of_that_time(tmp_path: Path) -> None:
    half = {
        "deterministic": [{"hosts": "all", "cpu": "50%"}],
        "dynamic": [{"at": "1s", "for": "2s", "hosts": "edge.*", "cpu": "25%"}],
    }
    scenario = load(tmp_path, rate="10gbit", delay="0ms", heterogeneity=half)
    found = forecast_scenario(scenario, KnownSteps(0.1))
    # In two seconds at half the speed, ten steps are done instead of twenty.
    assert found.step_s.usual_s * 40 == pytest.approx(40 * 0.1 + 1.0, rel=0.02)


def test_a_timed_change_of_the_rate_slows_transfers_of_that_time(tmp_path: Path) -> None:
    slow = {
        "dynamic": [{"at": "0s", "for": "1000s", "src": "edge.*", "dst": "edge.*", "rate": "8mbit"}]
    }
    usual, slowed = (
        forecast_scenario(load(tmp_path / name, delay="0ms", heterogeneity=each), KnownSteps(0.01))
        for name, each in (("usual", {"deterministic": []}), ("slowed", slow))
    )
    transfers = [each.step_s.usual_s - 0.01 for each in (usual, slowed)]
    assert transfers[1] / transfers[0] == pytest.approx(10.0, rel=0.05)


def test_workers_of_one_host_divide_its_share(tmp_path: Path) -> None:
    from laggard.predict.planned_training import divide_shares

    scenario = load(tmp_path, workload={"placement": {"workers": ["edge.*"], "per_host": 2}})
    assert set(divide_shares(scenario).values()) == {0.25}


def test_a_planned_link_has_its_slowest_rate_and_both_delays(tmp_path: Path) -> None:
    heterogeneity = {
        "deterministic": [
            {"hosts": "edge.*", "uplink": "20mbit"},
            {"src": "edge.*", "dst": "cloud.*", "jitter": "1ms"},
        ]
    }
    scenario = load(tmp_path, heterogeneity=heterogeneity)
    hops = PlannedHops(scenario.links)
    ends = ("edge.trainer.1.1", "cloud.server.1.1")
    assert hops[ends] == NetworkHop(ends, 20.0, 10.0)
    assert hops[ends[::-1]].rate_mbps == 80.0
    assert len(hops) == len({*hops}) == 20


@pytest.mark.parametrize(
    ("strategy", "named"),
    [
        ("adaptive", "adaptive"),
        ({"name": "allreduce", "compress": "fp16"}, "compress"),
        ({"name": "allreduce", "balanced_batches": True}, "balanced_batches"),
    ],
)
def test_what_cannot_be_simulated_is_refused_with_a_fix_that_works(
    tmp_path: Path, strategy: object, named: str
) -> None:
    folder = write_scenario(tmp_path, workload={"strategy": strategy})
    with pytest.raises(InputError, match=named) as caught:
        forecast_scenario(load_scenario(folder), KnownSteps())
    override = str(caught.value).rpartition("--set ")[2]
    forecast_scenario(load_scenario(folder, [override]), KnownSteps())


@pytest.mark.parametrize(
    ("workload", "named", "override"),
    [
        (
            {"strategy": {"name": "hierarchical", "defer": "task_ends"}, "stream": STREAM},
            "defer",
            "workload.strategy=hierarchical",
        ),
        (
            {"stream": {**STREAM, "arrivals": {"edge": {"rate": 5}}}},
            "arrivals",
            "workload.stream.arrivals={}",
        ),
    ],
)
def test_of_a_stream_nothing_is_predicted_that_is_not_known(
    tmp_path: Path, workload: dict[str, object], named: str, override: str
) -> None:
    folder = write_scenario(tmp_path, workload=workload)
    with pytest.raises(InputError, match=named) as caught:
        forecast_scenario(load_scenario(folder), KnownSteps())
    assert override in str(caught.value)
    forecast_scenario(load_scenario(folder, [override]), KnownSteps())
