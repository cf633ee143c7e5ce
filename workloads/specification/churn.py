"""Workers that leave and join while the others train: what `churn:` in `workload.yaml` says, and
which hosts it makes do what; pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Self

from pydantic import Field, model_validator

from laggard.core.hosts import Host, select_hosts
from laggard.core.units import DurationS
from laggard.workloads.specification.section import Section


class ChurnEntry(Section):
    """One moment, in seconds since the first step, at which hosts' workers are killed or
    started.
    """

    at_s: DurationS = Field(alias="at", description="since the first step")
    leaves: str | None = Field(default=None, description="hosts whose workers are killed")
    joins: str | None = Field(
        default=None,
        description=(
            "hosts whose workers are started; where it is their first entry, they are absent before"
        ),
    )

    @model_validator(mode="after")
    def _one_of_two(self) -> Self:
        if (self.leaves is None) == (self.joins is None):
            raise ValueError("hosts either leave or join — give one of leaves and joins")
        return self

    @property
    def pattern(self) -> str:
        """Pattern of the hosts."""
        return self.joins or self.leaves or ""

    @property
    def key(self) -> str:
        """Key that the pattern is written under."""
        return "leaves" if self.joins is None else "joins"


@dataclass(frozen=True)
class Turn:
    """At `at_s` (virtual seconds since the first step) a host's workers join, or leave; `entry` is
    the number of what says so.
    """

    at_s: float
    host: str
    joins: bool
    entry: int


@dataclass(frozen=True)
class Fault:
    """An entry that cannot be followed, by which rule, and what to do."""

    entry: int
    rule: str
    fix: str


def turns(
    churn: Sequence[ChurnEntry], hosts: Sequence[Host], workers: Sequence[Host]
) -> tuple[Turn, ...]:
    """What becomes of which host, by time; at the same moment in the order of the entries.

    Args:
        churn: the entries.
        hosts: all hosts of the continuum.
        workers: those that train; others that a pattern names are left alone.
    """
    training = {host.name for host in workers}
    named = [
        Turn(entry.at_s, host.name, entry.joins is not None, i)
        for i, entry in enumerate(churn)
        for host in select_hosts(entry.pattern, hosts)
        if host.name in training
    ]
    return tuple(sorted(named, key=lambda turn: (turn.at_s, turn.entry)))


def absent_at_start(planned: Sequence[Turn]) -> frozenset[str]:
    """Hosts whose workers are not there when training begins: those whose first turn is to join."""
    first: dict[str, bool] = {}
    for turn in planned:
        first.setdefault(turn.host, turn.joins)
    return frozenset(host for host, joins in first.items() if joins)


def faults(planned: Sequence[Turn], workers: Sequence[Host]) -> Iterator[Fault]:
    """Who leaves without being there, who joins without being away, and when nobody would be
    left.
    """
    here = {host.name for host in workers} - absent_at_start(planned)
    if not here and planned:
        yield Fault(
            planned[0].entry,
            "no worker is there when training begins",
            "let one of them be there from the start",
        )
        return
    for turn in planned:
        if turn.joins == (turn.host in here):
            rule = (
                f"{turn.host} is {'already there' if turn.joins else 'away already'} at"
                f" {turn.at_s:g} s"
            )
            yield Fault(
                turn.entry,
                rule,
                f"let it {'leave' if turn.joins else 'join'} before, or remove this",
            )
        elif turn.joins:
            here.add(turn.host)
        else:
            here.remove(turn.host)
            if not here:
                yield Fault(
                    turn.entry,
                    f"nobody is left to train at {turn.at_s:g} s",
                    "keep one worker at any time",
                )
                return
