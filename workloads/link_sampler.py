"""Streams the state of every connection between the workers' hosts, as the sending kernels see it:
the evidence for a link.

A process outside the hosts' shares; it holds one netlink socket per host's network namespace.
"""

from __future__ import annotations

import gc
import logging
import signal
import socket
import sys
import time
from pathlib import Path

from laggard.workloads.output.worker_output import WorkerOutputDir
from laggard.workloads.plan import LinkSamplerPlan
from laggard.workloads.tracing.stream import LINK_ROW, RowStream
from laggard.workloads.transport.inet_diag import list_connections, open_in_namespace

LOGGER = logging.getLogger(__name__)


def main(argument: str) -> None:
    """Sample until the training is done.

    Args:
        argument: a `LinkSamplerPlan` as JSON.

    Raises:
        PrerequisiteError: a kernel does not tell of its connections.
    """
    plan = LinkSamplerPlan.model_validate_json(argument)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    logging.basicConfig(
        level=logging.INFO,
        stream=sys.stderr,
        format="%(asctime)s %(levelname)s %(message)s",
        force=True,
    )
    gc.freeze()
    output_dir = WorkerOutputDir(Path(plan.output_dir))
    stream = RowStream(output_dir.links, LINK_ROW)
    sampler = LinkSampler(plan, stream)
    due_s = time.monotonic()
    while not output_dir.done.exists():
        sampler.sample()
        stream.flush_if_due(time.monotonic_ns())
        due_s = max(due_s + plan.interval_s, time.monotonic())
        time.sleep(max(0.0, due_s - time.monotonic()))
    stream.close()
    sampler.close()
    LOGGER.info("took %d samples of %d hosts", sampler.samples, len(plan.hosts))


class LinkSampler:
    """The open sockets of one training.

    Args:
        plan: which hosts.
        stream: gets a row per connection between them and sample; hosts are numbered as in the
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
        """Ask every host's kernel once; a row's fields follow those of `TcpConnection`."""
        numbers, append = self._numbers, self._stream.append
        self.samples += 1
        for diagnosis in self._sockets:
            now_ns = time.monotonic_ns()
            for c in list_connections(diagnosis):
                src, dst = numbers.get(c.src), numbers.get(c.dst)
                if src is not None and dst is not None:
                    append((now_ns, src, dst, *c[3:]))

    def close(self) -> None:
        """Close the sockets."""
        for diagnosis in self._sockets:
            diagnosis.close()
