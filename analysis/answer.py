"""The answer in plain sentences: who slowed the training down, when, and what it cost.

Findings are told together when a reader would: same family and kind, hosts of one tier (or links
between the same two tiers), about the same steps and slowdown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from laggard.analysis.answer_subjects import Subject, host_subject, link_subject
from laggard.analysis.findings import RELIABLE_REMAINDER, Analysis
from laggard.analysis.load import Run
from laggard.analysis.own_pace.sentences import own_pace_sentences
from laggard.analysis.step_clock import finding_window_s, step_clock
from laggard.analysis.wording import (
    counted,
    listed,
    percent_text,
    ratio_text,
    seconds_text,
    sentence,
)
from laggard.run_schema import Finding

MOST_SENTENCES = 6
SAME_STEPS = 0.5
SAME_SLOWDOWN = 1.5
DEAR_TOGETHER = 0.05
AS_FAST = 1.1


@dataclass(frozen=True)
class Cause:
    """Findings that read as one, dearest first."""

    findings: tuple[Finding, ...]

    @property
    def first(self) -> Finding:
        """The dearest finding: its family, kind and place are every other's too."""
        return self.findings[0]

    @property
    def cost_s(self) -> float:
        """Seconds of the makespan that they cost together."""
        return sum(f.cost_s for f in self.findings)

    @property
    def steps(self) -> tuple[int, int]:
        """First and last step of any of them."""
        return min(f.first_step for f in self.findings), max(f.last_step for f in self.findings)

    @property
    def all_masked(self) -> bool:
        """Whether each of them costs less than 1 % of the makespan."""
        return all(f.masked for f in self.findings)

    @property
    def slowdown_text(self) -> str:
        """`4.1x`, or `3.2x to 5x` where they differ by more than a tenth."""
        least, most = min(f.slowdown for f in self.findings), max(f.slowdown for f in self.findings)
        if most <= 1.1 * least:
            middle = sorted(f.slowdown for f in self.findings)[len(self.findings) // 2]
            return ratio_text(middle)
        return f"{ratio_text(least)} to {ratio_text(most)}"


def answer(run: Run, analysis: Analysis | None) -> tuple[str, ...]:
    """The sentences that open a report, most important first.

    Args:
        run: whose state is told first when it did not end well.
        analysis: what was found; None when there was nothing to analyse.

    Returns:
        At least one sentence, plain text.
    """
    state = state_sentences(run)
    if analysis is None:
        return state or (
            "No step was finished by every rank, so there is nothing to say about stragglers.",
        )
    return (
        *state,
        *finding_sentences(run, analysis),
        *decision_sentences(run),
        *remainder_sentences(analysis),
    )


def decision_sentences(run: Run) -> tuple[str, ...]:
    """What the strategy decided last, and how often it changed its mind; nothing where it decides
    nothing.
    """
    if not run.decisions or run.record is None:
        return ()
    last, earlier = run.decisions[-1], len(run.decisions) - 1
    often = "once" if earlier == 1 else counted(earlier, "time")
    before = f" It had changed its mind {often} before; the table has all." if earlier else ""
    return (
        f"From step {last.step + 1} on, {run.record.strategy.name} took up: {last.told}.{before}",
    )


def state_sentences(run: Run) -> tuple[str, ...]:
    """How the run ended, where it did not end well, and whether the emulation can be trusted."""
    status = run.record.status if run.record is not None else "interrupted"
    told: list[str] = []
    if status in {"interrupted", "running"}:
        told.append(
            "This run did not end: it was interrupted or is still running, and what follows is as"
            " far as it got."
        )
    elif status == "failed":
        told.append("This run failed; what follows is as far as it got.")
    missed = sum(not check.ok for check in run.fidelity)
    if missed:
        total = len(run.fidelity)
        of = (
            f"{missed} of {total} measured quantities"
            if total > 1
            else "the only measured quantity"
        )
        told.append(f"The emulation missed its tolerance ({of}): do not rely on the numbers.")
    elif status == "unfaithful":
        told.append(
            "The emulation slipped while this run trained, as told below: do not rely on the"
            " numbers."
        )
    return tuple(told)


def finding_sentences(run: Run, analysis: Analysis) -> tuple[str, ...]:
    """One sentence per cause, dearest first; `No straggler: ...` where there is none; where nothing
    is costed, what is known.
    """
    if not analysis.common_steps:
        return (
            *(_cause_sentences(run, analysis) if analysis.costed else ()),
            *own_pace_sentences(run, analysis),
        )
    return _cause_sentences(run, analysis)


def _cause_sentences(run: Run, analysis: Analysis) -> tuple[str, ...]:
    told, silent = told_causes(analysis)
    if not told:
        return (_nothing(analysis), *_masked(silent))
    sentences = [_tell(cause, run, analysis) for cause in told[:MOST_SENTENCES]]
    rest = told[MOST_SENTENCES:]
    if rest:
        share = percent_text(sum(c.cost_s for c in rest) / analysis.makespan_s)
        more = sentence(counted(len(rest), "more cause"))
        sentences.append(
            f"{more} cost {share}{' together' if len(rest) > 1 else ''}; the table has them all."
        )
    return (*sentences, *_masked(silent))


def told_causes(analysis: Analysis) -> tuple[tuple[Cause, ...], tuple[Cause, ...]]:
    """Causes that deserve a sentence, and those that do not, dearest first.

    A cause does if one of its findings is a straggler, or if many that cost under 1 % each add up
    to 5 %: sixty slow hosts carry a sixtieth each, and are dear all the same.
    """
    found = causes(analysis.findings, analysis)
    dear = [c for c in found if not c.all_masked or c.cost_s >= DEAR_TOGETHER * analysis.makespan_s]
    return tuple(dear), tuple(c for c in found if c not in dear)


def remainder_sentences(analysis: Analysis) -> tuple[str, ...]:
    """What the findings leave unexplained, where it is more than 2 % of the makespan."""
    share = 1.0 - analysis.explained
    if abs(share) <= RELIABLE_REMAINDER:
        return ()
    if share > 0:
        return (
            (
                f"{percent_text(share)} of the makespan stays unexplained, so the costs are not to"
                " be relied on."
            ),
        )
    longer = f"The model of what was found takes {percent_text(-share)} longer than the run did"
    return (f"{longer}, so the costs are not to be relied on.",)


def causes(findings: Sequence[Finding], analysis: Analysis) -> tuple[Cause, ...]:
    """Findings gathered into what a reader would call one cause, dearest first."""
    groups: list[list[Finding]] = []
    for finding in sorted(findings, key=lambda f: -f.cost_s):
        home = next((g for g in groups if _belongs(finding, g[0], analysis)), None)
        if home is None:
            groups.append([finding])
        else:
            home.append(finding)
    return tuple(sorted((Cause(tuple(g)) for g in groups), key=lambda c: -c.cost_s))


def _belongs(finding: Finding, other: Finding, analysis: Analysis) -> bool:
    if (finding.family, finding.kind) != (other.family, other.kind):
        return False
    if _place(finding, analysis) != _place(other, analysis):
        return False
    if not 1 / SAME_SLOWDOWN <= finding.slowdown / other.slowdown <= SAME_SLOWDOWN:
        return False
    if not analysis.common_steps and finding.kind == "deterministic":
        return True
    shared = min(finding.last_step, other.last_step) - max(finding.first_step, other.first_step) + 1
    either = max(finding.last_step, other.last_step) - min(finding.first_step, other.first_step) + 1
    return shared >= SAME_STEPS * either


def _place(finding: Finding, analysis: Analysis) -> frozenset[str]:
    """The tier of a host, the two tiers of a link, nothing for a collective without one."""
    tiers = {h.host: h.tier for h in analysis.hosts}
    ends = finding.link if finding.link is not None else (finding.host,) if finding.host else ()
    return frozenset(tiers.get(end, end) for end in ends) | (
        {"a link"} if finding.link is not None else set()
    )


def _tell(cause: Cause, run: Run, analysis: Analysis) -> str:
    subject = subject_of(cause, analysis)
    share = percent_text(cause.cost_s / analysis.makespan_s) + " of the makespan"
    if cause.first.kind == "deterministic":
        doing = _doing(cause, subject, present=True)
        each = " together, each less than 1 %" if cause.all_masked else ""
        cost = f"{subject.pronoun} {'costs' if subject.single else 'cost'} {share}{each}"
        against = _against(cause, analysis)
        return sentence(
            f"{subject.text} {doing} {cause.slowdown_text} slower{against} for the whole run;"
            f" {cost}."
        )
    windows = [finding_window_s(run, finding, step_clock(run)) for finding in cause.findings]
    when = (
        f"From {seconds_text(min(start for start, _ in windows))} to"
        f" {seconds_text(max(end for _, end in windows))}"
    )
    if analysis.common_steps:
        first, last = cause.steps
        when += f" (steps {first}-{last})"
    return (
        f"{when} {subject.text} {_doing(cause, subject, present=False)} {cause.slowdown_text}"
        f" slower; that cost {share}."
    )


def subject_of(cause: Cause, analysis: Analysis) -> Subject:
    """Who or what a cause is about, as a sentence would say it."""
    if cause.first.link is not None:
        return link_subject([f.link for f in cause.findings if f.link is not None], analysis.hosts)
    if cause.first.host is None:
        return Subject("communication, on links that could not be named,", single=True)
    return host_subject([f.host for f in cause.findings if f.host is not None], analysis.hosts)


def _doing(cause: Cause, subject: Subject, *, present: bool) -> str:
    """The verb of a family, in the number of its subject: `computes`, `were`, `fetched samples`."""
    if cause.first.family == "network" and (
        cause.first.link is not None or cause.first.host is None
    ):
        return (
            ("is" if subject.single else "are")
            if present
            else ("was" if subject.single else "were")
        )
    verb, rest = {
        "compute": ("compute", ""),
        "storage": ("fetch", " samples"),
        "network": ("transfer", ""),
    }[cause.first.family]
    if not present:
        return {"compute": "computed", "fetch": "fetched", "transfer": "transferred"}[verb] + rest
    ending = "" if not subject.single else "es" if verb.endswith("ch") else "s"
    return verb + ending + rest


def _against(cause: Cause, analysis: Analysis) -> str:
    """What a lasting slowness is slower than: the tiers of the fastest ranks, where they are
    others.
    """
    if cause.first.family == "network":
        return " than the fastest links" + (
            " between tiers" if len({h.tier for h in analysis.hosts}) > 1 else ""
        )
    own = {h.tier for h in analysis.hosts if h.host in {f.host for f in cause.findings}}
    fastest = fastest_tiers(analysis)
    if cause.first.family == "storage" or not fastest or own & set(fastest):
        return " than the fastest hosts"
    return " than " + listed([f"the {tier}" for tier in fastest])


def fastest_tiers(analysis: Analysis) -> tuple[str, ...]:
    """Tiers that compute within a tenth of the fastest in the median step; none where some tier has
    no name.
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
    return tuple(tier for tier, value in middle.items() if value <= AS_FAST * min(middle.values()))


def _nothing(analysis: Analysis) -> str:
    took = f"{seconds_text(analysis.makespan_s)}, {counted(len(analysis.steps), 'step')}"
    return f"No straggler: nothing slow enough and long enough cost 1 % of the makespan ({took})."


def _masked(silent: Sequence[Cause]) -> tuple[str, ...]:
    count = sum(len(cause.findings) for cause in silent)
    if not count:
        return ()
    several = count > 1
    intervals = sentence(counted(count, "slow interval"))
    listing = f"the table lists {'them' if several else 'it'} as masked"
    return (f"{intervals} cost less than 1 %{' each' if several else ''}; {listing}.",)
