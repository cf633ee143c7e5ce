"""Rates and losses measured with one process at each end of an emulated link, as on two
machines."""

from __future__ import annotations

import pytest

from laggard.core.linux import inside_network
from laggard.core.virtual_time import Dilation
from laggard.network_emulation.fidelity.probes.apart import FlowProbe, Sink, send_flow
from laggard.network_emulation.forked import end_companion, fork_companion, run_forked
from laggard.network_emulation.link_plan import Constraint, LinkPlan
from laggard.network_emulation.links.plan_links import dilate_links
from tests.network_emulation.emulated import Continuum, in_sandbox, needs_tun


def flows(continuum: Continuum) -> dict[str, float]:
    from laggard.network_emulation.links.userspace import UserspaceBackend

    cloud, fog, edge, _ = continuum.hosts
    pairs = {
        (cloud.name, edge.name): Constraint(delay_ms=5, rate_mbps=20),
        (edge.name, cloud.name): Constraint(delay_ms=5),
        (cloud.name, fog.name): Constraint(delay_ms=2, rate_mbps=10, loss_percent=5),
        (fog.name, cloud.name): Constraint(delay_ms=2),
    }
    backend = UserspaceBackend.start(
        dilate_links(LinkPlan(continuum.hosts, pairs), Dilation(1.0)),
        continuum.namespaces,
        Dilation(1.0),
    )

    def pass_through(dst: str, probe: FlowProbe) -> float:
        target = next(host for host in continuum.hosts if host.name == dst)
        with inside_network(continuum.namespaces[dst]):
            sink = Sink(target.address, probe.transport)

        def send() -> int:
            with inside_network(continuum.namespaces[cloud.name]):
                send_flow(cloud.address, (target.address, sink.port), probe)
            return 0

        sender = fork_companion("sender", send)
        try:
            return run_forked("sink", lambda: sink.receive(probe))
        finally:
            sink.close()
            end_companion(sender)

    found = {
        "tcp": pass_through(edge.name, FlowProbe("tcp", 20.0, 10.0, 0.6, 0.6)),
        "udp": pass_through(fog.name, FlowProbe("udp", 10.0, 4.0, 0.4, 0.8, loss=0.05)),
        "count": pass_through(fog.name, FlowProbe("count", 0.0, 4.0, 0.0, 0.0, 2000, 2000.0)),
    }
    with inside_network(continuum.namespaces[edge.name]):
        sink = Sink(edge.address, "count")
    with pytest.raises(Exception, match="no packet of a probe arrived"):
        run_forked("sink", lambda: sink.receive(FlowProbe("count", 0.0, 1.0, 0.0, 0.0, 10, 1000.0)))
    sink.close()
    backend.close()
    return found


@pytest.mark.long
@needs_tun
def test_both_ends_together_find_a_rate_and_a_loss() -> None:
    """And where nothing arrives, say so; how exact they are `laggard verify` measures."""
    found = in_sandbox(flows)
    assert found["tcp"] > 0
    assert found["udp"] > 0
    assert 0 < found["count"] < 2000, "one in twenty is lost, whatever else is"
