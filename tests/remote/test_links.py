"""How links between real machines are measured, as values."""

from __future__ import annotations

from laggard.core.hosts import Host
from laggard.network_emulation.fidelity.link_tasks import Task
from laggard.network_emulation.link_plan import AccessLink, Constraint, LinkPlan
from laggard.network_emulation.links.end_host_shaping import plan_inlets
from laggard.remote.links import add_base_delays, plan_rate_flow

HOSTS = tuple(
    Host(f"{layer}.trainer.1.1", layer, "trainer", 1, 1, f"10.0.0.{n}")
    for n, layer in enumerate(("cloud", "edge"), 1)
)
CLOUD, EDGE = (host.name for host in HOSTS)


def planned(rate_mbps: float, down_mbps: float) -> LinkPlan:
    pairs = {(CLOUD, EDGE): Constraint(0, 0, rate_mbps)}
    return LinkPlan(HOSTS, pairs, {EDGE: AccessLink(EDGE, None, down_mbps)})


def transport(plan: LinkPlan, src: str = CLOUD, dst: str = EDGE) -> str:
    task = Task((src, dst), plan.expected(src, dst), plan.expected(dst, src))
    return plan_rate_flow(task, plan_inlets(plan)).transport


def test_a_queue_that_the_sender_does_not_feel_is_kept_full_by_datagrams() -> None:
    assert transport(planned(50, 20)) == "udp"
    assert transport(planned(20, 50)) == "tcp", "the slowest queue is on the sender's own host"
    assert transport(planned(500, 400)) == "tcp", "more datagrams than a busy machine takes in"


def test_a_downlink_alone_is_on_top_of_the_testbeds_own_delay() -> None:
    plan = LinkPlan(HOSTS, {}, {EDGE: AccessLink(EDGE, None, 20.0)})
    bases = {(CLOUD, EDGE): 3.0, (EDGE, CLOUD): 3.0}
    assert add_base_delays(plan, bases).expected(CLOUD, EDGE) == Constraint(3.0, 0, 20.0)
