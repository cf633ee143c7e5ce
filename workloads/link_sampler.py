"""Process that samples every TCP connection between the workers' hosts, as evidence about links.

It reads the connections' state from the sending kernels. It runs outside the hosts' shares and
holds one netlink socket per network namespace.
"""

from __future__ import annotations

import gc
import logging
import socket
import time
from pathlib import Path

from laggard.core.process.inherited_state import reset_inherited_state
from laggard.workloads.output.worker_output import WorkerOutputDir
from laggard.workloads.plan import LinkSamplerPlan
from laggard.workloads.tracing.row_types import LINK_ROW
from laggard.workloads.tracing.stream import RowStream
from laggard.workloads.transport.inet_diag import list_connections, open_in_namespace

LOGGER = logging.getLogger(__name__)


def main(argument: str) -> None:
    """Sample the connections until the training is done.

    Args:
        argument: `LinkSamplerPlan` as JSON.

    Raises:
        PrerequisiteError: a kernel does not report its connections.
    """
    plan = LinkSamplerPlan.model_validate_json(argument)
    reset_inherited_state()
    # Objects that exist now stay, so exclude them from garbage collection, which costs time later.
    gc.freeze()
    output_dir = WorkerOutputDir(Path(plan.output_dir))
    stream = RowStream(output_dir.links, LINK_ROW)
    sampler = LinkSampler(plan, stream)
    due_s = time.monotonic()
    while not output_dir.done.exists():
        sampler.sample()
        stream.flush_if_due(time.monotonic_ns())
        # After a late sample, continue at the usual interval instead of catching up.
        due_s = max(due_s + plan.interval_s, time.monotonic())
        time.sleep(max(0.0, due_s - time.monotonic()))
    stream.close()
    sampler.close()
    LOGGER.info("took %d samples of %d hosts", sampler.samples, len(plan.hosts))


class LinkSampler:
    """Sampler of the connections of one training, with its open netlink sockets.

    Args:
        plan: hosts to sample.
        stream: stream that gets one row per sample and connection; hosts have the numbers of the
            plan.
    """

    def __init__(self, plan: LinkSamplerPlan, stream: RowStream) -> None:
        self.samples = 0
        self._stream = stream
        self._numbers = {
            socket.inet_aton(host.address): number for number, host in enumerate(plan.hosts)
        }
        namespaces = {host.namespace: None for host in plan.hosts}
        self._sockets = [
            open_in_namespace(Path(name) if name is not None else None) for name in namespaces
        ]

    def sample(self) -> None:
        """Query every kernel once and append the rows.

        The fields of a row follow those of `TcpConnection`.
        """
        numbers, append = self._numbers, self._stream.append
        self.samples += 1
        for diagnosis in self._sockets:
            now_ns = time.monotonic_ns()
            for c in list_connections(diagnosis):
                src, dst = numbers.get(c.src), numbers.get(c.dst)
                if src is not None and dst is not None:
                    append((now_ns, src, dst, *c[3:]))

    def close(self) -> None:
        """Close the netlink sockets."""
        for diagnosis in self._sockets:
            diagnosis.close()
