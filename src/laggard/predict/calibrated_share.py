"""Share of a core of this machine that is as fast as a device, from one step measured there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from laggard.core.errors import InputError
from laggard.core.text.text_format import format_seconds
from laggard.predict.machine_speed import measure_machine_speed
from laggard.scenario.load import Scenario


@dataclass(frozen=True)
class CalibratedShare:
    """Share of a core that is as fast as a device.

    Attributes:
        samples: samples of the step.
        device_s: seconds of the step on the device.
        core_s: seconds of the same step on a whole core of this machine.
    """

    samples: int
    device_s: float
    core_s: float

    @property
    def share(self) -> float:
        """Return the share of a core."""
        return self.core_s / self.device_s

    def format(self) -> str:
        """Return sentences with the line for `heterogeneity.yaml`."""
        percent = f"{100 * self.share:.3g}%"
        return (
            f"A step of {self.samples} samples takes {format_seconds(self.core_s)} on a whole core"
            f" of this machine, and {format_seconds(self.device_s)} on the device. A host with"
            f" {percent} of a core here is as fast:\n\n"
            "# heterogeneity.yaml\n"
            "deterministic:\n"
            f'  - {{hosts: "edge.*", cpu: {percent}}}'
        )

    def build_document(self) -> Mapping[str, float]:
        """Return the values for programs."""
        return {
            "samples": self.samples,
            "device_s": self.device_s,
            "core_s": self.core_s,
            "share": self.share,
        }


def calibrate_share(
    scenario: Scenario, device_s: float, samples: int | None = None
) -> CalibratedShare:
    """Measure a step of a scenario's workload here, and compare it with that of a device.

    Args:
        scenario: scenario that trains.
        device_s: seconds of the step on the device.
        samples: samples of the step; those of a usual step of a worker if None.

    Raises:
        InputError: nothing is trained, the time is zero, or the device is faster than a core of
            this machine.
    """
    if not scenario.trains:
        raise InputError(
            f"{scenario.name}: {scenario.untrained_reason} — give a scenario whose workload.yaml"
            " has a model and a dataset"
        )
    if device_s <= 0:
        raise InputError(f"--step {device_s:g}s: no step takes no time — give one such as 120ms")
    workload = scenario.workload
    usual = workload.local_batch or workload.count_worker_samples(len(scenario.ranks))
    count = samples or usual
    core_s = measure_machine_speed(workload, [count]).step(count).usual_s
    if core_s > device_s:
        raise InputError(
            f"--step {device_s * 1e3:.3g}ms: a step of {count} samples takes"
            f" {core_s * 1e3:.3g} ms on a core of this machine, which is the fastest host that it"
            " emulates — give the time of a slower device, or scale all hosts down alike"
        )
    return CalibratedShare(count, device_s, core_s)
