"""Energy of Grid'5000 nodes during training, from their power meters (kwollect) through EnOSlib.

The reference data has the metric of each node. The meters' readings are requested when the nodes
may already be released.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING

from pydantic import TypeAdapter

from laggard.core.errors import DeploymentError
from laggard.core.node_values import Real
from laggard.core.run_schema import HostEnergy
from laggard.layers_services.g5k.api import Pace, retry_listing
from laggard.layers_services.g5k.configuration import client_is_ready
from laggard.layers_services.g5k.reference import load_reference
from laggard.layers_services.machine import Machine

if TYPE_CHECKING:
    import numpy as np

METRICS: Mapping[str, str] = {
    "wattmetre": "wattmetre_power_watt",
    "bmc": "bmc_node_power_watt",
    "pdu": "pdu_outlet_power_watt",
}
"""Kwollect's metric of a node's power, by kind of meter
(https://www.grid5000.fr/w/Monitoring_Using_Kwollect)."""

_WATTS: TypeAdapter[float] = TypeAdapter(Real)
MARGIN_S = 15.0
"""Seconds before and after training that are requested too, because some meters report only every
few seconds."""


@dataclass(frozen=True)
class PowerSample:
    """Power reading: Unix time in seconds, watts, and identifier of the node's meter."""

    time_s: float
    watts: float
    meter: str = ""


def energy_j(samples: Sequence[PowerSample], start_s: float, end_s: float) -> float | None:
    """Return the energy between two times in joules, summed over the meters of a node.

    It is the integral of power, which is linear between readings and constant outside of them.

    Args:
        samples: readings of one node, in any order
        start_s: begin, in Unix seconds
        end_s: end, in Unix seconds

    Returns:
        Joules, or None if there is no reading or the interval is empty.
    """
    if not samples or end_s <= start_s:
        return None
    import numpy as np

    by_meter: dict[str, list[PowerSample]] = defaultdict(list)
    for sample in samples:
        by_meter[sample.meter].append(sample)
    return float(
        sum(
            _integrate_power(np.array(_sort_samples(some)), start_s, end_s)
            for some in by_meter.values()
        )
    )


def _sort_samples(samples: Iterable[PowerSample]) -> list[tuple[float, float]]:
    return sorted((sample.time_s, sample.watts) for sample in samples)


def _integrate_power(readings: np.ndarray, start_s: float, end_s: float) -> float:
    """Integrate readings [R, 2] (seconds, watts), which are ordered by time."""
    import numpy as np

    times, watts = readings[:, 0], readings[:, 1]
    inside = times[(times > start_s) & (times < end_s)]
    at = np.concatenate([[start_s], inside, [end_s]])
    return float(np.trapezoid(np.interp(at, times, watts), at))


def metered(machines: Sequence[Machine]) -> Mapping[str, tuple[Machine, ...]]:
    """Return the machines that have a power meter, by the name of its metric."""
    clusters = load_reference().by_name
    found: dict[str, list[Machine]] = defaultdict(list)
    for machine in machines:
        cluster = clusters.get(machine.cluster)
        if cluster is not None and cluster.power_meter:
            found[METRICS[cluster.power_meter]].append(machine)
    return {metric: tuple(some) for metric, some in found.items()}


def measure_energy(
    machines: Sequence[Machine], start_s: float, end_s: float, pace: Pace | None = None
) -> tuple[HostEnergy, ...]:
    """Return the energy of every metered host.

    Hosts without a meter or without a reading are omitted.

    Args:
        machines: machines of the hosts
        start_s: Unix time of the training's start
        end_s: Unix time of the training's end
        pace: timeouts and retries

    Raises:
        DeploymentError: the API does not answer
    """
    pace = pace or Pace()
    client_is_ready(pace)
    found = []
    for metric, some in metered(machines).items():
        request = partial(_request_samples, metric, some, start_s, end_s)
        readings = retry_listing(request, metric, pace)
        for machine in some:
            joules = energy_j(readings.get(_metered_name(machine), ()), start_s, end_s)
            if joules is not None:
                found.append(
                    HostEnergy(host=machine.host.name, joules=round(joules, 1), metric=metric)
                )
    return tuple(found)


def _metered_name(machine: Machine) -> str:
    """Return a node's name on the production network; in a VLAN the node has another name."""
    return re.sub(r"-kavlan-\d+", "", machine.access.address)


def _request_samples(
    metric: str, machines: Sequence[Machine], start_s: float, end_s: float
) -> dict[str, list[PowerSample]]:
    """Return readings by the address of the node."""
    from enoslib import Host, Kwollect

    service = Kwollect(nodes=[Host(_metered_name(machine)) for machine in machines])
    service.deploy()
    service.start(start_s - MARGIN_S)
    service.stop(end_s + MARGIN_S)
    readings: dict[str, list[PowerSample]] = defaultdict(list)
    for site, values in service.get_metrics(metrics=[metric]).items():
        for value in values:
            name, sample = _parse_reading(value)
            readings[f"{name}.{site}.grid5000.fr"].append(sample)
    return readings


def _parse_reading(value: Mapping[str, object]) -> tuple[str, PowerSample]:
    """Return the node of a reading, and its sample.

    Raises:
        DeploymentError: the reading has no time or no finite power
    """
    try:
        sample = PowerSample(
            time_s=datetime.fromisoformat(str(value["timestamp"])).timestamp(),
            watts=_WATTS.validate_python(value["value"]),
            meter=json.dumps(value.get("labels") or {}, sort_keys=True),
        )
        return str(value["device_id"]), sample
    except (LookupError, ValueError, TypeError, OverflowError) as error:
        raise DeploymentError(
            f"Grid'5000's API gave a power reading that cannot be used: {error!r:.300}"
        ) from error
