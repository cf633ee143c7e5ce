"""A bottleneck that several senders and several receivers share on hosts of their own: its routes,
and a kernel that forwards and shapes."""

from __future__ import annotations

import json
import shutil

import pytest

from laggard.network_emulation.link_plan import LinkPlan, SharedLink
from laggard.network_emulation.links.netem.detours import (
    Detours,
    list_detoured_pairs,
    plan_detours,
)
from tests.network_emulation.netem_hosts import CLOUD, EDGE1, EDGE2, FOG, HOSTS, HOSTS6
from tests.users import Runner

FORTH = frozenset((src, dst) for src in (EDGE1, EDGE2) for dst in (CLOUD, FOG))
DEVICES = {host.name: "eth0" for host in HOSTS}


def shared(hosts: tuple = HOSTS) -> LinkPlan:  # type: ignore[type-arg]  # of hosts
    return LinkPlan(hosts, shared=(SharedLink("s", FORTH, 8.0),))


def test_packets_to_all_but_the_first_receiver_make_a_detour() -> None:
    assert list_detoured_pairs(shared()) == {(EDGE1, FOG): CLOUD, (EDGE2, FOG): CLOUD}
    assert plan_detours(shared(), DEVICES) == {
        CLOUD: Detours("eth0", {}, ("10.77.0.3", "10.77.0.4")),
        EDGE1: Detours("eth0", {"10.77.0.2": "10.77.0.1"}),
        EDGE2: Detours("eth0", {"10.77.0.2": "10.77.0.1"}),
    }


def test_what_is_set_is_restored() -> None:
    sender = Detours("eth0", {"10.77.0.2": "10.77.0.1", "fd77::2": "fd77::1"})
    assert sender.query() is None
    assert sender.commands() == (
        ("ip", "route", "replace", "10.77.0.2/32", "via", "10.77.0.1", "dev", "eth0"),
        ("ip", "-6", "route", "replace", "fd77::2/128", "via", "fd77::1", "dev", "eth0"),
    )
    assert sender.removals("") == (
        ("ip", "route", "del", "10.77.0.2/32"),
        ("ip", "-6", "route", "del", "fd77::2/128"),
    )
    router = Detours("eth0", {}, ("10.77.0.3", "fd77::3"))
    names = (
        "net.ipv4.ip_forward",
        "net.ipv4.conf.all.send_redirects",
        "net.ipv4.conf.eth0.send_redirects",
        "net.ipv6.conf.all.forwarding",
    )
    assert router.query() == ("sysctl", *names)
    assert router.commands() == (
        (
            "sysctl",
            "-q",
            "-w",
            *(f"{name}={value}" for name, value in zip(names, "1001", strict=True)),
        ),
    )
    shown = "".join(f"{name} = {value}\n" for name, value in zip(names, "0110", strict=True))
    assert router.removals(shown) == (
        (
            "sysctl",
            "-q",
            "-w",
            *(f"{name}={value}" for name, value in zip(names, "0110", strict=True)),
        ),
    )


def test_addresses_of_one_link_only_are_not_routed() -> None:
    detours = plan_detours(shared(HOSTS6), DEVICES)
    assert detours[EDGE1].routes == {"10.77.0.2": "10.77.0.1", "fd77::2": "fd77::1"}
    assert detours[CLOUD].forwarded == ("10.77.0.3", "fd77::3", "10.77.0.4", "fd77::4")


SCRIPT = """
    import json, pathlib, socket, sys, threading, time
    from laggard.core import linux
    from laggard.core.hosts import Host
    from laggard.layers_services.local import sandbox
    from laggard.network_emulation.link_plan import Constraint, LinkPlan, SharedLink
    from laggard.network_emulation.links.netem import NetemBackend
    from laggard.network_emulation.links.netem.execute import InNamespaces
    sys.path.insert(0, REPOSITORY)
    from tests.network_emulation.netem_hosts import CLOUD, EDGE1, EDGE2, FOG, HOSTS, enos

    RATE = 8.0

    def play():
        pathlib.Path("/run/netns").mkdir(exist_ok=True)
        execute = InNamespaces.named(host.name for host in HOSTS)
        run = lambda *words: execute(None, words)
        run("ip", "link", "add", "between", "type", "bridge")
        run("ip", "link", "set", "between", "up")
        for number, host in enumerate(HOSTS):
            run("ip", "netns", "add", host.name)
            run("ip", "link", "add", f"port{number}", "type", "veth", "peer", "name", "eth0", "netns", host.name)
            run("ip", "link", "set", f"port{number}", "master", "between", "up")
            execute(host.name, ("ip", "addr", "add", f"{host.address}/16", "dev", "eth0"))
            execute(host.name, ("ip", "link", "set", "eth0", "up"))
            execute(host.name, ("ip", "link", "set", "lo", "up"))
        pairs = {(CLOUD, FOG): Constraint(rate_mbps=40.0)}
        forth = frozenset((src, dst) for src in (EDGE1, EDGE2) for dst in (CLOUD, FOG))
        plan = LinkPlan(HOSTS, pairs, {}, (SharedLink("s", forth, RATE),))
        before = look(execute)
        undone = []
        backend = NetemBackend.start(plan, enos(HOSTS), None, None, execute, deployment="direct", plain=True,
                                     undo=lambda host, command: undone.append(command))
        answer = {"shared": flow_mbps([(EDGE1, CLOUD), (EDGE1, FOG), (EDGE2, CLOUD), (EDGE2, FOG)]),
                  "alone": flow_mbps([(EDGE2, FOG)]), "own": flow_mbps([(CLOUD, FOG)]),
                  "back": flow_mbps([(FOG, EDGE1)])}
        counted = backend.counters()
        answer["counted"] = {" ".join(pair): counted[pair].bytes for pair in sorted(forth)}
        backend.close()
        answer |= {"left": look(execute) == before, "undone": len(undone)}
        print(json.dumps(answer), flush=True)
        return 0

    def look(execute):
        # What a later run must find as it was.
        words = [("ip", "route", "show"), ("sysctl", "net.ipv4.ip_forward", "net.ipv4.conf.eth0.send_redirects"),
                 ("tc", "filter", "show", "dev", "eth0", "ingress"), ("ip", "-o", "link", "show", "type", "ifb")]
        return [execute(host.name, each) for host in HOSTS for each in words]

    def socket_in(name):
        # A socket stays in the namespace that its thread was in.
        made = []
        def make():
            linux.enter_namespace(pathlib.Path("/run/netns", name), linux.CLONE_NEWNET)
            made.append(socket.socket())
        thread = threading.Thread(target=make)
        thread.start()
        thread.join()
        return made[0]

    def flow_mbps(pairs, seconds=3.0):
        # What all these flows together receive, after a second in which the queues fill.
        addresses = {host.name: host.address for host in HOSTS}
        received, flows = [], []
        for src, dst in pairs:
            sink, source = socket_in(dst), socket_in(src)
            sink.bind((addresses[dst], 0))
            sink.listen(1)
            source.connect(sink.getsockname())
            flows.append((source, sink.accept()[0]))
        began_s = time.monotonic()

        def send(source):
            try:
                while time.monotonic() < began_s + 1.0 + seconds:
                    source.sendall(bytes(4000))
            except OSError:
                pass

        def receive(sink):
            while (now_s := time.monotonic()) < began_s + 1.0 + seconds:
                count = len(sink.recv(65536))
                if now_s > began_s + 1.0:
                    received.append(count)

        threads = [threading.Thread(target=each, args=(end,), daemon=True) for flow in flows for each, end in zip((send, receive), flow)]
        for thread in threads:
            thread.start()
        time.sleep(max(0.0, began_s + 1.0 + seconds - time.monotonic()))
        for flow in flows:
            for end in flow:
                end.shutdown(socket.SHUT_RDWR)
        return sum(received) * 8e-6 / seconds

    sys.exit(sandbox.run_in_sandbox(play))
"""


@pytest.mark.long
@pytest.mark.skipif(shutil.which("tc") is None, reason="needs iproute2")
def test_several_senders_and_receivers_share_a_rate(own_runner: Runner) -> None:
    """Together they have what one has alone. The host that forwards keeps its own rate."""
    from tests.remote.remote_scenario import REPOSITORY

    result = own_runner.run(SCRIPT.replace("REPOSITORY", repr(str(REPOSITORY))), timeout_s=240)
    assert result.returncode == 0, result.stdout + result.stderr
    seen = json.loads(result.stdout.splitlines()[-1])
    # TCP's payload is 1448 of the 1514 bytes that the queue counts.
    for key in ("shared", "alone"):
        assert 0.75 * 8 < seen[key] < 1.05 * 8 * 1448 / 1514, seen
    assert 0.75 * 40 < seen["own"] < 1.05 * 40 * 1448 / 1514, seen
    assert seen["back"] > 100, "nothing limits the other direction"
    assert all(count > 100_000 for count in seen["counted"].values()), seen
    assert seen["left"]
    assert seen["undone"] > 4
