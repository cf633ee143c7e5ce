"""Writes `report.html` and `figures/` of a run."""

from __future__ import annotations

import os
import re
from pathlib import Path

from laggard.analysis.findings import Analysis
from laggard.analysis.load import Run

_HERE = Path(__file__).parent
_BEFORE_UNIT = re.compile(r"(?<=\d) (?=(?:%|s|ms|min|[kMGT]?B|Mbit/s)(?!\w))")


def write_report(run: Run, analysis: Analysis | None, folder: Path) -> Path:
    """Writes the report of a run: one page that needs no network, and its figures as files.

    Args:
        run: what happened.
        analysis: what was found in it; None for a run in which no step was finished (it still has a state and a fidelity).
        folder: where `report.html` and `figures/` go, usually the run folder; made if it is not there.

    Returns:
        The path of `report.html`.
    """
    from laggard.analysis.figures import draw_all, kinds_for
    from laggard.analysis.report.page import build_page

    folder.mkdir(parents=True, exist_ok=True)
    figures = draw_all(run, analysis, folder / "figures", kinds_for(analysis)) if analysis is not None else ()
    page = build_page(run, analysis, figures)
    return _replace(folder / "report.html", render(page))


def render(page: object) -> str:
    """The page as HTML; every value is escaped by the template engine, the style sheet alone is taken as it is."""
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
    css = Markup((_HERE / "page.css").read_text(encoding="utf-8"))  # noqa: S704 - our own file, no value in it
    return environment.get_template("page.html").render(page=page, css=css)


def keep_units(value: object) -> object:
    """A number and its unit stay on one line: the space between them becomes a no-break one."""
    return _BEFORE_UNIT.sub("\N{NO-BREAK SPACE}", value) if type(value) is str else value


def _replace(path: Path, text: str) -> Path:
    """Readers see the old page or the new one, never half of one."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)
    return path
