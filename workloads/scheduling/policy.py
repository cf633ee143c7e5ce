"""Interface of policies: the jobs that are present in, the time of each on each type out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from laggard.core.cost_model.arrays import FloatArray, IntArray
from laggard.workloads.scheduling.cluster_jobs import ClusterState


class Policy(Protocol):
    """Function from the state of a cluster to an allocation, which is the same for equal states.

    Attributes:
        name: name of the policy.
        aware: whether throughputs count. If not, types take jobs in an order that is drawn anew
            for every round.
        in_turn: whether a job without an allocation may not run, even if devices are idle.
    """

    @property
    def name(self) -> str: ...

    @property
    def aware(self) -> bool: ...

    @property
    def in_turn(self) -> bool: ...

    def allocate(self, state: ClusterState) -> FloatArray:
        """Return the part of the time that each job runs on each type, [J, M]."""
        ...


@dataclass(frozen=True)
class DeviceGrants:
    """Devices that jobs have in their rounds until the next allocation.

    Attributes:
        allocation: part of the time that each job runs on each type, [J, M].
        devices: number of its devices, [J]; 0 for the second job of a device that two share.
        partner: the job with which it shares a device, or -1, [J].
        speed: its steps per second on each type, [J, M].
        alone: its steps per second once its partner has ended, [J, M].
    """

    allocation: FloatArray
    devices: IntArray
    partner: IntArray
    speed: FloatArray
    alone: FloatArray


@runtime_checkable
class SharingPolicy(Policy, Protocol):
    """Policy that also chooses the number of devices of each job, and who shares one."""

    def grant(self, state: ClusterState) -> DeviceGrants:
        """Return the devices of each job."""
        ...
