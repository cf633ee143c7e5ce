from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from laggard.core.errors import DeploymentError
from laggard.core.hosts import Host
from laggard.layers_services.local.namespaces import create_namespaces, host_name_of

if TYPE_CHECKING:
    from tests.users import Runner

HEAD = """
    import json, os, socket, sys, time
    from pathlib import Path
    from laggard.core.hosts import Host
    from laggard.layers_services.local import (namespaces, sandbox); from laggard.core import (linux)

    def hosts(count):
        return [
            Host(f"edge.trainer.1.{n}", "edge", "trainer", 1, n, f"10.77.{n >> 8}.{n & 255}", ipv6=(f"fd77::{n:x}",))
            for n in range(1, count + 1)
        ]

    def inside(made, name, question):
        read, write = os.pipe()
        if os.fork() == 0:
            linux.enter_namespace(made.path(name), linux.CLONE_NEWNET)
            linux.enter_namespace(made.uts_path(name), linux.CLONE_NEWUTS)
            os.write(write, json.dumps(question()).encode())
            os._exit(0)
        os.close(write)
        os.wait()
        return json.loads(os.read(read, 65536))

    def devices():
        return sorted(name for _, name in socket.if_nameindex())
"""

BRIDGE = (
    HEAD
    + """
    def function():
        before = [os.readlink(f"/proc/self/ns/{kind}") for kind in ("net", "uts")]
        made = namespaces.create_namespaces(hosts(12), "bridge")
        facts = {"home": before == [os.readlink(f"/proc/self/ns/{kind}") for kind in ("net", "uts")]}
        facts["names"] = made.names
        facts["bound"] = sorted(path.name for path in Path("/run/netns").iterdir())
        facts["ports"] = [made.port(name) for name in made.names]
        facts["controller"] = devices()
        facts["host"] = inside(made, "edge.trainer.1.3", lambda: [socket.gethostname(), devices()])
        facts["resolved"] = socket.gethostbyname("edge.trainer.1.7")
        facts["neighbours"] = inside(made, "edge.trainer.1.3", lambda: Path("/proc/net/arp").read_text().split("\\n")[1:-1])
        facts["families"] = [str(found[4][0]) for found in socket.getaddrinfo("edge.trainer.1.7", 80, type=socket.SOCK_STREAM)]
        if os.fork() == 0:
            linux.enter_namespace(made.path("edge.trainer.1.9"), linux.CLONE_NEWNET)
            server = socket.create_server(("", 5000), family=socket.AF_INET6, dualstack_ipv6=True)
            Path("/run/listening").touch()
            for _ in range(2):
                peer, address = server.accept()
                peer.sendall(address[0].encode())
            os._exit(0)
        while not Path("/run/listening").exists():
            time.sleep(0.01)

        def greeting(host):
            return inside(made, "edge.trainer.1.2", lambda: socket.create_connection((host, 5000), 10).recv(100).decode())

        facts["greetings"] = [greeting("edge.trainer.1.9"), greeting("fd77::9")]

        def discovered():
            from pyroute2 import IPRoute
            with IPRoute() as route:
                found = route.get_neighbours(family=socket.AF_INET6)
                own = route.get_addr(family=socket.AF_INET6)
            return [
                sum(each["state"] == 0x80 and each.get_attr("NDA_DST").startswith("fd77::") for each in found),
                [each.get_attr("IFA_ADDRESS") for each in own],
            ]

        facts["ipv6"] = inside(made, "edge.trainer.1.3", discovered)
        print(json.dumps(facts), flush=True)
        return 0
    print(sandbox.run_in_sandbox(function))
"""
)


def test_hosts_on_a_bridge(runner: Runner) -> None:
    result = runner.run(BRIDGE)
    assert result.stdout, result.stderr
    facts = json.loads(result.stdout.splitlines()[0])
    assert facts["home"]
    assert len(facts["names"]) == 12
    assert sorted(facts["names"]) == facts["bound"]
    assert facts["controller"] == sorted(["lo", "continuum", *facts["ports"]])
    assert facts["host"] == ["edge.trainer.1.3", ["eth0", "lo"]]
    assert facts["resolved"] == "10.77.0.7"
    assert facts["families"] == ["10.77.0.7", "fd77::7"], "IPv4 first, as ever"
    assert facts["greetings"] == ["::ffff:10.77.0.2", "fd77::2"]
    assert facts["ipv6"] == [
        11,
        ["::1", "fd77::3"],
    ], "permanent neighbours, and no link-local address"
    permanent_and_complete = "0x6"
    assert len(facts["neighbours"]) == 11
    assert all(line.split()[2] == permanent_and_complete for line in facts["neighbours"])


def test_hosts_for_a_link_emulator_have_only_loopback(runner: Runner) -> None:
    result = runner.run(
        HEAD
        + """
    def function():
        made = namespaces.create_namespaces(hosts(3), "tun")
        print(json.dumps([inside(made, name, devices) for name in made.names]), flush=True)
        print(made.ports, flush=True)
        return 0
    sandbox.run_in_sandbox(function)
"""
    )
    assert result.stdout.splitlines() == ['[["lo"], ["lo"], ["lo"]]', "{}"], result.stderr


def test_a_hundred_hosts_on_a_bridge(own_runner: Runner) -> None:
    result = own_runner.run(
        HEAD
        + """
    def function():
        made = namespaces.create_namespaces(hosts(100), "bridge")
        known = inside(made, made.names[-1], lambda: Path("/proc/net/arp").read_text().count("0x6"))
        print(len(made.names), len(set(made.ports.values())), known, flush=True)
        return 0
    sandbox.run_in_sandbox(function)
""",
        timeout_s=480,
    )
    assert result.stdout == "100 100 99\n", result.stderr


def test_the_same_host_twice_is_refused(own_runner: Runner) -> None:
    result = own_runner.run(
        HEAD
        + """
    def function():
        namespaces.create_namespaces(hosts(1) * 2, "tun")
        return 0
    print(sandbox.run_in_sandbox(function))
"""
    )
    assert "DeploymentError" in result.stderr
    assert result.stdout == "1\n"


def test_outside_a_sandbox_it_is_refused() -> None:
    with pytest.raises(DeploymentError, match="only inside Laggard's sandbox"):
        create_namespaces([Host("edge.a.1.1", "edge", "a", 1, 1, "10.77.0.1")], "tun")


def test_long_names_become_short_and_stay_different() -> None:
    long = "edge." + "a" * 63 + ".1."
    assert host_name_of("edge.trainer.1.1") == "edge.trainer.1.1"
    shortened = {host_name_of(f"{long}{number}") for number in range(100)}
    assert len(shortened) == 100
    assert {len(name) for name in shortened} == {64}
