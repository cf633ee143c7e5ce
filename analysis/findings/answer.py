"""Sentences that open a report: the stragglers, their time and their cost.

Several findings share a sentence if a reader would regard them as one cause: same family and kind,
hosts of one tier (or links between the same two tiers), similar steps and slowdown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from laggard.analysis.detection.families import FAMILIES
from laggard.analysis.detection.intervals import MIN_STEPS
from laggard.analysis.findings.analysis_result import RELIABLE_REMAINDER, AnalysisResult
from laggard.analysis.findings.answer_subjects import Subject, describe_hosts, describe_links
from laggard.analysis.findings.asynchronous_sentences import format_asynchronous
from laggard.analysis.findings.federated_result import find_federated_result, format_rounds
from laggard.analysis.findings.slow_devices import format_slow_devices
from laggard.analysis.findings.stream_result import format_lost_buffers, format_stream
from laggard.analysis.findings.token_result import format_tokens, summarize_ledger
from laggard.analysis.findings.wait_sentences import (
    format_jitter,
    format_structural_waits,
    format_unexplained_waits,
)
from laggard.analysis.tables.load_run import RunData
from laggard.analysis.tables.timelines.step_clock import get_finding_window_s, get_step_clock
from laggard.core.run_schema import Finding
from laggard.core.text.text_format import (
    capitalize_sentence,
    format_count,
    format_list,
    format_percent,
    format_ratio,
    format_seconds,
)

MAX_SENTENCES = 6
# Findings are one cause if they share half of the steps that either has, and if their slowdowns
# differ by at most this factor.
SAME_STEPS = 0.5
SAME_SLOWDOWN = 1.5
# Share of the makespan from which a cause with only masked findings is reported.
MIN_COMBINED_SHARE = 0.05
FASTEST_RATIO = 1.1


@dataclass(frozen=True)
class FindingGroup:
    """Findings that are reported as one cause, most expensive first."""

    findings: tuple[Finding, ...]

    @property
    def first(self) -> Finding:
        """Return the most expensive finding; all findings share its family, kind and tiers."""
        return self.findings[0]

    @property
    def cost_s(self) -> float:
        """Return the seconds of the makespan that the findings cost together."""
        return sum(f.cost_s for f in self.findings)

    @property
    def steps(self) -> tuple[int, int]:
        """Return the first and the last step of any of the findings."""
        return min(f.first_step for f in self.findings), max(f.last_step for f in self.findings)

    @property
    def slow_steps(self) -> int | None:
        """Return the number of slow steps, the most of any finding; None if all steps are slow."""
        counts = [f.slow_steps for f in self.findings]
        return None if None in counts else max(count for count in counts if count is not None)

    @property
    def all_masked(self) -> bool:
        """Return whether each of the findings costs less than 1 % of the makespan."""
        return all(f.masked for f in self.findings)

    @property
    def slowdown_text(self) -> str:
        """Return `4.1x`, or `3.2x to 5x` if the slowdowns differ by more than a tenth."""
        least, most = min(f.slowdown for f in self.findings), max(f.slowdown for f in self.findings)
        if most <= 1.1 * least:
            middle = sorted(f.slowdown for f in self.findings)[len(self.findings) // 2]
            return format_ratio(middle)
        return f"{format_ratio(least)} to {format_ratio(most)}"


def format_answer(run: RunData, analysis: AnalysisResult | None) -> tuple[str, ...]:
    """Return the sentences that open a report, most important first.

    Args:
        run: the run; its state comes first if it did not end well.
        analysis: result of the analysis; None if there was nothing to analyze.

    Returns:
        At least one sentence of plain text.

    Examples:
        >>> from laggard.analysis.findings.analyze_run import analyze_run
        >>> from laggard.analysis.tables.load_run import load_run
        >>> run = load_run(Path("runs/quickstart/latest"))
        >>> for sentence in format_answer(run, analyze_run(run)):
        ...     print(sentence)
        The four edge hosts compute 4.0x slower than the cloud and the fog ...
        From 13 s to 22 s (steps 30-59) fog.trainer.1.1 computed 3.0x slower; ...
    """
    parts = split_answer(run, analysis)
    return (*parts.state, *parts.opening, *parts.remainder)


@dataclass(frozen=True)
class AnswerParts:
    """Sentences of an answer by their purpose.

    Attributes:
        state: sentences about a run that did not end well.
        opening: sentences about unexplained waiting, stragglers and decisions.
        remainder: sentences about the unexplained part of the makespan.
    """

    state: tuple[str, ...]
    opening: tuple[str, ...]
    remainder: tuple[str, ...] = ()


def split_answer(run: RunData, analysis: AnalysisResult | None) -> AnswerParts:
    """Return the sentences of `format_answer` by their purpose."""
    state = format_state(run)
    if analysis is None:
        if run.serving is not None:
            return AnswerParts(state, format_slow_devices(run.serving))
        if run.record is not None and not run.record.trains:
            untrained = "This experiment trains nothing: the plays of its workflow are all of it."
            return AnswerParts(state, (untrained,))
        nothing = "No step was finished by all ranks, so stragglers cannot be analyzed."
        return AnswerParts(state, () if state else (nothing,))
    unexplained = format_unexplained_waits(analysis)
    # Nobody may read that there is no straggler beside waiting that nothing explains.
    findings = () if unexplained and not analysis.findings else format_findings(run, analysis)
    # A rank without others has no costs that could be unreliable.
    is_alone = len(analysis.hosts) == 1 and not analysis.findings
    jitter = (*format_jitter(analysis), *format_structural_waits(analysis))
    # The largest loss comes first.
    waits = analysis.waits
    is_small = waits is None or waits.jitter_s + waits.structure_s <= analysis.lost_s
    findings = (*findings, *jitter) if is_small else (*jitter, *findings)
    return AnswerParts(
        state,
        (
            *unexplained,
            *findings,
            *format_decisions(run),
            *format_stream(run.stream_tasks),
            *format_lost_buffers(run),
            *format_rounds(find_federated_result(run)),
            *format_tokens(summarize_ledger(run.ledger, run.world_size), run.hosts),
        ),
        () if unexplained or is_alone else format_remainder(analysis),
    )


def format_decisions(run: RunData) -> tuple[str, ...]:
    """Return a sentence about the strategy's last decision, and nothing if it made none."""
    if not run.decisions or run.record is None:
        return ()
    last, earlier = run.decisions[-1], len(run.decisions) - 1
    often = "once" if earlier == 1 else format_count(earlier, "time")
    before = (
        f" It had changed its policy {often} before; the table lists all decisions."
        if earlier
        else ""
    )
    return (
        (
            f"From step {last.step + 1} on, {run.record.strategy.name} used this policy:"
            f" {last.description}.{before}"
        ),
    )


def format_state(run: RunData) -> tuple[str, ...]:
    """Return sentences about a run that did not end well or was out of tolerance."""
    status = run.record.status if run.record is not None else "interrupted"
    told: list[str] = []
    if status in {"interrupted", "running"}:
        told.append(
            "This run did not end: it was interrupted or is still running. The report covers the"
            " recorded part."
        )
    elif status == "failed":
        told.append("This run failed. The report covers the recorded part.")
    missed = sum(not check.ok for check in run.fidelity)
    if missed:
        total = len(run.fidelity)
        scope_text = (
            f"{missed} of {total} fidelity checks" if total > 1 else "The only fidelity check"
        )
        told.append(
            f"{scope_text} failed, so the emulation was out of tolerance: do not rely on the"
            " numbers."
        )
    elif status == "unfaithful":
        told.append(
            "The emulation was out of tolerance during training (see the fidelity violations"
            " below): do not rely on the numbers."
        )
    return tuple(told)


def format_findings(run: RunData, analysis: AnalysisResult) -> tuple[str, ...]:
    """Return one sentence per cause, most expensive first, or `No straggler: ...` without any.

    For asynchronous ranks, sentences about waiting and churn follow; without costs there are only
    those.
    """
    if not analysis.common_steps:
        return (
            *(_format_groups(run, analysis) if analysis.costed else ()),
            *format_asynchronous(run, analysis),
        )
    return _format_groups(run, analysis)


def _format_groups(run: RunData, analysis: AnalysisResult) -> tuple[str, ...]:
    told, unreported = select_reported_groups(analysis)
    if not told:
        return (_format_no_straggler(analysis), *_format_masked(unreported))
    sentences = [_format_group(cause, run, analysis) for cause in told[:MAX_SENTENCES]]
    rest = told[MAX_SENTENCES:]
    if rest:
        share = format_percent(sum(c.cost_s for c in rest) / analysis.makespan_s)
        more = capitalize_sentence(format_count(len(rest), "more cause"))
        sentences.append(
            f"{more} cost {share}{' together' if len(rest) > 1 else ''}; the table lists all of"
            " them."
        )
    return (*sentences, *_format_masked(unreported))


def select_reported_groups(
    analysis: AnalysisResult,
) -> tuple[tuple[FindingGroup, ...], tuple[FindingGroup, ...]]:
    """Return the causes that are reported in a sentence and those that are not.

    Both are ordered by cost, most expensive first. A cause is reported if one of its findings is a
    straggler, or if its masked findings add up to 5 % of the makespan: sixty slow hosts with a
    sixtieth of the cost each are expensive together.
    """
    found = group_findings(analysis.findings, analysis)
    costly = [
        c for c in found if not c.all_masked or c.cost_s >= MIN_COMBINED_SHARE * analysis.makespan_s
    ]
    return tuple(costly), tuple(c for c in found if c not in costly)


def format_remainder(analysis: AnalysisResult) -> tuple[str, ...]:
    """Return the sentence about the unexplained part of the makespan, if it is more than 2 %."""
    share = 1.0 - analysis.explained
    if abs(share) <= RELIABLE_REMAINDER:
        return ()
    if share > 0:
        return (
            (
                f"{100 * share:.1f} % of the makespan is unexplained, which is more than"
                f" {format_percent(RELIABLE_REMAINDER)}, so do not rely on the costs."
            ),
        )
    longer = f"The modeled makespan is {format_percent(-share)} longer than the measured one"
    return (f"{longer}, so do not rely on the costs.",)


def group_findings(
    findings: Sequence[Finding], analysis: AnalysisResult
) -> tuple[FindingGroup, ...]:
    """Group the findings that a reader would regard as one cause, most expensive first."""
    groups: list[list[Finding]] = []
    for finding in sorted(findings, key=lambda f: -f.cost_s):
        home = next((g for g in groups if _is_same_cause(finding, g[0], analysis)), None)
        if home is None:
            groups.append([finding])
        else:
            home.append(finding)
    return tuple(sorted((FindingGroup(tuple(g)) for g in groups), key=lambda c: -c.cost_s))


def _is_same_cause(finding: Finding, other: Finding, analysis: AnalysisResult) -> bool:
    if (finding.family, finding.kind) != (other.family, other.kind):
        return False
    if _get_tiers(finding, analysis) != _get_tiers(other, analysis):
        return False
    if not 1 / SAME_SLOWDOWN <= finding.slowdown / other.slowdown <= SAME_SLOWDOWN:
        return False
    # Step numbers of asynchronous ranks cannot be compared, and both last for the whole run.
    if not analysis.common_steps and finding.kind == "deterministic":
        return True
    shared = min(finding.last_step, other.last_step) - max(finding.first_step, other.first_step) + 1
    either = max(finding.last_step, other.last_step) - min(finding.first_step, other.first_step) + 1
    return shared >= SAME_STEPS * either


def _get_tiers(finding: Finding, analysis: AnalysisResult) -> frozenset[str]:
    """Return the tier of a host or both tiers of a link; empty for a collective without a link."""
    tiers = {h.host: h.tier for h in analysis.hosts}
    ends = finding.link if finding.link is not None else (finding.host,) if finding.host else ()
    # The extra element separates a link within a tier from a host of this tier.
    return frozenset(tiers.get(end, end) for end in ends) | (
        {"a link"} if finding.link is not None else set()
    )


def _format_group(cause: FindingGroup, run: RunData, analysis: AnalysisResult) -> str:
    subject = get_subject(cause, analysis)
    share = format_percent(cause.cost_s / analysis.makespan_s) + " of the makespan"
    if cause.first.kind == "deterministic":
        doing = _format_verb(cause, subject, present=True)
        each = " together, each less than 1 %" if cause.all_masked else ""
        cost = f"{subject.pronoun} {'costs' if subject.single else 'cost'} {share}{each}"
        against = _format_reference(cause, subject, run, analysis)
        return capitalize_sentence(
            f"{subject.text} {doing} {cause.slowdown_text} slower{against}"
            f" {_format_extent(analysis)}; {cost}."
        )
    windows = [
        get_finding_window_s(run, finding, get_step_clock(run)) for finding in cause.findings
    ]
    when = (
        f"From {format_seconds(min(start for start, _ in windows))} to"
        f" {format_seconds(max(end for _, end in windows))}"
    )
    if analysis.common_steps:
        when += f" ({format_slow_steps(cause.steps, cause.slow_steps)})"
    return (
        f"{when} {subject.text} {_format_verb(cause, subject, present=False)} {cause.slowdown_text}"
        f" slower; that cost {share}."
    )


def format_slow_steps(steps: tuple[int, int], slow_steps: int | None) -> str:
    """Format the steps of a finding: `step 7`, `steps 3-9`, `four steps from 3 to 40`."""
    first, last = steps
    if first == last:
        return f"step {first}"
    if slow_steps is None or slow_steps == last - first + 1:
        return f"steps {first}-{last}"
    return f"{format_count(slow_steps, 'step')} from {first} to {last}"


def _format_extent(analysis: AnalysisResult) -> str:
    """Return the part of the run that a cause for all steps has: these steps, or the whole run."""
    count = len(analysis.steps)
    if not analysis.common_steps or count >= 2 * MIN_STEPS:
        return "for the whole run"
    return "in this one step" if count == 1 else f"in all {format_count(count, 'step')}"


def get_subject(cause: FindingGroup, analysis: AnalysisResult) -> Subject:
    """Return the subject of a cause's sentence."""
    if cause.first.link is not None:
        return describe_links(
            [f.link for f in cause.findings if f.link is not None], analysis.hosts
        )
    if cause.first.host is None:
        return Subject("communication (link unknown)", single=True)
    return describe_hosts([f.host for f in cause.findings if f.host is not None], analysis.hosts)


def _format_verb(cause: FindingGroup, subject: Subject, *, present: bool) -> str:
    """Return the verb of a family in the number of its subject: `computes`, `were`."""
    family = FAMILIES[cause.first.family]
    if family.uses_links and (cause.first.link is not None or cause.first.host is None):
        return (
            ("is" if subject.single else "are")
            if present
            else ("was" if subject.single else "were")
        )
    one, several = family.finding_verbs if present else (family.finding_past,) * 2
    return one if subject.single else several


def _format_reference(
    cause: FindingGroup, subject: Subject, run: RunData, analysis: AnalysisResult
) -> str:
    """Return the reference of a deterministic slowdown, such as ` than the cloud`.

    The fastest tiers are named only if the slow hosts belong to other tiers; else it is ` than the
    fastest hosts`.
    """
    family = FAMILIES[cause.first.family]
    if family.uses_links:
        return " than the fastest links" + (
            " between tiers" if len({h.tier for h in analysis.hosts}) > 1 else ""
        )
    if len(run.teams) > 1:
        return f" than the others of {'its' if subject.single else 'their'} stage"
    own = {h.tier for h in analysis.hosts if h.host in {f.host for f in cause.findings}}
    fastest = find_fastest_tiers(analysis)
    if not family.uses_processor or not fastest or own & set(fastest):
        return " than the fastest hosts"
    return " than " + format_list([f"the {tier}" for tier in fastest])


def find_fastest_tiers(analysis: AnalysisResult) -> tuple[str, ...]:
    """Return the tiers whose median step computes within a tenth of the fastest tier's.

    The result is empty if some tier has no name.

    Examples:
        >>> from laggard.analysis.findings.analyze_run import analyze_run
        >>> from laggard.analysis.tables.load_run import load_run
        >>> run = load_run(Path("runs/quickstart/latest"))
        >>> find_fastest_tiers(analyze_run(run))
        ('cloud', 'fog')
    """
    import numpy as np

    usual: dict[str, list[float]] = {}
    for host, slowdown in zip(
        analysis.hosts, np.median(analysis.slowdown, axis=0).tolist(), strict=True
    ):
        usual.setdefault(host.tier, []).append(slowdown)
    middle = {tier: float(np.median(values)) for tier, values in usual.items()}
    if "" in middle:
        return ()
    return tuple(
        tier for tier, value in middle.items() if value <= FASTEST_RATIO * min(middle.values())
    )


def _format_no_straggler(analysis: AnalysisResult) -> str:
    if len(analysis.hosts) == 1:
        return (
            "The trace has one rank, and no other rank to compare it with: a straggler can only be"
            " seen among several ranks."
        )
    took = f"{format_seconds(analysis.makespan_s)}, {format_count(len(analysis.steps), 'step')}"
    return f"No straggler: no slow interval cost 1 % or more of the makespan ({took})."


def _format_masked(unreported: Sequence[FindingGroup]) -> tuple[str, ...]:
    count = sum(len(cause.findings) for cause in unreported)
    if not count:
        return ()
    several = count > 1
    intervals = capitalize_sentence(format_count(count, "slow interval"))
    listing = f"the table lists {'them' if several else 'it'} as masked"
    return (f"{intervals} cost less than 1 %{' each' if several else ''}; {listing}.",)
