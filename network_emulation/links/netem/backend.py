"""Netem backend: netem and HTB on every host, compiled and deployed through EnOSlib."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from enoslib.objects import Host as EnosHost
from enoslib.objects import Network as EnosNetwork

from laggard.core.errors import EmulationError
from laggard.network_emulation.link_plan import Constraint, LinkPlan, Pair
from laggard.network_emulation.links.backend import LinkCounters, LinkHealth
from laggard.network_emulation.links.netem.execute import Execute, InNamespaces
from laggard.network_emulation.links.netem.htb import as_batch, segment_command
from laggard.network_emulation.links.netem.ingress_queue import (
    Command,
    make_room,
    parse_received_counters,
    verify_ingress,
)
from laggard.network_emulation.links.netem.readback import verify_constraints
from laggard.network_emulation.links.netem.tc_commands import LinkProgram, compile_links

Deployment = Literal["ansible", "direct"]
Undo = Callable[[str, Command], object]
"""Function that receives a host and a command that removes what is about to be set up there."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class NetemBackend:
    """Links emulated by the netem of this kernel or of the hosts' kernels; see `LinkBackend`.

    Attributes:
        program: commands for hosts and fabric.
        execute: executor of commands.
        removals: commands that `close` runs on each host.
    """

    program: LinkProgram
    execute: Execute
    removals: Mapping[str, tuple[Command, ...]]

    @property
    def name(self) -> str:
        """Return `netem`."""
        return "netem"

    @classmethod
    def start(
        cls,
        plan: LinkPlan,
        roles: Mapping[str, Sequence[EnosHost]],
        networks: Mapping[str, Sequence[EnosNetwork]] | None,
        ports: Mapping[str, str] | None,
        execute: Execute | None = None,
        *,
        deployment: Deployment = "ansible",
        base_delays_ms: Mapping[Pair, float] | None = None,
        plain: bool = False,
        unshaped_port: int = 0,
        undo: Undo | None = None,
    ) -> NetemBackend:
        """Apply a whole plan in one deployment and read it back.

        Args:
            plan: all links, in real (dilated) units.
            roles: EnOSlib's roles; a host is found by its address.
            networks: EnOSlib's networks to consider, by role; None for all.
            ports: fabric-side device of each host, for downlinks and shared links; None if the
                hosts apply those themselves.
            execute: executor of commands on hosts and on the fabric; by default, in the hosts'
                named namespaces.
            deployment: `ansible` for EnOSlib's single Ansible task, or `direct` for `execute` (the
                same commands, without Ansible's start-up).
            base_delays_ms: one-way delay of the testbed itself by pair; it is subtracted from the
                pair's delay.
            plain: True for kernels without netem; the plan may then contain only rates.
            unshaped_port: UDP port whose datagrams pass unshaped; 0 for none.
            undo: function that receives every command of `close` before anything is set up; for
                hosts that outlive this process.

        Raises:
            EmulationError: if a command failed, another program occupies the queues, or the values
                read back differ.
        """
        considered = (
            None
            if networks is None
            else [network for group in networks.values() for network in group]
        )
        program = compile_links(
            plan, roles, considered, ports, base_delays_ms, plain=plain, unshaped_port=unshaped_port
        )
        execute = execute or InNamespaces.named(host.name for host in plan.hosts)
        _make_room(program, execute)
        backend = cls(program, execute, _build_removals(program, execute, lasting=undo is not None))
        if undo is not None:
            for host, commands in backend.removals.items():
                for command in commands:
                    undo(host, command)
        # The removals were reported first, so that a set-up that fails half-way can be undone.
        backend._deploy_fabric()
        backend._deploy_detours()
        backend._deploy_intakes()
        with _tables_explained():
            shown = (
                backend._deploy_by_ansible()
                if deployment == "ansible"
                else backend._deploy_directly()
            )
        # Verify the values that the kernel applied, not only that the commands succeeded.
        for host, source in program.sources.items():
            verify_constraints(host, source, shown[host])
        execute.expect_changes(program.sources)
        _log.info(
            "netem: applied and verified %d links of %d hosts",
            len(plan.pairs),
            len(program.sources),
        )
        return backend

    def change(self, changes: Mapping[Pair, Constraint]) -> int:
        """Apply new constraints; see `LinkBackend.change`."""
        commands: dict[str, list[str]] = {}
        for pair, constraint in changes.items():
            if pair not in self.program.plan.pairs:
                raise EmulationError(
                    f"{pair[0]} to {pair[1]}: cannot change a link that is not in the link plan;"
                    " name the pair in a rule or event"
                )
            if self.program.plain and not constraint.only_rate:
                raise EmulationError(
                    f"{pair[0]} to {pair[1]}: without netem, a link can change only its rate"
                )
            changed = self.program.in_tc_terms(pair, constraint).change_commands()
            commands.setdefault(pair[0], []).extend(changed)
        with _tables_explained():
            self.execute.change(
                {host: "\n".join(as_batch(lines)) + "\n" for host, lines in commands.items()}
            )
        return time.monotonic_ns()

    def counters(self) -> Mapping[Pair, LinkCounters]:
        """Return the traffic of constrained pairs; see `LinkBackend.counters`."""
        names = {number: name for name, number in self.program.numbers.items()}
        counted: dict[Pair, LinkCounters] = {}
        for host, source in self.program.sources.items():
            shown = self.execute(host, ("tc", "-s", "-j", "qdisc", "show", "dev", source.device))
            with _garbled_output_explained(host):
                for number, counts in _parse_counters(shown):
                    if number in names:
                        counted[host, names[number]] = counts
        return {**self._arrived(), **counted}

    def _arrived(self) -> Mapping[Pair, LinkCounters]:
        """Return the traffic received through downlinks and shared links.

        Drops are counted as 0: the queue counts them for all its senders together.
        """
        arrived: dict[Pair, LinkCounters] = {}
        for host, intake in self.program.intakes.items():
            shown = self.execute(host, intake.count_command())
            with _garbled_output_explained(host):
                for src, counts in parse_received_counters(intake, shown).items():
                    arrived[src, host] = LinkCounters(*counts, dropped=0)
        return arrived

    def lateness_ms(self) -> float | None:
        """Return None: the kernel's timers send the packets, and checks measure the links."""
        return None

    def health(self) -> LinkHealth:
        """Return an empty health: reading the counters would start a process per host."""
        return LinkHealth()

    def check_alive(self) -> None:
        """Do nothing: the kernel cannot exit; see `LinkBackend.check_alive`."""

    def close(self) -> None:
        """Remove every queue, filter and device that was added."""
        self.execute.close()
        for host, commands in self.removals.items():
            for command in commands:
                self.execute(host, command)
        devices = [
            line.split()[2] for line in self.program.fabric_devices if line.startswith("link add ")
        ]
        # Removing a device also removes its queues, so only queues of other devices are removed
        # alone.
        added = [line.split() for line in self.program.fabric_queues if line.startswith("qdisc ")]
        for words in added:
            kind = "ingress" if "ingress" in words else "root"
            if words[3] not in devices:
                self.execute(None, ("tc", "qdisc", "del", "dev", words[3], kind))
        for device in devices:
            self.execute(None, ("ip", "link", "del", device))

    def _deploy_fabric(self) -> None:
        for program, lines in (
            ("ip", self.program.fabric_devices),
            ("tc", self.program.fabric_queues),
        ):
            if lines:
                self.execute(None, (program, "-batch", "-"), "\n".join(lines) + "\n")

    def _deploy_detours(self) -> None:
        for host, detours in self.program.detours.items():
            for command in detours.commands():
                self.execute(host, command)

    def _deploy_intakes(self) -> None:
        for host, intake in self.program.intakes.items():
            self.execute(host, ("ip", "-batch", "-"), "\n".join(intake.devices()) + "\n")
            shown = self.execute(host, ("tc", "-batch", "-"), "\n".join(intake.batch()) + "\n")
            verify_ingress(host, intake, shown)

    def _deploy_by_ansible(self) -> Mapping[str, str]:
        shown = self.program.links.deploy()
        return {host: shown[source.host.alias] for host, source in self.program.sources.items()}

    def _deploy_directly(self) -> Mapping[str, str]:
        shown: dict[str, str] = {}
        for host, source in self.program.sources.items():
            if source.segment:
                self.execute(host, segment_command(source.device))
            shown[host] = self.execute(
                host, ("tc", "-batch", "-"), "\n".join(source.batch()) + "\n"
            )
        return shown


@contextmanager
def _tables_explained() -> Iterator[None]:
    """Add the fix to tc's error about a missing table of a distribution.

    tc reads each table from a file of iproute2.
    """
    try:
        yield
    except EmulationError as error:
        if "No distribution data" not in str(error):
            raise
        fix = (
            "install the complete iproute2 package there (with its *.dist tables), or write"
            " `distribution: uniform`"
        )
        raise EmulationError(f"{error}; {fix}") from error


@contextmanager
def _garbled_output_explained(host: str) -> Iterator[None]:
    """Name the host whose output cannot be parsed."""
    try:
        yield
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise EmulationError(
            f"{host}: what it says about its queues cannot be read: {error!r:.200}"
        ) from error


def _parse_counters(shown: str) -> Iterator[tuple[int, LinkCounters]]:
    """Yield the traffic of every leaf that `tc -s -j qdisc show` lists, with its number.

    A leaf's parent is class `1:number`, where the number is that of the destination.
    """
    for qdisc in json.loads(shown):
        number = str(qdisc.get("parent", "")).removeprefix("1:")
        if qdisc["kind"] in {"netem", "pfifo"} and number.isdigit():
            counts = (int(qdisc["bytes"]), int(qdisc["packets"]), int(qdisc.get("drops", 0)))
            yield int(number), LinkCounters(*counts)


def _make_room(program: LinkProgram, execute: Execute) -> None:
    """Remove what a killed agent of an earlier run left on the hosts."""
    for host, intake in program.intakes.items():
        links = execute(host, ("ip", "-j", "link", "show"))
        qdiscs = execute(host, ("tc", "-j", "qdisc", "show", "dev", intake.device))
        with _garbled_output_explained(host):
            commands = make_room(host, intake, links, qdiscs)
        for command in commands:
            execute(host, command)


def _build_removals(
    program: LinkProgram, execute: Execute, *, lasting: bool
) -> Mapping[str, tuple[Command, ...]]:
    """Return the commands of `close` by host: routes end before the queues that they lead to.

    On hosts that outlive this process, they also restore the batch size of the device.
    """
    removals = dict(program.removals())
    for host, detours in program.detours.items():
        query = detours.query()
        shown = "" if query is None else execute(host, query)
        removals[host] = (*detours.removals(shown), *removals.get(host, ()))
    for host, source in program.sources.items() if lasting else ():
        if source.segment:
            shown = execute(host, ("ip", "-j", "-d", "link", "show", "dev", source.device))
            with _garbled_output_explained(host):
                segments = int(json.loads(shown)[0]["gso_max_segs"])
            removals[host] = (*removals[host], segment_command(source.device, segments))
    return removals
