"""Netem started, read back, changed and undone: which commands that runs, on which hosts; and that
what went wrong is told."""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from laggard.core.errors import EmulationError
from laggard.core.hosts import Host
from laggard.network_emulation.link_plan import AccessLink, Constraint, LinkPlan, Pair
from laggard.network_emulation.links.netem.backend import NetemBackend
from laggard.network_emulation.links.netem.execute import InNamespaces
from tests.network_emulation.netem_hosts import CLOUD, EDGE1, FOG, HOSTS, HOSTS6, PORTS, enos


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
                shown.append(
                    f"class htb {words[7]} root leaf 15: prio 0 rate {words[10]} ceil {words[10]}"
                    " burst 1600b"
                )
            elif words[0] == "filter" and "flowid" in words:
                shown.append(
                    f"filter parent 1: protocol {words[7]} u32 fh 800::800 flowid {words[-1]}"
                    " not_in_hw"
                )
                packed = (
                    ipaddress.ip_address(words[words.index("dst") + 1]).packed
                    if "dst" in words
                    else b""
                )
                first = 16 if len(packed) == 4 else 24
                shown += [
                    f"  match {packed[at : at + 4].hex()}/ffffffff at {first + at}"
                    for at in range(0, len(packed), 4)
                ]
        return "\n".join(shown)

    def expect_changes(self, hosts: Iterable[str]) -> None:
        pass

    def change(self, batches: Mapping[str, str]) -> None:
        for host, text in batches.items():
            self(host, ("tc", "-batch", "-"), text)

    def close(self) -> None:
        pass


def start(
    pairs: Mapping[Pair, Constraint], recorder: Recorder, hosts: tuple[Host, ...] = HOSTS
) -> NetemBackend:
    return NetemBackend.start(
        LinkPlan(hosts, pairs), enos(HOSTS), None, PORTS, recorder, deployment="direct"
    )


def test_each_host_gets_one_batch_and_is_read_back() -> None:
    recorder = Recorder()
    pairs = {
        (EDGE1, FOG): Constraint(10, 2, 10, 1),
        (EDGE1, CLOUD): Constraint(20, 0, 5),
        (FOG, EDGE1): Constraint(10),
    }
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
    backend = start(
        {(EDGE1, FOG): Constraint(10, 0, 10), (EDGE1, CLOUD): Constraint(20, 0, 5)}, recorder, hosts
    )
    recorder.calls.clear()
    backend.change({(EDGE1, FOG): Constraint(30, 0, 1), (EDGE1, CLOUD): Constraint(20, 0, 1, 2)})
    ((host, command, text),) = recorder.calls
    assert (host, command) == (EDGE1, ("tc", "-batch", "-"))
    assert text.splitlines() == [
        "class change dev eth0 parent 1: classid 1:12 htb rate 1000kbit burst 1600 cburst 1600",
        "qdisc change dev eth0 parent 1:12 handle 21: netem delay 30ms limit 1003 rate 1000gbit",
        "class change dev eth0 parent 1: classid 1:11 htb rate 1000kbit burst 1600 cburst 1600",
        (
            "qdisc change dev eth0 parent 1:11 handle 20: netem delay 20ms loss 2% limit 1002 rate"
            " 1000gbit"
        ),
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

    plan = LinkPlan(
        HOSTS, {(EDGE1, FOG): Constraint(0, 0, 10)}, {EDGE1: AccessLink(EDGE1, None, 30.0)}
    )
    backend = NetemBackend.start(
        plan, enos(HOSTS), None, None, node, deployment="direct", undo=undo
    )
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
    "filter protocol ip pref 2 u32 chain 0 fh 801::800 order 2048 key ht 801 bkt 0 terminal flowid"
    f" not_in_hw\n  match 0a4d000{n}/ffffffff at 12\n\taction order 1: mirred (Egress Redirect to"
    " device laggard-in0) stolen"
    for n in (1, 2, 4)
)


def test_a_link_that_the_plan_does_not_name_cannot_be_changed() -> None:
    backend = start({(EDGE1, FOG): Constraint(10, 0, 10)}, Recorder())
    with pytest.raises(EmulationError, match="a link that is not in the link plan"):
        backend.change({(EDGE1, CLOUD): Constraint(30)})


def test_a_failed_batch_shows_the_line_that_failed(tmp_path: Path) -> None:
    fake = tmp_path / "tc"
    fake.write_text(
        "#!/bin/sh\ncat > /dev/null; echo 'Error: Specified qdisc kind is unknown.\nCommand failed"
        " -:2' >&2; exit 1\n"
    )
    fake.chmod(0o755)
    with pytest.raises(EmulationError, match=r"kind is unknown.* in `qdisc add netem`"):
        InNamespaces({})(None, (str(fake), "-batch", "-"), "qdisc add htb\nqdisc add netem\n")


def test_a_missing_program_is_an_emulation_error() -> None:
    with pytest.raises(EmulationError, match="nonexistent"):
        InNamespaces({})(None, ("/nonexistent/tc",))


def test_a_burst_that_the_kernel_forgot_is_noticed() -> None:
    class Forgetful(Recorder):
        def __call__(self, host: str | None, command: Sequence[str], text: str = "") -> str:
            shown = super().__call__(host, command, text)
            return re.sub(
                r"gemodel (\S+) (\S+)", r"gemodel p 0.40404% r 40% 1-h 100% 1-k 0%", shown
            )

    with pytest.raises(EmulationError, match=r"mean burst of losses is 2\.5 instead of 5"):
        start({(EDGE1, FOG): Constraint(10, 0, 10, 1, burst_packets=5)}, Forgetful())


@pytest.mark.parametrize("change", [False, True])
def test_a_node_without_tcs_tables_is_told_what_to_do(change: bool) -> None:
    class Lacking(Recorder):
        def __call__(self, host: str | None, command: Sequence[str], text: str = "") -> str:
            if "distribution normal" in text:
                missing = (
                    "No distribution data for normal (/usr/lib/tc/normal.dist: No such file or"
                    " directory)"
                )
                raise EmulationError(f"{host}: tc -batch - failed: {missing}")
            return super().__call__(host, command, text)

    varied = Constraint(10, 2, 10, 0, "normal")
    backend = start({(EDGE1, FOG): replace(varied, jitter_ms=0.0)}, Lacking())
    with pytest.raises(
        EmulationError, match=r"edge\.trainer\.1\.1: .*install the complete iproute2"
    ):
        (
            backend.change({(EDGE1, FOG): varied})
            if change
            else start({(EDGE1, FOG): varied}, Lacking())
        )


def test_an_ipv6_filter_that_the_kernel_forgot_is_noticed() -> None:
    class Forgetful(Recorder):
        def __call__(self, host: str | None, command: Sequence[str], text: str = "") -> str:
            return super().__call__(host, command, text.replace("dst fe80::2", "dst fe80::9"))

    pairs = {(EDGE1, FOG): Constraint(10, 0, 10)}
    start(pairs, Recorder(), HOSTS6)
    with pytest.raises(
        EmulationError,
        match=r"to 10\.77\.0\.2: .* the filter matches 10\.77\.0\.2, fd77::2, fe80::9",
    ):
        start(pairs, Forgetful(), HOSTS6)
