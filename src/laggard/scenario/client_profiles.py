"""Properties of the clients of a federated training, from their scenario."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from laggard.core.hosts import Host, select_hosts
from laggard.core.selection.round_forecast import ClientProfile
from laggard.scenario.load import Scenario
from laggard.workloads.plan import place_server
from laggard.workloads.strategies.federated.parameters import FederatedParameters


def profile_clients(scenario: Scenario) -> tuple[ClientProfile, ...]:
    """Return the profile of each client; none if the strategy has no clients."""
    strategy = scenario.workload.strategy
    if not isinstance(strategy, FederatedParameters):
        return ()
    server = place_server(scenario.workload.placement, scenario.hosts).name
    workers = Counter(host.name for host in scenario.ranks)
    energies = _list_energies(scenario, strategy)
    prices = scenario.workload.objective.prices

    def profile(client: Host) -> ClientProfile:
        down = scenario.links.expected(server, client.name)
        up = scenario.links.expected(client.name, server)
        return ClientProfile(
            share=scenario.shares[client.name] / workers[client.name],
            down_mbps=down.rate_mbps,
            up_mbps=up.rate_mbps,
            delay_s=(down.delay_ms + up.delay_ms) / 1e3,
            sample_j=energies.get(client.name),
            hour_price=prices.get(client.layer),
        )

    return tuple(map(profile, scenario.ranks))


def _list_energies(scenario: Scenario, strategy: FederatedParameters) -> Mapping[str, float]:
    """Return the joules of a sample by host; a later pattern wins."""
    return {
        host.name: joules
        for pattern, joules in strategy.energy.items()
        for host in select_hosts(pattern, scenario.hosts)
    }
