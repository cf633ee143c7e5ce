"""Writer of a run's `report.html` and `figures/`."""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from laggard.analysis.findings.analysis_result import AnalysisResult
from laggard.analysis.tables.load_run import RunData
from laggard.core.files.output_files import write_text

if TYPE_CHECKING:
    from markupsafe import Markup

_HERE = Path(__file__).parent
_SCRIPTS = ("sorting.js", "timeline.js")
# Places where a line must not break: within a range of steps, and between a number and its unit.
_STEPS = re.compile(r"(?<=\bsteps )(\d+)-(?=\d)")
_BEFORE_UNIT = re.compile(r"(?<=\d) (?=(?:%|s|ms|min|[kMGT]?B|Mbit/s)(?!\w))")


def write_report(run: RunData, analysis: AnalysisResult | None, folder: Path) -> Path:
    """Write the report of a run: one page that needs no network, and its figures as files.

    Args:
        run: run to report.
        analysis: findings of the run; None if no step was finished. Such a run still has a state
            and a fidelity.
        folder: folder for `report.html` and `figures/`, usually the run folder; it is created if
            needed.

    Returns:
        The path of `report.html`.
    """
    from laggard.analysis.report.figures.drawing import save_figures
    from laggard.analysis.report.figures.registry import (
        select_figure_kinds,
        select_unanalyzed_figure_kinds,
    )
    from laggard.analysis.report.page import build_page

    folder.mkdir(parents=True, exist_ok=True)
    if analysis is not None:
        kinds = select_figure_kinds(run, analysis)
        figures = save_figures(run, analysis, folder / "figures", kinds)
    elif others := select_unanalyzed_figure_kinds(run):
        figures = save_figures(run, None, folder / "figures", others)
    else:
        figures = ()
    page = build_page(run, analysis, figures)
    path = folder / "report.html"
    write_text(path, render_page(page))
    return path


@dataclass(frozen=True)
class Script:
    """Script of the page, and its digest in the page's Content-Security-Policy.

    No other script that the page might contain can run.
    """

    text: Markup
    digest: str


def render_page(page: object) -> str:
    """Return the page as HTML.

    The template engine escapes every value. Only the style sheet and the scripts are inserted
    unchanged.
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
    # Markup is safe here: the style sheet is part of this package and contains no value of a run.
    css = Markup((_HERE / "page.css").read_text(encoding="utf-8"))  # noqa: S704
    scripts = [read_script(name) for name in _SCRIPTS]
    return environment.get_template("page.html").render(page=page, css=css, scripts=scripts)


def read_script(name: str) -> Script:
    """Return a script beside this module, with its digest."""
    from markupsafe import Markup

    text = (_HERE / name).read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return Script(Markup(text), f"sha256-{digest}")  # noqa: S704 - our own file, no value in it


def keep_units(value: object) -> object:
    """Insert no-break spaces before units, and word joiners in ranges of steps.

    Values that are no text are returned unchanged.
    """
    if type(value) is not str:
        return value
    return _STEPS.sub("\\1-\N{WORD JOINER}", _BEFORE_UNIT.sub("\N{NO-BREAK SPACE}", value))
