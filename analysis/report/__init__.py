"""`report.html`: one self-contained page about one run."""

from laggard.analysis.report.write import write_report

__all__ = ["write_report"]
