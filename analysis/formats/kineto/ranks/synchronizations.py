"""Synchronizations of ranks: collectives matched between ranks by process group and order.

A synchronization is one collective, or all collectives of one process group in one backward pass,
for which the rank waits at the end of the pass. The ranks of a group take part in the same
synchronizations of a step, in the same order. Every synchronization of a step has its own number,
which is the same on all ranks of its group.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from laggard.analysis.formats.import_run.clock_offsets import ClockAlignment
from laggard.analysis.formats.import_run.imported_run import RankStep
from laggard.analysis.formats.import_run.main_lane import (
    MIN_OVERLAP_NS,
    TraceSpan,
    build_main_lane,
    split_exposed,
)
from laggard.analysis.formats.kineto.ranks.group_identities import (
    GroupIdentities,
    GroupKey,
    RankSteps,
)
from laggard.analysis.formats.kineto.step_trace import RankCollective, StepTrace
from laggard.core.errors import TraceFormatError
from laggard.core.span_schema import NO_GROUP, Flag, Lane, Phase


@dataclass(frozen=True)
class Synchronization:
    """Collectives for which one rank waits together, in the order of their launches.

    Attributes:
        group: process group; None if its ranks are unknown, or if only two of them take part.
        number: number of the synchronization among those of its group in the step.
        collectives: collectives that belong to it.
    """

    group: GroupKey | None
    number: int
    collectives: tuple[RankCollective, ...]

    @property
    def launch_ns(self) -> int:
        """Return the time of the last launch, before which the rank cannot wait."""
        return self.collectives[-1].start_ns

    @property
    def over_ns(self) -> int:
        """Return the time by which all collectives were recorded as over."""
        return max(each.end_ns for each in self.collectives)


def group_collectives(
    step: StepTrace, identities: GroupIdentities
) -> Mapping[GroupKey | None, tuple[RankCollective, ...]]:
    """Return the collectives of one rank in one step by process group, in order of launch."""
    found: dict[GroupKey | None, list[RankCollective]] = {}
    for each in step.collectives:
        found.setdefault(identities.identify(each), []).append(each)
    return {group: tuple(own) for group, own in found.items()}


Partition = Mapping[tuple[GroupKey, int], tuple[bool, ...]]
"""Which collectives belong to the same synchronization as the one before, by process group and
number of its collectives in a step."""


def plan_partition(steps: RankSteps, identities: GroupIdentities) -> Partition:
    """Decide which collectives form one synchronization, for all ranks and steps alike.

    Collectives of one group in one backward pass belong together if most ranks launched them in
    the same pass, because DDP waits for all of them at its end. They stay apart if most of those
    before the last one overlapped no work of their device: then each blocks the pass, as in tensor
    parallelism, where the next kernel needs the result.

    Args:
        steps: steps of every rank.
        identities: identities of the process groups.
    """
    votes: dict[tuple[GroupKey, int], list[list[bool]]] = {}
    beside_work: dict[GroupKey, list[bool]] = {}
    for step in (step for own in steps.values() for step in own.values()):
        for group, own in group_collectives(step, identities).items():
            if group is None:
                continue
            places = [step.find_backward_pass(each.start_ns) for each in own]
            joined = [
                n > 0 and place is not None and place == places[n - 1]
                for n, place in enumerate(places)
            ]
            votes.setdefault((group, len(own)), []).append(joined)
            if step.on_device:
                beside_work.setdefault(group, []).extend(
                    step.busy.exposed_from(each.start_ns, each.end_ns) > each.start_ns
                    for each, goes_on in zip(own, joined[1:], strict=False)
                    if goes_on
                )
    blocking = {group for group, seen in beside_work.items() if 2 * sum(seen) < len(seen)}
    return {
        key: tuple(
            key[0] not in blocking and 2 * sum(column) > len(column)
            for column in zip(*rows, strict=True)
        )
        for key, rows in votes.items()
    }


def find_synchronizations(
    step: StepTrace, identities: GroupIdentities, partition: Partition
) -> tuple[Synchronization, ...]:
    """Return the synchronizations of one rank in one step.

    Args:
        step: step of one rank.
        identities: identities of the process groups.
        partition: collectives that belong together.
    """
    found = []
    for group, own in group_collectives(step, identities).items():
        joined = (False,) * len(own) if group is None else partition[group, len(own)]
        together: list[list[RankCollective]] = []
        for each, goes_on in zip(own, joined, strict=True):
            if goes_on:
                together[-1].append(each)
            else:
                together.append([each])
        found += [Synchronization(group, n, tuple(each)) for n, each in enumerate(together)]
    return tuple(found)


def require_same_counts(
    path: Path, synchronizations: Mapping[tuple[int, int], Sequence[Synchronization]]
) -> None:
    """Require that all ranks of a group took part in the same number of its collectives.

    Args:
        path: file or folder of the traces.
        synchronizations: synchronizations by rank and step.

    Raises:
        TraceFormatError: two ranks of a group differ in a step.
    """
    present = {rank for rank, _ in synchronizations}
    counts: dict[tuple[int, GroupKey], dict[int, int]] = {}
    for (rank, step), found in synchronizations.items():
        for each in found:
            if each.group is not None:
                own = counts.setdefault((step, each.group), {})
                own[rank] = own.get(rank, 0) + len(each.collectives)
    for (step, group), by_rank in sorted(counts.items(), key=lambda item: item[0][0]):
        members = sorted(present & set(group.ranks) if group.ranks else present)
        first = members[0] if members else min(by_rank)
        for rank in sorted({*members, *by_rank}):
            usual, count = by_rank.get(first, 0), by_rank.get(rank, 0)
            if count != usual:
                which = (
                    f" of process group {group.name or list(group.ranks)}" if group.ranks else ""
                )
                raise TraceFormatError(
                    str(path),
                    f"ProfilerStep#{step}",
                    f"rank {first} took part in {usual} collectives{which} and rank {rank} in"
                    f" {count}",
                    "profile ranks that train together in one group, beginning at the same step",
                )


def number_groups(
    synchronizations: Mapping[tuple[int, int], Sequence[Synchronization]],
) -> Mapping[GroupKey, int]:
    """Return the number of the first synchronization of each group, the same in all steps."""
    sizes: dict[GroupKey, int] = {}
    for key in sorted(synchronizations):
        for each in synchronizations[key]:
            if each.group is not None:
                sizes[each.group] = max(sizes.get(each.group, 0), each.number + 1)
    first, numbers = 0, {}
    for group, size in sizes.items():
        numbers[group] = first
        first += size
    return numbers


OwnTransfers = Mapping[tuple[GroupKey | None, int], int]
"""Nanoseconds of one rank in one step, by process group and number of the synchronization."""


def find_own_transfers(
    steps: RankSteps,
    synchronizations: Mapping[tuple[int, int], Sequence[Synchronization]],
    clocks: ClockAlignment,
) -> Mapping[tuple[int, int], OwnTransfers]:
    """Return for how long each rank waits only for transfers, by rank and step.

    A rank that launches a collective and works on does not hold up the others: the transfer begins
    when the last rank has launched it. So a rank waits for others only as long as this launch was
    later than its own; before that, it waits for the transfer. The part of the transfer for which
    all ranks wait is left out.

    Args:
        steps: steps of every rank.
        synchronizations: synchronizations by rank and step.
        clocks: offsets of the ranks' clocks.
    """
    times: dict[tuple[int, GroupKey, int], dict[int, tuple[int, int, int]]] = {}
    for (rank, step), found in synchronizations.items():
        trace, correct = steps[rank][step], clocks.offsets[rank].correct
        for each in found:
            if each.group is not None:
                end_ns = find_end_ns(trace, each)
                needed_ns = trace.busy.exposed_from(each.launch_ns, end_ns)
                own = times.setdefault((step, each.group, each.number), {})
                own[rank] = correct(each.launch_ns), correct(needed_ns), correct(end_ns)
    found_ns: dict[tuple[int, int], dict[tuple[GroupKey | None, int], int]] = {}
    for (step, group, number), own in times.items():
        last_ns = max(launch_ns for launch_ns, _, _ in own.values())
        transfer_ns = min(end_ns for _, _, end_ns in own.values()) - last_ns
        exposed = {
            rank: max(launch_ns + transfer_ns - needed_ns, 0)
            for rank, (launch_ns, needed_ns, _) in own.items()
        }
        common_ns = min(exposed.values())
        for rank, exposed_ns in exposed.items():
            # A rank that left before the last one came, such as the root of a broadcast, shows
            # no transfer.
            if transfer_ns > 0 and exposed_ns - common_ns > MIN_OVERLAP_NS:
                found_ns.setdefault((rank, step), {})[group, number] = exposed_ns - common_ns
    return found_ns


def to_rank_step(
    trace: StepTrace,
    rank: int,
    synchronizations: Sequence[Synchronization],
    numbers: Mapping[GroupKey, int],
    transfers: OwnTransfers,
    messages: Iterable[TraceSpan] = (),
) -> RankStep:
    """Convert one step of one rank to spans.

    Collectives that form one synchronization, or that overlap work, keep their times on a lane of
    their own.

    Args:
        trace: step of the rank.
        rank: number of the rank in the run.
        synchronizations: synchronizations of the step.
        numbers: number of the first synchronization of each group.
        transfers: for how long the rank waits only for transfers.
        messages: posts and waits of messages; without them, messages have no number.
    """
    waits: list[TraceSpan] = list(messages)
    is_matched = bool(waits)
    background: list[TraceSpan] = []
    for each in synchronizations:
        number = NO_GROUP if each.group is None else numbers[each.group] + each.number
        exposed, *hidden = split_exposed(_to_wait(trace, each, number), trace.busy)
        if not (is_matched and each.collectives[0].messages):
            own_ns = transfers.get((each.group, each.number), 0)
            begins_ns = min(exposed.start_ns + own_ns, exposed.end_ns)
            if own_ns:
                waits.append(TraceSpan(Phase.COMM, exposed.start_ns, begins_ns))
            waits.append(exposed.move(begins_ns, exposed.end_ns))
        if len(each.collectives) > 1 or hidden:
            background += [
                TraceSpan(
                    Phase.COMM,
                    one.start_ns,
                    one.end_ns,
                    group=number,
                    bytes=one.bytes,
                    lane=Lane.BUCKETS,
                    flags=Flag.ASYNC,
                )
                for one in each.collectives
            ]
    main = build_main_lane(trace.work, waits)
    end_ns = trace.window.end_ns
    if not trace.on_device and all(span.end_ns <= end_ns for span in main):
        # An empty span at the end of the step makes a stall after the last work part of the step.
        main = (*main, TraceSpan(Phase.OTHER, end_ns, end_ns))
    return RankStep(
        trace.window.step,
        rank,
        min([trace.window.start_ns, *(span.start_ns for span in main)]),
        max([trace.window.end_ns, *(span.end_ns for span in main)]),
        (*main, *background),
    )


def find_end_ns(trace: StepTrace, synchronization: Synchronization) -> int:
    """Return the time at which a rank left a synchronization.

    The rank does not wait after the training thread has continued.
    """
    launch_ns = synchronization.launch_ns
    return max(min(synchronization.over_ns, trace.latest_end_ns(launch_ns)), launch_ns)


def _to_wait(trace: StepTrace, synchronization: Synchronization, number: int) -> TraceSpan:
    return TraceSpan(
        Phase.COMM,
        synchronization.launch_ns,
        find_end_ns(trace, synchronization),
        group=number,
        bytes=sum(each.bytes for each in synchronization.collectives),
    )
