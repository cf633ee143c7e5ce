"""Hosts of a continuum and the patterns that select them, with E2Clab's meaning.

Like E2Clab, with Ansible's inventory, a pattern is matched against the *names of roles*. The roles
are every host's own service key (`layer.service.service_id.machine_id`), layers, services,
`layer_id_service_id`, and the extra roles of a service. Each role that matches stands for its
first host. Therefore a bare `edge` is one host, `edge.*` is all of them, and `!edge` removes
nothing from `edge.*`.

A pattern is a list of globs, separated by `,` or else by `:`. A leading `!` excludes, `&`
intersects, `~` begins a regular expression, and `[0]` or `[0:2]` after a glob picks by position.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from laggard.core.linear_regex import UnsupportedExpressionError, compile_regex

MAX_RULES = 1000
"""Largest number of rules, entries or patterns in one section of a scenario file."""


@dataclass(frozen=True)
class Host:
    """One machine of the continuum.

    Attributes:
        name: E2Clab's service key in lower case: `layer.service.service_id.machine_id`.
        layer: tier, as written in `layers_services.yaml`, in lower case.
        service: service in lower case.
        service_id: position of the service in its layer, from 1.
        machine_id: number of the machine within the service, from 1.
        address: IPv4 address on the experiment network; empty until the host exists.
        roles: extra roles of the service.
        layer_id: position of the layer in the file, from 1.
        ipv6: IPv6 addresses on the experiment network, which are shaped like the IPv4 address;
            empty if the host has none.
    """

    name: str
    layer: str
    service: str
    service_id: int
    machine_id: int
    address: str = ""
    roles: tuple[str, ...] = field(default=())
    layer_id: int = 0
    ipv6: tuple[str, ...] = ()

    @property
    def groups(self) -> tuple[str, ...]:
        """Return the names of the groups that contain this host."""
        return (self.layer, self.service, f"{self.layer_id}_{self.service_id}", *self.roles)


_LONGEST_PATTERN = 2000
_TERM = re.compile(r"(?:[^\s:\[\]]|\[[^\]]*\])+")
_SUBSCRIPT = re.compile(r"(.+)\[(?:(-?\d{1,9})|(\d{1,9})[:-](\d{0,9}))\]", re.ASCII)


def select_ranks(pattern: str, ranks: Sequence[Host]) -> tuple[int, ...]:
    """Return the numbers of the workers whose hosts match a pattern.

    Args:
        pattern: pattern of hosts.
        ranks: host of each worker.
    """
    names = {host.name for host in select_hosts(pattern, ranks)}
    return tuple(rank for rank, host in enumerate(ranks) if host.name in names)


def select_hosts(pattern: str, hosts: Sequence[Host]) -> tuple[Host, ...]:
    """Return the hosts that a pattern selects, in the order of `hosts`.

    Args:
        pattern: E2Clab (Ansible) host pattern; case does not matter.
        hosts: all hosts of the continuum.

    Returns:
        The matching hosts; empty if nothing matches or if the pattern is malformed (see
        `find_pattern_error`).

    Examples:
        >>> from laggard.scenario.load import load_scenario
        >>> scenario = load_scenario(Path("my-continuum"))
        >>> [host.name for host in select_hosts("edge.*", scenario.hosts)]
        ['edge.trainer.1.1', 'edge.trainer.1.2']
    """
    if find_pattern_error(pattern) is not None:
        return ()
    roles = _map_roles_to_first_hosts(hosts)
    chosen = _select_roles(split_terms(pattern), roles)
    names = {roles[role] for role in chosen}
    return tuple(host for host in hosts if host.name in names)


def find_pattern_error(pattern: str) -> str | None:
    """Return the rule that a malformed pattern breaks, as text; None if it is well formed."""
    if len(pattern) > _LONGEST_PATTERN:
        return f"a host pattern must have at most {_LONGEST_PATTERN} characters"
    terms = split_terms(pattern)
    if "," not in pattern and re.search(r"[\[\]]", _TERM.sub("", pattern)):
        return "the brackets of a host pattern must come in pairs"
    if not terms or any(not term.lstrip("!&").lstrip("~") for term in terms):
        return "a host pattern must contain at least one name or glob, such as edge.*"
    faults = (_find_expression_error(term.lstrip("!&")) for term in terms)
    return next((fault for fault in faults if fault is not None), None)


def find_ambiguous_groups(pattern: str, hosts: Sequence[Host]) -> tuple[str, ...]:
    """Return the terms of `pattern` that are a group of several hosts.

    E2Clab uses only the first host of such a group.
    """
    terms = [term.lstrip("!&") for term in split_terms(pattern)]
    return tuple(t for t in terms if len([h for h in hosts if t in h.groups]) > 1)


def split_terms(pattern: str) -> tuple[str, ...]:
    """Return the terms of a pattern in lower case."""
    text = pattern.lower()
    # As in Ansible, a colon separates terms only if there is no comma. `_TERM` keeps a colon inside
    # brackets, as in [0:2].
    parts = text.split(",") if "," in text else _TERM.findall(text)
    return tuple(part.strip() for part in parts if part.strip())


def _find_expression_error(term: str) -> str | None:
    if not term.startswith("~"):
        return None
    try:
        compile_regex(term[1:])
    except UnsupportedExpressionError as error:
        return f"a regular expression that {error}"
    except (re.error, OverflowError, RecursionError) as error:
        return f"not a regular expression: {error}"
    return None


def _map_roles_to_first_hosts(hosts: Sequence[Host]) -> Mapping[str, str]:
    """Map every role to its first host, shared roles first, then the hosts' own names."""
    first: dict[str, str] = {}
    for host in hosts:
        for group in host.groups:
            first.setdefault(group.lower(), host.name)
    for host in hosts:
        first.setdefault(host.name, host.name)
    return first


def _select_roles(terms: Sequence[str], roles: Mapping[str, str]) -> set[str]:
    # A pattern that only excludes or intersects starts from all hosts.
    included = [term for term in terms if term[0] not in "!&"] or ["all"]
    chosen = {role for term in included for role in _match_roles(term, roles)}
    for term in terms:
        if term[0] == "&":
            chosen &= set(_match_roles(term[1:], roles))
        elif term[0] == "!":
            chosen -= set(_match_roles(term[1:], roles))
    return chosen


def _match_roles(term: str, roles: Mapping[str, str]) -> list[str]:
    """Return the roles that one term, without its `!` or `&`, matches."""
    if term in roles:
        return [term]
    if term == "all":
        return list(roles)
    if term.startswith("~"):
        expression = compile_regex(term[1:])
        return [role for role in roles if expression.matches_beginning(role)]
    subscript = _SUBSCRIPT.fullmatch(term)
    if subscript is None:
        return fnmatch.filter(roles, term)
    found = fnmatch.filter(roles, subscript[1])
    if subscript[2] is not None:
        at = int(subscript[2])
        return found[at:][:1] if -len(found) <= at else []
    # Unlike in Python, the end of a slice is included.
    return found[int(subscript[3]) : int(subscript[4]) + 1 if subscript[4] else None]
