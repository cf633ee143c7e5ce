"""Text of estimates: the mean, and the ends of its interval in parentheses."""

from __future__ import annotations

from laggard.analysis.estimates.estimate import Estimate, scale_estimate


def format_estimate(value: Estimate, form: str) -> str:
    """Format an estimate: `10.4 (9.8 to 11.0)`.

    Args:
        value: estimate to format.
        form: format of one number, such as `{:.1f}`.
    """
    return f"{form.format(value.mean)}{_format_ends(value, form, '')}"


def format_percent_estimate(value: Estimate) -> str:
    """Format an estimate of a share: `96.0 % (95.5 to 96.5 %)`."""
    percent = scale_estimate(value, 100)
    return f"{percent.mean:.1f} %{_format_ends(percent, '{:.1f}', ' %')}"


def _format_ends(value: Estimate, form: str, unit: str) -> str:
    if value.low is None or value.high is None:
        return ""
    return f" ({form.format(value.low)} to {form.format(value.high)}{unit})"
