"""Upload of the checkpoint or the weights that a training begins with to its nodes."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from laggard.layers_services.environment.prepare import PreparedNode
from laggard.layers_services.ssh.send_files import send_files
from laggard.remote.agent.messages import AgentPlan

_MOST_SENDERS = 8


def send_workload_files(
    files: Mapping[str, Path], nodes: Mapping[str, PreparedNode], plans: Mapping[str, AgentPlan]
) -> None:
    """Send files to every node that builds a model, which deletes them with its run folder.

    Args:
        files: files on this machine, by their names in the run's folder on a node.
        nodes: Python environment on each node, by host name.
        plans: plan of the agent of each node; the agents have made their folders.

    Raises:
        DeploymentError: three attempts failed for a node.
    """

    def send_to(name: str) -> None:
        node, folder = nodes[name], plans[name].folder
        send_files(name, node.machine.access, node.python, folder, files)

    training = [name for name, plan in plans.items() if plan.workers or plan.server]
    evaluating = [name for name, plan in plans.items() if plan.evaluator]
    with ThreadPoolExecutor(max_workers=_MOST_SENDERS) as pool:
        # The results are nothing, but asking for them raises what a thread has raised.
        list(pool.map(send_to, dict.fromkeys((*training, *evaluating))))
