"""Reader of the torch.profiler traces of the ranks of a training, as one run.

It selects the steps that all ranks recorded, matches their collectives and aligns their clocks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from laggard.analysis.formats.import_run.clock_offsets import (
    ClockAlignment,
    ClockOffset,
    CollectiveEnd,
    align_clocks,
)
from laggard.analysis.formats.import_run.imported_run import (
    RankStep,
    build_imported_run,
    build_rank_host,
)
from laggard.analysis.formats.kineto.ranks.gloo_groups import infer_gloo_groups
from laggard.analysis.formats.kineto.ranks.group_identities import GroupIdentities, RankSteps
from laggard.analysis.formats.kineto.ranks.import_notes import (
    ImportedTraces,
    format_host_name,
    format_numbers,
    list_import_notes,
)
from laggard.analysis.formats.kineto.ranks.messages import MatchedMessages
from laggard.analysis.formats.kineto.ranks.profiling_cycles import close_gaps, read_cycles
from laggard.analysis.formats.kineto.ranks.rank_files import MAX_LISTED, RankRecording
from laggard.analysis.formats.kineto.ranks.synchronizations import (
    Synchronization,
    find_end_ns,
    find_own_transfers,
    find_synchronizations,
    number_groups,
    plan_partition,
    require_same_counts,
    to_rank_step,
)
from laggard.analysis.formats.kineto.ranks.trace_paths import find_trace_cycles
from laggard.analysis.tables.load_run import RunData
from laggard.core.errors import TraceFormatError
from laggard.core.run_schema import TraceOrigin
from laggard.core.span_schema import Flag

_Synchronizations = Mapping[tuple[int, int], tuple[Synchronization, ...]]


def read_kineto(path: Path) -> RunData:
    """Read a run from one file, or from a folder with one file per rank.

    Any part of a job's ranks is accepted. Ranks are numbered from 0 in the run; the names of hosts
    have the numbers in the job.

    Raises:
        TraceFormatError: a file is invalid, a rank occurs twice, the files are of several runs, or
            no step is in the traces of all ranks.
    """
    joined = read_cycles(find_trace_cycles(path))
    recordings = joined.recordings
    common = _select_common_steps(recordings)
    inferred = infer_gloo_groups(common, {each.rank: each.groups for each in recordings})
    common = common if inferred is None else inferred
    identities = GroupIdentities(common)
    partition = plan_partition(common, identities)
    found = {
        (rank, number): find_synchronizations(step, identities, partition)
        for rank, own in common.items()
        for number, step in own.items()
    }
    require_same_counts(path, found)
    clocks = _align_clocks(recordings, common, found)
    messages = MatchedMessages(common, clocks)
    steps = close_gaps(_convert_steps(common, found, clocks, messages), joined.cycle_of_step)
    stages = messages.find_stages(tuple(common)) if messages.are_known else ()
    traces = ImportedTraces(
        recordings=recordings,
        cycle_notes=joined.notes,
        recorded=frozenset(number for each in recordings for number in each.steps),
        steps=tuple(steps),
        clocks=clocks,
        has_inferred_groups=inferred is not None,
        has_unknown_groups=identities.has_unknown_groups(),
        stages=stages,
        messages=messages,
    )
    origin = TraceOrigin(
        format="kineto",
        path=path.name,
        notes=list_import_notes(traces),
        replayable=not (traces.has_unknown_groups or clocks.contradictory) and messages.are_known,
        stages=stages,
    )
    hosts = tuple(
        build_rank_host(
            number,
            format_host_name(each, recordings),
            tier=f"stage {stages[number]}" if stages else "",
            device_class=each.device or "cpu",
            offset_ns=clocks.offsets[each.rank].largest_ns,
            error_ns=clocks.offsets[each.rank].error_ns,
        )
        for number, each in enumerate(recordings)
    )
    description = f"{len(recordings)} ranks, recorded by torch.profiler"
    return build_imported_run(path, origin, steps, hosts, description)


def _select_common_steps(recordings: Sequence[RankRecording]) -> RankSteps:
    """Return the steps that all ranks recorded, by rank and step number."""
    common = set(recordings[0].steps)
    for last in recordings:
        common &= set(last.steps)
        if common:
            continue
        details = "; ".join(
            f"rank {each.rank} has {format_numbers(sorted(each.steps))}"
            for each in recordings[:MAX_LISTED]
        )
        raise TraceFormatError(
            str(last.path),
            "",
            f"no step occurs in the traces of all ranks: {details}",
            "profile the same steps on all ranks, and keep the traces of one run only",
        )
    return {
        each.rank: {number: each.steps[number] for number in sorted(common)} for each in recordings
    }


def _align_clocks(
    recordings: Sequence[RankRecording], steps: RankSteps, found: _Synchronizations
) -> ClockAlignment:
    """Return the offsets of all clocks, from the collectives that ranks leave together."""
    ends: dict[int, dict[object, CollectiveEnd]] = {rank: {} for rank in steps}
    for (rank, number), synchronizations in found.items():
        for each in synchronizations:
            if each.group is not None and each.collectives[-1].ends_together:
                end = CollectiveEnd(
                    each.launch_ns, find_end_ns(steps[rank][number], each), each.over_ns
                )
                ends[rank][number, each.group, each.number] = end
    return align_clocks(ends, {each.rank: each.host for each in recordings})


def _convert_steps(
    steps: RankSteps,
    found: _Synchronizations,
    clocks: ClockAlignment,
    messages: MatchedMessages,
) -> list[RankStep]:
    """Return the steps of all ranks, numbered from 0, on one clock."""
    numbers = number_groups(found)
    used = (
        numbers[each.group] + each.number
        for own in found.values()
        for each in own
        if each.group is not None
    )
    first_message = max(used, default=-1) + 1
    transfers = find_own_transfers(steps, found, clocks)
    converted = []
    for place, (rank, own) in enumerate(steps.items()):
        for number, step in own.items():
            exchanged = (
                messages.list_spans(rank, number, first_message) if messages.are_known else ()
            )
            on_own_clock = to_rank_step(
                step,
                place,
                found[rank, number],
                numbers,
                transfers.get((rank, number), {}),
                exchanged,
            )
            converted.append(_correct_step(on_own_clock, clocks.offsets[rank]))
    return converted


def _correct_step(step: RankStep, offset: ClockOffset) -> RankStep:
    if offset.is_zero:
        return step
    spans = tuple(
        replace(
            span,
            start_ns=offset.correct(span.start_ns),
            end_ns=offset.correct(span.end_ns),
            flags=span.flags | Flag.CLOCK_SUSPECT,
        )
        for span in step.spans
    )
    return replace(
        step,
        start_ns=offset.correct(step.start_ns),
        end_ns=offset.correct(step.end_ns),
        spans=spans,
    )
