"""Who a sentence is about: `the four edge hosts`, `two of the four edge hosts (…)`, `the links
between edge and cloud`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from laggard.analysis.tables.load_run import RankHost
from laggard.core.text_format import format_count, format_list, format_number_word

MAX_NAMES = 3


@dataclass(frozen=True)
class Subject:
    """The subject of a sentence and its grammatical number."""

    text: str
    single: bool

    @property
    def pronoun(self) -> str:
        """The word that stands for it."""
        return "it" if self.single else "they"


def describe_hosts(names: Sequence[str], hosts: Sequence[RankHost]) -> Subject:
    """The hosts of a cause, told by their tier where they are all or many of it.

    Args:
        names: host names, possibly repeated, all of one tier.
        hosts: where every rank of the run was.
    """
    slow = sorted(set(names), key=lambda name: _get_rank(name, hosts))
    tier = next((h.tier for h in hosts if h.host == slow[0]), "")
    peers = {h.host for h in hosts if h.tier == tier}
    if not tier or len(peers) <= 1 or not set(slow) <= peers:
        return Subject(_format_names(slow), single=len(slow) == 1)
    if len(slow) == len(peers):
        return Subject(f"the {format_count(len(slow), f'{tier} host')}", single=False)
    if len(slow) == 1:
        return Subject(slow[0], single=True)
    which = f" ({_format_names(slow)})" if len(slow) <= MAX_NAMES else ""
    return Subject(
        f"{format_number_word(len(slow))} of the {format_count(len(peers), f'{tier} host')}{which}",
        single=False,
    )


def describe_links(links: Sequence[tuple[str, str]], hosts: Sequence[RankHost]) -> Subject:
    """The links of a cause, told by the tiers at their ends: a finding names the worst link of its
    pair of tiers.

    Args:
        links: (from, to) pairs of host names, all between the same two tiers, the dearest first.
        hosts: where every rank of the run was.
    """
    tiers = {h.host: h.tier for h in hosts}
    source, target = (tiers.get(end, "") for end in links[0])
    alone = not source or not target or (source != target and _is_only_link(source, target, tiers))
    if alone:
        if len(set(links)) > 1:
            return Subject(
                f"the {format_count(len(set(links)), 'link')} between"
                f" {format_list(sorted(links[0]))}",
                single=False,
            )
        return Subject(f"the link from {links[0][0]} to {links[0][1]}", single=True)
    where = f"among the {source} hosts" if source == target else f"between {source} and {target}"
    return Subject(f"the links {where} (worst: {links[0][0]} to {links[0][1]})", single=False)


def _is_only_link(source: str, target: str, tiers: Mapping[str, str]) -> bool:
    count = [sum(tier == end for tier in tiers.values()) for end in (source, target)]
    return count == [1, 1]


def _format_names(names: Sequence[str]) -> str:
    return format_list(names) if len(names) <= MAX_NAMES else format_count(len(names), "host")


def _get_rank(name: str, hosts: Sequence[RankHost]) -> int:
    return next((h.rank for h in hosts if h.host == name), len(hosts))
