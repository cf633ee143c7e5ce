"""Problems of the host patterns of a placement."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from laggard.core.corrections.host_patterns import check_pattern
from laggard.core.errors import Problem
from laggard.core.hosts import MAX_RULES, Host
from laggard.core.yaml_source import KeyPath, YamlSource
from laggard.workloads.specification.training import Placement


def find_placement_problems(
    placement: Placement, hosts: Sequence[Host], source: YamlSource
) -> Iterator[Problem]:
    """Yield a problem for each placement pattern that is malformed or matches no host."""
    patterns = list(list_placement_patterns(placement, source))
    if len(patterns) > MAX_RULES:
        rule = f"{len(patterns)} patterns; a placement may have at most {MAX_RULES}"
        yield source.locate_problem(
            ("placement", "workers"), rule, "use patterns that match several hosts each", "workers"
        )
        return
    for key, pattern in patterns:
        yield from check_pattern(source, key, pattern, hosts)


def list_placement_patterns(
    placement: Placement, source: YamlSource
) -> Iterator[tuple[KeyPath, str]]:
    """Yield each placement pattern with its key path in the file."""
    written = source.at(("placement", "workers"))
    for i, pattern in enumerate(placement.workers):
        yield (
            ("placement", "workers", i) if isinstance(written, list) else ("placement", "workers"),
            pattern,
        )
    if placement.server is not None:
        yield ("placement", "server"), placement.server
