"""What a report says, as plain values; the template only arranges them."""

from __future__ import annotations

import base64
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from laggard.analysis.answer import (
    answer,
    decision_sentences,
    finding_sentences,
    remainder_sentences,
)
from laggard.analysis.figures import TIMELINE, DrawnFigure
from laggard.analysis.findings import Analysis
from laggard.analysis.load import Run
from laggard.analysis.report.fidelity import FidelityPart, fidelity_part
from laggard.analysis.report.outcome import Tile, outcome_tiles
from laggard.analysis.report.setup import Table, facts, hosts_line, setup_tables
from laggard.analysis.report.stragglers import MOST_ROWS, StragglerRow, straggler_rows
from laggard.analysis.report.timeline import TimelinePart, timeline_part
from laggard.analysis.report.tone import Tone, Verdict


@dataclass(frozen=True)
class FigurePart:
    """One figure; `wide` and `narrow` are data URIs. `timeline` is what takes its place where
    scripts run.
    """

    name: str
    title: str
    alt: str
    caption: str
    wide: str
    narrow: str
    timeline: TimelinePart | None = None


@dataclass(frozen=True)
class Page:
    """Everything the template needs, unescaped: escaping is its job."""

    scenario: str
    run_id: str
    hosts_line: str
    status: Verdict
    notices: tuple[Verdict, ...]
    answer: tuple[str, ...]
    error: str
    contents: tuple[tuple[str, str], ...]
    outcome: tuple[Tile, ...]
    analysed: bool
    costed: bool
    uncosted: str
    stragglers: tuple[StragglerRow, ...]
    stragglers_left_out: int
    notes: tuple[str, ...]
    fidelity: FidelityPart | None
    figures: tuple[FigurePart, ...]
    command: str
    facts: tuple[tuple[str, str], ...]
    warnings: tuple[str, ...]
    tables: tuple[Table, ...]


def build_page(run: Run, analysis: Analysis | None, figures: Sequence[DrawnFigure]) -> Page:
    """Collects what the report says.

    Args:
        run: the run.
        analysis: what was found; None when no step was finished.
        figures: drawn already.

    Returns:
        The page's values.
    """
    record = run.record
    outcome = outcome_tiles(run, analysis)
    opening, notices = _opening(run, analysis)
    imported = record is not None and record.origin is not None
    return Page(
        scenario=record.scenario if record is not None else run.folder.parent.name or "run",
        run_id=record.id if record is not None else run.folder.name,
        hosts_line=hosts_line(run),
        status=_status(run),
        notices=notices,
        answer=opening,
        error=(record.error or "") if record is not None else "",
        contents=_contents(
            outcome=bool(outcome),
            analysed=analysis is not None,
            emulated=not imported,
            figures=bool(figures),
        ),
        outcome=outcome,
        analysed=analysis is not None,
        costed=analysis is not None and analysis.costed,
        uncosted=_uncosted(run),
        stragglers=straggler_rows(run, analysis) if analysis is not None else (),
        stragglers_left_out=max(0, len(analysis.findings) - MOST_ROWS)
        if analysis is not None
        else 0,
        notes=analysis.notes if analysis is not None else (),
        fidelity=None
        if imported
        else fidelity_part(
            run.fidelity, slipped=record is not None and record.status == "unfaithful"
        ),
        figures=tuple(_figure(drawn, run, analysis) for drawn in figures),
        command=shlex.join(record.command) if record is not None else "",
        facts=facts(run),
        warnings=record.warnings if record is not None else (),
        tables=setup_tables(run),
    )


def _uncosted(run: Run) -> str:
    """Why what causes cost is not computed, where it is not."""
    if run.record is not None and run.record.origin is not None:
        return "Not computed: the replay does not know all that this trace's workers wait for."
    return "Not computed: that takes workers that are all there, to the end."


def _opening(run: Run, analysis: Analysis | None) -> tuple[tuple[str, ...], tuple[Verdict, ...]]:
    """The answer proper, and how the run ended as notices above it."""
    if analysis is None:
        return answer(run, None), ()
    said = (*finding_sentences(run, analysis), *decision_sentences(run))
    state = [
        s for s in answer(run, analysis) if s not in said and s not in remainder_sentences(analysis)
    ]
    care = [Verdict(text, "care") for text in remainder_sentences(analysis)]
    return said, (*(Verdict(text, "bad") for text in state), *care)


def _status(run: Run) -> Verdict:
    status = run.record.status if run.record is not None else "interrupted"
    tones: dict[str, Tone] = {"done": "good", "failed": "bad", "unfaithful": "bad"}
    return Verdict(status, tones.get(status, "care"))


def _contents(
    *, outcome: bool, analysed: bool, emulated: bool, figures: bool
) -> tuple[tuple[str, str], ...]:
    parts = (
        ("outcome", "Outcome", outcome),
        ("stragglers", "Stragglers", analysed),
        ("fidelity", "Fidelity", emulated),
        ("figures", "Figures", figures),
        ("how", "How it was run", True),
        ("words", "Words", True),
    )
    return tuple((anchor, title) for anchor, title, there in parts if there)


def _figure(drawn: DrawnFigure, run: Run, analysis: Analysis | None) -> FigurePart:
    zoomed = analysis if drawn.kind.name == TIMELINE else None
    return FigurePart(
        name=drawn.kind.name,
        title=drawn.kind.title,
        alt=drawn.kind.description,
        caption=drawn.caption,
        wide=_data_uri(drawn.wide_svg),
        narrow=_data_uri(drawn.narrow_svg),
        timeline=None if zoomed is None else timeline_part(run, zoomed),
    )


def _data_uri(svg: str) -> str:
    return "data:image/svg+xml;base64," + base64.b64encode(svg.encode()).decode()
