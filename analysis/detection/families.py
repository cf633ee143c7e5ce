"""Families of slow work: the phases, behavior and verbs of each.

Detection, replay, sentences and figures read this table instead of naming families.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from laggard.core.run_schema import StragglerFamily
from laggard.core.span_schema import COMPUTE_PHASES, SAMPLE_PHASES, Phase


@dataclass(frozen=True)
class FamilySpec:
    """One family of slow work.

    Attributes:
        name: name of the family in findings and alarms.
        phases: phases of a rank's own work that belong to the family; empty if it concerns
            transfers.
        finding_verbs: present tense of the verb in a finding's sentence, for one host and for
            several.
        finding_past: past tense of the same verb.
        alarm_verbs: present tense of the verb in an alarm, for one host and for several.
        uses_processor: whether the family depends on the host's compute speed. Such work drifts
            with the machine, and a host that is slow in it also transfers slowly.
        uses_links: whether links are slow in this family instead of hosts.
        counts_unrecorded: whether time that a rank has no record of counts, in addition to the
            phases; its slowness is relative to the rank's whole work of a step.
    """

    name: StragglerFamily
    phases: tuple[Phase, ...]
    finding_verbs: tuple[str, str]
    finding_past: str
    alarm_verbs: tuple[str, str]
    uses_processor: bool = False
    uses_links: bool = False
    counts_unrecorded: bool = False

    @property
    def codes(self) -> tuple[int, ...]:
        """Return the codes of the family's phases in the tables."""
        return tuple(phase.code for phase in self.phases)


COMPUTE = FamilySpec(
    name="compute",
    phases=COMPUTE_PHASES,
    finding_verbs=("computes", "compute"),
    finding_past="computed",
    alarm_verbs=("computes", "compute"),
    uses_processor=True,
)
NETWORK = FamilySpec(
    name="network",
    phases=(),
    finding_verbs=("transfers", "transfer"),
    finding_past="transferred",
    alarm_verbs=("transfers", "transfer"),
    uses_links=True,
)
STORAGE = FamilySpec(
    name="storage",
    phases=SAMPLE_PHASES,
    finding_verbs=("fetches samples", "fetch samples"),
    finding_past="fetched samples",
    alarm_verbs=("reads its data", "read their data"),
)
HOST = FamilySpec(
    name="host",
    phases=(Phase.OTHER,),
    finding_verbs=("stalls on its host and works", "stall on their hosts and work"),
    finding_past="stalled on the host and worked",
    alarm_verbs=("stalls on its host", "stall on their hosts"),
    counts_unrecorded=True,
)

FAMILIES: Mapping[StragglerFamily, FamilySpec] = {
    each.name: each for each in (COMPUTE, NETWORK, STORAGE, HOST)
}
LOCAL_FAMILIES = tuple(
    each for each in FAMILIES.values() if each.phases and not each.counts_unrecorded
)
"""Families of recorded work that ranks do without communication."""
