"""Values of a report's page; the template only arranges them."""

from __future__ import annotations

import base64
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from laggard.analysis.findings.analysis_result import AnalysisResult
from laggard.analysis.findings.answer import split_answer
from laggard.analysis.report.clients import build_federated_tables
from laggard.analysis.report.fidelity import FidelityPart, build_fidelity_part
from laggard.analysis.report.figures import timeline
from laggard.analysis.report.figures.drawing import DrawnFigure
from laggard.analysis.report.outcome import Tile, build_outcome_tiles
from laggard.analysis.report.ranks import build_ranks_table
from laggard.analysis.report.requests import build_answer_tables, build_latency_table
from laggard.analysis.report.run_setup import (
    ReportTable,
    build_setup_tables,
    format_hosts_line,
    list_facts,
)
from laggard.analysis.report.stages import build_stage_tables
from laggard.analysis.report.status_message import StatusMessage, Tone
from laggard.analysis.report.stragglers import MOST_ROWS, StragglerRow, build_straggler_rows
from laggard.analysis.report.timeline.document import TimelinePart, build_timeline_part
from laggard.analysis.tables.load_run import RunData
from laggard.core.run_schema import VIRTUAL_TESTBED


@dataclass(frozen=True)
class FigurePart:
    """Figure of the page; `wide` and `narrow` are data URIs.

    `timeline` replaces the picture if scripts can run.
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
    """Everything that the template needs, unescaped; the template escapes it."""

    scenario: str
    run_id: str
    hosts_line: str
    status: StatusMessage
    notices: tuple[StatusMessage, ...]
    answer: tuple[str, ...]
    error: str
    contents: tuple[tuple[str, str], ...]
    outcome: tuple[Tile, ...]
    requests: ReportTable | None
    analyzed: bool
    costed: bool
    uncosted: str
    stragglers: tuple[StragglerRow, ...]
    stragglers_left_out: int
    ranks: ReportTable | None
    notes: tuple[str, ...]
    fidelity: FidelityPart | None
    figures: tuple[FigurePart, ...]
    command: str
    facts: tuple[tuple[str, str], ...]
    warnings: tuple[str, ...]
    tables: tuple[ReportTable, ...]


def build_page(
    run: RunData, analysis: AnalysisResult | None, figures: Sequence[DrawnFigure]
) -> Page:
    """Collect the values of the page.

    Args:
        run: run to report.
        analysis: findings of the run; None if no step was finished.
        figures: figures that have been drawn.

    Returns:
        The page's values.
    """
    record = run.record
    outcome = build_outcome_tiles(run, analysis)
    opening, notices = _split_answer(run, analysis)
    emulated = record is None or (record.origin is None and record.testbed != VIRTUAL_TESTBED)
    return Page(
        scenario=record.scenario if record is not None else run.folder.parent.name or "run",
        run_id=record.id if record is not None else run.folder.name,
        hosts_line=format_hosts_line(run),
        status=_format_status(run),
        notices=notices,
        answer=opening,
        error=(record.error or "") if record is not None else "",
        contents=_list_contents(
            outcome=bool(outcome),
            requests=run.serving is not None,
            analyzed=analysis is not None,
            emulated=emulated,
            figures=bool(figures),
        ),
        outcome=outcome,
        requests=build_latency_table(run),
        analyzed=analysis is not None,
        costed=analysis is not None and analysis.costed,
        uncosted=_explain_missing_costs(run),
        stragglers=build_straggler_rows(run, analysis) if analysis is not None else (),
        stragglers_left_out=max(0, len(analysis.findings) - MOST_ROWS)
        if analysis is not None
        else 0,
        ranks=None if analysis is None else build_ranks_table(run, analysis),
        notes=analysis.notes if analysis is not None else (),
        fidelity=None
        if not emulated
        else build_fidelity_part(
            run.fidelity, violated=record is not None and record.status == "unfaithful"
        ),
        figures=tuple(_build_figure_part(drawn, run, analysis) for drawn in figures),
        command=shlex.join(record.command) if record is not None else "",
        facts=list_facts(run),
        warnings=record.warnings if record is not None else (),
        tables=(
            *build_answer_tables(run),
            *build_federated_tables(run),
            *build_stage_tables(run),
            *build_setup_tables(run),
        ),
    )


def _explain_missing_costs(run: RunData) -> str:
    """Return the reason why costs of causes are not computed, for runs without them."""
    if run.record is not None and run.record.origin is not None:
        return "Not computed: the replay does not model all waits of this trace's workers."
    if run.federated is not None:
        return "Not computed; the table of clients says whose answers prolonged the rounds."
    return "Not computed: costs require that all workers are present throughout the run."


def _split_answer(
    run: RunData, analysis: AnalysisResult | None
) -> tuple[tuple[str, ...], tuple[StatusMessage, ...]]:
    """Return the sentences of the answer, and the state of the run as notices above it."""
    parts = split_answer(run, analysis)
    if analysis is None:
        return (*parts.state, *parts.opening), ()
    care = [StatusMessage(text, "care") for text in parts.remainder]
    return parts.opening, (*(StatusMessage(text, "bad") for text in parts.state), *care)


def _format_status(run: RunData) -> StatusMessage:
    status = run.record.status if run.record is not None else "interrupted"
    tones: dict[str, Tone] = {"done": "good", "failed": "bad", "unfaithful": "bad"}
    return StatusMessage(status, tones.get(status, "care"))


def _list_contents(
    *, outcome: bool, requests: bool, analyzed: bool, emulated: bool, figures: bool
) -> tuple[tuple[str, str], ...]:
    parts = (
        ("outcome", "Outcome", outcome),
        ("requests", "Requests", requests),
        ("stragglers", "Stragglers", analyzed),
        ("fidelity", "Fidelity", emulated),
        ("figures", "Figures", figures),
        ("how", "Setup", True),
        ("words", "Terms", True),
    )
    return tuple((anchor, title) for anchor, title, is_present in parts if is_present)


def _build_figure_part(
    drawn: DrawnFigure, run: RunData, analysis: AnalysisResult | None
) -> FigurePart:
    # Only the timeline has an interactive version.
    zoomed = analysis if drawn.kind is timeline.FIGURE else None
    return FigurePart(
        name=drawn.kind.name,
        title=drawn.kind.title,
        alt=drawn.kind.description,
        caption=drawn.caption,
        wide=_data_uri(drawn.wide_svg),
        narrow=_data_uri(drawn.narrow_svg),
        timeline=None if zoomed is None else build_timeline_part(run, zoomed),
    )


def _data_uri(svg: str) -> str:
    return "data:image/svg+xml;base64," + base64.b64encode(svg.encode()).decode()
