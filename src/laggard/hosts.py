"""Hosts of a continuum and the patterns that select them, with E2Clab's meaning.

E2Clab hands its patterns to Ansible's inventory, in which every host is a group of its own under its service key
(`layer.service.service_id.machine_id`) and also belongs to the groups named after its layer, its service and
`service_id_machine_id`. A pattern is a `:`- or `,`-separated list of globs; `!` excludes, `&` intersects.
A bare group name reaches only the group's first host in E2Clab's look-up, which is why scenarios say `edge.*`.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Host:
    """One machine of the continuum.

    Attributes:
        name: E2Clab's service key, lower case: `layer.service.service_id.machine_id`.
        layer: the tier, as written in `layers_services.yaml`, lower case.
        service: the service, lower case.
        service_id: the service's position in its layer, from 1.
        machine_id: the machine's number within the service, from 1.
        address: IPv4 address on the experiment network; empty until the host exists.
        roles: extra roles of the service.
    """

    name: str
    layer: str
    service: str
    service_id: int
    machine_id: int
    address: str = ""
    roles: tuple[str, ...] = field(default=())

    @property
    def groups(self) -> tuple[str, ...]:
        """The group names this host answers to besides its own."""
        return (self.layer, self.service, f"{self.service_id}_{self.machine_id}", *self.roles)


def select(pattern: str, hosts: Sequence[Host]) -> tuple[Host, ...]:
    """Hosts that a pattern names, in the order of `hosts`.

    Args:
        pattern: an E2Clab (Ansible) host pattern; case does not matter.
        hosts: all hosts of the continuum.

    Returns:
        The matching hosts; empty when nothing matches.
    """
    terms = [term.strip() for term in re.split(r"[:,]", pattern.lower()) if term.strip()]
    included = [term for term in terms if term[0] not in "!&"]
    chosen = {h.name for h in hosts} if not included else set[str]()
    for term in included:
        chosen |= _matching(term, hosts)
    for term in terms:
        if term[0] == "&":
            chosen &= _matching(term[1:], hosts)
        elif term[0] == "!":
            chosen -= _matching(term[1:], hosts)
    return tuple(host for host in hosts if host.name in chosen)


def bare_groups(pattern: str, hosts: Sequence[Host]) -> tuple[str, ...]:
    """Terms of `pattern` that are a group of several hosts, of which E2Clab reaches only the first."""
    terms = [term.strip("!& ") for term in re.split(r"[:,]", pattern.lower())]
    return tuple(t for t in terms if len([h for h in hosts if t in h.groups]) > 1)


def _matching(term: str, hosts: Sequence[Host]) -> set[str]:
    if term == "all":
        return {host.name for host in hosts}
    if term.startswith("~"):
        return {host.name for host in hosts if re.match(term[1:], host.name)}
    names = {host.name for host in hosts if fnmatch.fnmatchcase(host.name, term)}
    members = [host.name for host in hosts if term in host.groups]
    if members and term not in names:
        names.add(members[0])
    return names
