"""tc's text, as iproute2 6.1 printed it, parsed back into numbers."""

from __future__ import annotations

import pytest

from laggard.network_emulation.links.netem.readback import AppliedLink, parse_shown

SHOWN = """\
qdisc htb 1: root refcnt 2 r2q 10 default 0x2 direct_packets_stat 0 direct_qlen 1000
qdisc netem 20: parent 1:11 limit 1104 delay 25ms
qdisc netem 21: parent 1:12 limit 1016 delay 10ms  2ms loss 1.5% rate 1Tbit
qdisc netem 22: parent 1:13 limit 1000 delay 250us  50us
qdisc netem 23: parent 1:9910 limit 1000
class htb 1:11 root leaf 20: prio 0 rate 50Mbit ceil 50Mbit burst 3118b cburst 3118b
class htb 1:1 root rate 20Mbit ceil 20Mbit burst 1600b cburst 1600b
class htb 1:12 parent 1:1 leaf 21: prio 0 rate 6666Kbit ceil 20Mbit burst 1600b cburst 1600b
class htb 1:13 root leaf 22: prio 0 rate 1500bit ceil 1500bit burst 1600b cburst 1600b
filter parent 1: protocol ip pref 49151 u32 chain 0
filter parent 1: protocol ip pref 49151 u32 chain 0 fh 801: ht divisor 1
filter parent 1: protocol ip pref 49151 u32 chain 0 fh 801::800 order 2048 key ht 801 bkt 0 *flowid 1:12 not_in_hw
  match 0a4d0002/ffffffff at 16
filter parent 1: protocol ip pref 49152 u32 chain 0 fh 800::800 order 2048 key ht 800 bkt 0 flowid 1:11 not_in_hw
  match 0a4d0001/ffffffff at 16
filter parent 1: protocol ipv6 pref 2 u32 chain 0 fh 802::800 order 2048 key ht 802 bkt 0 *flowid 1: not_in_hw
  match 00003a00/0000ff00 at 4
  match 87000000/ff000000 at 40
filter parent 1: protocol ipv6 pref 2 u32 chain 0 fh 802::801 order 2049 key ht 802 bkt 0 *flowid 1:12 not_in_hw
  match fd770000/ffffffff at 24
  match 00000000/ffffffff at 28
  match 00000000/ffffffff at 32
  match 00000002/ffffffff at 36
"""


def test_every_class_is_read_with_its_netem_and_filter() -> None:
    assert parse_shown(SHOWN) == {
        11: AppliedLink(50.0, 25.0, 0.0, 0.0, 1.0, 1104, frozenset({"10.77.0.1"})),
        12: AppliedLink(20.0, 10.0, 2.0, 1.5, 1.0, 1016, frozenset({"10.77.0.2", "fd77::2"})),
        13: AppliedLink(0.0015, 0.25, 0.05, 0.0, 1.0, 1000),
        9910: AppliedLink(None, 0.0, 0.0, 0.0, 1.0, 1000),
        1: AppliedLink(20.0, 0.0, 0.0, 0.0, 1.0, 0),
    }


def test_losses_in_bursts_are_read_back_as_such() -> None:
    shown = (
        "qdisc netem 21: parent 1:12 limit 1016 delay 10ms loss gemodel p 0.20202% r 20% 1-h 100%"
        " 1-k 0% rate 1Tbit"
    )
    link = parse_shown(shown)[12]
    assert link.loss_percent == pytest.approx(1.0, rel=1e-5)
    assert link.burst_packets == pytest.approx(5.0)


def test_nothing_shown_is_nothing_applied() -> None:
    assert parse_shown("qdisc noqueue 0: root refcnt 2\n") == {}
