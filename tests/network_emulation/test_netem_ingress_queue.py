"""A host's own downlink: tc's text, as iproute2 6.1 printed it, and a kernel that shapes what one
namespace sends another."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace

import pytest

from laggard.core.errors import EmulationError
from laggard.network_emulation.links.netem.ingress_queue import (
    IngressQueue,
    IngressShaper,
    make_room,
    parse_received_counters,
    verify_ingress,
)
from tests.users import Runner

QUEUE = IngressQueue(
    "laggard-in0", 30.0, {"cloud": ("10.0.0.1", "2001:db8::1"), "fog": ("10.0.0.7",)}
)
INTAKE = IngressShaper("eth0", (QUEUE,), 28319)

SHOWN = """\
qdisc ingress ffff: dev eth0 parent ffff:fff1 ----------------
qdisc tbf 1: dev laggard-in0 root refcnt 2 rate 30Mbit burst 3746b lat 404ms
filter protocol ip pref 1 u32 chain 0
filter protocol ip pref 1 u32 chain 0 fh 800: ht divisor 1
filter protocol ip pref 1 u32 chain 0 fh 800::800 order 2048 key ht 800 bkt 0 *flowid 1:1 not_in_hw
  match 00110000/00ff0000 at 8
  match 00006e9f/0000ffff at 20
filter protocol ip pref 2 u32 chain 0 fh 801::800 order 2048 key ht 801 bkt 0 terminal flowid not_in_hw
  match 0a000001/ffffffff at 12
\taction order 1: mirred (Egress Redirect to device laggard-in0) stolen
\tindex 1 ref 1 bind 1 installed 4 sec used 0 sec firstused 0 sec
\tAction statistics:
\tSent 256 bytes 2 pkt (dropped 0, overlimits 0 requeues 0)
\tbacklog 0b 0p requeues 0

filter protocol ip pref 2 u32 chain 0 fh 801::801 order 2049 key ht 801 bkt 0 terminal flowid not_in_hw
  match 0a000007/ffffffff at 12
\taction order 1: mirred (Egress Redirect to device laggard-in0) stolen
\tindex 2 ref 1 bind 1 installed 4 sec used 4 sec
\tAction statistics:
\tSent 0 bytes 0 pkt (dropped 0, overlimits 0 requeues 0)
filter protocol ipv6 pref 3 u32 chain 0
filter protocol ipv6 pref 3 u32 chain 0 fh 802: ht divisor 1
filter protocol ipv6 pref 3 u32 chain 0 fh 802::800 order 2048 key ht 802 bkt 0 *flowid 1:1 not_in_hw
  match 00003a00/0000ff00 at 4
  match 87000000/ff000000 at 40
filter protocol ipv6 pref 3 u32 chain 0 fh 802::801 order 2049 key ht 802 bkt 0 terminal flowid not_in_hw
  match 20010db8/ffffffff at 8
  match 00000000/ffffffff at 12
  match 00000000/ffffffff at 16
  match 00000001/ffffffff at 20
\taction order 1: mirred (Egress Redirect to device laggard-in0) stolen
\tindex 3 ref 1 bind 1 installed 4 sec used 4 sec
\tAction statistics:
\tSent 1000 bytes 10 pkt (dropped 0, overlimits 0 requeues 0)
"""


def test_what_was_asked_for_is_read_back() -> None:
    verify_ingress("edge", INTAKE, SHOWN)
    both = (256 + 1000 + 12 * 14, 2 + 10)
    assert parse_received_counters(INTAKE, SHOWN) == {"cloud": both, "fog": (0, 0)}, (
        "with the Ethernet headers"
    )


@pytest.mark.parametrize(
    ("shown", "said"),
    [
        ("", "laggard-in0 has no queue"),
        (SHOWN.replace("30Mbit", "3Mbit"), "rate in Mbit/s is 3 instead of 30"),
        (SHOWN.replace("404ms", "4.04ms"), "a full queue takes 4.04 ms instead of 403.733"),
        (SHOWN.replace("0a000007", "0a000008"), "packets of fog do not pass laggard-in0"),
        (
            SHOWN.replace("to device laggard-in0", "to device eth1"),
            "packets of cloud, fog do not pass",
        ),
        (SHOWN.replace("20010db8", "20010db9"), "packets of cloud do not pass laggard-in0"),
    ],
)
def test_what_the_kernel_forgot_is_noticed(shown: str, said: str) -> None:
    with pytest.raises(
        EmulationError, match=rf"inbound traffic of edge: the kernel shows that {re.escape(said)}"
    ):
        verify_ingress("edge", INTAKE, shown)


def there(*links: tuple[str, int], kinds: tuple[str, ...] = ("mq",)) -> tuple[str, str]:
    shown = [{"ifname": name, "mtu": mtu} for name, mtu in links]
    return json.dumps(shown), json.dumps([{"kind": kind} for kind in kinds])


def test_what_a_killed_agent_left_makes_room() -> None:
    left = there(("eth0", 1500), ("laggard-in0", 1500), ("ifb0", 1500), kinds=("mq", "ingress"))
    assert make_room("edge", INTAKE, *left) == (
        ("tc", "qdisc", "del", "dev", "eth0", "ingress"),
        ("ip", "link", "del", "laggard-in0"),
    )
    assert make_room("edge", INTAKE, *there(("eth0", 1500))) == ()


@pytest.mark.parametrize("kind", ["ingress", "clsact"])
def test_what_others_do_to_incoming_packets_is_left_alone(kind: str) -> None:
    with pytest.raises(
        EmulationError, match="edge: another program already filters the inbound traffic of eth0"
    ):
        make_room("edge", INTAKE, *there(("eth0", 1500), kinds=("mq", kind)))


def test_packets_that_a_token_bucket_would_drop_are_refused() -> None:
    with pytest.raises(EmulationError, match="edge: eth0 has an MTU of 9000 bytes"):
        make_room("edge", INTAKE, *there(("eth0", 9000)))
    fast = replace(INTAKE, queues=(replace(QUEUE, rate_mbps=1000.0),))
    assert make_room("edge", fast, *there(("eth0", 9000))) == ()


SCRIPT = """
    import json, os, pathlib, socket, subprocess, sys, threading, time
    from laggard.layers_services.local import (sandbox); from laggard.core import (linux)
    from laggard.network_emulation.links.netem.execute import InNamespaces
    from laggard.network_emulation.links.netem.ingress_queue import IngressShaper, IngressQueue, make_room, parse_received_counters, verify_ingress

    ADDRESSES = {"controller": "10.0.0.1", "fast": "10.0.0.2", "slow": "10.0.0.3"}
    IPV6 = {"controller": "2001:db8::1", "fast": "2001:db8::2", "slow": "2001:db8::3"}

    def play():
        pathlib.Path("/run/netns").mkdir(exist_ok=True)
        execute = InNamespaces.named(ADDRESSES)
        run = lambda *words: execute(None, words)
        run("ip", "link", "add", "between", "type", "bridge")
        run("ip", "link", "set", "between", "up")
        for name, address in ADDRESSES.items():
            run("ip", "netns", "add", name)
            run("ip", "link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", name)
            run("ip", "link", "set", name, "master", "between", "up")
            execute(name, ("ip", "addr", "add", f"{address}/24", "dev", "eth0"))
            execute(name, ("ip", "addr", "add", f"{IPV6[name]}/64", "dev", "eth0", "nodad"))
            execute(name, ("ip", "link", "set", "eth0", "up"))
        intake = IngressShaper("eth0", (IngressQueue("laggard-in0", 1.0, {"fast": (ADDRESSES["fast"], IPV6["fast"])}),), 28319)

        def room():
            links = execute("slow", ("ip", "-j", "link", "show"))
            qdiscs = execute("slow", ("tc", "-j", "qdisc", "show", "dev", "eth0"))
            return make_room("slow", intake, links, qdiscs)

        def apply():
            for command in room():
                execute("slow", command)
            execute("slow", ("ip", "-batch", "-"), "\\n".join(intake.devices()) + "\\n")
            verify_ingress("slow", intake, execute("slow", ("tc", "-batch", "-"), "\\n".join(intake.batch()) + "\\n"))

        apply()
        apply()  # over what another left

        def queued():
            # Bytes that have passed through the queue, which nothing else tells.
            shown = json.loads(execute("slow", ("tc", "-s", "-j", "qdisc", "show", "dev", "laggard-in0")))
            return sum(each["bytes"] for each in shown if each["kind"] == "tbf")

        answer = {"through": [], "past": []}
        for size, addresses in ((100_000, ADDRESSES), (50_000, IPV6)):
            before, counted = queued(), parse_received_counters(intake, execute("slow", intake.count_command()))["fast"][0]
            seconds = took_s("fast", size, addresses=addresses)
            between = queued()
            came = parse_received_counters(intake, execute("slow", intake.count_command()))["fast"][0] - counted
            answer["through"].append([seconds, between - before, came])
            took_s("controller", size, addresses=addresses)
            answer["past"].append(queued() - between)
        before = queued()
        took_s("fast", 100_000, udp=True)
        answer["clock"] = queued() - before
        answer["came"] = parse_received_counters(intake, execute("slow", intake.count_command()))
        for command in intake.removals():
            execute("slow", command)
        answer["left"] = [execute("slow", ("ip", "link", "show")).count("laggard"), *map(list, room())]
        answer["ingress"] = execute("slow", ("tc", "qdisc", "show")).count("ingress")
        print(json.dumps(answer), flush=True)
        return 0

    def socket_in(name, kind, family):
        # A socket stays in the namespace that its thread was in.
        made = []
        def make():
            linux.enter_namespace(pathlib.Path("/run/netns", name), linux.CLONE_NEWNET)
            made.append(socket.socket(family, kind))
        thread = threading.Thread(target=make)
        thread.start()
        thread.join()
        return made[0]

    def took_s(sender, size, udp=False, addresses=ADDRESSES):
        kind = socket.SOCK_DGRAM if udp else socket.SOCK_STREAM
        family = socket.AF_INET6 if addresses is IPV6 else socket.AF_INET
        with socket_in("slow", kind, family) as sink, socket_in(sender, kind, family) as source:
            sink.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
            sink.settimeout(60.0)
            sink.bind((addresses["slow"], 28319 if udp else 0))
            if udp:
                source.connect(sink.getsockname())
                for _ in range(100):  # fewer than the sink can hold
                    source.send(bytes(1000))
                for _ in range(100):
                    sink.recv(2000)
                return 0.0
            sink.listen(1)
            source.connect(sink.getsockname())
            connection, _ = sink.accept()
            connection.settimeout(60.0)
            began, left = time.monotonic(), size
            threading.Thread(target=source.sendall, args=(bytes(size),), daemon=True).start()
            while left:
                left -= len(connection.recv(left))
            return time.monotonic() - began

    sys.exit(sandbox.run_in_sandbox(play))
"""


@pytest.mark.skipif(shutil.which("tc") is None, reason="needs iproute2")
def test_only_other_hosts_pass_through_a_downlink(own_runner: Runner) -> None:
    """A controller that reaches the host by the same device is not slowed, nor are clocks; nothing
    is left."""
    result = own_runner.run(SCRIPT, timeout_s=480)
    assert result.returncode == 0, result.stdout + result.stderr
    seen = json.loads(result.stdout.splitlines()[-1])
    for (size, payload), (seconds, queued, came) in zip(
        ((100_000, 1448), (50_000, 1428)), seen["through"], strict=True
    ):
        assert seconds > 0.95 * size / payload * 1514 * 8e-6
        assert queued > size
        assert came > size
    assert max(seen["past"]) < 2_000, "what the addresses' own discovery sends, at most"
    assert seen["clock"] < 2_000
    sent_bytes, packets = seen["came"]["fast"]
    assert sent_bytes > 100_000
    assert packets > 1
    assert (seen["left"], seen["ingress"]) == ([0], 0)
