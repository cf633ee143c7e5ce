"""Subjects of sentences: `the four edge hosts`, `the links between edge and cloud` and similar."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from laggard.analysis.tables.load_run import RankHost
from laggard.core.text.text_format import format_count, format_list, format_number_word

MAX_NAMES = 3


@dataclass(frozen=True)
class Subject:
    """Subject of a sentence and its grammatical number."""

    text: str
    single: bool

    @property
    def pronoun(self) -> str:
        """Return the pronoun of the subject."""
        return "it" if self.single else "they"


def describe_hosts(names: Sequence[str], hosts: Sequence[RankHost]) -> Subject:
    """Describe the hosts of a cause, by their tier if they are several or all of its hosts.

    Args:
        names: host names, possibly repeated, all of one tier.
        hosts: host of every rank of the run.
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
    """Describe the links of a cause by the tiers at their ends.

    A finding names only the worst link of its tier pair, so the sentence speaks of all links of
    the pair.

    Args:
        links: (source, destination) pairs of host names, all between the same two tiers, most
            expensive first.
        hosts: host of every rank of the run.
    """
    tiers = {h.host: h.tier for h in hosts}
    source, target = (tiers.get(end, "") for end in links[0])
    # With one host in each of the two tiers, there is no other link between them.
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
