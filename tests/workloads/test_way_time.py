"""What the kernel says of how long bytes were on their way, against links of known rates and
receivers that dawdle."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest

from laggard.core.linux import inside_network
from laggard.network_emulation.forked import end_companion, fork_companion
from laggard.network_emulation.link_plan import Constraint, LinkPlan
from laggard.network_emulation.links.userspace import UserspaceBackend
from tests.network_emulation.emulated import Continuum, in_sandbox, needs_tun

MODEL_BYTES = 1_000_000
RATE_MBPS, DELAY_MS = 40.0, 5.0
ONE_WAY_S = MODEL_BYTES * 8 / (RATE_MBPS * 1e6)
STOPPED_S = 2.0


def send_models(continuum: Continuum) -> list[tuple[float, float]]:
    """For a receiver that is there, and one that is stopped for two seconds: how long until it had
    said that it had a model, and how long that was on its way."""
    import torch

    from laggard.workloads.transport.endpoint import Endpoint
    from laggard.workloads.transport.frames import Message
    from laggard.workloads.transport.keys import make_endpoints

    first, second = continuum.hosts[:2]
    links = dict.fromkeys(
        [(first.name, second.name), (second.name, first.name)],
        Constraint(DELAY_MS, rate_mbps=RATE_MBPS),
    )
    backend = UserspaceBackend.start(LinkPlan(continuum.hosts, links), continuum.namespaces)
    plans = make_endpoints((f"{first.address}:5000", f"{second.address}:5000"), timeout_s=60.0)

    def receive() -> int:
        with (
            inside_network(continuum.namespaces[second.name]),
            Endpoint(plans[1], listens=True) as endpoint,
        ):
            while True:
                endpoint.take(0.02)

    receiver = fork_companion("laggard-hears", receive)
    found = []
    with inside_network(continuum.namespaces[first.name]), Endpoint(plans[0]) as sender:
        sender.connect(1)
        sender.deliver(
            1, Message(2, 0, (), torch.zeros(MODEL_BYTES // 4))
        )  # meets it, and opens the windows
        for stopped in (False, True):
            since_s, since_ns = time.monotonic(), sender.under_way_ns(1)
            if stopped:
                os.kill(receiver, signal.SIGSTOP)
                threading.Timer(STOPPED_S, os.kill, (receiver, signal.SIGCONT)).start()
            sender.deliver(1, Message(2, 0, (), torch.zeros(MODEL_BYTES // 4)))
            found.append((time.monotonic() - since_s, (sender.under_way_ns(1) - since_ns) * 1e-9))
    end_companion(receiver)
    backend.close()
    return found


@pytest.mark.long
@needs_tun
def test_a_receiver_that_dawdles_makes_no_link_slow() -> None:
    (took_s, on_its_way_s), (with_a_stop_s, on_its_way_then_s) = in_sandbox(send_models)
    assert 0.95 * ONE_WAY_S < on_its_way_s < took_s, (
        "a queue that overflows makes it longer, and the link is why"
    )
    assert with_a_stop_s >= STOPPED_S
    assert on_its_way_then_s < with_a_stop_s - 0.3 * STOPPED_S, "once its windows were full"
