from __future__ import annotations

import ipaddress
import json
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laggard.layers_services.compile import NETWORK, compile_hosts, role_names, static_description
from laggard.layers_services.model import LayersServices

if TYPE_CHECKING:
    from tests.users import Runner

steady = settings(derandomize=True, deadline=None)
Document = dict[str, object]


def document(*layers: tuple[str, list[Document]]) -> Document:
    return {
        "environment": {"g5k": {}},
        "layers": [{"name": name, "services": services} for name, services in layers],
    }


def test_names_and_addresses() -> None:
    hosts = compile_hosts(
        LayersServices.model_validate(
            document(
                ("Cloud", [{"name": "Server"}]),
                (
                    "edge",
                    [
                        {"name": "trainer", "quantity": 2, "repeat": 1},
                        {"name": "gateway", "roles": ["iot"]},
                    ],
                ),
            )
        )
    )
    assert [host.name for host in hosts] == [
        "cloud.server.1.1",
        "edge.trainer.1.1",
        "edge.trainer.1.2",
        "edge.gateway.2.1",
        "edge.trainer.3.1",
        "edge.trainer.3.2",
    ]
    assert [host.address for host in hosts] == [f"10.77.0.{number}" for number in range(1, 7)]
    assert role_names(hosts[3]) == ("edge.gateway.2.1", "edge", "gateway", "2_2", "iot")


def test_ten_thousand_hosts_have_addresses_of_their_own() -> None:
    hosts = compile_hosts(
        LayersServices.model_validate(document(("edge", [{"name": "a", "quantity": 10_000}])))
    )
    addresses = {ipaddress.ip_address(host.address) for host in hosts}
    assert len(addresses) == 10_000
    assert all(address in NETWORK for address in addresses)
    assert NETWORK.network_address not in addresses
    assert NETWORK.broadcast_address not in addresses


names = st.from_regex(r"\A[A-Za-z][A-Za-z0-9_-]{0,8}\Z").filter(
    lambda name: name.lower() not in ("all", "ungrouped")
)
services = st.fixed_dictionaries(
    {"name": names},
    optional={
        "quantity": st.integers(1, 3),
        "repeat": st.integers(0, 3),
        "roles": st.lists(names, max_size=2),
    },
)
documents = st.lists(
    st.tuples(names, st.lists(services, min_size=1, max_size=3)),
    min_size=1,
    max_size=3,
    unique_by=lambda layer: layer[0].lower(),
).map(lambda layers: document(*layers))


@steady
@given(documents)
def test_names_are_unique_and_counts_add_up(layers: Document) -> None:
    model = LayersServices.model_validate(layers)
    hosts = compile_hosts(model)
    assert (
        len({host.name for host in hosts})
        == len(hosts)
        == sum(layer.machines for layer in model.layers)
    )
    assert len({host.address for host in hosts}) == len(hosts)


@steady
@given(documents)
def test_the_static_description_has_every_host_once(layers: Document) -> None:
    hosts = compile_hosts(LayersServices.model_validate(layers))
    description = static_description(hosts)
    assert [machine["alias"] for machine in description["resources"]["machines"]] == [
        host.name for host in hosts
    ]
    assert json.loads(json.dumps(description)) == description


ORACLE = """
    import json, logging, sys
    from e2clab.config import InfrastructureConfig
    from e2clab.providers.provider import ProviderConfig
    from e2clab.schemas import is_valid_conf
    from e2clab.services.plugins.Default import Default
    from enoslib import Host, StaticConf
    from laggard.layers_services.compile import compile_hosts, static_description
    from laggard.layers_services.model import LayersServices

    def of_e2clab(document):
        config = InfrastructureConfig(document)
        found, number = [], 0
        for layer in config.get_layers():
            for service in layer["services"]:
                quantity = ProviderConfig.get_service_quantity(service)
                hosts = [Host(f"10.77.0.{number + n}") for n in range(1, quantity + 1)]
                number += quantity
                registered = Default(hosts, service)
                registered.deploy()
                roles = ProviderConfig.get_service_roles(layer["name"], service)
                for key, information in registered.service_extra_info.items():
                    found.append([key, information["__address__"], [role.lower() for role in roles], information["_id"]])
        return found

    def of_laggard(document):
        found = []
        hosts = compile_hosts(LayersServices.model_validate(document))
        StaticConf.from_dictionary(static_description(hosts))
        for host in hosts:
            groups = [host.service, f"{host.layer_id}_{host.service_id}", host.layer, *(role.lower() for role in host.roles)]
            found.append([host.name, host.address, groups, f"{host.layer_id}_{host.service_id}_{host.machine_id}"])
        return found

    for document in json.load(open(sys.argv[1])):
        assert is_valid_conf(document, "layers_services")
        print(json.dumps([of_e2clab(document), of_laggard(document)]))
"""


@pytest.mark.long
def test_e2clab_itself_names_the_hosts_the_same(own_runner: Runner) -> None:
    drawn: list[Document] = []

    # As many in any profile: E2Clab itself starts only once for all of them.
    @settings(steady, max_examples=100)
    @given(documents)
    def draw(layers: Document) -> None:
        drawn.append(layers)

    draw()
    (own_runner.folder / "documents.json").write_text(json.dumps(drawn))
    result = own_runner.run(ORACLE, "documents.json", timeout_s=480)
    answers = [json.loads(line) for line in result.stdout.splitlines() if line.startswith("[")]
    assert len(answers) == len(drawn) >= 50, result.stderr
    for layers, (theirs, ours) in zip(drawn, answers, strict=True):
        assert ours == theirs, layers
