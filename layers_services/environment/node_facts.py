"""Facts about remote nodes, collected by one task that needs only a POSIX shell on a node."""

from __future__ import annotations

import ipaddress
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from laggard.core.errors import DeploymentError
from laggard.layers_services.environment.gpus import Gpu, parse_gpu, why_not
from laggard.layers_services.machine import Machine
from laggard.layers_services.python_versions import SUPPORTED_PYTHONS, PythonVersion
from laggard.layers_services.ssh.remote_task import run_on_nodes

if TYPE_CHECKING:
    from enoslib import Roles

Fact = str | float | int | None

_MARK = "laggard-fact"
_LONGEST_FACT = 4096
_MOST_VALUES = 256
_NUMBER = re.compile(r"\d{1,15}", re.ASCII)
_IPV6 = re.compile(r"\binet6 ([0-9a-f:]+)/")
# One line per fact, `laggard-fact NAME VALUE`; a failed command yields no line. `complete` comes
# last, so that a truncated answer is noticed.
_SCRIPT = r"""
LC_ALL=C; PATH="$PATH:/usr/local/sbin:/usr/sbin:/sbin"; export LC_ALL PATH
say() { [ -z "$2" ] || printf 'laggard-fact %s %s\n' "$1" "$2"; }
first() { head -n 1 "$1" 2>/dev/null; }
say user "$(id -un)"
say architecture "$(uname -m)"
say kernel "$(uname -r)"
say glibc "$(getconf GNU_LIBC_VERSION 2>/dev/null)"
say cores "$(getconf _NPROCESSORS_ONLN)"
say cpu "$(sed -n 's/^model name[^:]*: *//p' /proc/cpuinfo | head -n 1)"
say memory_kib "$(sed -n 's/^MemTotal: *\([0-9]*\).*/\1/p' /proc/meminfo)"
say governor "$(first /sys/devices/system/cpu/cpu0/cpufreq/scaling_governor)"
say smt "$(first /sys/devices/system/cpu/smt/control)"
say disk_free "$(df -Pk /var/tmp | tail -n 1)"
for disk in /sys/block/[svn]*/queue/rotational; do say rotational "$(first "$disk")"; done
for name in python3 python3.11 python3.12 python3.13; do
  path=$(command -v "$name") || continue
  say python "$("$path" -c 'import ctypes, fcntl, hashlib, sys, zlib
print("%d.%d" % sys.version_info[:2], sys.executable)' 2>/dev/null)"
done
if [ "$(id -u)" = 0 ] || sudo -n true 2>/dev/null; then say root yes; fi
if unshare -n tc qdisc add dev lo root netem delay 1ms 2>/dev/null \
  || [ -d /sys/module/sch_netem ] \
  || grep -qs '/sch_netem\.ko' "/lib/modules/$(uname -r)/modules.builtin" \
  || modprobe -n -q sch_netem 2>/dev/null; then say netem yes; fi
device=$(ip -o -4 address show to "$LAGGARD_ADDRESS" 2>/dev/null | head -n 1)
say device "$device"
device=${device#*: }; device=${device%%[ @]*}
[ -z "$device" ] || ip -o -6 address show dev "$device" 2>/dev/null \
  | while read -r line; do say ipv6 "$line"; done
gpus=$(nvidia-smi --query-gpu=name,compute_cap,driver_version --format=csv,noheader 2>/dev/null) \
  || gpus=$(nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null) || gpus=
printf '%s\n' "$gpus" | while read -r gpu; do say gpu "$gpu"; done
for port in /sys/class/infiniband/*; do [ ! -e "$port" ] || say infiniband "${port##*/}"; done
say complete yes
"""


@dataclass(frozen=True)
class Interpreter:
    """Python interpreter of a node: version and path."""

    version: PythonVersion
    path: str


@dataclass(frozen=True)
class NodeFacts:
    """Hardware and software of a node.

    Attributes:
        host: name of the host of the continuum that the node takes the place of
        user: user who is logged in
        pythons: interpreters that start and have the modules that an environment needs, the
            default one first
        architecture: architecture that uname(1) reports, such as `x86_64`
        glibc: version of the GNU C library; None if the node has another C library
        cores: number of online processors
        cpu: model of the processor; empty if the kernel does not report it
        memory_bytes: size of main memory
        kernel: release of the kernel
        governor: governor of the processor's frequency; empty if there is none
        smt: the kernel's state of simultaneous multithreading; empty if it is not reported
        disk: `rotational`, `solid state`, or empty if unknown
        free_bytes: space under /var/tmp that an ordinary user can use
        netem: True if the kernel has sch_netem or can load it
        device: network device that has the experiment's address; empty if none has it
        ipv6: IPv6 addresses of that device, including link-local ones
        root: True if the user is root or can become root without a password
        gpus: NVIDIA GPUs
        infiniband: InfiniBand devices, whose traffic would bypass an emulated link
    """

    host: str
    user: str
    pythons: tuple[Interpreter, ...]
    architecture: str
    glibc: tuple[int, int] | None
    cores: int
    cpu: str
    memory_bytes: int
    kernel: str
    governor: str
    smt: str
    disk: str
    free_bytes: int
    netem: bool
    device: str
    ipv6: tuple[str, ...]
    root: bool
    gpus: tuple[Gpu, ...]
    infiniband: tuple[str, ...]

    @property
    def usable_gpus(self) -> int:
        """Return the number of GPUs that ranks can use."""
        return 0 if why_not(self.gpus) else len(self.gpus)

    def fingerprint(self) -> dict[str, Fact]:
        """Return the facts that affect speed, for `run.json`.

        The keys are those of the controller's own fingerprint.
        """
        return {
            "host": self.host,
            "kernel": self.kernel,
            "cpu": self.cpu or None,
            "cores": self.cores,
            "governor": self.governor or None,
            "smt": self.smt or None,
            "memory_gib": round(self.memory_bytes / 2**30, 1),
            "disk": self.disk or None,
            "gpu": ", ".join(gpu.model for gpu in self.gpus) or None,
            "infiniband": ", ".join(self.infiniband) or None,
        }


def query_nodes(machines: Sequence[Machine], roles: Roles) -> Mapping[str, NodeFacts]:
    """Return the facts of every machine by its host's name, collected by one task.

    Args:
        machines: machines of the hosts, with addresses
        roles: EnOSlib's roles of the same hosts

    Raises:
        DeploymentError: some nodes cannot be reached or do not answer; the message names all of
            them and quotes ssh
    """
    commands = {machine.alias: facts_command(machine.host.address) for machine in machines}
    answers = run_on_nodes(roles, commands, "querying node facts")
    return {name: parse_facts(name, answer) for name, answer in answers.items()}


def facts_command(address: str) -> str:
    """Return the shell command that prints a node's facts.

    Args:
        address: the node's address on the experiment network, by which its device is found
    """
    return f"LAGGARD_ADDRESS={shlex.quote(address)} /bin/sh -c {shlex.quote(_SCRIPT)}"


def parse_facts(host: str, printed: str) -> NodeFacts:
    """Parse the facts that a node printed.

    Raises:
        DeploymentError: the answer is truncated or garbled
    """
    try:
        said = _split_facts(printed)
        if "complete" in said:
            return _parse_facts(host, said)
    except ValueError as error:
        raise DeploymentError(
            f"{host}: the node's answer about its hardware and software is garbled: {error}"
        ) from error
    raise DeploymentError(
        f"{host}: the node's answer about its hardware and software is truncated; it ends"
        f" with {printed[-200:]!r}"
    )


def _split_facts(printed: str) -> dict[str, list[str]]:
    """Return the values of every fact.

    Raises:
        ValueError: a value is too long or unprintable, or there are too many
    """
    said: dict[str, list[str]] = {}
    for line in printed.splitlines():
        mark, _, rest = line.partition(" ")
        name, _, value = rest.strip().partition(" ")
        if mark != _MARK:
            continue
        if len(value) > _LONGEST_FACT or not value.isprintable():
            raise ValueError(f"the value of {name[:50]!a} is too long or not printable")
        values = said.setdefault(name, [])
        values.append(value.strip())
        if len(values) > _MOST_VALUES:
            raise ValueError(f"there are more than {_MOST_VALUES} values of {name[:50]!a}")
    return said


def _parse_facts(host: str, said: Mapping[str, Sequence[str]]) -> NodeFacts:
    one = {name: values[0] for name, values in said.items()}
    return NodeFacts(
        host=host,
        user=one.get("user", ""),
        pythons=_parse_interpreters(said.get("python", ())),
        architecture=one.get("architecture", ""),
        glibc=_parse_glibc_version(one.get("glibc", "")),
        cores=_parse_number("cores", one.get("cores", "0")),
        cpu=one.get("cpu", ""),
        memory_bytes=_parse_number("memory_kib", one.get("memory_kib", "0")) * 1024,
        kernel=one.get("kernel", ""),
        governor=one.get("governor", ""),
        smt=one.get("smt", ""),
        disk=_parse_disk_kind(said.get("rotational", ())),
        free_bytes=_free_bytes(one.get("disk_free", "")),
        netem="netem" in said,
        device=_parse_device_name(one.get("device", "")),
        ipv6=tuple(dict.fromkeys(_parse_ipv6_addresses(said.get("ipv6", ())))),
        root="root" in said,
        gpus=tuple(map(parse_gpu, said.get("gpu", ()))),
        infiniband=tuple(said.get("infiniband", ())),
    )


def _parse_number(name: str, text: str) -> int:
    if not _NUMBER.fullmatch(text):
        raise ValueError(f"{name} is {text[:50]!a}, and must be a number of at most 15 digits")
    return int(text)


def _parse_ipv6_addresses(lines: Iterable[str]) -> Iterator[str]:
    for line in lines:
        if match := _IPV6.search(line):
            # The address becomes part of commands on other nodes.
            ipaddress.IPv6Address(match[1])
            yield match[1]


def with_ipv6(machines: Sequence[Machine], facts: Mapping[str, NodeFacts]) -> tuple[Machine, ...]:
    """Return the machines with the IPv6 addresses that their nodes reported.

    An address that several nodes report is omitted, because it does not identify one node.
    Link-local addresses of different networks can coincide.

    Args:
        machines: machines of the hosts
        facts: facts of every machine, by its host's name
    """
    carried = Counter(address for machine in machines for address in facts[machine.alias].ipv6)
    return tuple(
        replace(machine, host=replace(machine.host, ipv6=own))
        for machine in machines
        for own in [
            tuple(address for address in facts[machine.alias].ipv6 if carried[address] == 1)
        ]
    )


def choose_python(facts: NodeFacts, preferred: PythonVersion) -> Interpreter | None:
    """Return the preferred interpreter, or the newest supported one; None if none is supported.

    Args:
        facts: facts of a node
        preferred: the controller's own Python version, for which all wheels are known to exist
    """
    supported = [python for python in facts.pythons if python.version in SUPPORTED_PYTHONS]
    if not supported:
        return None
    return max(supported, key=lambda python: (python.version == preferred, python.version))


def _parse_interpreters(lines: Sequence[str]) -> tuple[Interpreter, ...]:
    found = [re.fullmatch(r"(\d{1,3})\.(\d{1,3}) (/.+)", line, re.ASCII) for line in lines]
    pythons = (
        Interpreter((int(match[1]), int(match[2])), match[3])
        for match in found
        if match is not None
    )
    return tuple(dict.fromkeys(pythons))


def _parse_glibc_version(said: str) -> tuple[int, int] | None:
    match = re.fullmatch(r"glibc (\d{1,3})\.(\d{1,3})\S*", said, re.ASCII)
    return None if match is None else (int(match[1]), int(match[2]))


def _parse_disk_kind(rotational: Sequence[str]) -> str:
    if not rotational:
        return ""
    return "rotational" if "1" in rotational else "solid state"


def _free_bytes(line: str) -> int:
    """Parse a line of `df -Pk`: the third of the three numbers before the percentage."""
    match = re.search(r"\s\d+\s+\d+\s+(\d{1,18})\s+\d+%\s", line, re.ASCII)
    return 0 if match is None else int(match[1]) * 1024


def _parse_device_name(line: str) -> str:
    """Parse a line of `ip -o address show`: `2: eth0    inet 10.0.0.1/24 ...`."""
    match = re.match(r"\d+:\s+([\w.-]{1,15})[@\s]", f"{line} ", re.ASCII)
    return "" if match is None else match[1]
