"""Estimates of the stalls of a step, from five kinds of short runs of one training.

The method is that of Stash (A. Sharma et al., *Stash: a comprehensive stall-centric
characterization of public cloud VMs for distributed deep learning*, ICDCS 2023), which adds a
network to the data stalls of J. Mohan et al. (VLDB 2021). Each kind of run differs from another in
one thing, so that a difference of two runs is the stall of that thing:

- `alone`: every worker trains for itself on one prepared batch: it only computes.
- `warm`: likewise with real samples from the cache. Preparing takes what this takes longer.
- `cold`: likewise with real samples from storage. Fetching takes what this takes longer.
- `tier`: the workers of one tier train together on prepared batches. The interconnect takes what
  they wait for its data.
- `all`: all workers train together on prepared batches. The network takes what they wait for data
  longer than within their tiers.

Stash knows only how long runs take. Here every step is traced, so a difference is that of the part
of the step that the thing can delay, and noise of the other parts does not enter. A wait for a
slower worker is not the network's: it has a part of its own. Times are divided by the samples.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from laggard.analysis.estimates.estimate import (
    Estimate,
    compute_welch_error,
    estimate_mean,
    make_estimate,
)
from laggard.analysis.tables.columns import FloatArray
from laggard.analysis.tables.timelines.step_parts import StepPart, StepParts

StallKind = Literal["prep", "fetch", "interconnect", "network", "wait"]
"""Reason why a step takes longer than its computing."""

STALL_KINDS: tuple[StallKind, ...] = get_args(StallKind)

_LOADING: tuple[StepPart, ...] = ("fetch", "prep")


@dataclass(frozen=True)
class StallRuns:
    """Runs of one repeat.

    Attributes:
        alone: run in which every worker only computes.
        warm: run with samples from the cache.
        cold: run with samples from storage.
        tiers: run of each tier that has several workers.
        together: run of all workers; None if they are all in one tier.
    """

    alone: StepParts
    warm: StepParts
    cold: StepParts
    tiers: Mapping[str, StepParts]
    together: StepParts | None


@dataclass(frozen=True)
class Stalls:
    """Seconds per sample of some workers, each the mean of these workers.

    Attributes:
        compute_s: forward pass, backward pass and update, of a worker alone.
        contention_s: how much longer computing takes while all train together.
        stalls_s: seconds of each kind of stall.
    """

    compute_s: Estimate
    contention_s: Estimate
    stalls_s: Mapping[StallKind, Estimate]

    @property
    def total_s(self) -> float:
        """Return the seconds of a sample that these parts add up to."""
        return self.compute_s.mean + sum(each.mean for each in self.stalls_s.values())

    def share(self, kind: StallKind) -> float:
        """Return the part of a step that a stall takes."""
        return self.stalls_s[kind].mean / self.total_s if self.total_s > 0 else 0.0


@dataclass(frozen=True)
class Difference:
    """Steps whose mean counts, and steps whose mean is subtracted; [steps] each."""

    more: FloatArray
    less: FloatArray | None = None

    @property
    def mean(self) -> float:
        """Return the difference of the means."""
        return float(self.more.mean()) - (0.0 if self.less is None else float(self.less.mean()))


def estimate_stalls(repeats: Sequence[StallRuns], hosts: frozenset[str]) -> Stalls:
    """Estimate the stalls of the workers of some hosts.

    Args:
        repeats: runs of every repeat, at least one.
        hosts: names of the hosts, all of one tier.

    Returns:
        Estimates whose intervals come from the repeats; from the steps if there is only one.
    """

    def estimate(compare: Callable[[StallRuns], Difference | None]) -> Estimate:
        found = [each for each in map(compare, repeats) if each is not None]
        return _estimate(found) if found else Estimate(0.0, None, None)

    def average(run: StepParts, *parts: StepPart) -> FloatArray:
        ranks = [rank for rank, host in enumerate(run.hosts) if host in hosts]
        return run.average(ranks, parts)

    def find_joined(runs: StallRuns) -> StepParts | None:
        return runs.together or _find_tier(runs, hosts)

    def compare_network(runs: StallRuns) -> Difference | None:
        tier = _find_tier(runs, hosts)
        if runs.together is None:
            return None
        less = None if tier is None else average(tier, "transfer")
        return Difference(average(runs.together, "transfer"), less)

    def compare_joined(runs: StallRuns, part: StepPart) -> Difference | None:
        joined = find_joined(runs)
        return None if joined is None else Difference(average(joined, part))

    def compare_contention(runs: StallRuns) -> Difference | None:
        joined = find_joined(runs)
        if joined is None:
            return None
        return Difference(average(joined, "compute"), average(runs.alone, "compute"))

    def compare_tier(runs: StallRuns) -> Difference | None:
        tier = _find_tier(runs, hosts)
        return None if tier is None else Difference(average(tier, "transfer"))

    return Stalls(
        compute_s=estimate(lambda runs: Difference(average(runs.alone, "compute"))),
        contention_s=estimate(compare_contention),
        stalls_s={
            "prep": estimate(
                lambda runs: Difference(
                    average(runs.warm, *_LOADING), average(runs.alone, *_LOADING)
                )
            ),
            "fetch": estimate(
                lambda runs: Difference(average(runs.cold, "fetch"), average(runs.warm, "fetch"))
            ),
            "interconnect": estimate(compare_tier),
            "network": estimate(compare_network),
            "wait": estimate(lambda runs: compare_joined(runs, "wait")),
        },
    )


def _find_tier(runs: StallRuns, hosts: frozenset[str]) -> StepParts | None:
    return next((run for run in runs.tiers.values() if hosts & set(run.hosts)), None)


def _estimate(differences: Sequence[Difference]) -> Estimate:
    means = [each.mean for each in differences]
    if len(means) > 1:
        return estimate_mean(means)
    samples = [
        each.tolist() for each in (differences[0].more, differences[0].less) if each is not None
    ]
    if min(map(len, samples)) < 2:
        return Estimate(means[0], None, None)
    error, freedom = compute_welch_error(*samples)
    return make_estimate(means[0], error, freedom)
