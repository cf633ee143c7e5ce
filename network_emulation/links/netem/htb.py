"""HTB constraints of EnOSlib, extended to the needs of a continuum.

EnOSlib gives each destination of a host an HTB class (rate), a netem leaf (delay, loss) and a u32
filter. This module adds:

- filters that steer the destination's IPv6 packets into the same class,
- jitter of any distribution that keeps packets in order, and losses in bursts,
- a queue as long as bandwidth x delay requires,
- a parent class for the host's uplink,
- class ids that depend only on the destination, so that a live change can name them. EnOSlib
  numbers them in set order, which changes with PYTHONHASHSEED.

Each host's commands run as one `tc -batch -`, which stops at the first error and reports it.

HTB serializes packets instead of netem's own `rate`: netem computes departure times on arrival, so
after a live change a backlog would still drain at the old rate.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ansible.errors import AnsibleError
from enoslib import actions
from enoslib.errors import EnosError
from enoslib.objects import Host as EnosHost
from enoslib.objects import Roles
from enoslib.service.emul.htb import DEFAULT_RATE, HTBConstraint, HTBSource, NetemHTB

from laggard.core.errors import EmulationError
from laggard.network_emulation.link_plan import PACKET_BYTES, QUEUE_PACKETS, Constraint
from laggard.network_emulation.links.netem.filters import discovery_filters, ipv6_filter, match_ipv6

ROOT = "1:"
UPLINK_CLASS = "1:1"
DEFAULT_CLASS = "1:2"
IPV6_PRIORITY = 2
IN_ORDER = "rate 1000gbit"
"""A rate without effect: a netem with a rate never lets a packet overtake the one before it."""

_ONE_PACKET = 1600
_BURST_MS = 1.0
"""Lateness of the kernel's timer that HTB's burst makes up for."""
_TICK_MS = 1e-3
"""Resolution of tc's times."""
_UNLIMITED_MBPS = 10_000.0
"""Rate that sizes queues and bursts of links without a rate."""
_END = "END_OF_TC_BATCH"


def delay_text(delay_ms: float) -> str:
    """Return a delay in the form that tc and EnOSlib's validator accept."""
    return f"{_format_decimal(delay_ms)}ms"


def rate_text(rate_mbps: float | None) -> str:
    """Return a rate in the form that tc and EnOSlib's validator accept.

    None gives EnOSlib's default.
    """
    return str(DEFAULT_RATE) if rate_mbps is None else f"{_format_decimal(rate_mbps * 1e3)}kbit"


def loss_text(loss_percent: float) -> str | None:
    """Return a loss in the form that tc accepts; None for no loss, as EnOSlib requires."""
    return f"{_format_decimal(loss_percent)}%" if loss_percent else None


def burst_bytes(rate_mbps: float | None) -> int:
    """Return the bytes that HTB may send at once.

    That is one packet, or the bytes of a millisecond, which a late timer would lose.
    """
    return max(_ONE_PACKET, math.ceil(_BURST_MS * 125.0 * (rate_mbps or _UNLIMITED_MBPS)))


def limit_packets(constraint: Constraint) -> int:
    """Return the packets that netem may hold: the delay line at full rate and the queue."""
    rate_mbps = constraint.rate_mbps or _UNLIMITED_MBPS
    in_flight = constraint.longest_delay_ms * 125.0 * rate_mbps / PACKET_BYTES
    return QUEUE_PACKETS + math.ceil(in_flight)


def jitter_texts(delay_ms: float, constraint: Constraint) -> tuple[str, str, str]:
    """Return delay, jitter and distribution in the form that tc accepts.

    tc refuses a distribution if delay or jitter is less than a tick, so both are raised to one.
    """
    if not constraint.jitter_ms:
        return delay_text(delay_ms), "", ""
    if constraint.distribution == "uniform":
        return delay_text(delay_ms), delay_text(constraint.jitter_ms), ""
    least = (max(_TICK_MS, delay_ms), max(_TICK_MS, constraint.jitter_ms))
    return delay_text(least[0]), delay_text(least[1]), constraint.distribution


def _format_decimal(number: float) -> str:
    return f"{number:.6f}".rstrip("0").rstrip(".")


@dataclass(eq=True, frozen=True)
class LinkConstraint(HTBConstraint):  # type: ignore[misc]  # enoslib ships no types
    """One direction of a link in tc's terms.

    Args:
        number: number of class `1:number`; EnOSlib derives the qdisc's number from it.
        jitter: jitter in tc's form; empty for none.
        distribution: name of tc's table for the jitter; empty for the uniform distribution, which
            needs no table.
        limit: packets that netem may hold.
        burst: bytes that HTB may send at once.
        bursts: p and r of losses in bursts (see `loss_bursts.compute_gilbert_probabilities`); None
            if losses are independent.
        parent: class that this one borrows from.
        guaranteed: rate that this link has even when its parent is busy; empty for all of `rate`.
        plain: True for a plain queue instead of netem, for a link that only ever has a rate.
        targets6: IPv6 addresses of the destination; their packets use the same class.
    """

    number: int = 0
    jitter: str = ""
    distribution: str = ""
    limit: int = QUEUE_PACKETS
    burst: int = _ONE_PACKET
    bursts: tuple[float, float] | None = None
    parent: str = ROOT
    guaranteed: str = ""
    plain: bool = False
    targets6: tuple[str, ...] = ()

    def commands(self, _: int = 0) -> list[str]:
        """Return EnOSlib's three commands (class, netem, filter), extended.

        One filter per IPv6 address follows.
        """
        # EnOSlib numbers from 0: index `number - 1` becomes class `1:number`.
        shape, delay, steer = super().commands(self.number - 1)
        steered = [str(steer), *map(self._steered, self.targets6)]
        return [
            self._shaped(str(shape)),
            self._delayed(str(delay), in_order=bool(self.jitter)),
            *steered,
        ]

    def change_commands(self) -> list[str]:
        """Return commands that change the running class and netem without dropping packets."""
        shape, delay, _ = super().commands(self.number - 1)
        changed = (self._shaped(str(shape)), self._delayed(str(delay), in_order=True))
        # A change repeats every option: netem resets delay, jitter, loss and limit otherwise.
        return [command.replace(" add ", " change ", 1) for command in changed]

    def _steered(self, address: str) -> str:
        add = ipv6_filter(self.device, ROOT, IPV6_PRIORITY)
        return f"{add} {match_ipv6('dst', address)} flowid {ROOT}{self.number}"

    def _shaped(self, command: str) -> str:
        # EnOSlib's command has neither parent class nor burst, so its head gets new options.
        head, _, _ = command.partition(" htb ")
        head = head.replace(f"parent {ROOT} ", f"parent {self.parent} ", 1)
        borrow = f" ceil {self.rate}" if self.guaranteed else ""
        return (
            f"{head} htb rate {self.guaranteed or self.rate}{borrow} burst {self.burst} cburst"
            f" {self.burst}"
        )

    def _delayed(self, command: str, *, in_order: bool) -> str:
        if self.plain:
            head, _, _ = command.partition(" netem ")
            return f"{head} pfifo limit {self.limit}"
        drawn = f" distribution {self.distribution}" if self.distribution else ""
        varied = command.replace(
            f"delay {self.delay}", f"delay {self.delay} {self.jitter}".rstrip() + drawn, 1
        )
        if self.bursts is not None:
            begins, ends = (_format_decimal(100 * probability) for probability in self.bursts)
            varied = varied.replace(f" loss {self.loss}", f" loss gemodel {begins}% {ends}%", 1)
        return f"{varied} limit {self.limit}" + (f" {IN_ORDER}" if in_order else "")


@dataclass(frozen=True)
class SharedClass:
    """Bottleneck that several links of one host share: the parent of their classes.

    Attributes:
        position: index among the host's shared classes, from 0.
        rate_mbps: rate of the bottleneck.
        guaranteed_mbps: rate that it has even when the host's uplink is busy; `rate_mbps` without
            an uplink.
        receivers: names of the hosts that its links lead to.
    """

    position: int
    rate_mbps: float
    guaranteed_mbps: float
    receivers: frozenset[str]

    @property
    def class_id(self) -> str:
        """Return the id of the class; a letter distinguishes it from classes of links."""
        return f"{ROOT}a{self.position}"

    def command(self, device: str, parent: str) -> str:
        """Return the command that adds the class."""
        rates = f"rate {rate_text(self.guaranteed_mbps)} ceil {rate_text(self.rate_mbps)}"
        burst = burst_bytes(self.rate_mbps)
        add = f"tc class add dev {device} parent {parent} classid {self.class_id}"
        return f"{add} htb {rates} burst {burst} cburst {burst}"


@dataclass
class LinkSource(HTBSource):  # type: ignore[misc]  # enoslib ships no types
    """All constraints of one host's device.

    Args:
        device: the device, also for a host with an uplink and no constraint.
        uplink_mbps: rate that all outgoing traffic of the host shares; None for no limit.
        segment: True to hand packets over one by one; batches of 64 KiB would be delayed and lost
            as one.
        unshaped_port: UDP port whose datagrams pass unshaped, for clock measurements; 0 for none.
        shared: bottlenecks that several of its links share.
        forwarded: addresses of the hosts whose packets this host forwards, unshaped.
    """

    device: str = "eth0"
    uplink_mbps: float | None = None
    segment: bool = True
    unshaped_port: int = 0
    shared: tuple[SharedClass, ...] = ()
    forwarded: tuple[str, ...] = ()

    def remove_commands(self) -> list[str]:
        """Return a command that replaces the current queue.

        EnOSlib's `del || true` cannot be used in a batch.
        """
        return [f"tc qdisc replace dev {self.device} root handle 8001: pfifo"]

    def add_commands(self) -> list[str]:
        """Return the commands for the root class, the uplink and the shared classes.

        The uplink's class has one below it for traffic that no pair's rule names.
        """
        root = f"tc qdisc replace dev {self.device} root handle {ROOT} htb"
        if self.uplink_mbps is None:
            return [
                root,
                *(each.command(self.device, ROOT) for each in self.shared),
                *self._unshaped(),
            ]
        rate, burst = rate_text(self.uplink_mbps), burst_bytes(self.uplink_mbps)
        rest = rate_text(guaranteed_mbps(self.uplink_mbps, len(self.constraints)))
        add = f"tc class add dev {self.device} parent"
        return [
            f"{root} default 2",
            f"{add} {ROOT} classid {UPLINK_CLASS} htb rate {rate} burst {burst} cburst {burst}",
            (
                f"{add} {UPLINK_CLASS} classid {DEFAULT_CLASS} htb rate {rest} ceil {rate} burst"
                f" {burst} cburst {burst}"
            ),
            *(each.command(self.device, UPLINK_CLASS) for each in self.shared),
            *self._unshaped(),
        ]

    def _unshaped(self) -> list[str]:
        """Return filters that precede all others.

        HTB sends packets steered to its root at once.
        """
        past = f"{ROOT}0"
        discovery: Iterable[str] = ()
        if any(constraint.targets6 for constraint in self.constraints):
            discovery = discovery_filters(self.device, ROOT, IPV6_PRIORITY, past)
        discovery = [*discovery, *map(self._passed, self.forwarded)]
        if not self.unshaped_port:
            return [*discovery]
        steer = (
            f"tc filter add dev {self.device} parent {ROOT} protocol ip prio 1 u32 match ip"
            " protocol 17 0xff match ip"
        )
        clocks = [
            f"{steer} {end} {self.unshaped_port} 0xffff flowid {past}" for end in ("dport", "sport")
        ]
        return [*clocks, *discovery]

    def _passed(self, address: str) -> str:
        """Return the filter that lets the packets of another host pass."""
        past = f"flowid {ROOT}0"
        if ":" in address:
            add = ipv6_filter(self.device, ROOT, IPV6_PRIORITY)
            return f"{add} {match_ipv6('src', address)} {past}"
        add = f"tc filter add dev {self.device} parent {ROOT} protocol ip prio 1 u32"
        return f"{add} match ip src {address} {past}"

    def commands(self) -> list[str]:
        """Return the commands of every constraint, in the order of their numbers."""
        ordered = sorted(self.constraints, key=lambda constraint: int(constraint.number))
        return [command for constraint in ordered for command in constraint.commands()]

    def batch(self) -> tuple[str, ...]:
        """Return the lines of one `tc -batch -` that applies everything and shows the result."""
        remove, add, commands = self.all_commands()
        shows = [f"tc {kind} show dev {self.device}" for kind in ("qdisc", "class", "filter")]
        return as_batch([*remove, *add, *commands, *shows])

    def script(self) -> str:
        """Return the batch as one shell command, for hosts that Ansible reaches."""
        segment = f"{' '.join(segment_command(self.device))} && " if self.segment else ""
        lines = "\n".join(self.batch())
        return f"{segment}tc -batch - <<'{_END}'\n{lines}\n{_END}\n"


class ShapedLinks(NetemHTB):  # type: ignore[misc]  # enoslib ships no types
    """All constraints of a continuum, for one deployment."""

    sources: dict[EnosHost, LinkSource]

    # EnOSlib's signature.
    def deploy(self, chunk_size: int = 100, **kwargs: object) -> Mapping[str, str]:  # noqa: ARG002
        """Apply all constraints on all hosts by one Ansible task.

        Returns:
            Output of each host's batch, by the host's alias.

        Raises:
            EmulationError: if a host's batch failed; with its output.
        """
        scripts = {source.host.alias: source.script() for source in self.sources.values()}
        if not scripts:
            return {}
        roles = Roles(all=list(self.sources))
        play = actions(
            roles=roles, extra_vars={"link_scripts": scripts}, on_error_continue=True, **kwargs
        )
        try:
            with play:
                play.raw(
                    "{{ link_scripts[inventory_hostname] }}",
                    task_name="Applying the network constraints",
                )
        except (EnosError, AnsibleError) as error:
            raise EmulationError(
                f"Ansible could not apply the link constraints: {error!r}"
            ) from error
        printed = {
            str(r.host): (str(r.status), str(r.payload.get("stdout", "")), r.payload)
            for r in play.results
        }
        for alias in scripts:
            status, _, payload = printed.get(alias, ("missing", "", {}))
            if status != "OK" or payload.get("rc") != 0:
                said = (
                    payload.get("stderr")
                    or payload.get("stdout")
                    or payload.get("msg")
                    or "no answer"
                )
                raise EmulationError(
                    f"{alias}: its link constraints could not be applied: {said} — check that tc is"
                    " installed there and that the user may run it as root"
                )
        return {alias: printed[alias][1] for alias in scripts}


def as_batch(commands: Sequence[str]) -> tuple[str, ...]:
    """Return EnOSlib's `tc ...` commands as lines of a tc batch."""
    return tuple(command.removeprefix("tc ") for command in commands)


def segment_command(device: str, most: int = 1) -> tuple[str, ...]:
    """Return the command that limits the packets that a device hands over at once."""
    return ("ip", "link", "set", "dev", device, "gso_max_segs", str(most))


def guaranteed_mbps(uplink_mbps: float, links: int) -> float:
    """Return an equal part of an uplink for each of its links and for all other traffic."""
    return uplink_mbps / (links + 1)
