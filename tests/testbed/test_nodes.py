"""Stand-in nodes: real SSH into namespaces that share what a testbed's machines share, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.testbed.nodes import NodeSpec, lacking

if TYPE_CHECKING:
    from tests.users import Runner

pytestmark = pytest.mark.skipif(lacking() is not None, reason=str(lacking()))

LYON = ("gemini-1.lyon.grid5000.fr", "gemini-2.lyon.grid5000.fr")
LILLE = "chifflot-1.lille.grid5000.fr"
HEAD = f"""
    import json, os, socket, subprocess, sys, time
    from pathlib import Path
    sys.path.insert(0, {str(Path(__file__).resolve().parents[2])!r})
    from laggard.layers_services.local import sandbox
    from tests.testbed.nodes import Boot, NodeSpec, start_nodes, USER

    one, two, other = names = {[*LYON, LILLE]!r}
    here = Path.cwd() / "nodes"

    def specs(**offsets):
        sites = ["lyon", "lyon", "lille"]
        vlans = {{"4": "10.12.5.1/18"}}
        return [
            NodeSpec(name, f"172.30.0.{{n}}", site, offsets.get(site, 0.0), vlans=vlans if n == 1 else {{}})
            for n, (name, site) in enumerate(zip(names, sites), 1)
        ]

    def ssh(access, command, stdin=None):
        return subprocess.run(["ssh", *access.ssh_arguments(), command], input=stdin, capture_output=True, text=True)

    def on(nodes, name, command, user="root"):
        done = ssh(nodes.access(name, user), command)
        return done.stdout.strip() if done.returncode == 0 else f"{{done.returncode}}: {{done.stderr.strip()}}"

    def inside(function, **options):
        def entered():
            with start_nodes(specs(**options.pop("offsets", {{}})), here, **options) as nodes:
                print(json.dumps(function(nodes)), flush=True)
            return 0
        sys.exit(sandbox.call(entered))
"""


def _answer(result: object) -> dict[str, object]:
    output, errors = getattr(result, "stdout", ""), getattr(result, "stderr", "")
    assert output, errors
    answer = json.loads(output.splitlines()[-1])
    assert isinstance(answer, dict)
    return answer


def test_ssh_reaches_each_node_by_its_access(own_runner: Runner) -> None:
    answer = _answer(
        own_runner.run(
            HEAD
            + """
    def look(nodes):
        (here / "sent").write_text("sent by sftp")
        put = subprocess.run(
            ["sftp", "-b", "-", *nodes.access(one).sftp_arguments()],
            input=f"put {here}/sent /tmp/here\\n", capture_output=True, text=True,
        )
        on(nodes, one, f"echo shared > /home/{USER}/note; echo mine > /etc/mark; echo kept > /var/tmp/kept")
        return {
            "names": [on(nodes, name, "hostname") for name in names],
            "put": put.returncode,
            "tmp": [on(nodes, name, "ls /tmp") for name in names],
            "home": [on(nodes, name, f"cat /home/{USER}/note || true") for name in names],
            "etc": [on(nodes, name, "cat /etc/mark || true") for name in names] + [os.path.exists("/etc/mark")],
            "disk": (here / "disks" / one / "kept").read_text(),
            "processes": int(on(nodes, one, "ls -d /proc/[0-9]* | wc -l")),
            "devices": on(nodes, one, "ls /sys/class/net").split(),
            "python": on(nodes, one, "python3 -c 'import sys; print(sys.executable)'"),
            "repository": on(nodes, one, "ls %s 2>/dev/null || true" % sys.path[0]),
            "root": on(nodes, one, "ls -A /root"),
            "others": on(nodes, one, f"getent hosts {other}").split()[:2],
            "by_name": subprocess.run(["ssh", f"root@{other}", "hostname"], capture_output=True, text=True).stdout.strip(),
            "resolved": socket.gethostbyname("gemini-1-kavlan-4.lyon.grid5000.fr"),
        }
    inside(look)
""",
            timeout_s=60,
        )
    )
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


def test_the_user_becomes_root_by_sudo_g5k_only(own_runner: Runner) -> None:
    answer = _answer(
        own_runner.run(
            HEAD
            + """
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
    inside(look, boot=Boot(root_key=False))
""",
            timeout_s=60,
        )
    )
    assert answer.pop("who") == "jdoe"
    assert answer.pop("root") == "root"
    assert answer.pop("sudo") == "0\ntwo  words"
    assert "Permission denied" in str(answer["before"])
    assert "not yours" in str(answer["shut"])


def test_clocks_are_really_wrong(own_runner: Runner) -> None:
    answer = _answer(
        own_runner.run(
            HEAD
            + """
    def skew(nodes, name):
        before = time.monotonic()
        there = float(on(nodes, name, "python3 -c 'import time; print(time.monotonic())'"))
        return [there - time.monotonic(), there - before]
    inside(lambda nodes: {name: skew(nodes, name) for name in names}, offsets={"lyon": 1234.5, "lille": -0.25})
""",
            timeout_s=60,
        )
    )
    for name, truth in zip((*LYON, LILLE), (1234.5, 1234.5, -0.25), strict=True):
        bounds = answer[name]
        assert isinstance(bounds, list)
        low, high = bounds
        assert low <= truth <= high


def test_a_node_that_does_not_come_up_says_why(own_runner: Runner) -> None:
    answer = _answer(
        own_runner.run(
            HEAD
            + """
    def entered():
        try:
            start_nodes(specs(lille=-1e9), here)
        except RuntimeError as error:
            print(json.dumps({"said": str(error)}), flush=True)
        return 0
    sys.exit(sandbox.call(entered))
""",
            timeout_s=60,
        )
    )
    assert str(answer["said"]).startswith(f"{LILLE} does not answer SSH at 172.30.0.3:\n")
    assert "Numerical result out of range" in str(answer["said"])


def test_nodes_stop_answering_in_every_way(own_runner: Runner) -> None:
    answer = _answer(
        own_runner.run(
            HEAD
            + """
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
    inside(look)
""",
            timeout_s=60,
        )
    )
    assert answer == {
        "session": 255,
        "killed": "ConnectionRefusedError",
        "went on": True,
        "rebooted": "0",
        "unplugged": "TimeoutError",
        "crashed": "ConnectionRefusedError",
        "left": 0,
    }


def test_hosts_stand_on_nodes_in_order(own_runner: Runner) -> None:
    answer = _answer(
        own_runner.run(
            HEAD
            + """
    from laggard.hosts import Host
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
    inside(look)
""",
            timeout_s=60,
        )
    )
    assert answer == {
        "machines": [
            ["cloud.server.1.1", "172.30.0.1", "lyon", "gemini"],
            ["edge.trainer.1.1", "172.30.0.2", "lyon", "gemini"],
        ],
        "reached": list(LYON),
        "refusal": "4 hosts need as many nodes; there are 3",
    }


def test_a_node_goes_by_another_name_in_a_vlan() -> None:
    assert NodeSpec(LILLE, "172.16.38.1").vlan_name("12") == "chifflot-1-kavlan-12.lille.grid5000.fr"
