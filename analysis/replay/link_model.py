"""Rates and round trips of a run's links."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from laggard.analysis.detection.links import Link, measure_links
from laggard.analysis.tables.load_run import RunData
from laggard.core.cost_model.links import HopEnds, LinkChange, NetworkHop
from laggard.core.errors import InputError, RunFolderError
from laggard.core.run_schema import FidelityCheck


def estimate_hops(
    links: Sequence[Link], fidelity: Sequence[FidelityCheck], tiers: Mapping[str, str]
) -> dict[HopEnds, NetworkHop]:
    """Return the rates and round trips of the links that carried traffic.

    The round trip is the smallest that TCP measured. The rate is the one that a single flow
    reached before training, between the same two hosts or two hosts of the same tiers, if that was
    measured. Otherwise it is the highest rate that TCP reached, which is too low if the senders
    had little to send.

    Args:
        links: measured links of the run.
        fidelity: measurements made before training; may be empty.
        tiers: tier of every host.
    """
    rates: dict[HopEnds, float] = {}
    for check in fidelity:
        if check.kind == "rate" and check.dst is not None:
            rates[check.src, check.dst] = check.measured
    # Links of one tier pair have the lowest rate that was measured between the tiers.
    between: dict[HopEnds, float] = {}
    for (src, dst), rate in rates.items():
        pair = (tiers.get(src, src), tiers.get(dst, dst))
        between[pair] = min(rate, between.get(pair, rate))
    found = {}
    for link in links:
        pair = (tiers.get(link.src, link.src), tiers.get(link.dst, link.dst))
        measured_rate = rates.get(link.ends) or between.get(pair) or between.get(pair[::-1])
        found[link.ends] = NetworkHop(link.ends, measured_rate or link.peak_mbps, link.min_rtt_ms)
    return found


def estimate_run_hops(run: RunData, tiers: Mapping[str, str]) -> dict[HopEnds, NetworkHop]:
    """Return the rates and round trips of a run's links (see `estimate_hops`).

    Raises:
        RunFolderError: no connection was sampled.
    """
    require_link_samples(run)
    return estimate_hops(
        measure_links(run.links, np.ones(len(run.links), dtype=np.bool_)), run.fidelity, tiers
    )


def find_ring_ends(
    carried: Mapping[HopEnds, float], hosts: Sequence[str]
) -> tuple[HopEnds, ...] | None:
    """Return the ring over which the hosts send most of their bytes.

    Args:
        carried: bytes sent from one host to another.
        hosts: hosts of the ranks.

    Returns:
        The links of the ring in order, beginning at the first host, or None if the links with the
        most bytes do not form one ring of all hosts.
    """
    following = {}
    for host in hosts:
        to = {
            dst: count for (src, dst), count in carried.items() if src == host and dst in set(hosts)
        }
        if not to:
            return None
        following[host] = max(to, key=lambda dst: to[dst])
    ring = [hosts[0]]
    while following[ring[-1]] not in ring:
        ring.append(following[ring[-1]])
    if len(ring) != len(hosts) or following[ring[-1]] != ring[0] or len(hosts) < 2:
        return None
    return tuple((host, following[host]) for host in ring)


def require_link_samples(run: RunData) -> None:
    """Raise an error unless the run has samples of connections, the only source about links.

    Raises:
        RunFolderError: there are no samples.
    """
    if not len(run.links):
        raise RunFolderError(
            f"{run.folder}: no connection was sampled (links.parquet has no rows), so the rates and"
            " round trips of the links are unknown"
        )


def require_known_ends(changes: Sequence[LinkChange], tiers: Mapping[str, str]) -> None:
    """Raise an error unless every name in the changes is a host or a tier of the run.

    Raises:
        InputError: a name is neither.
    """
    known = {*tiers, *tiers.values()}
    for change in changes:
        for name in (change.src, change.dst):
            if name not in known:
                label = ", ".join(sorted({tier for tier in tiers.values() if tier}))
                raise InputError(
                    f"{name} is no host or tier of this run — use a host or one of its tiers:"
                    f" {label or 'none recorded'}"
                )
