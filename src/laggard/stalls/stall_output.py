"""Stalls of a scenario as text and as a document for machines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from laggard.analysis.estimates.estimate import Estimate, scale_estimate
from laggard.analysis.estimates.estimate_text import format_estimate
from laggard.analysis.stalls.stall_estimates import STALL_KINDS, StallKind, Stalls
from laggard.core.text.text_columns import align_columns
from laggard.core.text.text_format import format_percent
from laggard.stalls.measure_stalls import MeasuredStalls

if TYPE_CHECKING:
    from pydantic import JsonValue

_MAX_HOSTS = 24
"""Number of hosts up to which the text lists them."""

_LEAST_SHARE = 0.01
"""Part of a step below which a stall is not worth a sentence."""

_NAMES: Mapping[StallKind, str] = {
    "prep": "preparing samples",
    "fetch": "fetching samples",
    "interconnect": "transfers within the tier",
    "network": "transfers across tiers",
    "wait": "waiting for slower workers",
}


def format_stalls(measured: MeasuredStalls) -> str:
    """Format the stalls of tiers and hosts, and the largest stall of each tier."""
    return "\n".join(_format_lines(measured))


def _format_lines(measured: MeasuredStalls) -> Iterator[str]:
    workload = measured.scenario.workload
    yield (
        f"{measured.scenario.name}: {workload.model}, {workload.strategy.describe()},"
        f" {measured.samples} samples per worker and step; {measured.runs} runs"
    )
    yield "ms per sample, with 95 % intervals:"
    yield from align_columns([_header("tier"), *_format_rows(measured.tiers)])
    if len(measured.tiers) < len(measured.hosts) <= _MAX_HOSTS:
        yield from align_columns([_header("host"), *_format_rows(measured.hosts)])
    for tier, stalls in measured.tiers.items():
        yield _format_largest(tier, stalls)
    yield from (f"note: {each}" for each in measured.notes)


def _header(first: str) -> list[str]:
    return [first, "compute", *STALL_KINDS]


def _format_rows(stalls: Mapping[str, Stalls]) -> Iterator[list[str]]:
    for name, each in stalls.items():
        yield [name, *(_format_ms(value) for value in (each.compute_s, *each.stalls_s.values()))]


def _format_ms(value: Estimate) -> str:
    in_ms = scale_estimate(value, 1e3)
    if value == Estimate(0.0, None, None):
        return "-"
    return format_estimate(in_ms, "{:.3g}")


def _format_largest(tier: str, stalls: Stalls) -> str:
    kind = max(STALL_KINDS, key=lambda each: stalls.stalls_s[each].mean)
    if stalls.share(kind) < _LEAST_SHARE:
        return f"{tier}: no stall takes 1 % of a step"
    return (
        f"{tier}: the largest stall is {_NAMES[kind]}, {format_percent(stalls.share(kind))} of a"
        " step"
    )


def build_stall_document(measured: MeasuredStalls) -> dict[str, JsonValue]:
    """Return the stalls as a document; times are in seconds per sample."""
    return {
        "scenario": measured.scenario.name,
        "samples_per_worker": measured.samples,
        "runs": measured.runs,
        "campaign": str(measured.folder),
        "tiers": {name: _build_part(each) for name, each in measured.tiers.items()},
        "hosts": {
            name: {"tier": measured.tier_of[name], **_build_part(each)}
            for name, each in measured.hosts.items()
        },
        "notes": list(measured.notes),
    }


def _build_part(stalls: Stalls) -> dict[str, JsonValue]:
    return {
        "compute_s": _build_estimate(stalls.compute_s),
        "contention_s": _build_estimate(stalls.contention_s),
        **{f"{kind}_s": _build_estimate(each) for kind, each in stalls.stalls_s.items()},
        "shares": {kind: stalls.share(kind) for kind in STALL_KINDS},
    }


def _build_estimate(value: Estimate) -> dict[str, JsonValue]:
    return {"mean": value.mean, "low": value.low, "high": value.high}
