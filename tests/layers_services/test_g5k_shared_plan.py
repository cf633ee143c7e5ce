"""One reservation for several scenarios: each fits into it, and a smaller one would not do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laggard.core.errors import InputError
from laggard.layers_services.g5k.plan import G5kOptions, G5kPlan, plan_g5k
from laggard.layers_services.g5k.shared_plan import count_nodes, join_plans
from laggard.layers_services.model import LayersServices

Service = tuple[str, int] | tuple[str, tuple[int, ...]]
"""Cluster, and either a number of any of its nodes or the numbers of certain ones."""

SITES = {"parasilo": "rennes", "paradoxe": "rennes", "gros": "nancy"}


def plan(services: Sequence[Service], options: G5kOptions | None = None, **g5k: object) -> G5kPlan:
    listed = []
    for number, (cluster, wanted) in enumerate(services):
        if isinstance(wanted, int):
            taken: dict[str, object] = {"cluster": cluster, "quantity": wanted}
        else:
            names = [f"{cluster}-{each}.{SITES[cluster]}.grid5000.fr" for each in wanted]
            taken = {"servers": names, "quantity": len(names)}
        listed.append({"name": f"s{number}", **taken})
    layers = LayersServices.model_validate(
        {"environment": {"g5k": g5k}, "layers": [{"name": "edge", "services": listed}]}
    )
    return plan_g5k(layers, options)


NUMBERS = st.lists(st.sampled_from([1, 2, 3, 4, 5]), min_size=1, max_size=3, unique=True)


@st.composite
def _services(draw: st.DrawFn) -> list[Service]:
    # One service with servers per cluster, since the same server cannot serve twice.
    named = draw(st.dictionaries(st.sampled_from(sorted(SITES)), NUMBERS, max_size=2))
    free = draw(
        st.lists(
            st.tuples(st.sampled_from(sorted(SITES)), st.integers(1, 3)),
            min_size=0 if named else 1,
            max_size=3,
        )
    )
    return [*((cluster, tuple(each)) for cluster, each in named.items()), *free]


def _list_servers(of: G5kPlan, cluster: str) -> set[str]:
    return {name for group in of.groups if group.cluster == cluster for name in group.servers}


def _fits(small: G5kPlan, nodes: Counter[str], servers: dict[str, set[str]]) -> bool:
    """Return whether a plan finds its nodes, as EnOSlib assigns them: servers first."""
    return all(
        _list_servers(small, cluster) <= servers.get(cluster, set()) and count <= nodes[cluster]
        for cluster, count in count_nodes(small).items()
    )


@given(st.lists(_services(), min_size=1, max_size=4))
def test_every_plan_fits_and_no_node_is_spare(wanted: list[list[Service]]) -> None:
    plans = [plan(each) for each in wanted]
    joint = join_plans(plans)
    nodes = Counter(count_nodes(joint))
    servers = {cluster: _list_servers(joint, cluster) for cluster in nodes}
    assert all(_fits(each, nodes, servers) for each in plans)
    for cluster in nodes:
        without = nodes - Counter({cluster: 1})
        too_few = len(servers[cluster]) > without[cluster]
        assert too_few or not all(_fits(each, without, servers) for each in plans)
    assert set(joint.sites) == {site for each in plans for site in each.sites}
    assert joint.nodes == nodes.total()


def test_the_longest_walltime_counts() -> None:
    joint = join_plans([plan([("gros", 1)], walltime="02:00:00"), plan([("gros", 3)])])
    assert (joint.walltime, dict(count_nodes(joint))) == ("02:00:00", {"gros": 3})


@pytest.mark.parametrize(
    ("name", "value", "difference"),
    [
        ("queue", "production", "queue: default and production"),
        ("job_types", ("exotic",), "job_types: () and ('exotic',)"),
        ("env_name", "debian12-nfs", "env_name: None and debian12-nfs"),
        ("reservation", "2027-01-01 20:00:00", "reservation: None and 2027-01-01 20:00:00"),
    ],
)
def test_scenarios_of_different_reservations_are_refused(
    name: str, value: object, difference: str
) -> None:
    one = plan([("gros", 1)])
    other = replace(one, **{name: value})  # type: ignore[arg-type]
    with pytest.raises(InputError, match="need different reservations") as refused:
        join_plans([one, other])
    assert difference in str(refused.value)
    assert join_plans([other, other]).walltime == other.walltime


def test_a_vlan_belongs_to_one_site() -> None:
    vlan = G5kOptions(kavlan=True, env_name="debian12-nfs")
    here, there = plan([("gros", 1)], vlan), plan([("parasilo", 2)], vlan)
    assert join_plans([here, plan([("gros", 3)], vlan)]).networks == here.networks
    with pytest.raises(InputError, match="VLANs of different sites"):
        join_plans([here, there])
