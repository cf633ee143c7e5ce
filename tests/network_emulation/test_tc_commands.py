"""A plan as tc commands: EnOSlib's own NetemHTB is the oracle for plain constraints; the rest is
checked against tc(8)."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import pytest
from enoslib import NetemHTB
from hypothesis import given, settings
from hypothesis import strategies as st

from laggard.core.errors import EmulationError
from laggard.network_emulation.jitter import Distribution
from laggard.network_emulation.link_plan import (
    AccessLink,
    Constraint,
    LinkPlan,
    Pair,
    SharedLink,
)
from laggard.network_emulation.links.netem.htb import (
    delay_text,
    limit_packets,
    loss_text,
    rate_text,
)
from laggard.network_emulation.links.netem.tc_commands import LinkProgram, compile_links
from tests.network_emulation.netem_hosts import CLOUD, EDGE1, EDGE2, FOG, HOSTS, HOSTS6, PORTS, enos


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
    return compile_links(
        plan, enos(HOSTS), None, PORTS, base_delays_ms, plain=plain, unshaped_port=unshaped_port
    )


def slices(commands: Sequence[str]) -> dict[str, list[str]]:
    """Each destination's class, netem and filter, with the ids replaced by their role."""
    found: dict[str, list[str]] = {}
    for triple in zip(*[iter(commands)] * 3, strict=True):
        target = re.search(r"match ip dst (\S+)", triple[2])
        assert target
        found[target[1]] = [
            re.sub(
                r"handle \d+:",
                "handle ID:",
                re.sub(r"\b(classid|flowid|parent) 1:\d+", r"\1 1:ID", command),
            )
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
                assert re.fullmatch(
                    r"( burst \d+ cburst \d+| limit \d+)?", our.removeprefix(theirs)
                )


def test_ids_depend_on_the_destination_alone() -> None:
    """The same plan in any order, under any PYTHONHASHSEED, gives the same batch."""
    pairs = {(a.name, b.name): Constraint(10, 0, 10) for a in HOSTS for b in HOSTS if a is not b}
    shuffled = list(pairs.items())
    random.Random(1).shuffle(shuffled)
    one, other = program(pairs), program(dict(shuffled))
    assert {h: s.batch() for h, s in one.sources.items()} == {
        h: s.batch() for h, s in other.sources.items()
    }
    fewer = program({(EDGE1, EDGE2): Constraint(10, 0, 10)})
    assert "classid 1:14 " in "\n".join(fewer.sources[EDGE1].batch())
    assert "classid 1:14 " in "\n".join(one.sources[EDGE1].batch())


@pytest.mark.long
def test_batches_do_not_depend_on_the_hash_seed() -> None:
    script = (
        "import importlib.util as u, sys; s = u.spec_from_file_location('m', sys.argv[1]); m ="
        " u.module_from_spec(s); s.loader.exec_module(m); p = {(a.name, b.name): m.Constraint(i, 0,"
        " 9) for i, a in enumerate(m.HOSTS) for b in m.HOSTS if a is not b}; print([s.batch() for s"
        " in m.program(p).sources.values()])"
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
    _, netem, _ = program({(EDGE1, FOG): Constraint(10, 2, 10)}).sources[EDGE1].commands()
    assert "netem delay 10ms 2ms limit " in netem
    assert netem.endswith("rate 1000gbit")


@pytest.mark.parametrize("distribution", ["normal", "pareto"])
def test_a_distribution_is_tcs_table(distribution: Distribution) -> None:
    asked = {
        (EDGE1, FOG): Constraint(10, 2, 10, 1, distribution),
        (EDGE1, CLOUD): Constraint(3, 2, 10, 0, distribution),
    }
    to_cloud, _, _, to_fog = (
        program(asked, base_delays_ms={(EDGE1, CLOUD): 3.0}).sources[EDGE1].commands()[1:5]
    )
    assert f"netem delay 10ms 2ms distribution {distribution} loss 1% limit " in to_fog
    assert f"netem delay 0.001ms 2ms distribution {distribution} limit " in to_cloud, (
        "tc takes none without a delay"
    )
    _, steady, _ = (
        program({(EDGE1, FOG): Constraint(10, 0, 10, 0, distribution)}).sources[EDGE1].commands()
    )
    assert "distribution" not in steady
    most = limit_packets(Constraint(100, 20, 100, 0, distribution))
    assert most == limit_packets(Constraint(180, 0, 100)), "a table reaches four jitters up"


def test_losses_in_bursts_are_netems_gilbert_model() -> None:
    bursty = Constraint(10, 0, 10, 1, burst_packets=5)
    _, netem, _ = program({(EDGE1, FOG): bursty}).sources[EDGE1].commands()
    assert "netem delay 10ms loss gemodel 0.20202% 20% limit " in netem
    _, outage, _ = (
        program({(EDGE1, FOG): replace(bursty, loss_percent=100)}).sources[EDGE1].commands()
    )
    assert "loss 100% limit " in outage


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
    assert made.fabric_devices == (
        "link add shared0 type ifb",
        "link set shared0 txqueuelen 1000 up",
    )
    assert made.fabric_queues == (
        "qdisc replace dev port1 root handle 1: netem rate 50000kbit limit 1000",
        "qdisc replace dev shared0 root handle 1: netem rate 5000kbit limit 1000",
        "qdisc add dev port0 ingress",
        (
            "filter add dev port0 parent ffff: protocol ip u32 match ip dst 10.77.0.3 action mirred"
            " egress redirect dev shared0"
        ),
        (
            "filter add dev port0 parent ffff: protocol ip u32 match ip dst 10.77.0.4 action mirred"
            " egress redirect dev shared0"
        ),
        "qdisc add dev port1 ingress",
        (
            "filter add dev port1 parent ffff: protocol ip u32 match ip dst 10.77.0.3 action mirred"
            " egress redirect dev shared0"
        ),
    )


def both_families(
    plan: LinkPlan, ports: Mapping[str, str] | None = PORTS, unshaped_port: int = 0
) -> LinkProgram:
    """Of hosts with two IPv6 addresses each."""
    return compile_links(
        replace(plan, hosts=HOSTS6), enos(HOSTS), None, ports, unshaped_port=unshaped_port
    )


def of_ipv6(lines: Iterable[str]) -> list[str]:
    return [line for line in lines if " protocol ipv6 " in line]


@settings(max_examples=40, deadline=None)
@given(st.dictionaries(PAIRS, CONSTRAINTS, min_size=1), st.sampled_from([0, 7]))
def test_ipv6_packets_go_through_the_class_of_the_pair(
    pairs: dict[Pair, Constraint], unshaped_port: int
) -> None:
    """Nothing else differs, and the class of each IPv6 address is that of its host's IPv4
    address."""
    plan = LinkPlan(HOSTS, pairs, {FOG: AccessLink(FOG, 30.0)})
    four = compile_links(plan, enos(HOSTS), None, PORTS, unshaped_port=unshaped_port)
    six = both_families(plan, unshaped_port=unshaped_port)
    numbers = {
        address: six.numbers[host.name] for host in HOSTS6 for address in (host.address, *host.ipv6)
    }
    for name, source in six.sources.items():
        batch = source.batch()
        added = of_ipv6(batch)
        assert tuple(line for line in batch if line not in added) == four.sources[name].batch()
        receivers = sorted(dst for src, dst in pairs if src == name)
        steered = [re.search(r"match ip6? dst (\S+) flowid 1:(\d+)$", line) for line in batch]
        found = {match[1]: int(match[2]) for match in steered if match}
        assert found == {
            a: n for a, n in numbers.items() if n in {six.numbers[dst] for dst in receivers}
        }
        assert {line.split()[9] for line in added} <= {"2"}, "a priority holds one protocol"


def test_neighbours_find_each_other_past_the_shaping() -> None:
    made = both_families(LinkPlan(HOSTS, {(EDGE1, FOG): Constraint(10, 0, 10)}), unshaped_port=7)
    assert of_ipv6(made.sources[EDGE1].batch()) == [
        (
            "filter add dev eth0 parent 1: protocol ipv6 prio 2 u32 match ip6 protocol 58 0xff"
            " match u8 135 0xff at 40 flowid 1:0"
        ),
        (
            "filter add dev eth0 parent 1: protocol ipv6 prio 2 u32 match ip6 protocol 58 0xff"
            " match u8 136 0xff at 40 flowid 1:0"
        ),
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
        *(
            f"{head} ip6 protocol 58 0xff match u8 {kind} 0xff at 40 flowid 1:1"
            for kind in (135, 136)
        ),
        *(f"{head} ip6 src {start}::{n} {to_ifb}" for n in (1, 3, 4) for start in ("fd77", "fe80")),
    ]


def on_hosts(
    pairs: Mapping[Pair, Constraint],
    access: Mapping[str, AccessLink] | None = None,
    shared: tuple[SharedLink, ...] = (),
    unshaped_port: int = 0,
) -> LinkProgram:
    """As between real machines: no fabric to shape."""
    return compile_links(
        LinkPlan(HOSTS, pairs, access or {}, shared),
        enos(HOSTS),
        None,
        None,
        unshaped_port=unshaped_port,
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
        (
            "filter add dev eth0 parent ffff: protocol ip prio 1 u32 match ip protocol 17 0xff"
            " match ip dport 7 0xffff flowid 1:1"
        ),
        (
            "filter add dev eth0 parent ffff: protocol ip prio 1 u32 match ip protocol 17 0xff"
            " match ip sport 7 0xffff flowid 1:1"
        ),
        f"filter add dev eth0 parent ffff: protocol ip prio 2 u32 match ip src 10.77.0.1 {to_ifb}",
        f"filter add dev eth0 parent ffff: protocol ip prio 2 u32 match ip src 10.77.0.3 {to_ifb}",
        f"filter add dev eth0 parent ffff: protocol ip prio 2 u32 match ip src 10.77.0.4 {to_ifb}",
        "qdisc show",
        "filter show dev eth0 parent ffff:",
    )
    assert made.removals() == {
        FOG: (
            ("tc", "qdisc", "del", "dev", "eth0", "ingress"),
            ("ip", "link", "del", "laggard-in0"),
        )
    }


def test_links_that_enter_one_host_share_a_queue_there() -> None:
    shared = SharedLink("s", frozenset({(CLOUD, FOG), (EDGE1, FOG)}), 5.0)
    other = SharedLink("o", frozenset({(EDGE2, FOG), (EDGE2, CLOUD)}), 4.0)
    made = on_hosts({(FOG, CLOUD): Constraint(0, 0, 9)}, shared=(shared, other))
    (queue,) = made.intakes[FOG].queues
    assert (queue.rate_mbps, queue.senders) == (5.0, {CLOUD: ("10.77.0.1",), EDGE1: ("10.77.0.3",)})
    assert set(made.sources) == {FOG, EDGE2}
    assert [words[:2] for words in made.removals()[FOG]] == [
        ("tc", "qdisc"),
        ("tc", "qdisc"),
        ("ip", "link"),
    ]


def classes(made: LinkProgram, host: str) -> list[str]:
    """Parent, id and rates of every class, in order."""
    lines = [line.split() for line in made.sources[host].batch() if line.startswith("class add")]
    return [
        " ".join(line[5 : line.index("burst")]).replace("classid ", "").replace(" htb", "")
        for line in lines
    ]


def test_links_that_leave_one_host_share_a_class_there() -> None:
    shared = SharedLink("s", frozenset({(CLOUD, EDGE1), (CLOUD, EDGE2)}), 6.0)
    made = on_hosts(
        {(CLOUD, EDGE1): Constraint(10, 0, 5), (CLOUD, FOG): Constraint(0, 0, 9)}, shared=(shared,)
    )
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
    shared = SharedLink("shared-0", frozenset({(CLOUD, EDGE1), (EDGE1, CLOUD)}), 6.0)
    with pytest.raises(
        EmulationError, match=r"shared-0 of heterogeneity\.yaml: each of its hosts sends and"
    ):
        on_hosts({}, shared=(shared,))


def test_the_testbeds_own_delay_is_subtracted() -> None:
    asked = {
        (EDGE1, FOG): Constraint(10, 0, 10),
        (EDGE1, CLOUD): Constraint(),
        (EDGE1, EDGE2): Constraint(3),
    }
    made = program(
        asked, base_delays_ms={(EDGE1, FOG): 0.25, (FOG, EDGE1): 7.0, (EDGE1, CLOUD): 0.5}
    )
    delays = [re.search(r"netem delay (\S+)", line) for line in made.sources[EDGE1].commands()]
    assert [found[1] for found in delays if found] == ["0ms", "9.75ms", "3ms"]


def test_a_delay_below_the_testbeds_own_is_refused() -> None:
    with pytest.raises(EmulationError, match="3 ms that this testbed itself takes one way"):
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
    assert [("dport 7 " in line, "sport 7 " in line) for line in filters] == [
        (True, False),
        (False, True),
    ]
    assert all(line.endswith("flowid 1:0") and " prio 1 " in line for line in filters)


def test_a_host_that_was_not_deployed_is_named() -> None:
    with pytest.raises(EmulationError, match=r"edge\.trainer\.1\.1: no deployed host"):
        compile_links(LinkPlan(HOSTS, {(EDGE1, FOG): Constraint(1)}), enos(HOSTS[:2]), None, {})


def test_a_downlink_without_a_port_is_refused() -> None:
    with pytest.raises(EmulationError, match="port on the fabric"):
        compile_links(LinkPlan(HOSTS, {}, {FOG: AccessLink(FOG, None, 1.0)}), enos(HOSTS), None, {})
