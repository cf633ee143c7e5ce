"""Inventory of the user's own machines (`--hosts inventory.yaml`) and their assignment to hosts.

Values are used in arguments of ssh(1) and in Ansible's variables. Therefore everything that a
shell or ssh could misinterpret is rejected here, with its location in the file.
"""

from __future__ import annotations

import ipaddress
import re
import shlex
import socket
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StrictInt,
    StrictStr,
    model_validator,
)

from laggard.core.corrections.model_problems import validate_model
from laggard.core.errors import Problem, ScenarioError
from laggard.core.files.input_files import expand_home
from laggard.core.hosts import Host, find_pattern_error, select_hosts
from laggard.core.yaml_source import KeyPath, YamlSource, parse_yaml
from laggard.layers_services.machine import Access, Machine
from laggard.layers_services.ssh.host_keys import KNOWN_AFTER_FIRST_CONTACT

# ssh expands or interprets these characters in the paths of its configuration.
_SPECIAL_IN_SSH_PATHS = '%$"\\'
_NAMES_SHOWN = 5


def _require_match(expression: str, rule: str) -> AfterValidator:
    def check(value: str) -> str:
        if len(value) > 255 or not re.fullmatch(expression, value, re.ASCII):
            raise ValueError(rule)
        return value

    return AfterValidator(check)


def _is_ssh_name(value: str) -> str:
    rule = "a machine is a host name or an IP address — write node1.example.org, for example"
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}", value, re.ASCII) and not _is_ip(value):
        raise ValueError(rule)
    return value


def _is_ip(value: str) -> bool:
    try:
        return "%" not in value and bool(ipaddress.ip_address(value))
    except ValueError:
        return False


def _is_experiment_address(value: str) -> str:
    fault = _address_fault(value)
    if fault is not None:
        raise ValueError(f"{fault} — write the machine's own address, such as 10.0.0.1")
    return value


def _address_fault(value: str) -> str | None:
    try:
        address = ipaddress.IPv4Address(value)
    except ValueError:
        return "the address on the experiment's network must be an IPv4 address"
    if address.is_loopback:
        return "a loopback address cannot reach other machines"
    if address.is_multicast or address.is_unspecified or address.is_reserved:
        return "this address is multicast, unspecified or reserved"
    return None


def _is_pattern(value: str) -> str:
    fault = find_pattern_error(value)
    if fault is not None:
        raise ValueError(f"{fault} — write a pattern as in network.yaml")
    return value


SshName = Annotated[StrictStr, AfterValidator(_is_ssh_name)]
ExperimentAddress = Annotated[StrictStr, AfterValidator(_is_experiment_address)]
User = Annotated[
    StrictStr,
    _require_match(
        r"[A-Za-z_][A-Za-z0-9_.-]{0,31}",
        "a user name has letters, digits, `_`, `.` and `-` — write root, for example",
    ),
]
Port = Annotated[StrictInt, Field(ge=1, le=65535)]
KeyFile = Annotated[
    StrictStr,
    _require_match(
        r"[A-Za-z0-9_.~/][A-Za-z0-9_./~+@=, -]*",
        "a key file's path has letters, digits, spaces and `./~_+@=,-` — create a link with such a"
        " path",
    ),
]
Gateway = Annotated[
    StrictStr,
    _require_match(
        r"([A-Za-z_][A-Za-z0-9_.-]{0,31}@)?[A-Za-z0-9][A-Za-z0-9._-]*(:[0-9]{1,5})?",
        "a gateway is user@host:port with optional user and port — write me@gateway.example.org,"
        " for example",
    ),
]
Site = Annotated[
    StrictStr,
    _require_match(
        r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}",
        "a site has letters, digits, `_`, `.` and `-` — rename it",
    ),
]
Pattern = Annotated[StrictStr, AfterValidator(_is_pattern)]


class _InventorySection(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ListedMachine(_InventorySection):
    """Machine of an inventory, as written in the file."""

    ssh: Annotated[
        SshName | None, Field(description="name to connect to; by default the address")
    ] = None
    address: Annotated[
        ExperimentAddress | None,
        Field(
            description=(
                "IPv4 address on the experiment's network; by default the address of `ssh`"
            )
        ),
    ] = None
    user: Annotated[User, Field(description="user to log in as; shaping links needs root")] = "root"
    port: Annotated[Port, Field(description="port of the SSH server")] = 22
    key: Annotated[
        KeyFile | None, Field(description="private key file, relative to the inventory")
    ] = None
    gateway: Annotated[Gateway | None, Field(description="jump host, as user@host:port")] = None
    site: Annotated[
        Site | None, Field(description="machines of one site and user share a home folder")
    ] = None
    hosts: Annotated[
        Pattern | None, Field(description="hosts that the machine may become; by default any")
    ] = None

    @model_validator(mode="after")
    def _can_be_reached(self) -> Self:
        if self.ssh is None and self.address is None:
            raise ValueError("this machine has neither name nor address — add `ssh:` or `address:`")
        return self

    @property
    def connects_to(self) -> str:
        """Return the name or address that ssh connects to."""
        return self.ssh or self.address or ""


class ListedMachines(_InventorySection):
    """Inventory, as written in the file."""

    machines: Annotated[
        tuple[ListedMachine, ...], Field(description="machines, in order of preference")
    ]


@dataclass(frozen=True)
class Candidate:
    """Machine that may become a host.

    Attributes:
        address: IPv4 address on the experiment's network
        access: SSH access to the machine
        site: site of the machine; machines of one site and user share a home folder; empty if the
            machine shares its home folder with no other
        pattern: pattern of the hosts that the machine may become; empty for any
    """

    address: str
    access: Access
    site: str
    pattern: str


@dataclass(frozen=True)
class Inventory:
    """Machines of an inventory file in its order, and the source to locate problems in."""

    machines: tuple[Candidate, ...]
    source: YamlSource


def resolve_ipv4(name: str) -> str:
    """Return the first IPv4 address of a name.

    Raises:
        OSError: the name has no address, or the name service does not answer
    """
    return str(socket.getaddrinfo(name, None, socket.AF_INET, socket.SOCK_STREAM)[0][4][0])


def parse_inventory(
    data: bytes | str, path: Path, resolve: Callable[[str], str] = resolve_ipv4
) -> Inventory:
    """Parse an inventory.

    Args:
        data: content of the file
        path: path of the file, for messages; key files are relative to its folder
        resolve: function that returns the IPv4 address of a name, or raises OSError

    Raises:
        ScenarioError: every problem of the file, with line and column
    """
    source = parse_yaml(data, str(path))
    listed = validate_model(source, ListedMachines).machines
    problems: list[Problem] = []
    machines: list[Candidate] = []
    for i, machine in enumerate(listed):
        try:
            machines.append(
                _build_candidate(machine, ("machines", i), source, path.parent, resolve)
            )
        except ScenarioError as error:
            problems.extend(error.problems)
    if not listed:
        problems.append(
            source.locate_problem(
                ("machines",),
                "the inventory lists no machine",
                "add an entry `- {ssh: name}` per machine",
            )
        )
    problems.extend(_listed_twice(listed, machines, source) if not problems else ())
    if problems:
        raise ScenarioError(tuple(problems))
    return Inventory(tuple(machines), source)


def _build_candidate(
    machine: ListedMachine,
    key: KeyPath,
    source: YamlSource,
    folder: Path,
    resolve: Callable[[str], str],
) -> Candidate:
    options: tuple[str, ...] = (KNOWN_AFTER_FIRST_CONTACT,)
    key_file = None
    if machine.key is not None:
        key_file = (folder / expand_home(machine.key)).resolve()
        fault = _key_fault(key_file)
        if fault is not None:
            raise _refuse_value(source, (*key, "key"), fault, "write the path of the private key")
    if machine.gateway is not None:
        options = (*options, f"ProxyCommand={_build_proxy_command(machine.gateway, key_file)}")
    return Candidate(
        address=machine.address
        or _resolve_address(machine.connects_to, (*key, "ssh"), source, resolve),
        access=Access(machine.connects_to, machine.user, machine.port, key_file, options=options),
        site=machine.site or "",
        pattern=machine.hosts or "",
    )


def _key_fault(key: Path) -> str | None:
    if not key.is_file():
        return f"the file {key} does not exist"
    if not str(key).isprintable() or set(str(key)) & set(_SPECIAL_IN_SSH_PATHS):
        return f"ssh would misinterpret {key}: a path must not have any of {_SPECIAL_IN_SSH_PATHS}"
    return None


def _build_proxy_command(gateway: str, key: Path | None) -> str:
    """Return the command that connects over a gateway.

    `ssh -J` would pass neither the key nor any option to the gateway.
    """
    login, _, port = gateway.partition(":")
    identity = () if key is None else ("-i", str(key))
    settings = ("BatchMode=yes", "ConnectTimeout=10", KNOWN_AFTER_FIRST_CONTACT)
    options = tuple(word for setting in settings for word in ("-o", setting))
    return shlex.join(("ssh", "-W", "%h:%p", "-p", port or "22", *identity, *options, login))


def _resolve_address(
    name: str, key: KeyPath, source: YamlSource, resolve: Callable[[str], str]
) -> str:
    fix = "add `address:`, the machine's address on the experiment's network"
    try:
        address = name if _is_ip(name) else resolve(name)
    except OSError as error:
        raise _refuse_value(
            source, key, f"this name has no IPv4 address: {error.strerror or error}", fix
        ) from error
    fault = _address_fault(address)
    if fault is not None:
        raise _refuse_value(source, key, f"the name resolves to {address}: {fault}", fix)
    return address


def _refuse_value(source: YamlSource, key: KeyPath, rule: str, fix: str) -> ScenarioError:
    return ScenarioError((source.locate_problem(key, rule, fix),))


def _listed_twice(
    listed: Sequence[ListedMachine], machines: Sequence[Candidate], source: YamlSource
) -> Iterator[Problem]:
    addresses: dict[str, int] = {}
    ways: dict[tuple[str, int, str | None], int] = {}
    for i, (written, machine) in enumerate(zip(listed, machines, strict=True)):
        first = addresses.setdefault(machine.address, i)
        if first != i:
            key = "ssh" if written.address is None else "address"
            rule = f"machine {first + 1} has the same address, {machine.address}"
            yield source.locate_problem(
                ("machines", i, key), rule, "list each machine once, with its own address"
            )
            continue
        first = ways.setdefault((written.connects_to, written.port, written.gateway), i)
        if first != i:
            rule = f"machine {first + 1} has the same name, port and gateway"
            yield source.locate_problem(("machines", i, "ssh"), rule, "list each machine once")


def assign(inventory: Inventory, hosts: Sequence[Host]) -> tuple[Machine, ...]:
    """Assign a machine of its own to every host.

    A host gets the first machine that fits, unless another host would then get none.

    Args:
        inventory: the machines
        hosts: hosts of the continuum, in order

    Returns:
        One machine per host, in the order of the hosts; each host has the machine's address.

    Raises:
        ScenarioError: there is no assignment with a machine for every host
    """
    patterns = {machine.pattern for machine in inventory.machines}
    allowed = {
        pattern: {host.name for host in (select_hosts(pattern, hosts) if pattern else hosts)}
        for pattern in patterns
    }
    fits = [
        [i for i, each in enumerate(inventory.machines) if host.name in allowed[each.pattern]]
        for host in hosts
    ]
    matched = _match_hosts(fits)
    missing = [host.name for i, host in enumerate(hosts) if i not in matched]
    if missing:
        raise ScenarioError((_too_few(missing, inventory),))
    return tuple(_to_machine(host, inventory.machines[matched[i]]) for i, host in enumerate(hosts))


def _to_machine(host: Host, candidate: Candidate) -> Machine:
    return Machine(
        replace(host, address=candidate.address, ipv6=()), candidate.access, candidate.site
    )


def _too_few(missing: Sequence[str], inventory: Inventory) -> Problem:
    names = ", ".join(missing[:_NAMES_SHOWN])
    more = f" and {len(missing) - _NAMES_SHOWN} more" if len(missing) > _NAMES_SHOWN else ""
    listed = len(inventory.machines)
    lack = "1 host has" if len(missing) == 1 else f"{len(missing)} hosts have"
    rule = f"{lack} no machine: {names}{more}; the inventory lists {listed}"
    fix = f"add {len(missing)} suitable machines, or widen `hosts:` of listed ones"
    return inventory.source.locate_problem(("machines",), rule, fix, value="machines")


def _match_hosts(fits: Sequence[Sequence[int]]) -> Mapping[int, int]:
    """Match as many hosts as possible with a machine each.

    This is maximum bipartite matching by augmenting paths (Kuhn, 1955).

    Args:
        fits: machines that each host may get, best first

    Returns:
        The machine of every matched host.
    """
    holder: dict[int, int] = {}
    held: dict[int, int] = {}
    for host in range(len(fits)):
        reached: dict[int, int] = {}
        free = _free_machine(host, fits, holder, reached)
        while free is not None:  # every host on the path takes the machine that it reached
            taker = reached[free]
            before = held.get(taker)
            holder[free], held[taker] = taker, free
            free = before
    return held


def _free_machine(
    host: int, fits: Sequence[Sequence[int]], holder: Mapping[int, int], reached: dict[int, int]
) -> int | None:
    """Return the nearest free machine, by breadth-first search.

    `reached` receives, for each machine, the host from which it was first reached.
    """
    queue = deque([host])
    while queue:
        at = queue.popleft()
        for machine in fits[at]:
            if machine in reached:
                continue
            reached[machine] = at
            if machine not in holder:
                return machine
            queue.append(holder[machine])
    return None
