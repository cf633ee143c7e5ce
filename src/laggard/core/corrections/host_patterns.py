"""Problems of host patterns, with a pattern that selects hosts instead."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from functools import lru_cache

from laggard.core.edits import Correction, KeyPath, write_value
from laggard.core.errors import Problem
from laggard.core.hosts import (
    Host,
    find_ambiguous_groups,
    find_pattern_error,
    select_hosts,
    split_terms,
)
from laggard.core.yaml_source import YamlSource

_ALL = "*"
_MOST_NAMES = 5
_MOST_HOSTS = 200


def check_pattern(
    source: YamlSource, key: KeyPath, pattern: str, hosts: Sequence[Host]
) -> Iterator[Problem]:
    """Yield a problem if a pattern is malformed or matches no host."""
    rule = find_pattern_error(pattern)
    if rule is None and not select_hosts(pattern, hosts):
        rule = "this pattern matches no host"
    if rule is not None:
        yield source.locate_problem(
            key, rule, correct_pattern(pattern, hosts, key), value=pattern[:60] or '""'
        )


def check_pattern_syntax(
    source: YamlSource, key: KeyPath, pattern: str, hosts: Sequence[Host]
) -> Iterator[Problem]:
    """Yield a problem if a pattern is malformed."""
    if find_pattern_error(pattern) is not None:
        yield from check_pattern(source, key, pattern, hosts)


def warn_ambiguous_groups(
    source: YamlSource, key: KeyPath, pattern: str, hosts: Sequence[Host]
) -> Iterator[Problem]:
    """Yield a warning for each term of a pattern that is a group of several hosts."""
    for term in find_ambiguous_groups(pattern, hosts):
        rule = f"{term} alone means only its first host, as in E2Clab"
        whole = name_group(term, hosts)
        new = whole if pattern.strip().lower() == term else None
        text = f"to name all its hosts, write {whole}" if whole else "name its hosts one by one"
        advice = Correction(text) if new is None else write_value(key, new, text)
        yield source.locate_problem(key, rule, advice, value=pattern)


def correct_pattern(pattern: str, hosts: Sequence[Host], key: KeyPath = ()) -> Correction:
    """Return the correction of a pattern that is malformed or matches no host.

    Args:
        pattern: the written pattern.
        hosts: every host of the continuum.
        key: key path of the pattern.
    """
    near = _find_near_pattern(pattern, hosts)
    layers = sorted({host.layer for host in hosts})
    names = ", ".join(layers[:_MOST_NAMES]) + (", ..." if len(layers) > _MOST_NAMES else "")
    if near is not None:
        return write_value(key, near, f"did you mean {near}? the layers are {names}")
    text = f"the layers are {names}; write for example {layers[0]}.*, or {_ALL} for all hosts"
    return write_value(key, _ALL, text)


def name_group(group: str, hosts: Sequence[Host]) -> str | None:
    """Return a pattern that selects exactly the hosts of a group; None if there is no short one.

    A group is a layer, a service, `layer_id_service_id` or an extra role of services.
    """
    members = [host for host in hosts if group in {name.lower() for name in host.groups}]
    services = dict.fromkeys(f"{h.layer}.{h.service}.{h.service_id}.*" for h in members)
    choices = (
        f"{group}.*",
        f"*.{group}.*",
        ",".join(services),
        ",".join(host.name for host in members),
    )
    wanted = {host.name for host in members}
    return next(
        (each for each in choices if {h.name for h in select_hosts(each, hosts)} == wanted), None
    )


def _find_near_pattern(pattern: str, hosts: Sequence[Host]) -> str | None:
    """Return the pattern with every term that matches nothing replaced by the most similar one."""
    terms = [_correct_term(term, hosts) for term in split_terms(pattern)]
    corrected = ",".join(term for term in terms if term is not None)
    complete = bool(terms) and None not in terms
    return corrected if complete and select_hosts(corrected, hosts) else None


def _correct_term(term: str, hosts: Sequence[Host]) -> str | None:
    if term[0] == "!" or (find_pattern_error(term) is None and select_hosts(term, hosts)):
        return term
    sign = "&" if term[0] == "&" else ""
    name = term[len(sign) :]
    groups = {group.lower() for host in hosts for group in host.groups}
    whole = (
        name_group(name.removesuffix(".*"), hosts) if name.removesuffix(".*") in groups else None
    )
    if whole is None:
        whole = next(iter(difflib.get_close_matches(name, _list_terms(tuple(hosts)), n=1)), None)
    if whole is None:
        role = next(iter(difflib.get_close_matches(name.removesuffix(".*"), groups, n=1)), None)
        whole = None if role is None else name_group(role, hosts)
    return None if whole is None else sign + whole


@lru_cache(maxsize=8)
def _list_terms(hosts: tuple[Host, ...]) -> tuple[str, ...]:
    """Return patterns for all hosts of a layer or a service, and names of hosts."""
    named = hosts[:_MOST_HOSTS]
    return tuple(
        dict.fromkeys(
            (
                *(f"{host.layer}.*" for host in hosts),
                *(f"*.{host.service}.*" for host in hosts),
                *(f"{host.layer}.{host.service}.*" for host in hosts),
                *(f"{host.layer}.{host.service}.{host.service_id}.*" for host in named),
                *(host.name for host in named),
            )
        )
    )
