"""Stand-in nodes: real SSH into namespaces that share what a testbed's machines share, and nothing
else."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.testbed.nodes import NodeSpec, lacking
from tests.testbed.scripts import Scripts

pytestmark = pytest.mark.skipif(lacking() is not None, reason=str(lacking()))

LYON = ("gemini-1.lyon.grid5000.fr", "gemini-2.lyon.grid5000.fr")
LILLE = "chifflot-1.lille.grid5000.fr"
HEAD = f"""
    import os, socket, subprocess, sys, time
    from pathlib import Path
    from tests.testbed.nodes import Boot, NodeSpec, start_nodes, USER
    from tests.testbed.scripts import REPOSITORY, in_sandbox

    one, two, other = names = {[*LYON, LILLE]!r}

    def nodes_here(offsets=(), **options):
        sites = ["lyon", "lyon", "lille"]
        vlans = {{"4": "10.12.5.1/18"}}
        specs = [
            NodeSpec(name, f"172.30.0.{{n}}", site, dict(offsets).get(site, 0.0), vlans=vlans if n == 1 else {{}})
            for n, (name, site) in enumerate(zip(names, sites), 1)
        ]
        return start_nodes(specs, Path.cwd() / "nodes", **options)

    def ssh(access, command, stdin=None):
        return subprocess.run(["ssh", *access.ssh_arguments(), command], input=stdin, capture_output=True, text=True)

    def on(nodes, name, command, user="root"):
        done = ssh(nodes.access(name, user), command)
        return done.stdout.strip() if done.returncode == 0 else f"{{done.returncode}}: {{done.stderr.strip()}}"

    def each(nodes, name, *commands):
        # One login for several commands.
        return [said.strip() for said in on(nodes, name, "; echo ==; ".join(commands) + "; true").split("==")]
"""


@pytest.fixture(scope="module")
def scripts() -> Iterator[Scripts]:
    with Scripts(HEAD) as scripts:
        yield scripts


def test_ssh_reaches_each_node_by_its_access(scripts: Scripts) -> None:
    answer = scripts.answer("""
    def look(nodes):
        here = Path.cwd() / "nodes"
        put = subprocess.run(
            ["ssh", *nodes.access(one).ssh_arguments(), "cat > /tmp/here"],
            input="sent", capture_output=True, text=True,
        )
        on(nodes, one, f"echo shared > /home/{USER}/note; echo mine > /etc/mark; echo kept > /var/tmp/kept")
        everywhere = ["hostname", "ls /tmp", f"cat /home/{USER}/note 2>/dev/null", "cat /etc/mark 2>/dev/null"]
        hosts, tmp, home, etc = zip(*(each(nodes, name, *everywhere) for name in names))
        processes, devices, python, repository, root, others = each(
            nodes, one, "ls -d /proc/[0-9]* | wc -l", "ls /sys/class/net", "python3 -c 'import sys; print(sys.executable)'",
            f"ls {REPOSITORY} 2>/dev/null", "ls -A /root", f"getent hosts {other}",
        )
        return {
            "names": hosts, "put": put.returncode, "tmp": tmp, "home": home, "etc": [*etc, os.path.exists("/etc/mark")],
            "disk": (here / "disks" / one / "kept").read_text(),
            "processes": int(processes), "devices": devices.split(), "python": python, "repository": repository, "root": root,
            "others": others.split()[:2],
            "by_name": subprocess.run(["ssh", f"root@{other}", "hostname"], capture_output=True, text=True).stdout.strip(),
            "resolved": socket.gethostbyname("gemini-1-kavlan-4.lyon.grid5000.fr"),
        }
    in_sandbox(nodes_here, look)
""")
    processes = answer.pop("processes")
    assert isinstance(processes, int)
    assert processes < 15
    assert answer == {
        "names": [*LYON, LILLE],
        "put": 0,
        "tmp": ["here", "", ""],
        "home": ["shared", "shared", ""],
        "etc": ["mine", "", "", False],
        "disk": "kept\n",
        "devices": ["eth0", "lo"],
        "python": "/usr/bin/python3",
        "repository": "",
        "root": ".ssh",
        "others": ["172.30.0.3", LILLE],
        "by_name": LILLE,
        "resolved": "10.12.5.1",
    }


def test_the_user_becomes_root_by_sudo_g5k_only(scripts: Scripts) -> None:
    answer = scripts.answer("""
    def look(nodes):
        before = on(nodes, one, "true")
        who = on(nodes, one, "id -un", USER)
        # What EnOSlib sends to be let in as root.
        grant = "cat ~/.ssh/id_rsa.pub ~/.ssh/authorized_keys|sudo-g5k tee -a /root/.ssh/authorized_keys"
        on(nodes, one, grant, USER)
        nodes.reboot([two], Boot(root_key=False, users=False))
        return {
            "before": before, "who": who, "root": on(nodes, one, "id -un"),
            "sudo": on(nodes, one, "sudo-g5k sh -c 'id -u; echo \\"$1\\"' sh 'two  words'", USER),
            "shut": on(nodes, two, "true", USER),
        }
    in_sandbox(lambda: nodes_here(boot=Boot(root_key=False)), look)
""")
    assert answer.pop("who") == "jdoe"
    assert answer.pop("root") == "root"
    assert answer.pop("sudo") == "0\ntwo  words"
    assert "Permission denied" in str(answer["before"])
    assert "not yours" in str(answer["shut"])


def test_clocks_are_really_wrong(scripts: Scripts) -> None:
    answer = scripts.answer("""
    def skew(nodes, name):
        before = time.monotonic()
        there = float(on(nodes, name, "python3 -c 'import time; print(time.monotonic())'"))
        return [there - time.monotonic(), there - before]
    wrong = {"lyon": 1234.5, "lille": -0.25}
    in_sandbox(lambda: nodes_here(wrong), lambda nodes: {name: skew(nodes, name) for name in names})
""")
    for name, truth in zip((*LYON, LILLE), (1234.5, 1234.5, -0.25), strict=True):
        bounds = answer[name]
        assert isinstance(bounds, list)
        low, high = bounds
        assert low <= truth <= high


def test_a_node_that_does_not_come_up_says_why(scripts: Scripts) -> None:
    answer = scripts.answer("""
    from contextlib import nullcontext

    def refusal(_nothing):
        try:
            nodes_here({"lille": -1e9})
        except RuntimeError as error:
            return {"said": str(error)}
    in_sandbox(nullcontext, refusal)
""")
    assert str(answer["said"]).startswith(f"{LILLE} does not answer SSH at 172.30.0.3:\n")
    assert "Numerical result out of range" in str(answer["said"])


def test_a_node_comes_up_anew_with_what_is_in_its_image_alone(scripts: Scripts) -> None:
    answer = scripts.answer("""
    environment = Path.cwd() / "0123abc"
    environment.mkdir()
    (environment / "file").touch()
    def look(nodes):
        on(nodes, one, "cd /var/tmp; mkdir -p laggard-root/runs mine; touch laggard-root/runs/data mine/data; ln -s / link")
        refused = on(nodes, one, "touch /var/tmp/laggard-root/0123abc/new 2>&1 || true")
        nodes.reboot([one], Boot())
        return [on(nodes, one, "cd /var/tmp; find . | sort"), refused]
    in_sandbox(lambda: nodes_here(environment=environment), look)
""")
    there, refused = answer
    assert there.split() == [
        ".",
        "./laggard-root",
        "./laggard-root/0123abc",
        "./laggard-root/0123abc/file",
    ]
    assert "Read-only" in refused


def test_nodes_stop_answering_in_every_way(scripts: Scripts) -> None:
    answer = scripts.answer("""
    def connect(nodes, name):
        try:
            socket.create_connection((nodes.node(name).spec.address, 22), timeout=0.5).close()
        except OSError as error:
            return type(error).__name__
        return "connected"

    def look(nodes):
        on(nodes, one, "touch /var/tmp/kept; nohup sleep 1000 > /dev/null 2>&1 < /dev/null &")
        session = subprocess.Popen(["ssh", *nodes.access(one).ssh_arguments(), "sleep 1000"], stderr=subprocess.DEVNULL)
        while "sleep 1000" not in (running := on(nodes, one, "ps -eo args")) or running.count("sleep 1000") < 2:
            pass
        first = nodes.node(one).pid
        nodes.kill_ssh(one)
        seen = {"session": session.wait(timeout=10), "killed": connect(nodes, one)}
        children = Path(f"/proc/{first}").exists()
        nodes.reboot([one], Boot())
        seen |= {"went on": children, "rebooted": on(nodes, one, "ls /var/tmp; ps -eo args | grep -c [s]leep.1000 || true")}
        nodes.unplug(two)
        seen["unplugged"] = connect(nodes, two)
        nodes.plug(two)
        while connect(nodes, two) != "connected":
            pass
        on(nodes, other, "nohup sleep 4321 > /dev/null 2>&1 < /dev/null &")
        nodes.crash(other)
        seen["crashed"] = connect(nodes, other)
        seen["left"] = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True).stdout.count("sleep 4321")
        return seen
    in_sandbox(nodes_here, look)
""")
    assert answer == {
        "session": 255,
        "killed": "ConnectionRefusedError",
        "went on": True,
        "rebooted": "0",
        "unplugged": "TimeoutError",
        "crashed": "ConnectionRefusedError",
        "left": 0,
    }


def test_hosts_stand_on_nodes_in_order(scripts: Scripts) -> None:
    answer = scripts.answer("""
    from laggard.core.hosts import Host
    from tests.testbed.nodes import machines
    hosts = [Host("cloud.server.1.1", "cloud", "server", 1, 1), Host("edge.trainer.1.1", "edge", "trainer", 1, 1)]

    def look(nodes):
        made = machines(hosts, nodes)
        try:
            machines(hosts * 2, nodes)
        except ValueError as error:
            refusal = str(error)
        return {
            "machines": [[each.alias, each.host.address, each.site, each.cluster] for each in made],
            "reached": [ssh(each.access, "hostname").stdout.strip() for each in made],
            "refusal": refusal,
        }
    in_sandbox(nodes_here, look)
""")
    assert answer == {
        "machines": [
            ["cloud.server.1.1", "172.30.0.1", "lyon", "gemini"],
            ["edge.trainer.1.1", "172.30.0.2", "lyon", "gemini"],
        ],
        "reached": list(LYON),
        "refusal": "4 hosts need as many nodes; there are 3",
    }


def test_a_node_goes_by_another_name_in_a_vlan() -> None:
    assert (
        NodeSpec(LILLE, "172.16.38.1").vlan_name("12") == "chifflot-1-kavlan-12.lille.grid5000.fr"
    )
