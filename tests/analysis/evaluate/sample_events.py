"""Events and findings in a word each."""

from __future__ import annotations

from laggard.analysis.evaluate.ground_truth import InjectedEvent
from laggard.core.run_schema import Finding, StragglerFamily, StragglerKind

LINK = ("a", "b")


def event(
    first: int,
    last: int,
    rank: int | None = 0,
    family: StragglerFamily = "compute",
    kind: StragglerKind = "dynamic",
    *,
    detectable: bool = True,
) -> InjectedEvent:
    links = frozenset({LINK}) if rank is None else frozenset()
    return InjectedEvent(family, kind, rank, links, first, last, detectable)


def finding(
    first: int,
    last: int,
    rank: int | None = 0,
    family: StragglerFamily = "compute",
    kind: StragglerKind = "dynamic",
    link: tuple[str, str] | None = None,
) -> Finding:
    return Finding(
        rank=rank,
        host=None if rank is None else f"host {rank}",
        link=link,
        family=family,
        kind=kind,
        first_step=first,
        last_step=last,
        slowdown=2.0,
        cost_s=1.0,
        confidence=1.0,
        masked=False,
    )
