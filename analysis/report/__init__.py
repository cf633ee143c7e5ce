"""Report of one run: `report.html`, one self-contained page, and its figures.

Read `write.py` first, then `page.py`, which collects all values. `page.html` only arranges them.
`figures/` draws, `timeline/` prepares the interactive timeline, and `style/` has colors and
labels. This folder may import `tables/`, `detection/`, `replay/` and `findings/` of the analysis,
and the core.
"""

from laggard.analysis.report.write import write_report

__all__ = ["write_report"]
