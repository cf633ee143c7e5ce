"""Profiles of clients from a scenario: shares, links, energy and prices as its files give them."""

from __future__ import annotations

from pathlib import Path

import pytest

from laggard.core.errors import LaggardError
from laggard.core.selection.round_forecast import ClientProfile
from laggard.scenario.client_profiles import profile_clients
from laggard.scenario.load import load_scenario
from laggard.workloads.plan import ServerPlan, join_exchange, plan_addresses, plan_workers
from laggard.workloads.transport.keys import make_endpoints
from tests.virtual.federated_scenario import SHARES, write_federated


def test_profiles_are_what_the_files_say(tmp_path: Path) -> None:
    strategy = {"name": "federated", "energy": {"edge.*": 0.5, "edge.client.1.2": 2}}
    changes = {"strategy": strategy, "objective": {"name": "cost", "prices": {"edge": 0.1}}}
    scenario = load_scenario(write_federated(tmp_path / "scenario", changes))
    assert profile_clients(scenario) == tuple(
        ClientProfile(share, 10.0, 10.0, 0.02, 2.0 if number == 1 else 0.5, 0.1)
        for number, share in enumerate(SHARES)
    )


def test_workers_of_a_host_divide_its_share(tmp_path: Path) -> None:
    placement = {"workers": ["edge.*"], "server": "cloud.*", "per_host": 2}
    scenario = load_scenario(write_federated(tmp_path / "scenario", {"placement": placement}))
    found = profile_clients(scenario)
    assert [each.share for each in found] == [share / 2 for share in SHARES for _ in range(2)]
    assert {each.sample_j for each in found} == {None}


def test_a_link_without_a_rate_takes_no_time(tmp_path: Path) -> None:
    folder = write_federated(tmp_path / "scenario")
    (folder / "network.yaml").write_text("networks: []")
    profiles = profile_clients(load_scenario(folder))
    assert {(each.down_mbps, each.up_mbps, each.delay_s) for each in profiles} == {(None, None, 0)}


@pytest.mark.parametrize("network", ["networks: []", None])
def test_the_server_is_told_of_all_profiles(tmp_path: Path, network: str | None) -> None:
    """Plans of processes are JSON, which has no infinite numbers."""
    folder = write_federated(tmp_path / "scenario")
    if network is not None:
        (folder / "network.yaml").write_text(network)
    scenario = load_scenario(folder)
    profiles = profile_clients(scenario)
    workers = plan_workers(scenario.workload, scenario.hosts, tmp_path)
    endpoints = make_endpoints(plan_addresses(scenario.workload, scenario.hosts), 1.0)
    _, server = join_exchange(workers, scenario.hosts, endpoints, profiles)
    assert server is not None
    assert ServerPlan.model_validate_json(server.to_json()).profiles == profiles


def test_other_strategies_have_no_clients(tmp_path: Path) -> None:
    changes = {"strategy": "allreduce", "births": None}
    scenario = load_scenario(write_federated(tmp_path / "scenario", changes))
    assert profile_clients(scenario) == ()


@pytest.mark.parametrize(
    ("strategy", "pattern"),
    [
        ({"energy": {"fog.*": 1}}, r"fog\.\*"),
        ({"tokens": {"free_riders": ["edge.client.1.9"]}}, r"edge\.client\.1\.9"),
        ({"tokens": {"claims": {"cloud.*": 5}}}, r"cloud\.\*"),
    ],
)
def test_a_pattern_of_no_client_is_told(
    tmp_path: Path, strategy: dict[str, object], pattern: str
) -> None:
    changes = {"strategy": {"name": "federated", **strategy}}
    folder = write_federated(tmp_path / "scenario", changes)
    with pytest.raises(LaggardError, match=rf"{pattern}: this pattern matches no host"):
        load_scenario(folder)
