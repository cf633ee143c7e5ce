"""The user's own machines: what is read, what is refused and where, which host gets which, and what
EnOSlib and ssh are told."""

from __future__ import annotations

import itertools
import json
import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laggard.core.errors import ScenarioError
from laggard.core.hosts import Host
from laggard.core.yaml_source import YamlSource
from laggard.layers_services.compile import compile_hosts
from laggard.layers_services.machine import Access, Machine
from laggard.layers_services.model import LayersServices
from laggard.layers_services.ssh.enoslib_roles import covering_network, static_roles
from laggard.layers_services.ssh.inventory import Inventory, assign, parse_inventory

if TYPE_CHECKING:
    from tests.users import Runner

steady = settings(derandomize=True, deadline=None)
NAMES = {"node1": "10.0.0.1", "node2": "10.0.0.2", "here": "127.0.1.1"}
GOOD = """\
machines:
  - {ssh: node1, user: alice, port: 2222, key: id_test, gateway: "bob@gate.example.org:2200", site: lyon, hosts: "edge.*"}
  - {address: 10.0.0.9}
  - {ssh: node2, address: 10.1.0.2}
"""


def resolve(name: str) -> str:
    if name not in NAMES:
        raise OSError(-2, "Name or service not known")
    return NAMES[name]


def parse(text: str, folder: Path = Path("/nonexistent")) -> Inventory:
    return parse_inventory(text, folder / "inventory.yaml", resolve)


def hosts_of(**quantities: int) -> tuple[Host, ...]:
    layers = [
        {"name": name, "services": [{"name": "trainer", "quantity": n}]}
        for name, n in quantities.items()
    ]
    return compile_hosts(
        LayersServices.model_validate({"environment": {"g5k": {}}, "layers": layers})
    )


@pytest.fixture
def key_folder(tmp_path: Path) -> Path:
    (tmp_path / "id_test").write_text("a key")
    return tmp_path


def test_a_good_file(key_folder: Path) -> None:
    first, second, third = parse(GOOD, key_folder).machines
    key = key_folder / "id_test"
    assert (first.address, first.site, first.pattern) == ("10.0.0.1", "lyon", "edge.*")
    assert (first.access.address, first.access.user, first.access.port) == ("node1", "alice", 2222)
    assert first.access.key == key
    proxy = next(option for option in first.access.options if option.startswith("ProxyCommand="))
    words = shlex.split(proxy.removeprefix("ProxyCommand="))
    assert words[:5] == ["ssh", "-W", "%h:%p", "-p", "2200"]
    assert words[-1] == "bob@gate.example.org"
    assert words[words.index("-i") + 1] == str(key)
    assert second.access == Access("10.0.0.9", options=("StrictHostKeyChecking=accept-new",))
    assert (third.address, third.access.address, third.pattern) == ("10.1.0.2", "node2", "")


@pytest.mark.parametrize(
    ("machine", "column", "said"),
    [
        ("{}", 5, "this machine has neither name nor address"),
        ("{ssh: nowhere}", 11, "no IPv4 address: Name or service not known"),
        (
            "{ssh: here}",
            11,
            "the name resolves to 127.0.1.1: a loopback address cannot reach other machines",
        ),
        (
            "{ssh: '::1'}",
            11,
            "the name resolves to ::1: the address on the experiment's network must be an IPv4 address",
        ),
        ("{ssh: -oProxyCommand=x}", 11, "a machine is a host name or an IP address"),
        ("{ssh: 'a;reboot'}", 11, "a machine is a host name or an IP address"),
        ("{ssh: '$(id)'}", 11, "a machine is a host name or an IP address"),
        ("{ssh: 'a b'}", 11, "a machine is a host name or an IP address"),
        ("{ssh: 'fe80::1%eth0'}", 11, "a machine is a host name or an IP address"),
        ("{ssh: 7}", 11, "ssh: 7"),
        ("{address: localhost}", 15, "an IPv4 address"),
        ("{address: '::1'}", 15, "an IPv4 address"),
        ("{address: 10.0.0.256}", 15, "an IPv4 address"),
        ("{address: 127.0.0.1}", 15, "a loopback address cannot reach other machines"),
        ("{address: 0.0.0.0}", 15, "multicast, unspecified or reserved"),
        ("{address: 224.0.0.1}", 15, "multicast, unspecified or reserved"),
        ("{ssh: node1, port: 0}", 24, "port: 0"),
        ("{ssh: node1, port: 65536}", 24, "port: 65536"),
        ("{ssh: node1, port: '22'}", 24, 'port: "22"'),
        ("{ssh: node1, port: true}", 24, "port: true"),
        ("{ssh: node1, user: '-l'}", 24, "a user name has letters"),
        ("{ssh: node1, user: 'a$b'}", 24, "a user name has letters"),
        ("{ssh: node1, key: missing}", 23, "the file /nonexistent/missing does not exist"),
        ("{ssh: node1, key: 'a`id`'}", 23, "a key file's path"),
        ("{ssh: node1, key: '-i'}", 23, "a key file's path"),
        ("{ssh: node1, gateway: 'a b'}", 27, "a gateway is user@host:port"),
        ("{ssh: node1, gateway: -oX}", 27, "a gateway is user@host:port"),
        ("{ssh: node1, gateway: 'a;b'}", 27, "a gateway is user@host:port"),
        ("{ssh: node1, site: ../x}", 24, "a site has letters"),
        ("{ssh: node1, hosts: '[edge'}", 25, "brackets"),
        ("{ssh: node1, hosts: ''}", 25, "a host pattern must contain at least one name"),
        ("{ssh: node1, adress: 10.0.0.1}", 18, "did you mean `address`?"),
        ("{ssh: node1, hostt: x}", 18, "did you mean `hosts`?"),
        ("node1", 5, "keys with values are expected here"),
    ],
)
def test_refuses(machine: str, column: int, said: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        parse(f"machines:\n  - {machine}\n")
    (problem,) = caught.value.problems
    assert said in str(problem)
    assert (problem.line, problem.column) == (2, column)
    assert problem.path == "/nonexistent/inventory.yaml"


@pytest.mark.parametrize(
    ("machines", "line", "said"),
    [
        (
            "- {address: 10.0.0.1}\n- {address: 10.0.0.2}\n- {address: 10.0.0.1}",
            4,
            "machine 1 has the same address",
        ),
        ("- {ssh: node1}\n- {address: 10.0.0.1}", 3, "machine 1 has the same address, 10.0.0.1"),
        (
            "- {ssh: node1}\n- {ssh: node1, address: 10.0.0.7}",
            3,
            "machine 1 has the same name, port and gateway",
        ),
    ],
)
def test_refuses_a_machine_that_is_listed_twice(machines: str, line: int, said: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        parse(f"machines:\n{machines}\n")
    (problem,) = caught.value.problems
    assert said in str(problem)
    assert problem.line == line


def test_the_same_name_with_another_port_is_another_machine() -> None:
    listed = parse(
        "machines:\n- {ssh: gate, port: 1, address: 10.0.0.1}\n- {ssh: gate, port: 2, address:"
        " 10.0.0.2}\n"
    )
    assert [machine.access.port for machine in listed.machines] == [1, 2]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "keys with values are expected here"),
        ("machines: []\n", "the inventory lists no machine"),
        ("machines: {}\n", "a list is expected here"),
        ("- {ssh: node1}\n", "keys with values are expected here"),
        ("machines: [{ssh: node1}]\nmachine: 1\n", "the keys are machines; remove this one"),
        ("machines: [{ssh: node1}, {ssh: a b}, {port: 0}]\n", "a machine is a host name"),
    ],
)
def test_refuses_a_file(text: str, said: str) -> None:
    with pytest.raises(ScenarioError, match=said):
        parse(text)


def listed(*patterns: str) -> Inventory:
    machines = [
        {"address": f"10.9.0.{i}"} | ({"hosts": p} if p else {}) for i, p in enumerate(patterns, 1)
    ]
    return parse(json.dumps({"machines": machines}))


@pytest.mark.parametrize(
    ("patterns", "got"),
    [
        (("", "", ""), [1, 2, 3]),
        (("", "", "", ""), [1, 2, 3]),
        (("edge.*", "edge.*", "cloud.*"), [3, 1, 2]),
        (
            ("", "cloud.*", "edge.*"),
            [2, 3, 1],
        ),  # the first fits the first host too, but then none is left for edge
        (("edge.trainer.1.2", "", "cloud.*,edge.trainer.1.1"), [2, 3, 1]),
    ],
)
def test_every_host_gets_a_machine_of_its_own(patterns: tuple[str, ...], got: list[int]) -> None:
    hosts = hosts_of(cloud=1, edge=2)
    machines = assign(listed(*patterns), hosts)
    assert [machine.host.name for machine in machines] == [host.name for host in hosts]
    assert [machine.host.address for machine in machines] == [f"10.9.0.{i}" for i in got]


def test_says_how_many_are_missing_and_for_whom() -> None:
    with pytest.raises(ScenarioError) as caught:
        assign(listed("cloud.*", "cloud.*", "edge.*"), hosts_of(cloud=1, edge=8))
    (problem,) = caught.value.problems
    assert (
        problem.rule
        == "7 hosts have no machine: edge.trainer.1.2, edge.trainer.1.3, edge.trainer.1.4,"
        " edge.trainer.1.5, edge.trainer.1.6 and 2 more; the inventory lists 3"
    )
    assert (problem.line, problem.column) == (1, 14)


@steady
@given(st.lists(st.lists(st.integers(0, 4), max_size=5, unique=True), min_size=1, max_size=5))
def test_finds_an_assignment_whenever_there_is_one(fits: list[list[int]]) -> None:
    """Against trying all: machine i may be the hosts whose list has it."""
    hosts = hosts_of(edge=len(fits))
    patterns = [
        ",".join(host.name for host, own in zip(hosts, fits, strict=True) if i in own)
        for i in range(5)
    ]
    inventory = listed(*(pattern or "nothing.*" for pattern in patterns))
    orders = itertools.permutations(range(5), len(fits))
    possible = any(all(i in own for i, own in zip(order, fits, strict=True)) for order in orders)
    if not possible:
        with pytest.raises(ScenarioError):
            assign(inventory, hosts)
        return
    machines = assign(inventory, hosts)
    numbers = [int(machine.host.address.rpartition(".")[2]) - 1 for machine in machines]
    assert len(set(numbers)) == len(hosts)
    assert all(number in own for number, own in zip(numbers, fits, strict=True))


@pytest.mark.parametrize(
    ("addresses", "network"),
    [
        (["10.0.0.1"], "10.0.0.1/32"),
        (["10.0.0.1", "10.0.0.2"], "10.0.0.0/30"),
        (["10.0.0.1", "10.0.1.1", "10.0.0.7"], "10.0.0.0/23"),
        (["10.0.0.1", "192.168.0.1"], "0.0.0.0/0"),
    ],
)
def test_the_covering_network(addresses: Sequence[str], network: str) -> None:
    assert str(covering_network(addresses)) == network


def machine(access: Access) -> Machine:
    return Machine(
        Host("edge.trainer.1.1", "edge", "trainer", 1, 1, "10.0.0.5", ("gpu",), 2), access
    )


def test_what_enoslib_is_told() -> None:
    access = Access(
        "node1",
        "alice",
        2222,
        Path("/keys/id"),
        "gate",
        ("StrictHostKeyChecking=yes", "ProxyCommand=ssh -W %h:%p g"),
    )
    described = static_roles([machine(access)])["resources"]
    assert described["machines"] == [
        {
            "address": "node1",
            "alias": "edge.trainer.1.1",
            "roles": ["edge.trainer.1.1", "edge", "trainer", "2_1", "gpu"],
            "user": "alice",
            "port": 2222,
            "keyfile": "/keys/id",
            "extra": {
                "ansible_ssh_common_args": (
                    "-o BatchMode=yes -o ServerAliveInterval=10 -o ServerAliveCountMax=3 -o"
                    " ProxyJump=gate -o StrictHostKeyChecking=yes -o 'ProxyCommand=ssh -W %h:%p g'"
                ),
                "ansible_ssh_host_key_checking": "True",
            },
        }
    ]
    assert described["networks"] == [
        {"roles": ["experiment"], "cidr": "10.0.0.5/32", "gateway": "10.0.0.5", "dns": "10.0.0.5"}
    ]


def test_ssh_understands_what_it_is_told(key_folder: Path) -> None:
    """`ssh -G` prints what the options mean without connecting."""
    first, *_ = parse(GOOD, key_folder).machines
    said = subprocess.run(
        ["ssh", "-G", *first.access.ssh_arguments()], check=True, capture_output=True, text=True
    ).stdout
    settings_of = dict(line.partition(" ")[::2] for line in said.splitlines())
    assert settings_of["user"] == "alice"
    assert settings_of["port"] == "2222"
    assert settings_of["stricthostkeychecking"] == "accept-new"
    assert settings_of["proxycommand"].endswith("bob@gate.example.org")


@pytest.mark.long
def test_enoslibs_roles(own_runner: Runner) -> None:
    result = own_runner.run("""
    import json
    from laggard.core.hosts import Host
    from laggard.layers_services.ssh.enoslib_roles import enoslib_roles_of
    from laggard.layers_services.machine import Access, Machine
    hosts = [Host(f"edge.trainer.1.{i}", "edge", "trainer", 1, i, f"10.0.0.{i}", ("gpu",), 2) for i in (1, 2)]
    machines = [Machine(host, Access(f"node{host.machine_id}", options=("StrictHostKeyChecking=yes",))) for host in hosts]
    devices = {host.name: f"eno{host.machine_id}" for host in hosts}
    roles, networks = enoslib_roles_of(machines, devices)
    import enoslib
    netem = enoslib.NetemHTB()
    netem.add_constraints(roles["edge.trainer.1.1"], roles["edge.trainer.1.2"], delay="10ms", rate="1gbit", symmetric=True)
    from enoslib.enos_inventory import EnosInventory
    variables = EnosInventory(roles=roles).get_host("edge.trainer.1.2").vars
    print(json.dumps([
        {role: sorted(host.alias for host in group) for role, group in roles.items()},
        sorted([s.device, s.target] for source in netem.sources.values() for s in source.constraints),
        any(host is roles["edge.trainer.1.1"][0] for host in roles["edge"]),
        variables["ansible_ssh_common_args"], variables["ansible_host"],
    ]))
""")
    assert result.stdout, result.stderr
    groups, constraints, same, arguments, address = json.loads(result.stdout.splitlines()[-1])
    both = ["edge.trainer.1.1", "edge.trainer.1.2"]
    assert groups == {
        "edge": both,
        "trainer": both,
        "2_1": both,
        "gpu": both,
        both[0]: both[:1],
        both[1]: both[1:],
    }
    assert constraints == [["eno1", "10.0.0.2"], ["eno2", "10.0.0.1"]]
    assert same
    assert (
        arguments == "-o BatchMode=yes -o ServerAliveInterval=10 -o ServerAliveCountMax=3 -o"
        " StrictHostKeyChecking=yes"
    )
    assert address == "node2"


def test_a_problem_names_the_file_for_an_assignment_too() -> None:
    inventory = Inventory((), YamlSource("mine.yaml", None, {}))
    with pytest.raises(ScenarioError, match=r"mine\.yaml:1:1: machines: 1 host has no machine"):
        assign(inventory, hosts_of(edge=1))
