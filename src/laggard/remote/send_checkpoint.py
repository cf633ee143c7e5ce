"""Upload of the checkpoint from which a training goes on to the nodes of its workers."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from laggard.layers_services.environment.prepare import PreparedNode
from laggard.layers_services.ssh.send_files import send_files
from laggard.remote.agent.messages import RESUMED_FILE, AgentPlan

_MOST_SENDERS = 8


def send_checkpoint(
    checkpoint: Path, nodes: Mapping[str, PreparedNode], plans: Mapping[str, AgentPlan]
) -> None:
    """Send a checkpoint to every node that has a worker; the node deletes it with its run folder.

    Args:
        checkpoint: file on this machine.
        nodes: Python environment on each node, by host name.
        plans: plan of the agent of each node; the agents have made their folders.

    Raises:
        DeploymentError: three attempts failed for a node.
    """

    def send_to(name: str) -> None:
        node, folder = nodes[name], plans[name].folder
        access, python = node.machine.access, node.python
        send_files(name, access, python, folder, {RESUMED_FILE: checkpoint})

    with ThreadPoolExecutor(max_workers=_MOST_SENDERS) as pool:
        # The results are nothing, but asking for them raises what a thread has raised.
        list(pool.map(send_to, [name for name, plan in plans.items() if plan.workers]))
