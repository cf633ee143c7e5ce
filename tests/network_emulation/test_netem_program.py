"""A plan as tc commands: EnOSlib's own NetemHTB is the oracle for plain constraints; the rest is checked against tc(8)."""

from __future__ import annotations

import ipaddress
import json
import os
import random
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from enoslib import NetemHTB
from enoslib.objects import DefaultNetwork, IPAddress, NetDevice
from enoslib.objects import Host as EnosHost
from hypothesis import given, settings
from hypothesis import strategies as st

from laggard.errors import EmulationError
from laggard.hosts import Host
from laggard.network_emulation.jitter import Distribution
from laggard.network_emulation.links import AccessLink, Constraint, LinkPlan, Pair, SharedLink
from laggard.network_emulation.netem.backend import NetemBackend
from laggard.network_emulation.netem.execute import InNamespaces
from laggard.network_emulation.netem.htb import delay_text, limit_packets, loss_text, rate_text
from laggard.network_emulation.netem.program import LinkProgram, compile_links

HOSTS = tuple(
    Host(f"{layer}.trainer.1.{i}", layer, "trainer", 1, i, f"10.77.0.{n}")
    for n, (layer, i) in enumerate([("cloud", 1), ("fog", 1), ("edge", 1), ("edge", 2)], 1)
)
CLOUD, FOG, EDGE1, EDGE2 = (host.name for host in HOSTS)
PORTS = {host.name: f"port{i}" for i, host in enumerate(HOSTS)}


def enos(hosts: Sequence[Host]) -> dict[str, list[EnosHost]]:
    network = DefaultNetwork("10.77.0.0/16")
    return {
        host.name: [
            EnosHost(f"ns-{host.name}", net_devices={NetDevice("eth0", {IPAddress(f"{host.address}/16", network)})})
        ]
        for host in hosts
    }


def program(
    pairs: Mapping[Pair, Constraint],
    access: Mapping[str, AccessLink] | None = None,
    shared: tuple[SharedLink, ...] = (),
    base_delays_ms: Mapping[Pair, float] | None = None,
    *,
    plain: bool = False,
    unshaped_port: int = 0,
) -> LinkProgram:
    plan = LinkPlan(HOSTS, pairs, access or {}, shared)
    return compile_links(plan, enos(HOSTS), None, PORTS, base_delays_ms, plain=plain, unshaped_port=unshaped_port)


def slices(commands: Sequence[str]) -> dict[str, list[str]]:
    """Each destination's class, netem and filter, with the ids replaced by their role."""
    found: dict[str, list[str]] = {}
    for triple in zip(*[iter(commands)] * 3, strict=True):
        target = re.search(r"match ip dst (\S+)", triple[2])
        assert target
        found[target[1]] = [
            re.sub(r"handle \d+:", "handle ID:", re.sub(r"\b(classid|flowid|parent) 1:\d+", r"\1 1:ID", command))
            for command in triple
        ]
    return found


CONSTRAINTS = st.builds(
    Constraint,
    delay_ms=st.floats(0, 5_000).map(lambda n: round(n, 3)),
    rate_mbps=st.floats(0.01, 10_000).map(lambda n: round(n, 3)),
    loss_percent=st.one_of(st.just(0.0), st.floats(0.001, 100).map(lambda n: round(n, 3))),
)
PAIRS = st.sampled_from([(a.name, b.name) for a in HOSTS for b in HOSTS if a is not b])


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(PAIRS, CONSTRAINTS, min_size=1))
def test_plain_constraints_are_enoslibs_with_options_added(pairs: dict[Pair, Constraint]) -> None:
    """EnOSlib's command is a prefix of ours: class, netem, filter, with the same arguments."""
    roles = enos(HOSTS)
    oracle = NetemHTB()
    for (src, dst), c in pairs.items():
        text = delay_text(c.delay_ms), rate_text(c.rate_mbps), loss_text(c.loss_percent)
        oracle.add_constraints(roles[src], roles[dst], text[0], text[1], loss=text[2])
    ours = program(pairs)
    assert {h.address.removeprefix("ns-") for h in oracle.sources} == set(ours.sources)
    for host, source in oracle.sources.items():
        expected = slices(source.commands())
        mine = ours.sources[host.address.removeprefix("ns-")]
        found = slices(mine.commands())
        assert set(found) == set(expected)
        for target, commands in expected.items():
            for theirs, our in zip(commands, found[target], strict=True):
                assert our.startswith(theirs)
                assert re.fullmatch(r"( burst \d+ cburst \d+| limit \d+)?", our.removeprefix(theirs))


def test_ids_depend_on_the_destination_alone() -> None:
    """The same plan in any order, under any PYTHONHASHSEED, gives the same batch."""
    pairs = {(a.name, b.name): Constraint(10, 0, 10) for a in HOSTS for b in HOSTS if a is not b}
    shuffled = list(pairs.items())
    random.Random(1).shuffle(shuffled)
    one, other = program(pairs), program(dict(shuffled))
    assert {h: s.batch() for h, s in one.sources.items()} == {h: s.batch() for h, s in other.sources.items()}
    fewer = program({(EDGE1, EDGE2): Constraint(10, 0, 10)})
    assert "classid 1:14 " in "\n".join(fewer.sources[EDGE1].batch())
    assert "classid 1:14 " in "\n".join(one.sources[EDGE1].batch())


def test_batches_do_not_depend_on_the_hash_seed() -> None:
    script = (
        "import importlib.util as u, sys; s = u.spec_from_file_location('m', sys.argv[1]); m = u.module_from_spec(s); "
        "s.loader.exec_module(m); p = {(a.name, b.name): m.Constraint(i, 0, 9) for i, a in enumerate(m.HOSTS) "
        "for b in m.HOSTS if a is not b}; print([s.batch() for s in m.program(p).sources.values()])"
    )
    outputs = {
        subprocess.run(
            (sys.executable, "-c", script, __file__),
            env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True,
        ).stdout
        for seed in ("1", "2")
    }  # fmt: skip
    assert len(outputs) == 1


def test_the_queue_holds_bandwidth_times_delay_beside_its_backlog() -> None:
    """100 Mbit/s for 100 ms is 1.25 MB in flight: 826 packets of 1514 bytes."""
    assert limit_packets(Constraint(100, 0, 100)) == 1000 + 826
    assert limit_packets(Constraint(0, 0, 1)) == 1000


def test_jitter_keeps_packets_in_order() -> None:
    (_, netem, _) = program({(EDGE1, FOG): Constraint(10, 2, 10)}).sources[EDGE1].commands()
    assert "netem delay 10ms 2ms limit " in netem
    assert netem.endswith("rate 1000gbit")


@pytest.mark.parametrize("distribution", ["normal", "pareto"])
def test_a_distribution_is_tcs_table(distribution: Distribution) -> None:
    asked = {
        (EDGE1, FOG): Constraint(10, 2, 10, 1, distribution),
        (EDGE1, CLOUD): Constraint(3, 2, 10, 0, distribution),
    }
    to_cloud, _, _, to_fog = program(asked, base_delays_ms={(EDGE1, CLOUD): 3.0}).sources[EDGE1].commands()[1:5]
    assert f"netem delay 10ms 2ms distribution {distribution} loss 1% limit " in to_fog
    assert f"netem delay 0.001ms 2ms distribution {distribution} limit " in to_cloud, "tc takes none without a delay"
    (_, steady, _) = program({(EDGE1, FOG): Constraint(10, 0, 10, 0, distribution)}).sources[EDGE1].commands()
    assert "distribution" not in steady
    most = limit_packets(Constraint(100, 20, 100, 0, distribution))
    assert most == limit_packets(Constraint(180, 0, 100)), "a table reaches four jitters up"


def test_losses_in_bursts_are_netems_gilbert_model() -> None:
    bursty = Constraint(10, 0, 10, 1, burst_packets=5)
    (_, netem, _) = program({(EDGE1, FOG): bursty}).sources[EDGE1].commands()
    assert "netem delay 10ms loss gemodel 0.20202% 20% limit " in netem
    (_, outage, _) = program({(EDGE1, FOG): replace(bursty, loss_percent=100)}).sources[EDGE1].commands()
    assert "loss 100% limit " in outage


def test_a_burst_that_the_kernel_forgot_is_noticed() -> None:
    class Forgetful(Recorder):
        def __call__(self, host: str | None, command: Sequence[str], text: str = "") -> str:
            shown = super().__call__(host, command, text)
            return re.sub(r"gemodel (\S+) (\S+)", r"gemodel p 0.40404% r 40% 1-h 100% 1-k 0%", shown)

    with pytest.raises(EmulationError, match=r"mean burst of losses is 2\.5 instead of 5"):
        start({(EDGE1, FOG): Constraint(10, 0, 10, 1, burst_packets=5)}, Forgetful())


@pytest.mark.parametrize("change", [False, True])
def test_a_node_without_tcs_tables_is_told_what_to_do(change: bool) -> None:
    class Lacking(Recorder):
        def __call__(self, host: str | None, command: Sequence[str], text: str = "") -> str:
            if "distribution normal" in text:
                missing = "No distribution data for normal (/usr/lib/tc/normal.dist: No such file or directory)"
                raise EmulationError(f"{host}: tc -batch - failed: {missing}")
            return super().__call__(host, command, text)

    varied = Constraint(10, 2, 10, 0, "normal")
    backend = start({(EDGE1, FOG): replace(varied, jitter_ms=0.0)}, Lacking())
    with pytest.raises(EmulationError, match=r"edge\.trainer\.1\.1: .*install the whole of iproute2"):
        backend.change({(EDGE1, FOG): varied}) if change else start({(EDGE1, FOG): varied}, Lacking())


def test_an_uplink_is_the_parent_of_the_hosts_links() -> None:
    pairs = {(EDGE1, FOG): Constraint(10, 0, 100), (EDGE1, CLOUD): Constraint(20, 0, 5)}
    batch = program(pairs, {EDGE1: AccessLink(EDGE1, 30.0, None)}).sources[EDGE1].batch()
    classes = [line for line in batch if line.startswith("class add")]
    assert [" ".join(line.split()[4:13]) for line in classes] == [
        "parent 1: classid 1:1 htb rate 30000kbit burst 3750",
        "parent 1:1 classid 1:2 htb rate 10000kbit ceil 30000kbit",
        "parent 1:1 classid 1:11 htb rate 5000kbit ceil 5000kbit",
        "parent 1:1 classid 1:12 htb rate 10000kbit ceil 30000kbit",
    ]
    assert batch[1].endswith("htb default 2")


def test_guaranteed_rates_never_exceed_the_uplink() -> None:
    """HTB lets a class use its own rate whatever its parent's, so the sum must fit."""
    pairs = {(EDGE1, h.name): Constraint(1, 0, 50) for h in HOSTS if h.name != EDGE1}
    batch = program(pairs, {EDGE1: AccessLink(EDGE1, 20.0, None)}).sources[EDGE1].batch()
    rates = [re.search(r"parent 1:1 .*rate (\d+)kbit", line) for line in batch]
    assert sum(int(found[1]) for found in rates if found) <= 20_000


def test_downlinks_and_shared_links_are_on_the_fabric() -> None:
    shared = SharedLink("s", frozenset({(CLOUD, EDGE1), (CLOUD, EDGE2), (FOG, EDGE1)}), 5.0)
    made = program({}, {FOG: AccessLink(FOG, None, 50.0)}, (shared,))
    assert made.sources == {}
    assert made.fabric_devices == ("link add shared0 type ifb", "link set shared0 txqueuelen 1000 up")
    assert made.fabric_queues == (
        "qdisc replace dev port1 root handle 1: netem rate 50000kbit limit 1000",
        "qdisc replace dev shared0 root handle 1: netem rate 5000kbit limit 1000",
        "qdisc add dev port0 ingress",
        "filter add dev port0 parent ffff: protocol ip u32 match ip dst 10.77.0.3 action mirred egress redirect dev shared0",
        "filter add dev port0 parent ffff: protocol ip u32 match ip dst 10.77.0.4 action mirred egress redirect dev shared0",
        "qdisc add dev port1 ingress",
        "filter add dev port1 parent ffff: protocol ip u32 match ip dst 10.77.0.3 action mirred egress redirect dev shared0",
    )


HOSTS6 = tuple(replace(host, ipv6=(f"fd77::{n}", f"fe80::{n}")) for n, host in enumerate(HOSTS, 1))


def both_families(plan: LinkPlan, ports: Mapping[str, str] | None = PORTS, unshaped_port: int = 0) -> LinkProgram:
    """Of hosts with two IPv6 addresses each."""
    return compile_links(replace(plan, hosts=HOSTS6), enos(HOSTS), None, ports, unshaped_port=unshaped_port)


def of_ipv6(lines: Iterable[str]) -> list[str]:
    return [line for line in lines if " protocol ipv6 " in line]


@settings(max_examples=40, deadline=None)
@given(st.dictionaries(PAIRS, CONSTRAINTS, min_size=1), st.sampled_from([0, 7]))
def test_ipv6_packets_go_through_the_class_of_the_pair(pairs: dict[Pair, Constraint], unshaped_port: int) -> None:
    """Nothing else differs, and the class of each IPv6 address is that of its host's IPv4 address."""
    plan = LinkPlan(HOSTS, pairs, {FOG: AccessLink(FOG, 30.0)})
    four = compile_links(plan, enos(HOSTS), None, PORTS, unshaped_port=unshaped_port)
    six = both_families(plan, unshaped_port=unshaped_port)
    numbers = {address: six.numbers[host.name] for host in HOSTS6 for address in (host.address, *host.ipv6)}
    for name, source in six.sources.items():
        batch = source.batch()
        added = of_ipv6(batch)
        assert tuple(line for line in batch if line not in added) == four.sources[name].batch()
        receivers = sorted(dst for src, dst in pairs if src == name)
        steered = [re.search(r"match ip6? dst (\S+) flowid 1:(\d+)$", line) for line in batch]
        found = {match[1]: int(match[2]) for match in steered if match}
        assert found == {a: n for a, n in numbers.items() if n in {six.numbers[dst] for dst in receivers}}
        assert {line.split()[9] for line in added} <= {"2"}, "a priority holds one protocol"


def test_neighbours_find_each_other_past_the_shaping() -> None:
    made = both_families(LinkPlan(HOSTS, {(EDGE1, FOG): Constraint(10, 0, 10)}), unshaped_port=7)
    assert of_ipv6(made.sources[EDGE1].batch()) == [
        "filter add dev eth0 parent 1: protocol ipv6 prio 2 u32 match ip6 protocol 58 0xff match u8 135 0xff at 40 flowid 1:0",
        "filter add dev eth0 parent 1: protocol ipv6 prio 2 u32 match ip6 protocol 58 0xff match u8 136 0xff at 40 flowid 1:0",
        "filter add dev eth0 parent 1: protocol ipv6 prio 2 u32 match ip6 dst fd77::2 flowid 1:12",
        "filter add dev eth0 parent 1: protocol ipv6 prio 2 u32 match ip6 dst fe80::2 flowid 1:12",
    ]


def test_ipv6_passes_the_same_shared_links_and_downlinks() -> None:
    shared = SharedLink("s", frozenset({(CLOUD, EDGE1), (CLOUD, EDGE2)}), 5.0)
    made = both_families(LinkPlan(HOSTS, {}, shared=(shared,)))
    head, to_ifb = (
        "filter add dev port0 parent ffff: protocol ipv6 prio 2 u32 match ip6 dst",
        "action mirred egress redirect dev shared0",
    )
    addresses = ("fd77::3", "fe80::3", "fd77::4", "fe80::4")
    assert of_ipv6(made.fabric_queues) == [f"{head} {address} {to_ifb}" for address in addresses]
    own = both_families(LinkPlan(HOSTS, {}, {FOG: AccessLink(FOG, None, 50.0)}), None, 7)
    head, to_ifb = (
        "filter add dev eth0 parent ffff: protocol ipv6 prio 3 u32 match",
        "action mirred egress redirect dev laggard-in0",
    )
    assert of_ipv6(own.intakes[FOG].batch()) == [
        *(f"{head} ip6 protocol 58 0xff match u8 {kind} 0xff at 40 flowid 1:1" for kind in (135, 136)),
        *(f"{head} ip6 src {start}::{n} {to_ifb}" for n in (1, 3, 4) for start in ("fd77", "fe80")),
    ]


def test_an_ipv6_filter_that_the_kernel_forgot_is_noticed() -> None:
    class Forgetful(Recorder):
        def __call__(self, host: str | None, command: Sequence[str], text: str = "") -> str:
            return super().__call__(host, command, text.replace("dst fe80::2", "dst fe80::9"))

    pairs = {(EDGE1, FOG): Constraint(10, 0, 10)}
    start(pairs, Recorder(), HOSTS6)
    with pytest.raises(EmulationError, match=r"to 10\.77\.0\.2: filter for 10\.77\.0\.2, fd77::2, fe80::9"):
        start(pairs, Forgetful(), HOSTS6)


def on_hosts(
    pairs: Mapping[Pair, Constraint],
    access: Mapping[str, AccessLink] | None = None,
    shared: tuple[SharedLink, ...] = (),
    unshaped_port: int = 0,
) -> LinkProgram:
    """As between real machines: no fabric to shape."""
    return compile_links(
        LinkPlan(HOSTS, pairs, access or {}, shared), enos(HOSTS), None, None, unshaped_port=unshaped_port
    )


def test_a_downlink_without_a_fabric_is_on_the_host() -> None:
    made = on_hosts({}, {FOG: AccessLink(FOG, None, 50.0)}, unshaped_port=7)
    assert (made.sources, made.fabric_devices, made.fabric_queues) == ({}, (), ())
    intake = made.intakes[FOG]
    assert intake.devices() == ("link add laggard-in0 type ifb", "link set laggard-in0 up")
    to_ifb = "action mirred egress redirect dev laggard-in0"
    assert intake.batch() == (
        "qdisc replace dev laggard-in0 root handle 1: tbf rate 50000kbit burst 6250 limit 1520250",
        "qdisc add dev eth0 ingress",
        "filter add dev eth0 parent ffff: protocol ip prio 1 u32 match ip protocol 17 0xff match ip dport 7 0xffff flowid 1:1",
        "filter add dev eth0 parent ffff: protocol ip prio 1 u32 match ip protocol 17 0xff match ip sport 7 0xffff flowid 1:1",
        f"filter add dev eth0 parent ffff: protocol ip prio 2 u32 match ip src 10.77.0.1 {to_ifb}",
        f"filter add dev eth0 parent ffff: protocol ip prio 2 u32 match ip src 10.77.0.3 {to_ifb}",
        f"filter add dev eth0 parent ffff: protocol ip prio 2 u32 match ip src 10.77.0.4 {to_ifb}",
        "qdisc show",
        "filter show dev eth0 parent ffff:",
    )
    assert made.removals() == {
        FOG: (("tc", "qdisc", "del", "dev", "eth0", "ingress"), ("ip", "link", "del", "laggard-in0"))
    }


def test_links_that_enter_one_host_share_a_queue_there() -> None:
    shared = SharedLink("s", frozenset({(CLOUD, FOG), (EDGE1, FOG)}), 5.0)
    other = SharedLink("o", frozenset({(EDGE2, FOG), (EDGE2, CLOUD)}), 4.0)
    made = on_hosts({(FOG, CLOUD): Constraint(0, 0, 9)}, shared=(shared, other))
    (queue,) = made.intakes[FOG].queues
    assert (queue.rate_mbps, queue.senders) == (5.0, {CLOUD: ("10.77.0.1",), EDGE1: ("10.77.0.3",)})
    assert set(made.sources) == {FOG, EDGE2}
    assert [words[:2] for words in made.removals()[FOG]] == [("tc", "qdisc"), ("tc", "qdisc"), ("ip", "link")]


def classes(made: LinkProgram, host: str) -> list[str]:
    """Parent, id and rates of every class, in order."""
    lines = [line.split() for line in made.sources[host].batch() if line.startswith("class add")]
    return [" ".join(line[5 : line.index("burst")]).replace("classid ", "").replace(" htb", "") for line in lines]


def test_links_that_leave_one_host_share_a_class_there() -> None:
    shared = SharedLink("s", frozenset({(CLOUD, EDGE1), (CLOUD, EDGE2)}), 6.0)
    made = on_hosts({(CLOUD, EDGE1): Constraint(10, 0, 5), (CLOUD, FOG): Constraint(0, 0, 9)}, shared=(shared,))
    assert made.intakes == {}
    assert classes(made, CLOUD) == [
        "1: 1:a0 rate 6000kbit ceil 6000kbit",
        "1: 1:12 rate 9000kbit",
        "1:a0 1:13 rate 3000kbit ceil 5000kbit",
        "1:a0 1:14 rate 3000kbit ceil 6000kbit",
    ]


def test_a_shared_class_is_below_the_uplinks_and_within_it() -> None:
    """What is guaranteed below a class never exceeds what it has."""
    shared = SharedLink("s", frozenset({(CLOUD, EDGE1), (CLOUD, EDGE2)}), 8.0)
    access = {CLOUD: AccessLink(CLOUD, 10.0, None)}
    assert classes(on_hosts({(CLOUD, FOG): Constraint(0, 0, 9)}, access, (shared,)), CLOUD) == [
        "1: 1:1 rate 10000kbit",
        "1:1 1:2 rate 2500kbit ceil 10000kbit",
        "1:1 1:a0 rate 5000kbit ceil 8000kbit",
        "1:1 1:12 rate 2500kbit ceil 9000kbit",
        "1:a0 1:13 rate 2500kbit ceil 8000kbit",
        "1:a0 1:14 rate 2500kbit ceil 8000kbit",
    ]


def test_a_bottleneck_between_many_takes_a_fabric() -> None:
    shared = SharedLink("shared-0", frozenset({(CLOUD, EDGE1), (FOG, EDGE2)}), 6.0)
    with pytest.raises(EmulationError, match=r"shared-0 of heterogeneity\.yaml: 2 hosts send and 2 receive"):
        on_hosts({}, shared=(shared,))


def test_the_testbeds_own_delay_is_subtracted() -> None:
    asked = {(EDGE1, FOG): Constraint(10, 0, 10), (EDGE1, CLOUD): Constraint(), (EDGE1, EDGE2): Constraint(3)}
    made = program(asked, base_delays_ms={(EDGE1, FOG): 0.25, (FOG, EDGE1): 7.0, (EDGE1, CLOUD): 0.5})
    delays = [re.search(r"netem delay (\S+)", line) for line in made.sources[EDGE1].commands()]
    assert [found[1] for found in delays if found] == ["0ms", "9.75ms", "3ms"]


def test_a_delay_below_the_testbeds_own_is_refused() -> None:
    with pytest.raises(EmulationError, match="this testbed itself takes 3 ms one way"):
        program({(EDGE1, FOG): Constraint(2, 0, 10)}, base_delays_ms={(EDGE1, FOG): 3.0})


def test_rates_alone_take_no_netem() -> None:
    made = program({(EDGE1, FOG): Constraint(0, 0, 10)}, plain=True)
    shaped, queue, steered = made.sources[EDGE1].commands()
    assert "htb rate 10000kbit" in shaped
    assert queue.endswith(f"pfifo limit {limit_packets(Constraint(rate_mbps=10))}")
    assert "match ip dst" in steered
    with pytest.raises(EmulationError, match="sch_netem"):
        program({(EDGE1, FOG): Constraint(1, 0, 10)}, plain=True)


@pytest.mark.parametrize("uplink_mbps", [None, 20.0])
def test_clocks_are_compared_past_the_shaping(uplink_mbps: float | None) -> None:
    access = {} if uplink_mbps is None else {EDGE1: AccessLink(EDGE1, uplink_mbps)}
    made = program({(EDGE1, FOG): Constraint(10, 0, 10)}, access, unshaped_port=7)
    filters = [line for line in made.sources[EDGE1].add_commands() if "filter" in line]
    assert [("dport 7 " in line, "sport 7 " in line) for line in filters] == [(True, False), (False, True)]
    assert all(line.endswith("flowid 1:0") and " prio 1 " in line for line in filters)


def test_a_host_that_was_not_deployed_is_named() -> None:
    with pytest.raises(EmulationError, match=r"edge\.trainer\.1\.1: none of the deployed hosts"):
        compile_links(LinkPlan(HOSTS, {(EDGE1, FOG): Constraint(1)}), enos(HOSTS[:2]), None, {})


def test_a_downlink_without_a_port_is_refused() -> None:
    with pytest.raises(EmulationError, match="its port on the fabric"):
        compile_links(LinkPlan(HOSTS, {}, {FOG: AccessLink(FOG, None, 1.0)}), enos(HOSTS), None, {})


class Recorder:
    """An executor that answers as a well-behaved kernel would, from the batch itself."""

    def __init__(self) -> None:
        self.calls: list[tuple[str | None, tuple[str, ...], str]] = []

    def __call__(self, host: str | None, command: Sequence[str], text: str = "") -> str:
        self.calls.append((host, tuple(command), text))
        shown = []
        for line in text.splitlines():
            words = line.split()
            if words[0] == "qdisc" and "netem" in words and "add" in words:
                shown.append(f"qdisc netem {words[7]} parent {words[5]} {' '.join(words[9:])}")
            elif words[0] == "class" and "parent 1: " in line:
                shown.append(f"class htb {words[7]} root leaf 15: prio 0 rate {words[10]} ceil {words[10]} burst 1600b")
            elif words[0] == "filter" and "flowid" in words:
                shown.append(f"filter parent 1: protocol {words[7]} u32 fh 800::800 flowid {words[-1]} not_in_hw")
                packed = ipaddress.ip_address(words[words.index("dst") + 1]).packed if "dst" in words else b""
                first = 16 if len(packed) == 4 else 24
                shown += [
                    f"  match {packed[at : at + 4].hex()}/ffffffff at {first + at}" for at in range(0, len(packed), 4)
                ]
        return "\n".join(shown)

    def expect_changes(self, hosts: Iterable[str]) -> None:
        pass

    def change(self, batches: Mapping[str, str]) -> None:
        for host, text in batches.items():
            self(host, ("tc", "-batch", "-"), text)

    def close(self) -> None:
        pass


def start(pairs: Mapping[Pair, Constraint], recorder: Recorder, hosts: tuple[Host, ...] = HOSTS) -> NetemBackend:
    return NetemBackend.start(LinkPlan(hosts, pairs), enos(HOSTS), None, PORTS, recorder, deployment="direct")


def test_each_host_gets_one_batch_and_is_read_back() -> None:
    recorder = Recorder()
    pairs = {(EDGE1, FOG): Constraint(10, 2, 10, 1), (EDGE1, CLOUD): Constraint(20, 0, 5), (FOG, EDGE1): Constraint(10)}
    assert start(pairs, recorder).name == "netem"
    batches = [host for host, command, _ in recorder.calls if command[0] == "tc"]
    assert batches == [FOG, EDGE1]


def test_what_the_kernel_forgot_is_noticed() -> None:
    """EnOSlib's own deployment succeeds on a kernel that drops the delay."""

    class Forgetful(Recorder):
        def __call__(self, host: str | None, command: Sequence[str], text: str = "") -> str:
            return super().__call__(host, command, text).replace("delay 10ms", "")

    with pytest.raises(EmulationError, match=r"delay in ms is 0\.0 instead of 10"):
        start({(EDGE1, FOG): Constraint(10, 0, 10)}, Forgetful())


@pytest.mark.parametrize("hosts", [HOSTS, HOSTS6])
def test_a_live_change_names_the_running_class_and_drops_nothing(hosts: tuple[Host, ...]) -> None:
    recorder = Recorder()
    backend = start({(EDGE1, FOG): Constraint(10, 0, 10), (EDGE1, CLOUD): Constraint(20, 0, 5)}, recorder, hosts)
    recorder.calls.clear()
    backend.change({(EDGE1, FOG): Constraint(30, 0, 1), (EDGE1, CLOUD): Constraint(20, 0, 1, 2)})
    ((host, command, text),) = recorder.calls
    assert (host, command) == (EDGE1, ("tc", "-batch", "-"))
    assert text.splitlines() == [
        "class change dev eth0 parent 1: classid 1:12 htb rate 1000kbit burst 1600 cburst 1600",
        "qdisc change dev eth0 parent 1:12 handle 21: netem delay 30ms limit 1003 rate 1000gbit",
        "class change dev eth0 parent 1: classid 1:11 htb rate 1000kbit burst 1600 cburst 1600",
        "qdisc change dev eth0 parent 1:11 handle 20: netem delay 20ms loss 2% limit 1002 rate 1000gbit",
    ]


def test_what_will_be_undone_is_told_before_anything_is_done() -> None:
    """Should the one who does it die on the way, somebody else can."""

    class Node(Recorder):
        def __call__(self, host: str | None, command: Sequence[str], text: str = "") -> str:
            shown = super().__call__(host, command, text)
            if command[:2] == ("ip", "-j"):
                return json.dumps([{"ifname": "eth0", "mtu": 1500, "gso_max_segs": 64}])
            if command[:2] == ("tc", "-j"):
                return '[{"kind": "noqueue"}]'
            return SHOWN_INTAKE if "ingress" in text else shown

    node = Node()
    told: list[tuple[str, tuple[str, ...]]] = []
    commands_by_then: list[int] = []

    def undo(host: str, command: tuple[str, ...]) -> None:
        told.append((host, command))
        commands_by_then.append(sum(bool(text) for _, _, text in node.calls))

    plan = LinkPlan(HOSTS, {(EDGE1, FOG): Constraint(0, 0, 10)}, {EDGE1: AccessLink(EDGE1, None, 30.0)})
    backend = NetemBackend.start(plan, enos(HOSTS), None, None, node, deployment="direct", undo=undo)
    assert [(host, " ".join(command)) for host, command in told] == [
        (EDGE1, "tc qdisc del dev eth0 root"),
        (EDGE1, "tc qdisc del dev eth0 ingress"),
        (EDGE1, "ip link del laggard-in0"),
        (EDGE1, "ip link set dev eth0 gso_max_segs 64"),
    ]
    assert set(commands_by_then) == {0}
    node.calls.clear()
    backend.close()
    assert [(host, command) for host, command, _ in node.calls] == told


SHOWN_INTAKE = """\
qdisc noqueue 0: dev eth0 root refcnt 2
qdisc ingress ffff: dev eth0 parent ffff:fff1 ----------------
qdisc tbf 1: dev laggard-in0 root refcnt 2 rate 30Mbit burst 3746b lat 404ms
""" + "\n".join(
    "filter protocol ip pref 2 u32 chain 0 fh 801::800 order 2048 key ht 801 bkt 0 terminal flowid not_in_hw\n"
    f"  match 0a4d000{n}/ffffffff at 12\n\taction order 1: mirred (Egress Redirect to device laggard-in0) stolen"
    for n in (1, 2, 4)
)


def test_a_link_that_the_plan_does_not_name_cannot_be_changed() -> None:
    backend = start({(EDGE1, FOG): Constraint(10, 0, 10)}, Recorder())
    with pytest.raises(EmulationError, match="only if the plan it started with names it"):
        backend.change({(EDGE1, CLOUD): Constraint(30)})


def test_a_failed_batch_shows_the_line_that_failed(tmp_path: Path) -> None:
    fake = tmp_path / "tc"
    fake.write_text(
        "#!/bin/sh\ncat > /dev/null; echo 'Error: Specified qdisc kind is unknown.\nCommand failed -:2' >&2; exit 1\n"
    )
    fake.chmod(0o755)
    with pytest.raises(EmulationError, match=r"kind is unknown.* in `qdisc add netem`"):
        InNamespaces({})(None, (str(fake), "-batch", "-"), "qdisc add htb\nqdisc add netem\n")


def test_a_missing_program_is_an_emulation_error() -> None:
    with pytest.raises(EmulationError, match="nonexistent"):
        InNamespaces({})(None, ("/nonexistent/tc",))
