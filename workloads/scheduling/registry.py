"""All policies, by name."""

from __future__ import annotations

from collections.abc import Mapping

from laggard.core.errors import InputError
from laggard.workloads.scheduling.fair_policies import (
    FinishTimeFairness,
    LeastAttainedService,
    MaxMinFairness,
)
from laggard.workloads.scheduling.fifo import Fifo
from laggard.workloads.scheduling.hierarchical import HierarchicalFairness
from laggard.workloads.scheduling.packing import PackedSlices
from laggard.workloads.scheduling.policy import Policy
from laggard.workloads.scheduling.share import SharedDevices
from laggard.workloads.scheduling.total_policies import Cost, Makespan, SumThroughput

POLICIES: Mapping[str, Policy] = {
    policy.name: policy
    for policy in (
        Fifo(),
        LeastAttainedService(),
        MaxMinFairness(),
        FinishTimeFairness(),
        Makespan(),
        SumThroughput(),
        Cost(),
        SharedDevices(),
        HierarchicalFairness(),
        PackedSlices(),
    )
}


def get_policy(name: str) -> Policy:
    """Return the policy of a name.

    Raises:
        InputError: there is no such policy.
    """
    if name not in POLICIES:
        raise InputError(f"{name}: no policy has this name — use one of {', '.join(POLICIES)}")
    return POLICIES[name]
