"""One run of an inference on the emulated continuum, from its start to its report."""

from __future__ import annotations

import json
import os
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from laggard.core.errors import WorkerError
from laggard.core.hosts import Host
from laggard.core.run_schema import RunRecord, StrategyRecord
from laggard.emulate.emulation import Application, run_experiment
from laggard.inference.plan_nodes import list_departures, place_nodes, plan_nodes
from laggard.layers_services.local.launch import ForkServer, ProcessSpec
from laggard.layers_services.local.namespaces import HostNamespaces
from laggard.run.run_context import RunContext
from laggard.run.runner import RunOptions
from laggard.scenario.load import Scenario
from laggard.workloads.inference.serving_plan import ServingPlan
from laggard.workloads.inference_workload import InferenceWorkload
from laggard.workloads.output.worker_output import write_whole
from laggard.workloads.plan import ENVIRONMENT, PRELOAD

_ENTRY = "laggard.inference.node_process:main"
_IMPORT_S, _READY_S = 180.0, 300.0
_POLL_S = 0.05
_START_NS = 200_000_000
"""Time between the start signal and time zero, so that every node sees it before."""


def run_inference(scenario: Scenario, options: RunOptions, for_s: float) -> tuple[RunRecord, Path]:
    """Answer the requests of a scenario on its verified continuum.

    Args:
        scenario: loaded scenario, whose `workload.yaml` is an inference.
        options: options of the run.
        for_s: virtual seconds between the last answer and the begin of `finalize`.

    Returns:
        The final record, and the run folder, with its report.

    Raises:
        PrerequisiteError: this machine lacks something; nothing was started.
        RunFolderError: the run folder cannot be created, or would be hidden in the sandbox.
    """
    workload = scenario.application
    assert isinstance(workload, InferenceWorkload)
    hosts = place_nodes(workload, scenario.hosts)
    return run_experiment(scenario, options, for_s, _InferenceApplication(workload, hosts))


@dataclass(frozen=True)
class _InferenceApplication(Application):
    """Inference as the application of an emulation.

    Attributes:
        workload: what it does.
        hosts: host of every node.
    """

    workload: InferenceWorkload
    hosts: tuple[Host, ...]

    @property
    def name(self) -> str:
        return "answer requests"

    def describe(self) -> StrategyRecord:
        workload = self.workload
        server = self.hosts[-1].layer if workload.placement.server is not None else None
        return StrategyRecord(
            name="inference",
            sync_mode="asynchronous",
            description=(
                f"inference with {', '.join(workload.models)}: order {workload.order}, split"
                f" {workload.split}"
            ),
            parameters={"order": workload.order, "split": workload.split},
            server_tier=server,
        )

    def run(self, context: RunContext, namespaces: HostNamespaces) -> None:
        # These variables keep imports from starting threads, so they come first.
        os.environ.update(ENVIRONMENT)
        context.output_dir.folder.mkdir()
        with ForkServer.start(
            (*PRELOAD, "laggard.inference.node_process"), log=context.logs / "imports.log"
        ) as server:
            server.wait_ready(_IMPORT_S)
            _Nodes(context, namespaces, server).run(list_departures(self.workload, self.hosts))

    def collect(self, context: RunContext) -> None:
        # Its imports start threads, and this process must have none when it enters the sandbox.
        from laggard.inference.collect_requests import collect_inference

        collect_inference(context, self.workload, self.hosts)


class _Nodes:
    """Processes of all nodes."""

    def __init__(self, context: RunContext, namespaces: HostNamespaces, server: ForkServer) -> None:
        self._context, self._namespaces, self._server = context, namespaces, server
        self._plans: dict[int, ServingPlan] = {}

    def run(self, departures: Sequence[tuple[float, str]]) -> None:
        """Start all nodes together, and wait until they have ended.

        Args:
            departures: virtual times at which nodes are killed, ascending, with their hosts.

        Raises:
            WorkerError: a node has failed, or did not become ready.
        """
        context = self._context
        output = context.output_dir.folder
        plans = plan_nodes(context.scenario, output, context.folder, context.dilation)
        for plan in plans:
            self._plans[self._server.spawn(self._describe(plan))] = plan
        self._wait_until_ready(plans)
        zero_ns = time.monotonic_ns() + _START_NS
        write_whole(context.output_dir.zero, json.dumps({"zero_ns": zero_ns}).encode())
        due = deque(departures)
        while self._plans:
            now_s = context.dilation.virtual_s((time.monotonic_ns() - zero_ns) / 1e9)
            while due and due[0][0] <= now_s:
                self._kill(due.popleft()[1])
            self._check()

    def _kill(self, host: str) -> None:
        """Kill the node of a host, whose end is no failure then."""
        for pid, plan in list(self._plans.items()):
            if plan.hosts[plan.node] == host:
                del self._plans[pid]
                self._server.kill(pid)

    def _wait_until_ready(self, plans: Sequence[ServingPlan]) -> None:
        ends_s = time.monotonic() + _READY_S * self._context.dilation.factor
        while not all(self._context.output_dir.ready(plan.node).exists() for plan in plans):
            self._check()
            if time.monotonic() > ends_s:
                late = [
                    plan.hosts[plan.node]
                    for plan in plans
                    if not self._context.output_dir.ready(plan.node).exists()
                ]
                raise WorkerError(f"not ready after {_READY_S:.0f} s", -1, ", ".join(late))

    def _check(self) -> None:
        """Take the processes that have ended; require that they have done their work."""
        for ended in self._server.exits(_POLL_S):
            plan = self._plans.pop(ended.pid, None)
            if plan is not None and ended.status:
                log = self._get_log(plan)
                raise WorkerError(
                    f"it ended with status {ended.status}; {log} says why",
                    plan.node,
                    plan.hosts[plan.node],
                )

    def _get_log(self, plan: ServingPlan) -> Path:
        return self._context.logs / f"node-{plan.node}.log"

    def _describe(self, plan: ServingPlan) -> ProcessSpec:
        host = plan.hosts[plan.node]
        cpu = self._context.cpu.cpus.get(host)
        return ProcessSpec(
            name=f"node-{plan.node}",
            host=host,
            entry=_ENTRY,
            argument=plan.to_json(),
            environment=dict(ENVIRONMENT),
            log=self._get_log(plan),
            network_namespace=self._namespaces.path(host),
            uts_namespace=self._namespaces.uts_path(host),
            cpus=None if cpu is None else frozenset({cpu}),
        )
