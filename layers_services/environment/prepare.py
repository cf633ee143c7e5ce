"""Preparation of the Python environment that workers use on every node.

One Ansible task both queries a node and installs its environment. On prepared nodes it reports
`ready` and nothing else happens. Otherwise the wheels are sent once per site, into a home folder
that the site's machines share, and the task is repeated on the nodes that lacked wheels. Shared
homes are verified, not assumed: a node that still lacks wheels gets its own copy.
"""

from __future__ import annotations

import json
import logging
import shlex
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, ValidationError

from laggard.core.errors import DeploymentError
from laggard.core.node_values import (
    MessageText,
    NodeMessage,
    NodePath,
    ShortText,
    describe_invalid,
    escape_lines,
)
from laggard.layers_services.environment.install_on_node import ANSWER_MARK, Request, WheelFile
from laggard.layers_services.environment.node_facts import (
    NodeFacts,
    choose_python,
)
from laggard.layers_services.environment.wheel_plan import ARCHITECTURES, Platform
from laggard.layers_services.environment.wheels import Wheel, WheelSet
from laggard.layers_services.machine import Access, Machine
from laggard.layers_services.python_versions import SUPPORTED_PYTHONS, PythonVersion
from laggard.layers_services.ssh.remote_task import run_on_nodes
from laggard.layers_services.ssh.send_files import Shipment, send_files
from laggard.layers_services.ssh.transfer_session import pack_program

if TYPE_CHECKING:
    from enoslib import Roles

STORE = ".laggard/wheels"

_INSTALLER = Path(__file__).with_name("install_on_node.py")
_MOST_SENDERS = 8
_log = logging.getLogger(__name__)

_MOST_WHEELS = 1000
_MOST_ANSWER = 1 << 20


class PreparationAnswer(NodeMessage):
    """Answer of a node to a request; see `install_on_node.InstallAnswer`."""

    state: Literal["ready", "built", "missing", "refused"]
    python: NodePath | None = None
    runs: NodePath | None = None
    missing: Annotated[tuple[ShortText, ...], Field(max_length=_MOST_WHEELS)] = ()
    corrupt: Annotated[tuple[ShortText, ...], Field(max_length=_MOST_WHEELS)] = ()
    reason: MessageText = ""


@dataclass(frozen=True)
class Store:
    """Home folder in which wheels are stored.

    Attributes:
        access: SSH access for writing to it
        home: path of the folder on the nodes; `~` is the home of the user who logs in there
    """

    access: Access
    home: str = "~"


@dataclass(frozen=True)
class PreparedNode:
    """Node on which workers can be started.

    Attributes:
        machine: machine of the node
        python: path of the Python in its environment
        runs: folder on its local disk for the data of runs
        built: True if the environment was built now, False if it existed
    """

    machine: Machine
    python: str
    runs: str
    built: bool


@dataclass(frozen=True)
class PreparedNodes:
    """Prepared nodes of a run.

    Attributes:
        nodes: nodes by host name, in the order of the hosts
        sent_bytes: total size of the wheels that were sent
        shipments: number of times that wheels were sent; once per site if homes are shared
        tasks: number of Ansible tasks that were needed
    """

    nodes: Mapping[str, PreparedNode]
    sent_bytes: int
    shipments: int
    tasks: int


def platforms(facts: Mapping[str, NodeFacts], preferred: PythonVersion) -> Mapping[str, Platform]:
    """Return the platform for which each node needs wheels.

    Nodes that differ only in the version of their C library share the wheels of the oldest one.

    Args:
        facts: facts of every node, by its host's name
        preferred: Python version to choose if a node has several, the controller's own

    Raises:
        DeploymentError: some nodes cannot run workers; the message names all of them with the
            reason
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
            f"{node.architecture or 'unknown architecture'}: wheels exist only for"
            f" {' and '.join(ARCHITECTURES)}"
        )
    if node.glibc is None:
        return (
            "the node has no GNU C library, which the wheels require: use Debian, Ubuntu, Fedora or"
            " a similar distribution"
        )
    if choose_python(node, SUPPORTED_PYTHONS[0]) is None:
        found = ", ".join(f"{each.version[0]}.{each.version[1]}" for each in node.pythons) or "none"
        oldest, newest = (
            f"{major}.{minor}" for major, minor in (SUPPORTED_PYTHONS[0], SUPPORTED_PYTHONS[-1])
        )
        return (
            f"Python found: {found}; workers need {oldest} to {newest}: install it"
            f" (apt-get install python{oldest}) or use an image that has it"
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
    """Return stores in the site-wide home of a user, for nodes that root logs in to.

    This is the case on Grid'5000. Root has a separate home on every node. The user's home is
    shared by the whole site, and root may read it.

    Args:
        machines: machines of the hosts; those without a site are omitted
        user: user who can log in to the nodes in addition to root
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
    """Install on every machine the environment that its wheel set defines.

    Args:
        machines: machines of the hosts
        roles: EnOSlib's roles of the same hosts
        facts: facts of every machine, by its host's name (`query_nodes`)
        wheels: wheel set of every machine, by its host's name (`wheel_set` of the machine's
            platform)
        stores: store for a machine's site, by its host's name (`site_stores`); by default the
            machine's own home; if a store cannot be written, or a machine cannot read it, the
            wheels are sent to the machine itself
        base: folder for environments on the nodes; empty means `/var/tmp/laggard-<user>`

    Raises:
        DeploymentError: nodes could not be reached, have a full disk, or refuse the environment;
            the message names all of them
    """
    given = {
        machine.alias: (stores or {}).get(machine.alias) or Store(machine.access)
        for machine in machines
    }
    own = {machine.alias: Store(machine.access) for machine in machines}
    pythons = {
        machine.alias: _choose_interpreter(machine, facts, wheels[machine.alias])
        for machine in machines
    }
    commands = {
        name: install_command(
            pythons[name], wheels[name], tuple(dict.fromkeys((store.home, "~"))), base
        )
        for name, store in given.items()
    }
    prepared: dict[str, PreparedNode] = {}
    sent: list[Shipment] = []
    pending = {machine.alias: machine for machine in machines}
    # Three attempts: first without sending, then after one shipment per site, then one per node.
    for tasks, plan in enumerate((_one_per_site, _one_each, None), 1):
        answers = _query_nodes(roles, {name: commands[name] for name in pending})
        for name in [
            name for name, answer in answers.items() if answer.state in ("ready", "built")
        ]:
            prepared[name] = _to_prepared_node(pending.pop(name), answers[name])
        if not pending:
            ordered = {machine.alias: prepared[machine.alias] for machine in machines}
            return PreparedNodes(ordered, sum(each.sent_bytes for each in sent), len(sent), tasks)
        if plan is not None:
            places = given if plan is _one_per_site else own
            chosen = plan(pending.values(), wheels, places)
            sent += _send_all(chosen, wheels, places, answers, own, pythons)
    names = ", ".join(pending)
    raise DeploymentError(
        f"{names}: wheels were sent twice and are still missing or damaged — check the home folders"
        " of these nodes"
    )


def _choose_interpreter(machine: Machine, facts: Mapping[str, NodeFacts], wheels: WheelSet) -> str:
    python = choose_python(facts[machine.alias], wheels.platform.python)
    if python is None or python.version != wheels.platform.python:
        wanted = f"{wheels.platform.python[0]}.{wheels.platform.python[1]}"
        raise DeploymentError(
            f"{machine.alias}: its wheels require Python {wanted}, which the node does not have"
        )
    return python.path


def install_command(python: str, wheels: WheelSet, homes: Sequence[str], base: str) -> str:
    """Return the shell command that installs a wheel set on a node.

    Args:
        python: path of the node's interpreter
        wheels: wheels to install
        homes: home folders that may contain `.laggard/wheels`, as paths on the node
        base: folder for environments; empty for the default
    """
    request: Request = {
        "environment": wheels.hash,
        "wheels": [_describe_wheel(wheel) for wheel in wheels.packages],
        "uv": _describe_wheel(wheels.uv),
        "stores": [f"{home}/{STORE}" for home in homes],
        "base": base,
        "unpacked_bytes": wheels.unpacked_bytes,
    }
    # The program travels inside the command, so that nothing has to be copied to the node before.
    return shlex.join((python, "-I", "-c", pack_program(_INSTALLER), json.dumps(request)))


def _describe_wheel(wheel: Wheel) -> WheelFile:
    return {"name": wheel.stored_name, "size": wheel.size, "sha256": wheel.sha256}


def _query_nodes(roles: Roles, commands: Mapping[str, str]) -> Mapping[str, PreparationAnswer]:
    printed = run_on_nodes(roles, commands, "preparing the nodes")
    answers = {name: _parse_answer(name, text) for name, text in printed.items()}
    refused = [
        f"  {name}: {answer.reason}"
        for name, answer in answers.items()
        if answer.state == "refused"
    ]
    if refused:
        raise DeploymentError(
            f"{len(refused)} of {len(answers)} nodes could not be prepared:\n" + "\n".join(refused)
        )
    return answers


def _parse_answer(name: str, printed: str) -> PreparationAnswer:
    for line in printed[-_MOST_ANSWER:].splitlines():
        if line.startswith(ANSWER_MARK):
            try:
                return PreparationAnswer.model_validate_json(line.removeprefix(ANSWER_MARK))
            except ValidationError as error:
                raise DeploymentError(
                    f"{name}: the answer about its environment is garbled:"
                    f" {describe_invalid(error)}"
                ) from error
    raise DeploymentError(
        f"{name}: the installation of its environment ended without an answer; its last output:"
        f" {escape_lines(printed.strip()[-300:])}"
    )


def _to_prepared_node(machine: Machine, answer: PreparationAnswer) -> PreparedNode:
    if answer.python is None or answer.runs is None:
        raise DeploymentError(
            f"{machine.alias}: the answer about its environment is garbled: it has no paths"
        )
    return PreparedNode(machine, answer.python, answer.runs, built=answer.state == "built")


def _one_per_site(
    machines: Iterable[Machine], wheels: Mapping[str, WheelSet], stores: Mapping[str, Store]
) -> tuple[Machine, ...]:
    """Return the first machine of every site, user and wheel set.

    A machine without a site shares its home with no other.
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
    answers: Mapping[str, PreparationAnswer],
    own: Mapping[str, Store],
    pythons: Mapping[str, str],
) -> list[Shipment]:
    """Send the missing wheels to these machines, several machines at once.

    Wheels that could not be written to a site's store are sent to each machine later.
    """

    def send_to(machine: Machine) -> Shipment | DeploymentError:
        answer = answers[machine.alias]
        missing = set(answer.missing)
        lacking = [wheel for wheel in wheels[machine.alias].files if wheel.stored_name in missing]
        files = {wheel.stored_name: wheel.path for wheel in lacking}
        try:
            return send_files(
                machine.alias,
                stores[machine.alias].access,
                pythons[machine.alias],
                STORE,
                files,
                frozenset(answer.corrupt),
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
            "the shared home of site %s cannot store the wheels, so they are sent to each node: %s",
            machine.site,
            error,
        )
    sent = [end for _, end in ends if isinstance(end, Shipment)]
    for shipment in sent:
        _log.info(
            "sent wheels to %s: %d files, %d bytes",
            shipment.machine,
            shipment.files,
            shipment.sent_bytes,
        )
    return sent
