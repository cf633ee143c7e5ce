"""Links between real machines: measured base delays, netem for the difference, verification.

The base delay of a pair is the delay of the testbed itself. The backend adds only what the plan
requests beyond it, and the sum is measured again.

The agents on the nodes make every measurement. A round trip needs one end; a rate or a loss needs
a sink at the other end as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Literal

from pydantic import JsonValue

from laggard.core.errors import EmulationError
from laggard.core.run_schema import FidelityCheck
from laggard.core.virtual_time import Dilation
from laggard.network_emulation.dynamics.changes import TimedChange
from laggard.network_emulation.fidelity.link_tasks import (
    Task,
    choose_representatives,
    choose_round_trips,
    echo_probe,
    loss_probe,
    transport_for,
)
from laggard.network_emulation.fidelity.measure import EchoProbe, LossCount
from laggard.network_emulation.fidelity.probes.apart import FlowProbe
from laggard.network_emulation.fidelity.verify_links import (
    REALTIME,
    loss_check,
    measure_patiently,
    rate_check,
    rtt_check,
)
from laggard.network_emulation.links.end_host_shaping import IngressLimit, plan_inlets
from laggard.network_emulation.links.plan_links import Constraint, LinkPlan, Pair, tier_pairs
from laggard.remote.agent.operations import (
    MEASURE_ROUND_TRIPS,
    OPEN_SINK,
    RECEIVE,
    RUN_COMMAND,
    SEND,
    UNDO_AT_END,
)
from laggard.remote.agent_pool import AgentPool

_REAL_TIME = Dilation(1.0)
_BASE_ECHOES = 20
_BASE_SPACING_MS = 5.0
_BASE_TIMEOUT_MS = 400.0
_MEASURE_TIMEOUT_S = 120.0
_LONGEST_FILL_S = 30.0
"""Longest time that a flow may take to fill the queue of a slow link, in seconds."""
_UDP_MBPS = 60.0
"""Highest rate that is verified with UDP: a busy machine receives this many datagrams without
losing any."""


@dataclass(frozen=True)
class AgentCommandRunner:
    """Runner of commands on nodes through their agents: an `Execute` of the netem backend."""

    agent_pool: AgentPool

    def __call__(self, host: str | None, command: Sequence[str], text: str = "") -> str:
        """Run a command on a host's node; see `Execute`.

        Raises:
            EmulationError: `host` is None; there is no fabric between real machines.
        """
        if host is None:
            raise EmulationError(
                "the network between real machines cannot be shaped, only the traffic that leaves"
                " or reaches a node"
            )
        return self.agent_pool.call(host, RUN_COMMAND, {"words": list(command), "text": text})

    def expect_changes(self, hosts: Iterable[str]) -> None:
        """Do nothing: an agent starts a program for each change."""

    def change(self, batches: Mapping[str, str]) -> None:
        """Apply batches of `tc` commands on several nodes at once; see `Execute`."""
        self.agent_pool.call_all(
            RUN_COMMAND,
            {
                host: {"words": ["tc", "-batch", "-"], "text": text}
                for host, text in batches.items()
            },
        )

    def close(self) -> None:
        """Do nothing: no connection is kept open."""

    def undo_at_end(self, host: str, command: Sequence[str]) -> None:
        """Have a node's agent run a command when it ends, even after it lost the controller."""
        self.agent_pool.call(host, UNDO_AT_END, {"words": list(command)})


def measure_base_delays(agent_pool: AgentPool, plan: LinkPlan) -> dict[Pair, float]:
    """Return the testbed's own one-way delay of every constrained pair, in ms.

    The delay is half the round trip of an empty packet.

    Raises:
        EmulationError: two nodes do not reach each other.
    """
    peers: dict[str, list[str]] = {}
    constrained = {*plan.pairs, *(pair for tier in tier_pairs(plan) for pair in tier.pairs)}
    # A round trip covers both directions, so one measurement per unordered pair is enough.
    for src, dst in {(min(pair), max(pair)) for pair in constrained}:
        peers.setdefault(src, []).append(dst)
    probes = {
        src: [EchoProbe(src, dst, _BASE_ECHOES, _BASE_SPACING_MS, _BASE_TIMEOUT_MS) for dst in dsts]
        for src, dsts in peers.items()
    }
    bases: dict[Pair, float] = {}
    for (src, dst), rtt_ms in _measure_round_trips(agent_pool, plan, probes, busy=False).items():
        if rtt_ms is None:
            raise EmulationError(
                f"{dst} does not answer ICMP echo requests of {src} on the experiment network —"
                " check the route between them and that no firewall drops ICMP"
            )
        bases[src, dst] = bases[dst, src] = rtt_ms / 2
    return bases


def add_base_delays(plan: LinkPlan, bases_ms: Mapping[Pair, float]) -> LinkPlan:
    """Return the plan with every delay raised to the base delay of its pair.

    netem cannot make a link faster than the testbed, so this is the plan that the measurements are
    compared with.
    """
    requested = {**dict.fromkeys(bases_ms, Constraint()), **plan.pairs}
    pairs = {
        pair: replace(constraint, delay_ms=max(constraint.delay_ms, bases_ms.get(pair, 0.0)))
        for pair, constraint in requested.items()
    }
    return replace(plan, pairs=pairs)


def verify_remote_links(
    agent_pool: AgentPool, plan: LinkPlan, bases_ms: Mapping[Pair, float]
) -> tuple[FidelityCheck, ...]:
    """Measure every pair of tiers, as `fidelity.verify_links` does for namespaces.

    Args:
        agent_pool: agents of all nodes.
        plan: requested links; pairs with the same constraints have one representative.
        bases_ms: one-way delay of the testbed itself, by pair.
    """
    actual = add_base_delays(plan, bases_ms)

    def rebase_tasks(tasks: Sequence[Task]) -> tuple[Task, ...]:
        pairs = [task.pair for task in tasks]
        return tuple(
            Task((src, dst), actual.expected(src, dst), actual.expected(dst, src))
            for src, dst in pairs
        )

    chosen = choose_representatives(plan)
    tasks, sampled = rebase_tasks(chosen), rebase_tasks(choose_round_trips(plan, chosen))
    limited = [task for task in tasks if task.has_rate]
    lossy = [task for task in tasks if task.there.loss_percent > 0]
    return (
        *measure_patiently(sampled, lambda some, _: _verify_round_trips(agent_pool, plan, some)),
        *measure_patiently(
            limited, lambda some, _: [_verify_rate(agent_pool, plan, task) for task in some]
        ),
        *measure_patiently(
            lossy, lambda some, _: [_verify_loss(agent_pool, plan, task) for task in some]
        ),
    )


def _verify_round_trips(
    agent_pool: AgentPool, plan: LinkPlan, tasks: Sequence[Task]
) -> list[FidelityCheck]:
    probes: dict[str, list[EchoProbe]] = {}
    for task in tasks:
        probes.setdefault(task.pair[0], []).append(echo_probe(task, _REAL_TIME))
    measured = _measure_round_trips(agent_pool, plan, probes, busy=True)
    return [rtt_check(task, measured[task.pair], _REAL_TIME, REALTIME) for task in tasks]


def _measure_round_trips(
    agent_pool: AgentPool, plan: LinkPlan, probes: Mapping[str, Sequence[EchoProbe]], *, busy: bool
) -> dict[Pair, float | None]:
    addresses = {host.name: host.address for host in plan.hosts}
    arguments: dict[str, Mapping[str, JsonValue]] = {
        src: {
            "probes": [asdict(probe) for probe in some],
            "addresses": {probe.dst: addresses[probe.dst] for probe in some},
            "busy": busy,
        }
        for src, some in probes.items()
    }
    answers = agent_pool.call_all(MEASURE_ROUND_TRIPS, arguments, _MEASURE_TIMEOUT_S)
    found: dict[Pair, float | None] = {}
    for src, answer in answers.items():
        if answer.keys() != {probe.dst for probe in probes[src]}:
            raise EmulationError(
                f"{src}: the node measured round trips to other hosts than it was asked for"
            )
        found |= {(src, dst): value for dst, value in answer.items()}
    return found


def _verify_rate(agent_pool: AgentPool, plan: LinkPlan, task: Task) -> FidelityCheck:
    probe = plan_rate_flow(task, plan_inlets(plan))
    return rate_check(
        task,
        _measure_flow(agent_pool, plan, task.pair, probe),
        _REAL_TIME,
        REALTIME,
        probe.transport,
    )


def plan_rate_flow(task: Task, ingress_limits: Sequence[IngressLimit] = ()) -> FlowProbe:
    """Plan the flow that measures a link's rate, long enough to fill the link's queue first.

    The flow uses TCP in general. It uses UDP in two cases:
    - packets get lost or jitter in either direction;
    - the slowest queue on the path is an ingress limit, on the receiving host.

    A queue on the sender's host holds the sender back. An ingress limit does not, so its fill
    level depends on the sender's congestion control: BBR empties the queue again and again, and
    cubic lets it overflow.
    """
    assert task.there.rate_mbps is not None
    # 1514 bytes are a full Ethernet frame; Mbit/s are bits per microsecond.
    packet_s = 1514 * 8e-6 / task.there.rate_mbps
    slow_s = 60 * packet_s
    warm_up_s = 0.3 + 14 * task.rtt_ms / 1e3 + min(slow_s, _LONGEST_FILL_S)
    window_s = max(5 * packet_s, min(3.0, max(0.5, slow_s, 160e-3 * task.there.jitter_ms)))
    loss = task.there.loss_percent / 100
    is_receiver_limited = task.there.rate_mbps <= _UDP_MBPS and any(
        _is_slowest(ingress_limit, task) for ingress_limit in ingress_limits
    )
    transport: Literal["tcp", "udp"] = (
        "udp" if is_receiver_limited else transport_for(task, _REAL_TIME)
    )
    return FlowProbe(transport, task.there.rate_mbps, task.rtt_ms, warm_up_s, window_s, loss=loss)


def _is_slowest(ingress_limit: IngressLimit, task: Task) -> bool:
    """Return whether an ingress limit has the rate of a pair's slowest queue."""
    src, dst = task.pair
    return (
        dst in ingress_limit.receivers
        and src in ingress_limit.senders
        and ingress_limit.rate_mbps == task.there.rate_mbps
    )


def _verify_loss(agent_pool: AgentPool, plan: LinkPlan, task: Task) -> FidelityCheck:
    """Count the datagrams that arrive over a lossy link."""
    probe = loss_probe(task, _REAL_TIME, 1)
    flow = FlowProbe("count", 0.0, task.rtt_ms, 0.0, 0.0, probe.count, probe.per_s)
    received = int(_measure_flow(agent_pool, plan, task.pair, flow))
    return loss_check(task, LossCount(probe.count, probe.count - received), REALTIME)


def _measure_flow(agent_pool: AgentPool, plan: LinkPlan, pair: Pair, probe: FlowProbe) -> float:
    """Open a sink on the receiving node, send a flow to it and return the measured value."""
    src, dst = pair
    address = next(host.address for host in plan.hosts if host.name == dst)
    flow_arguments: dict[str, JsonValue] = {"probe": asdict(probe)}
    port = agent_pool.call(dst, OPEN_SINK, flow_arguments)
    receiving = agent_pool.send_request(dst, RECEIVE, {**flow_arguments, "port": port})
    sending = agent_pool.send_request(
        src, SEND, {**flow_arguments, "port": port, "address": address}
    )
    # The sender's reply comes first, so that its error, if it has one, is raised at once.
    agent_pool.wait_for_reply(sending, _MEASURE_TIMEOUT_S)
    return agent_pool.wait_for_reply(receiving, _MEASURE_TIMEOUT_S)


def needs_netem(plan: LinkPlan, changes: Sequence[TimedChange]) -> bool:
    """Return whether the links need more than rate limits, at the start or after an event."""
    later = {name for change in changes for name, _ in change.values}
    return bool(later & {"delay_ms", "jitter_ms", "loss_percent"}) or not all(
        constraint.only_rate for constraint in plan.pairs.values()
    )
