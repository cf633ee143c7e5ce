"""Gives every node the Python environment that workers run in.

One Ansible task asks and installs: a node that has the environment says so, and a second run on the
same nodes is ready after that. Otherwise the wheels travel once per site, into a home folder that
the site's machines share, and the same task is run again where they were missing. Whether homes are
shared is seen, not believed: a node that still lacks wheels gets its own.
"""

from __future__ import annotations

import base64
import json
import logging
import shlex
import zlib
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from laggard.core.errors import DeploymentError
from laggard.layers_services.environment.install_on_node import ANSWER_MARK, InstallAnswer, Request
from laggard.layers_services.environment.node_facts import (
    SUPPORTED_PYTHONS,
    NodeFacts,
    PythonVersion,
    choose_python,
)
from laggard.layers_services.environment.wheel_plan import ARCHITECTURES, Platform
from laggard.layers_services.environment.wheels import WheelSet
from laggard.layers_services.machine import Access, Machine
from laggard.layers_services.ssh.remote_task import run_on_nodes
from laggard.layers_services.ssh.send_files import Shipment, send_files

if TYPE_CHECKING:
    from enoslib import Roles

STORE = ".laggard/wheels"

_INSTALLER = Path(__file__).with_name("install_on_node.py")
_MOST_SENDERS = 8
_log = logging.getLogger(__name__)

State = Literal["ready", "built", "missing", "refused"]


@dataclass(frozen=True)
class Store:
    """A home folder that keeps wheels.

    Attributes:
        access: how to put them there.
        home: the folder as the nodes see it; `~` is that of who logs in on them.
    """

    access: Access
    home: str = "~"


@dataclass(frozen=True)
class PreparedNode:
    """A node that workers can be started on.

    Attributes:
        machine: which one.
        python: path of its environment's Python.
        runs: folder on its local disk for the data of runs.
        built: whether the environment was made now; else it was there.
    """

    machine: Machine
    python: str
    runs: str
    built: bool


@dataclass(frozen=True)
class PreparedNodes:
    """All nodes of a run.

    Attributes:
        nodes: by the host's name, in the hosts' order.
        sent_bytes: of wheels that travelled.
        shipments: how many times wheels travelled: once per site where homes are shared.
        tasks: Ansible tasks that it took.
    """

    nodes: Mapping[str, PreparedNode]
    sent_bytes: int
    shipments: int
    tasks: int


def platforms(facts: Mapping[str, NodeFacts], preferred: PythonVersion) -> Mapping[str, Platform]:
    """For which platform each node needs wheels; nodes that differ in their C library only share
    the older one's.

    Args:
        facts: of every node, by its host's name.
        preferred: the Python version to choose where a node has several, the controller's own.

    Raises:
        DeploymentError: some nodes cannot run workers; names all of them with the reason.
    """
    unfit = {
        name: reason
        for name, node in facts.items()
        if (reason := _describe_missing_requirement(node)) is not None
    }
    if unfit:
        said = "\n".join(f"  {name}: {reason}" for name, reason in unfit.items())
        raise DeploymentError(f"{len(unfit)} of {len(facts)} nodes cannot run workers:\n{said}")
    own = {name: _choose_platform(node, preferred) for name, node in facts.items()}
    oldest: dict[Platform, tuple[int, int]] = {}
    for platform in own.values():
        alike = replace(platform, glibc=(0, 0))
        oldest[alike] = min(oldest.get(alike, platform.glibc), platform.glibc)
    return {
        name: replace(platform, glibc=oldest[replace(platform, glibc=(0, 0))])
        for name, platform in own.items()
    }


def _describe_missing_requirement(node: NodeFacts) -> str | None:
    if node.architecture not in ARCHITECTURES:
        return (
            f"{node.architecture or 'an unknown architecture'}: there are wheels for"
            f" {' and '.join(ARCHITECTURES)}"
        )
    if node.glibc is None:
        return (
            "no GNU C library, which the wheels are built for: use a Debian, Ubuntu, Fedora or the"
            " like"
        )
    if choose_python(node, SUPPORTED_PYTHONS[0]) is None:
        found = ", ".join(f"{each.version[0]}.{each.version[1]}" for each in node.pythons) or "none"
        oldest, newest = (
            f"{major}.{minor}" for major, minor in (SUPPORTED_PYTHONS[0], SUPPORTED_PYTHONS[-1])
        )
        return (
            f"Python {found} found: workers need {oldest} to {newest}; apt-get install"
            f" python{oldest}, or such an image"
        )
    return None


def _choose_platform(node: NodeFacts, preferred: PythonVersion) -> Platform:
    python = choose_python(node, preferred)
    assert python is not None
    assert node.glibc is not None
    return Platform(
        python.version, node.architecture, node.glibc, "cuda" if node.usable_gpus else "cpu"
    )


def site_stores(machines: Iterable[Machine], user: str) -> Mapping[str, Store]:
    """Stores in the home that a user has on every node of a site, for nodes that root logs in to,
    as on Grid'5000.

    Root has a home of its own on every node. The user's is one for the whole site, and root may
    read it.

    Args:
        machines: those without a site are left out.
        user: who can log in to the nodes too.
    """
    return {
        machine.alias: Store(replace(machine.access, user=user), f"/home/{user}")
        for machine in machines
        if machine.site
    }


def prepare(
    machines: Sequence[Machine],
    roles: Roles,
    facts: Mapping[str, NodeFacts],
    wheels: Mapping[str, WheelSet],
    stores: Mapping[str, Store] | None = None,
    base: str = "",
) -> PreparedNodes:
    """Give every machine the environment that its wheel set makes.

    Args:
        machines: of the hosts.
        roles: EnOSlib's roles of the same hosts.
        facts: of every machine, by its host's name (`query_nodes`).
        wheels: the wheel set of every machine, by its host's name (`wheel_set` of what `platforms`
            says).
        stores: where wheels are put for a machine's site, by its host's name (`site_stores`); its
            own home where not given. A store that cannot be written, or that a machine cannot read,
            costs a journey to the machine itself.
        base: folder for environments on the nodes; `/var/tmp/laggard-<user>` where empty.

    Raises:
        DeploymentError: nodes could not be reached, have a full disk, or will not take the
            environment; names all of them.
    """
    given = {
        machine.alias: (stores or {}).get(machine.alias) or Store(machine.access)
        for machine in machines
    }
    own = {machine.alias: Store(machine.access) for machine in machines}
    commands = {
        machine.alias: _build_install_command(
            machine, facts, wheels[machine.alias], given[machine.alias], base
        )
        for machine in machines
    }
    prepared: dict[str, PreparedNode] = {}
    sent: list[Shipment] = []
    pending = {machine.alias: machine for machine in machines}
    for tasks, plan in enumerate((_one_per_site, _one_each, None), 1):
        answers = _query_nodes(roles, {name: commands[name] for name in pending})
        for name in [
            name for name, answer in answers.items() if answer["state"] in ("ready", "built")
        ]:
            prepared[name] = _to_prepared_node(pending.pop(name), answers[name])
        if not pending:
            ordered = {machine.alias: prepared[machine.alias] for machine in machines}
            return PreparedNodes(ordered, sum(each.sent_bytes for each in sent), len(sent), tasks)
        if plan is not None:
            places = given if plan is _one_per_site else own
            sent += _send_all(plan(pending.values(), wheels, places), wheels, places, answers, own)
    names = ", ".join(pending)
    raise DeploymentError(
        f"{names}: wheels were sent there twice and do not arrive whole — check these nodes' home"
        " folders"
    )


def _build_install_command(
    machine: Machine, facts: Mapping[str, NodeFacts], wheels: WheelSet, store: Store, base: str
) -> str:
    python = choose_python(facts[machine.alias], wheels.platform.python)
    if python is None or python.version != wheels.platform.python:
        wanted = f"{wheels.platform.python[0]}.{wheels.platform.python[1]}"
        raise DeploymentError(
            f"{machine.alias}: its wheels are for Python {wanted}, which it does not have"
        )
    return install_command(python.path, wheels, tuple(dict.fromkeys((store.home, "~"))), base)


def install_command(python: str, wheels: WheelSet, homes: Sequence[str], base: str) -> str:
    """The shell command that installs a wheel set on a node.

    Args:
        python: the node's interpreter.
        wheels: what to install.
        homes: folders in which `.laggard/wheels` may be, as the node sees them.
        base: folder for environments; empty for the default.
    """
    request: Request = {
        "environment": wheels.hash,
        "wheels": [
            {"name": wheel.stored_name, "size": wheel.size, "sha256": wheel.sha256}
            for wheel in wheels.files
        ],
        "stores": [f"{home}/{STORE}" for home in homes],
        "base": base,
        "unpacked_bytes": wheels.unpacked_bytes,
        "versions": dict(wheels.versions),
    }
    packed = base64.b64encode(zlib.compress(_INSTALLER.read_bytes(), 9)).decode("ascii")
    program = f'import base64,zlib;exec(zlib.decompress(base64.b64decode("{packed}")))'
    return shlex.join((python, "-I", "-c", program, json.dumps(request)))


def _query_nodes(roles: Roles, commands: Mapping[str, str]) -> Mapping[str, InstallAnswer]:
    printed = run_on_nodes(roles, commands, "preparing the nodes")
    answers = {name: _parse_answer(name, text) for name, text in printed.items()}
    refused = [
        f"  {name}: {answer['reason']}"
        for name, answer in answers.items()
        if answer["state"] == "refused"
    ]
    if refused:
        raise DeploymentError(
            f"{len(refused)} of {len(answers)} nodes could not be prepared:\n" + "\n".join(refused)
        )
    return answers


def _parse_answer(name: str, printed: str) -> InstallAnswer:
    for line in printed.splitlines():
        if line.startswith(ANSWER_MARK):
            answer: InstallAnswer = json.loads(line.removeprefix(ANSWER_MARK))
            return answer
    raise DeploymentError(
        f"{name}: it was being prepared and gave no answer: {printed.strip()[-300:]}"
    )


def _to_prepared_node(machine: Machine, answer: InstallAnswer) -> PreparedNode:
    return PreparedNode(machine, answer["python"], answer["runs"], built=answer["state"] == "built")


def _one_per_site(
    machines: Iterable[Machine], wheels: Mapping[str, WheelSet], stores: Mapping[str, Store]
) -> tuple[Machine, ...]:
    """The first machine of every site, user and wheel set; machines without a site share with
    nobody.
    """
    first: dict[tuple[str, str, str], Machine] = {}
    for machine in machines:
        key = (
            machine.site or machine.alias,
            stores[machine.alias].access.user,
            wheels[machine.alias].hash,
        )
        first.setdefault(key, machine)
    return tuple(first.values())


def _one_each(
    machines: Iterable[Machine], wheels: Mapping[str, WheelSet], stores: Mapping[str, Store]
) -> tuple[Machine, ...]:
    del wheels, stores
    return tuple(machines)


def _send_all(
    machines: Sequence[Machine],
    wheels: Mapping[str, WheelSet],
    stores: Mapping[str, Store],
    answers: Mapping[str, InstallAnswer],
    own: Mapping[str, Store],
) -> list[Shipment]:
    """Send what these machines lack, several at once; what did not get into a site's store goes to
    each machine later.
    """

    def send_to(machine: Machine) -> Shipment | DeploymentError:
        answer = answers[machine.alias]
        missing = set(answer["missing"])
        lacking = [wheel for wheel in wheels[machine.alias].files if wheel.stored_name in missing]
        files = {wheel.stored_name: wheel.path for wheel in lacking}
        try:
            return send_files(
                machine.alias,
                stores[machine.alias].access,
                STORE,
                files,
                frozenset(answer["corrupt"]),
            )
        except DeploymentError as error:
            return error

    with ThreadPoolExecutor(max_workers=_MOST_SENDERS) as pool:
        ends = list(zip(machines, pool.map(send_to, machines), strict=True))
    failed = [(machine, end) for machine, end in ends if isinstance(end, DeploymentError)]
    lost = [str(error) for machine, error in failed if stores[machine.alias] == own[machine.alias]]
    if lost:
        raise DeploymentError("\n".join(lost))
    for machine, error in failed:
        _log.warning(
            "the home that site %s shares takes no wheels, so each node gets its own: %s",
            machine.site,
            error,
        )
    sent = [end for _, end in ends if isinstance(end, Shipment)]
    for shipment in sent:
        _log.info(
            "wheels to %s: %d files, %d bytes",
            shipment.machine,
            shipment.files,
            shipment.sent_bytes,
        )
    return sent
