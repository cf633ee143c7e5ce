"""Sentences on what an import of torch.profiler's traces could not convert."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from laggard.analysis.formats.import_run.clock_offsets import ClockAlignment
from laggard.analysis.formats.import_run.imported_run import RankStep
from laggard.analysis.formats.kineto.ranks.messages import MatchedMessages
from laggard.analysis.formats.kineto.ranks.rank_files import MAX_LISTED, RankRecording
from laggard.analysis.formats.kineto.trace_file import format_file_notes
from laggard.core.span_schema import Lane, Phase
from laggard.core.text.text_format import format_count


@dataclass(frozen=True)
class ImportedTraces:
    """Traces of all ranks and their conversion.

    Attributes:
        recordings: recordings in the order of ranks.
        cycle_notes: sentences on the profiling cycles.
        recorded: numbers of all steps that any rank recorded.
        steps: converted steps, with ranks numbered from 0.
        clocks: offsets of the clocks, by rank of the job.
        has_inferred_groups: whether the process groups of gloo's collectives were inferred.
        has_unknown_groups: whether the ranks of any process group are unknown.
        stages: pipeline stage of each rank; empty without a pipeline.
        messages: messages between two ranks.
    """

    recordings: tuple[RankRecording, ...]
    cycle_notes: tuple[str, ...]
    recorded: frozenset[int]
    steps: tuple[RankStep, ...]
    clocks: ClockAlignment
    has_inferred_groups: bool
    has_unknown_groups: bool
    stages: tuple[int, ...]
    messages: MatchedMessages


def list_import_notes(traces: ImportedTraces) -> tuple[str, ...]:
    """Return what could not be converted, or had to be assumed."""
    return (
        *_describe_ranks(traces.recordings),
        *traces.cycle_notes,
        *_describe_steps(traces),
        *_describe_clocks(traces),
        *_describe_collectives(traces),
        *format_file_notes(traces.recordings),
    )


def format_numbers(numbers: Sequence[int]) -> str:
    """Return the first numbers as text, and how many follow."""
    shown = ", ".join(str(number) for number in numbers[:MAX_LISTED])
    return shown + (f" and {len(numbers) - MAX_LISTED} more" if len(numbers) > MAX_LISTED else "")


def is_renumbered(recordings: Sequence[RankRecording]) -> bool:
    """Return whether ranks have other numbers in the run than in the job."""
    return any(each.rank != n for n, each in enumerate(recordings))


def _describe_ranks(recordings: Sequence[RankRecording]) -> list[str]:
    world, ranks = max(each.world_size for each in recordings), [each.rank for each in recordings]
    notes = []
    if len(ranks) < world:
        verb = "is" if len(ranks) == 1 else "are"
        notes.append(
            f"Only {len(ranks)} of {world} ranks {verb} in the traces: {format_numbers(ranks)}."
            " Stragglers among the other ranks cannot be found, and waits for them count as"
            " transfers."
        )
    elif is_renumbered(recordings):
        notes.append(
            f"The traces have the ranks {format_numbers(ranks)}; they do not record how many ranks"
            " the job had. Waits for other ranks count as transfers."
        )
    if is_renumbered(recordings):
        notes.append(
            "The ranks are numbered from 0 here. The names of their hosts end in their numbers in"
            " the job."
        )
    return notes


def _describe_steps(traces: ImportedTraces) -> list[str]:
    notes = []
    source = traces.recordings[0].source
    if source.is_inferred:
        matched = " They are matched between ranks by time, with clocks that agree to half a step."
        several = "" if source.kind == "whole" or len(traces.recordings) == 1 else matched
        notes.append(
            f"The traces have no ProfilerStep#N annotations: their steps are {source.description}."
            + several
        )
    extra = sorted(traces.recorded - {step.step for step in traces.steps})
    if extra:
        notes.append(
            f"Not every rank recorded step {format_numbers(extra)}; such steps were left out."
        )
    return notes


def _describe_clocks(traces: ImportedTraces) -> list[str]:
    hosts = {each.host for each in traces.recordings}
    offsets = {rank: each for rank, each in traces.clocks.offsets.items() if not each.is_zero}
    notes = []
    if offsets:
        why = (
            f"The traces do not relate the clocks of their {len(hosts)} hosts."
            if len(hosts) > 1
            else "The ends of collectives show that the clocks of the ranks differ."
        )
        listed = [
            f"rank {rank} by {offset.largest_ns / 1e6:.4g} ms"
            + (f" with a drift of {offset.drift * 1e6:.3g} ppm" if offset.drift else "")
            for rank, offset in list(offsets.items())[:MAX_LISTED]
        ]
        more = f" and {len(offsets) - MAX_LISTED} more" if len(offsets) > MAX_LISTED else ""
        worst_ms = max(offset.error_ns for offset in offsets.values()) / 1e6
        notes.append(
            f"{why} The clocks were aligned by the ends of collectives, which all ranks leave"
            f" together: {', '.join(listed)}{more}, relative to rank"
            f" {traces.recordings[0].rank}. The remaining error is up to {worst_ms:.3g} ms;"
            " shorter waits are not significant."
        )
    elif not any(hosts) and len(traces.recordings) > 1:
        notes.append("The traces do not name their hosts; one common clock was assumed.")
    if traces.clocks.contradictory:
        notes.append(
            f"The collectives of rank {format_numbers(traces.clocks.contradictory)} do not agree"
            " with those of the other ranks: ranks seem to arrive after others have left. The"
            " traces may lack collectives, so no cost of causes is computed."
        )
    if traces.clocks.unrelated:
        notes.append(
            f"No collective relates rank {format_numbers(traces.clocks.unrelated)} to rank"
            f" {traces.recordings[0].rank}; their clocks were taken as they are."
        )
    return notes


def _describe_collectives(traces: ImportedTraces) -> list[str]:
    spans = [span for step in traces.steps for span in step.spans]
    notes = []
    if any(span.lane == Lane.BUCKETS for span in spans):
        notes.append(
            "Collectives overlapped computation; only the time that they blocked ranks counts as"
            " communication."
        )
    if traces.has_inferred_groups:
        notes.append(
            "gloo does not record process groups. They were inferred from its threads, and from the"
            " ranks that leave a collective together."
        )
    if traces.has_unknown_groups:
        notes.append(
            "The traces do not record to which process group some collectives belong, or which"
            " ranks it has. Waits in these collectives are not attributed to any rank, and no cost"
            " of causes is computed."
        )
    on_messages = _describe_messages(traces)
    notes += [on_messages] * bool(on_messages)
    if len(traces.recordings) > 1 and not any(span.phase is Phase.COMM for span in spans):
        notes.append("The traces contain no collective, so no waits between ranks are known.")
    return notes


def _describe_messages(traces: ImportedTraces) -> str:
    messages, cannot = traces.messages, "so no cost of causes is computed."
    if messages.lacks_peers:
        return (
            "Ranks sent messages to single other ranks, as between pipeline stages. The traces do"
            f" not record to which ones, {cannot}"
        )
    if messages.unmatched:
        count = format_count(messages.unmatched, "message")
        return f"Of {count} between two ranks only one end was recorded, {cannot}"
    if messages.are_contradictory:
        return (
            "Messages seem to arrive before they are sent: the clocks of the ranks differ, and no"
            f" collective relates them, {cannot}"
        )
    if traces.stages:
        return (
            f"Messages show a pipeline of {max(traces.stages) + 1} stages. Ranks are compared with"
            " those of the same stage."
        )
    return ""


def format_host_name(recording: RankRecording, recordings: Sequence[RankRecording]) -> str:
    """Return the name of a rank's host, with the rank if the name alone does not identify it.

    Args:
        recording: recording of the rank.
        recordings: recordings of all ranks.
    """
    if not recording.host:
        return f"rank-{recording.rank}"
    shared = sum(other.host == recording.host for other in recordings) > 1
    if shared or is_renumbered(recordings):
        return f"{recording.host}-rank-{recording.rank}"
    return recording.host
