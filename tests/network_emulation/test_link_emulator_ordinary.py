"""The emulator as an ordinary user who may open the TUN device, in user namespaces."""

from __future__ import annotations

import json

from tests.users import Runner

SCRIPT = """
    import json
    from laggard.core.hosts import Host
    from laggard.layers_services.local import sandbox
    from laggard.layers_services.local.namespaces import create_namespaces
    from laggard.network_emulation.fidelity.verify_links import ORDINARY, verify_links
    from laggard.network_emulation.links.userspace import UserspaceBackend
    from laggard.network_emulation.link_plan import Constraint, LinkPlan
    from laggard.core.virtual_time import Dilation

    def controller():
        hosts = tuple(Host(f"edge.s.1.{i}", "edge", "s", 1, i, f"10.77.0.{i}") for i in (1, 2, 3))
        made = create_namespaces(hosts, "tun")
        namespaces = {host.name: made.path(host.name) for host in hosts}
        plan = LinkPlan(hosts, {(a.name, b.name): Constraint(10.0, rate_mbps=20.0) for a in hosts for b in hosts if a != b})
        backend = UserspaceBackend.start(plan, namespaces)
        checks = verify_links(plan, namespaces, Dilation(), ORDINARY)
        backend.close()
        settings = {tcp.congestion_control for tcp in backend.tcp.values()}
        print(json.dumps([backend.realtime, sorted(settings), [check.model_dump() for check in checks]]))
        return 0

    raise SystemExit(sandbox.run_in_sandbox(controller))
"""


def test_links_of_an_ordinary_user(nobody_with_tun: Runner) -> None:
    done = nobody_with_tun.run(SCRIPT, timeout_s=480)
    assert done.returncode == 0, done.stderr
    realtime, settings, checks = json.loads(done.stdout)
    assert not realtime
    assert len(settings) == 1
    assert settings[0] in {"cubic", "reno"}
    by_kind = {check["kind"]: check["measured"] for check in checks}
    # An empty packet's is taken from those of two sizes, each as late as the machine is busy.
    assert by_kind["rtt"] >= 15.0
    assert by_kind["rate"] > 0
