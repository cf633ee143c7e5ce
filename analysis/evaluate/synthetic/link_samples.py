"""TCP samples of the ring links of a synthetic run, with the counters of a kernel."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from laggard.analysis.tables.columns import FloatArray, LinkColumns

SAMPLE_PERIOD_S = 0.2


@dataclass(frozen=True)
class LinkWork:
    """Traffic of the ring links of a run: S steps, W links.

    Attributes:
        names: (source, destination) of every link.
        rate_mbps: rate of every link in every step, [S, W].
        step_end_s: end of every step's transfer, [S].
        bytes_per_step: bytes per link and step.
        busy_sigma: lognormal jitter of a link's busy time from step to step.
    """

    names: tuple[tuple[str, str], ...]
    rate_mbps: FloatArray
    step_end_s: FloatArray
    bytes_per_step: int
    busy_sigma: float = 0.0


def sample_links(work: LinkWork, seed: int) -> LinkColumns:
    """Return the cumulative counters of each link, sampled at 5 Hz.

    Args:
        work: traffic of the links.
        seed: seed of the samples' noise.

    Returns:
        Rows sorted by time, as in `links.parquet`.
    """
    rng = np.random.default_rng(seed + 1)
    links = len(work.names)
    times = np.arange(0.0, float(work.step_end_s[-1]) + SAMPLE_PERIOD_S, SAMPLE_PERIOD_S)
    done = np.searchsorted(work.step_end_s, times, side="right")
    current = np.clip(done, 0, len(work.step_end_s) - 1)
    busy_s = work.bytes_per_step * 8 / (work.rate_mbps * 1e6) + 0.002
    if work.busy_sigma:
        jitter = np.random.default_rng((seed, 1)).standard_normal(busy_s.shape)
        busy_s = busy_s * np.exp(work.busy_sigma * jitter)
    busy = np.vstack([np.zeros(links), np.cumsum(busy_s, axis=0)])[done]
    rate = work.rate_mbps[current] * rng.uniform(0.85, 0.97, (len(times), links))
    link = np.tile(np.arange(links), len(times))
    rows = len(link)
    zeros = np.zeros(rows, dtype=np.int64)
    queued_us = 30_000 * 100.0 / work.rate_mbps[current] * rng.uniform(0.8, 1.2, rate.shape)
    return LinkColumns(
        time_ns=np.repeat(np.rint(times * 1e9).astype(np.int64), links),
        src=np.array([n[0] for n in work.names])[link],
        dst=np.array([n[1] for n in work.names])[link],
        src_port=zeros + 40_000,
        dst_port=40_001 + link,
        rtt_us=(2_000 + queued_us).astype(np.int64).ravel(),
        min_rtt_us=zeros + 2_000,
        delivery_rate_mbps=rate.ravel(),
        app_limited=rng.random(rows) < 0.3,
        last_send_ms=zeros + 5,
        bytes_acked=np.repeat(done.astype(np.int64) * work.bytes_per_step, links),
        retransmits=zeros,
        busy_us=np.rint(busy.ravel() * 1e6).astype(np.int64),
        rwnd_limited_us=zeros,
        sndbuf_limited_us=zeros,
    )
