"""Links between real machines: their own delay measured, the plan's applied on top of what is
missing, and the sum measured again.

Every measurement is made on the nodes by their agents, a round trip from one end, a rate or a loss
with a sink at the other.
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
from laggard.network_emulation.fidelity.measure import EchoProbe, LossCount
from laggard.network_emulation.fidelity.probes.apart import FlowProbe
from laggard.network_emulation.fidelity.verify_links import (
    REALTIME,
    Task,
    choose_representatives,
    echo_probe,
    loss_check,
    loss_probe,
    measure_patiently,
    rate_check,
    rtt_check,
    sample_round_trips,
    transport_for,
)
from laggard.network_emulation.links.end_host_shaping import IngressLimit, plan_inlets
from laggard.network_emulation.links.plan_links import Constraint, LinkPlan, Pair, tier_pairs
from laggard.remote.agent_pool import AgentPool

_REAL_TIME = Dilation(1.0)
_BASE_ECHOES = 20
_BASE_SPACING_MS = 5.0
_BASE_TIMEOUT_MS = 400.0
_MEASURE_TIMEOUT_S = 120.0
_LONGEST_FILL_S = 30.0
_UDP_MBPS = 60.0
"""As many datagrams as a busy machine takes in without losing any."""


@dataclass(frozen=True)
class AgentCommandRunner:
    """Runs commands on nodes by their agents: an `Execute` of the netem backend."""

    agent_pool: AgentPool

    def __call__(self, host: str | None, command: Sequence[str], text: str = "") -> str:
        """See `Execute`; there is no fabric between real machines."""
        if host is None:
            raise EmulationError(
                "nothing between real machines can be shaped, only what leaves and reaches them"
            )
        return str(
            self.agent_pool.call(host, "run_command", {"words": list(command), "text": text})
        )

    def expect_changes(self, hosts: Iterable[str]) -> None:
        """Nothing: an agent starts a program for each change."""

    def change(self, batches: Mapping[str, str]) -> None:
        """See `Execute`: all agents are asked before the first answer is waited for."""
        self.agent_pool.call_all(
            "run_command",
            {
                host: {"words": ["tc", "-batch", "-"], "text": text}
                for host, text in batches.items()
            },
        )

    def close(self) -> None:
        """Nothing is kept open."""

    def undo_at_end(self, host: str, command: Sequence[str]) -> None:
        """Have a node's agent run a command when it ends, also where it has lost the controller."""
        self.agent_pool.call(host, "undo_at_end", {"words": list(command)})


def measure_base_delays(agent_pool: AgentPool, plan: LinkPlan) -> dict[Pair, float]:
    """What the testbed itself takes, one way in ms, of every pair that is constrained: half the
    round trip of an empty packet.

    Raises:
        EmulationError: two nodes do not reach each other.
    """
    peers: dict[str, list[str]] = {}
    constrained = {*plan.pairs, *(pair for tier in tier_pairs(plan) for pair in tier.pairs)}
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
                f"{dst} does not answer {src}'s echoes on the experiment network; is it routed, is"
                " ICMP let through?"
            )
        bases[src, dst] = bases[dst, src] = rtt_ms / 2
    return bases


def add_base_delays(plan: LinkPlan, bases_ms: Mapping[Pair, float]) -> LinkPlan:
    """What the links will be: the plan's delays, or the testbed's own where the plan asks for
    none.
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
        agent_pool: the agents.
        plan: what was asked for; pairs that are alike in it have one representative.
        bases_ms: what the testbed itself takes one way, by pair.
    """
    actual = add_base_delays(plan, bases_ms)

    def rebase_tasks(tasks: Sequence[Task]) -> tuple[Task, ...]:
        pairs = [task.pair for task in tasks]
        return tuple(
            Task((src, dst), actual.expected(src, dst), actual.expected(dst, src))
            for src, dst in pairs
        )

    chosen = choose_representatives(plan)
    tasks, sampled = rebase_tasks(chosen), rebase_tasks(sample_round_trips(plan, chosen))
    limited = [
        task for task in tasks if task.there.rate_mbps is not None and task.there.loss_percent < 100
    ]
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
    answers = (
        agent_pool.call_all("measure_round_trips", arguments, _MEASURE_TIMEOUT_S)
        if arguments
        else {}
    )
    found: dict[Pair, float | None] = {}
    for src, answer in answers.items():
        assert isinstance(answer, dict)
        found |= {
            (src, dst): None if value is None else float(str(value))
            for dst, value in answer.items()
        }
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
    """A flow long enough to fill the link's queue first.

    TCP, or UDP where packets get lost or jitter in either direction, or where the slowest queue on
    the way is an inlet, on the host that receives: it does not hold the sender back, as one on the
    sender's own host does, so that how full it is, is up to the sender's congestion control (BBR
    empties it again and again, cubic lets it overflow).
    """
    assert task.there.rate_mbps is not None
    packet_s = 1514 * 8e-6 / task.there.rate_mbps
    slow_s = 60 * packet_s
    warm_up_s = 0.3 + 14 * task.rtt_ms / 1e3 + min(slow_s, _LONGEST_FILL_S)
    window_s = max(5 * packet_s, min(3.0, max(0.5, slow_s, 160e-3 * task.there.jitter_ms)))
    loss = task.there.loss_percent / 100
    is_receiver_limited = task.there.rate_mbps <= _UDP_MBPS and any(
        _is_slowest(ingress_limit, task) for ingress_limit in ingress_limits
    )
    transport: Literal["tcp", "udp"] = "udp" if is_receiver_limited else transport_for(task)
    return FlowProbe(transport, task.there.rate_mbps, task.rtt_ms, warm_up_s, window_s, loss=loss)


def _is_slowest(ingress_limit: IngressLimit, task: Task) -> bool:
    src, dst = task.pair
    return (
        ingress_limit.host == dst
        and src in ingress_limit.senders
        and ingress_limit.rate_mbps == task.there.rate_mbps
    )


def _verify_loss(agent_pool: AgentPool, plan: LinkPlan, task: Task) -> FidelityCheck:
    probe = loss_probe(task, _REAL_TIME, 1)
    flow = FlowProbe("count", 0.0, task.rtt_ms, 0.0, 0.0, probe.count, probe.per_s)
    received = int(_measure_flow(agent_pool, plan, task.pair, flow))
    return loss_check(task, LossCount(probe.count, probe.count - received), REALTIME)


def _measure_flow(agent_pool: AgentPool, plan: LinkPlan, pair: Pair, probe: FlowProbe) -> float:
    src, dst = pair
    address = next(host.address for host in plan.hosts if host.name == dst)
    flow_arguments: dict[str, JsonValue] = {"probe": asdict(probe)}
    port = agent_pool.call(dst, "open_sink", flow_arguments)
    receiving = agent_pool.send_request(dst, "receive", {**flow_arguments, "port": port})
    sending = agent_pool.send_request(
        src, "send", {**flow_arguments, "port": port, "address": address}
    )
    agent_pool.wait_for_reply(sending, _MEASURE_TIMEOUT_S)
    return float(str(agent_pool.wait_for_reply(receiving, _MEASURE_TIMEOUT_S)))


def needs_netem(plan: LinkPlan, changes: Sequence[TimedChange]) -> bool:
    """Whether more than rates is asked for, at the start or by a later event."""
    later = {name for change in changes for name, _ in change.values}
    return bool(later & {"delay_ms", "jitter_ms", "loss_percent"}) or not all(
        constraint.only_rate for constraint in plan.pairs.values()
    )
