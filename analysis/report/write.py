"""Writes `report.html` and `figures/` of a run."""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from laggard.analysis.findings.analysis_result import AnalysisResult
from laggard.analysis.tables.load_run import RunData
from laggard.core.atomic_write import replace_atomically

if TYPE_CHECKING:
    from markupsafe import Markup

_HERE = Path(__file__).parent
_SCRIPTS = ("sorting.js", "timeline.js")
_STEPS = re.compile(r"(?<=\bsteps )(\d+)-(?=\d)")
_BEFORE_UNIT = re.compile(r"(?<=\d) (?=(?:%|s|ms|min|[kMGT]?B|Mbit/s)(?!\w))")


def write_report(run: RunData, analysis: AnalysisResult | None, folder: Path) -> Path:
    """Writes the report of a run: one page that needs no network, and its figures as files.

    Args:
        run: what happened.
        analysis: what was found in it; None for a run in which no step was finished (it still has a
            state and a fidelity).
        folder: where `report.html` and `figures/` go, usually the run folder; made if it is not
            there.

    Returns:
        The path of `report.html`.
    """
    from laggard.analysis.report.figures.drawing import save_figures
    from laggard.analysis.report.figures.registry import select_figure_kinds
    from laggard.analysis.report.page import build_page

    folder.mkdir(parents=True, exist_ok=True)
    figures = (
        save_figures(run, analysis, folder / "figures", select_figure_kinds(run, analysis))
        if analysis is not None
        else ()
    )
    page = build_page(run, analysis, figures)
    return _replace_file(folder / "report.html", render_page(page))


@dataclass(frozen=True)
class Script:
    """One of our scripts, and how the page's policy names it: nothing else that a page may come to
    hold can run.
    """

    text: Markup
    digest: str


def render_page(page: object) -> str:
    """The page as HTML; every value is escaped by the template engine, the style sheet and the
    scripts alone are taken as they are.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=FileSystemLoader(_HERE),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=keep_units,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    # Our own file, no value in it.
    css = Markup((_HERE / "page.css").read_text(encoding="utf-8"))  # noqa: S704
    scripts = [read_script(name) for name in _SCRIPTS]
    return environment.get_template("page.html").render(page=page, css=css, scripts=scripts)


def read_script(name: str) -> Script:
    """A script beside this module, with its digest."""
    from markupsafe import Markup

    text = (_HERE / name).read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return Script(Markup(text), f"sha256-{digest}")  # noqa: S704 - our own file, no value in it


def keep_units(value: object) -> object:
    """A number and its unit stay on one line, and so do the ends of a range of steps: no-break
    space, word joiner.
    """
    if type(value) is not str:
        return value
    return _STEPS.sub("\\1-\N{WORD JOINER}", _BEFORE_UNIT.sub("\N{NO-BREAK SPACE}", value))


def _replace_file(path: Path, text: str) -> Path:
    """Readers see the old page or the new one, never half of one."""
    with replace_atomically(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return path
