"""Workers that leave and join while the others train: the section `churn:` of `workload.yaml`.

All functions are pure: they turn the section's entries into turns of hosts, and find faults.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from pydantic import Field, model_validator

from laggard.core.corrections.broken_rules import broken_rule
from laggard.core.edits import remove_key
from laggard.core.files.csv_name import CsvName
from laggard.core.hosts import Host, select_hosts
from laggard.core.units import DurationS
from laggard.workloads.specification.section import Section


class ChurnEntry(Section):
    """Time at which the workers of some hosts are killed (`leaves`) or started (`joins`)."""

    at_s: DurationS = Field(alias="at", description="time since the first step, such as 30s")
    leaves: str | None = Field(
        default=None, description="pattern of the hosts whose workers are killed, such as edge.*"
    )
    joins: str | None = Field(
        default=None,
        description=(
            "pattern of the hosts whose workers are started; a host whose first entry is this one"
            " has no workers until then"
        ),
    )

    @model_validator(mode="after")
    def _one_of_two(self) -> Self:
        if (self.leaves is None) == (self.joins is None):
            rule = "an entry must have either `leaves` or `joins`"
            if self.joins is None:
                raise broken_rule(rule, remove_key((), "give one of them, or remove this entry"))
            raise broken_rule(rule, remove_key(("joins",), "give one of them: remove `joins`"))
        return self

    @property
    def pattern(self) -> str:
        """Return the pattern of the hosts."""
        return self.joins or self.leaves or ""

    @property
    def key(self) -> str:
        """Return the key under which the pattern is written."""
        return "leaves" if self.joins is None else "joins"


class DrawnChurn(Section):
    """Lives of machines that may be revoked, drawn from observed ones with the workload's seed."""

    lifetimes: CsvName = Field(
        description=(
            "CSV of observed lives in the scenario's folder: hours or seconds, and censored"
        )
    )
    hosts: str = Field(
        default="*", description="pattern of the hosts whose machines may be revoked"
    )
    back_after_s: DurationS | None = Field(
        default=None,
        alias="back_after",
        description=(
            "time from a revocation until a new machine joins, such as 30s; default: none joins"
        ),
    )
    faster: float = Field(
        default=1.0,
        gt=0,
        allow_inf_nan=False,
        description="how many times shorter than the observed lives the drawn ones are",
    )


class RecordedChurn(Section):
    """Times at which devices were observed to be available."""

    availability: CsvName = Field(
        description=(
            "CSV in the scenario's folder with the columns host, from and until: seconds between"
            " which the host is available; a host without a line is always available"
        )
    )


def name_form(churn: object) -> str:
    """Return the form of the section: `entries`, `drawn` or `recorded`."""
    if isinstance(churn, RecordedChurn) or (isinstance(churn, Mapping) and "availability" in churn):
        return "recorded"
    return "drawn" if isinstance(churn, Mapping | DrawnChurn) else "entries"


@dataclass(frozen=True)
class Turn:
    """Departure or arrival of a host's workers.

    Attributes:
        at_s: virtual seconds since the first step.
        host: name of the host.
        joins: whether the workers join; else they leave.
        entry: number of the entry that requests it.
    """

    at_s: float
    host: str
    joins: bool
    entry: int


@dataclass(frozen=True)
class Fault:
    """Entry that cannot be applied.

    Attributes:
        entry: number of the entry.
        rule: the rule that it breaks.
        fix: advice for the user.
    """

    entry: int
    rule: str
    fix: str


def turns(
    churn: Sequence[ChurnEntry], hosts: Sequence[Host], workers: Sequence[Host]
) -> tuple[Turn, ...]:
    """Return the departures and arrivals by time; at the same time, in the order of the entries.

    Args:
        churn: the entries.
        hosts: all hosts of the continuum.
        workers: hosts that train; other hosts that match a pattern are ignored.
    """
    training = {host.name for host in workers}
    by_name = {host.name: (host,) for host in hosts}
    named = [
        Turn(entry.at_s, host.name, entry.joins is not None, i)
        for i, entry in enumerate(churn)
        # Whole names are not parsed as patterns: observed traces have thousands of them.
        for host in by_name.get(entry.pattern) or select_hosts(entry.pattern, hosts)
        if host.name in training
    ]
    return tuple(sorted(named, key=lambda turn: (turn.at_s, turn.entry)))


def absent_at_start(planned: Sequence[Turn]) -> frozenset[str]:
    """Return the hosts without workers when training begins: their first turn is to join."""
    first: dict[str, bool] = {}
    for turn in planned:
        first.setdefault(turn.host, turn.joins)
    return frozenset(host for host, joins in first.items() if joins)


def faults(planned: Sequence[Turn], workers: Sequence[Host]) -> Iterator[Fault]:
    """Yield a fault for each turn that is impossible, and for a time without any worker.

    A turn is impossible if the host leaves while it is absent, or joins while it is present.
    """
    here = {host.name for host in workers} - absent_at_start(planned)
    if not here and planned:
        yield Fault(
            planned[0].entry,
            "no worker is present when training begins",
            "remove the `joins` entry of at least one host",
        )
        return
    for turn in planned:
        if turn.joins == (turn.host in here):
            rule = (
                f"{turn.host} is already {'present' if turn.joins else 'absent'} at {turn.at_s:g} s"
            )
            yield Fault(
                turn.entry,
                rule,
                f"add an earlier entry in which it {'leaves' if turn.joins else 'joins'}, or remove"
                " this entry",
            )
        elif turn.joins:
            here.add(turn.host)
        else:
            here.remove(turn.host)
            if not here:
                yield Fault(
                    turn.entry,
                    f"no worker is left to train at {turn.at_s:g} s",
                    "keep at least one worker at all times",
                )
                return
