"""Plan of one process that answers requests; pure."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from laggard.core.serving.arrivals import draw_arrivals
from laggard.workloads.inference_workload import InferenceWorkload
from laggard.workloads.plan import ProcessPlan
from laggard.workloads.transport.plan import EndpointPlan


class ServingLink(ProcessPlan):
    """Link from one node to another, as the scenario describes it.

    Attributes:
        node: number of the other node.
        rate_mbps: lower one of the rates in both directions, in virtual Mbit/s.
        round_trip_s: virtual seconds to the other node and back.
    """

    node: int
    rate_mbps: float = Field(gt=0)
    round_trip_s: float = Field(ge=0)


class ServingPlan(ProcessPlan):
    """Plan of one node: a device, or the server.

    Attributes:
        node: number of the node; devices come first, then the server.
        hosts: name of every node's host.
        devices: number of devices.
        shares: virtual share of a core of every node's host.
        workload: what all nodes do.
        output_dir: folder that all nodes stream their records into.
        control_folder: folder of the emulation's control socket, over which a node asks to be held
            to the share of its host.
        dilation: real seconds per virtual second.
        arrivals: virtual times of the requests at each device, if a file lists them.
        links: links from this node to others.
        endpoint: its endpoint in the exchange of messages; None if it exchanges none.
    """

    node: int = Field(ge=0)
    hosts: tuple[str, ...]
    devices: int = Field(ge=1)
    shares: tuple[float, ...]
    workload: InferenceWorkload
    output_dir: str
    control_folder: str
    dilation: float = Field(default=1.0, ge=1)
    arrivals: tuple[float, ...] | None = None
    links: tuple[ServingLink, ...] = ()
    endpoint: EndpointPlan | None = None

    @property
    def output_path(self) -> Path:
        """Return the folder of the records."""
        return Path(self.output_dir)

    @property
    def server(self) -> int | None:
        """Return the number of the server; None without one."""
        return self.devices if len(self.hosts) > self.devices else None

    @property
    def is_device(self) -> bool:
        """Return whether requests arrive at this node."""
        return self.node < self.devices

    @property
    def has_own_models(self) -> bool:
        """Return whether every device has models of its own, so that their votes differ."""
        return self.workload.ensemble is not None

    def list_arrivals(self) -> tuple[float, ...]:
        """Return the virtual times of this device's requests."""
        if self.arrivals is not None:
            return self.arrivals
        requests, seed = self.workload.requests, self.workload.seed
        return draw_arrivals(requests.rate, requests.count, (seed, self.node))
