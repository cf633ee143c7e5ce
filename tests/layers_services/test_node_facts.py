"""What a node says of itself, read and asked."""

from __future__ import annotations

import os
import platform
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from laggard.core.errors import DeploymentError
from laggard.core.hosts import Host
from laggard.core.run_schema import RunRecord
from laggard.layers_services.environment.gpus import Gpu, parse_gpu, why_not
from laggard.layers_services.environment.node_facts import (
    Interpreter,
    choose_python,
    facts_command,
    parse_facts,
    with_ipv6,
)
from laggard.layers_services.machine import Access, Machine

SAID = """\
Warning: Permanently added '10.0.0.1' (ED25519) to the list of known hosts.
laggard-fact user root
laggard-fact architecture x86_64
laggard-fact kernel 6.1.0-28-amd64
laggard-fact glibc glibc 2.36
laggard-fact cores 64
laggard-fact cpu Intel(R) Xeon(R) Gold 6126 CPU @ 2.60GHz
laggard-fact memory_kib 197756940
laggard-fact governor performance
laggard-fact smt on
laggard-fact disk_free /dev/mapper/my disk  479152824 11000000 443739316       3% /var/my tmp
laggard-fact rotational 0
laggard-fact rotational 1
laggard-fact python 3.9 /usr/bin/python3
laggard-fact python 3.12 /opt/my python/bin/python3.12
laggard-fact python 3.11 /usr/local/bin/python3.11
laggard-fact root yes
laggard-fact netem yes
laggard-fact device 2: eno1    inet 172.16.66.1/20 brd 172.16.79.255 scope global eno1
laggard-fact ipv6 2: eno1    inet6 2001:660:4406:700:1::6/64 scope global dynamic mngtmpaddr \\       valid_lft 86399sec
laggard-fact ipv6 2: eno1    inet6 fe80::1618:77ff:fe2e:1/64 scope link \\       valid_lft forever preferred_lft forever
laggard-fact gpu Tesla P100-PCIE-16GB, 6.0, 535.183.06
laggard-fact gpu Tesla P100-PCIE-16GB, 6.0, 535.183.06
laggard-fact infiniband mlx5_0
laggard-fact complete yes
"""


def test_reads_what_a_node_says() -> None:
    facts = parse_facts("edge.trainer.1.1", SAID)
    assert (facts.user, facts.architecture, facts.kernel, facts.glibc) == (
        "root",
        "x86_64",
        "6.1.0-28-amd64",
        (2, 36),
    )
    assert (facts.cores, facts.memory_bytes, facts.free_bytes) == (
        64,
        197756940 * 1024,
        443739316 * 1024,
    )
    assert [python.version for python in facts.pythons] == [(3, 9), (3, 12), (3, 11)]
    assert facts.pythons[1].path == "/opt/my python/bin/python3.12"
    assert (facts.netem, facts.root, facts.device, facts.disk) == (True, True, "eno1", "rotational")
    assert facts.ipv6 == ("2001:660:4406:700:1::6", "fe80::1618:77ff:fe2e:1")
    assert facts.gpus == (Gpu("Tesla P100-PCIE-16GB", (6, 0), 535),) * 2
    assert facts.usable_gpus == 0
    assert facts.infiniband == ("mlx5_0",)


@pytest.mark.parametrize(
    ("line", "gpu", "why"),
    [
        ("NVIDIA H100 80GB HBM3, 9.0, 580.95.05", Gpu("NVIDIA H100 80GB HBM3", (9, 0), 580), ""),
        (
            "Tesla V100-SXM2-32GB, 7.0, 580.95.05",
            Gpu("Tesla V100-SXM2-32GB", (7, 0), 580),
            "capability 7.0",
        ),
        ("Quadro RTX 6000, 7.5, 535.183.06", Gpu("Quadro RTX 6000", (7, 5), 535), "version 535"),
        ("Tesla T4", Gpu("Tesla T4"), ""),
        ("Tesla T4, [N/A], [N/A]", Gpu("Tesla T4"), ""),
    ],
)
def test_gpus_that_are_too_old_are_left_alone(line: str, gpu: Gpu, why: str) -> None:
    assert parse_gpu(line) == gpu
    assert bool(why_not([gpu])) == bool(why)
    assert why in why_not([gpu])
    both = parse_facts(
        "x", f"laggard-fact gpu {line}\nlaggard-fact gpu {line}\nlaggard-fact complete yes"
    )
    assert both.usable_gpus == (0 if why else 2)


def test_its_fingerprint_fits_into_run_json() -> None:
    fingerprint = parse_facts("edge.trainer.1.1", SAID).fingerprint()
    record = RunRecord(
        id="1", scenario="s", status="running", command=(), seed=1, versions={}, git=None, testbed="ssh", started="", hosts=(fingerprint,)
    )  # fmt: skip
    assert record.hosts[0]["gpu"] == "Tesla P100-PCIE-16GB, Tesla P100-PCIE-16GB"
    assert record.hosts[0]["memory_gib"] == 188.6


@pytest.mark.parametrize(
    ("line", "device"),
    [
        ("3: eth0.100@eth0    inet 10.0.0.1/24 scope global eth0.100", "eth0.100"),
        ("12: br0    inet 10.0.0.1/24", "br0"),
        ("", ""),
    ],
)
def test_the_device(line: str, device: str) -> None:
    assert (
        parse_facts("x", f"laggard-fact device {line}\nlaggard-fact complete yes\n").device
        == device
    )


def test_hosts_have_the_ipv6_addresses_that_are_theirs_alone() -> None:
    told = {
        "a": ("2001:db8::a", "fe80::1"),
        "b": ("fe80::1", "fe80::b"),
        "c": (),
    }
    machines = [
        Machine(Host(name, name, "s", 1, 1, "10.0.0.1", ipv6=("fd77::1",)), Access(name))
        for name in told
    ]
    facts = {
        name: replace(parse_facts(name, SAID), ipv6=addresses) for name, addresses in told.items()
    }
    assert [machine.host.ipv6 for machine in with_ipv6(machines, facts)] == [
        ("2001:db8::a",),
        ("fe80::b",),
        (),
    ]


def test_a_node_that_says_little() -> None:
    facts = parse_facts("x", "laggard-fact complete yes\r\n")
    assert (facts.pythons, facts.glibc, facts.device, facts.netem, facts.cores) == (
        (),
        None,
        "",
        False,
        0,
    )
    assert parse_facts("x", "laggard-fact glibc musl\nlaggard-fact complete yes").glibc is None


def test_an_answer_that_is_cut_short() -> None:
    with pytest.raises(DeploymentError, match=r"x: the node's answer .* is truncated"):
        parse_facts("x", SAID.partition("laggard-fact gpu")[0])


@pytest.mark.parametrize(
    ("versions", "preferred", "chosen"),
    [
        ([(3, 9), (3, 12), (3, 11)], (3, 11), (3, 11)),
        ([(3, 9), (3, 12), (3, 11)], (3, 13), (3, 12)),
        ([(3, 9), (3, 14)], (3, 11), None),
        ([], (3, 11), None),
    ],
)
def test_the_python_to_use(
    versions: list[tuple[int, int]], preferred: tuple[int, int], chosen: tuple[int, int] | None
) -> None:
    pythons = tuple(Interpreter(version, f"/usr/bin/python{version}") for version in versions)
    got = choose_python(replace(parse_facts("x", SAID), pythons=pythons), preferred)
    assert (got and got.version) == chosen


def test_asked_of_this_machine() -> None:
    command = facts_command("127.0.0.1")
    said = subprocess.run(["/bin/sh", "-c", command], check=True, capture_output=True, text=True)
    facts = parse_facts("here", said.stdout)
    assert facts.kernel == platform.release()
    assert facts.architecture == platform.machine()
    assert facts.cores == os.cpu_count()
    assert facts.memory_bytes == os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert facts.glibc == tuple(int(part) for part in platform.libc_ver()[1].split(".")[:2])
    assert facts.device == "lo"
    assert facts.ipv6 == tuple(
        each.address for each in psutil.net_if_addrs()["lo"] if each.family == socket.AF_INET6
    )
    disk = os.statvfs("/var/tmp")
    assert facts.free_bytes == pytest.approx(disk.f_bavail * disk.f_frsize, rel=0.05)
    assert any(python.version == sys.version_info[:2] for python in facts.pythons)
    assert facts.root == (os.geteuid() == 0) or facts.root


def test_an_address_is_no_command() -> None:
    command = facts_command("127.0.0.1; echo laggard-fact user evil")
    said = subprocess.run(["/bin/sh", "-c", command], check=True, capture_output=True, text=True)
    assert parse_facts("here", said.stdout).user != "evil"
    assert parse_facts("here", said.stdout).device == ""


@pytest.mark.parametrize(("knows", "driver"), [("compute_cap", 580), ("name", None)])
def test_an_old_nvidia_smi_is_asked_for_less(
    knows: str, driver: int | None, tmp_path: Path
) -> None:
    """A script in the place of the driver's program: an old one refuses a field that it does not
    know, on standard output."""
    program = tmp_path / "nvidia-smi"
    new = (
        '*compute_cap*) printf "Tesla T4, 7.5, 580.95.05\\n%.0s" 1 2;;'
        if knows == "compute_cap"
        else ""
    )
    old = '*=name) printf "Tesla T4\\n%.0s" 1 2;;'
    program.write_text(f"""#!/bin/sh
case "$1" in {new} {old} *) echo 'Field "compute_cap" is not a valid field to query.'; exit 2;; esac
""")
    program.chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    command = ["/bin/sh", "-c", facts_command("127.0.0.1")]
    said = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    facts = parse_facts("here", said.stdout)
    assert [(gpu.model, gpu.driver) for gpu in facts.gpus] == [("Tesla T4", driver)] * 2
    assert facts.usable_gpus == 2


@pytest.mark.parametrize(
    "line",
    [
        "cores many",
        "cores -1",
        "cores " + "9" * 5000,
        "cores \u0663",
        "memory_kib 1e9",
        "memory_kib " + "9" * 20,
        "ipv6 2: eth0    inet6 :::::/64 scope global",
        "ipv6 2: eth0    inet6 1:2:3:4:5:6:7:8:9/64 scope global",
        "cpu \x1b[2J",
        "cpu \u202e",
        "cpu " + "x" * 5000,
    ],
)
def test_an_impossible_fact_is_refused_with_its_node(line: str) -> None:
    with pytest.raises(DeploymentError, match=r"^edge: .* is garbled: ") as error:
        parse_facts("edge", f"laggard-fact {line}\nlaggard-fact complete yes\n")
    assert str(error.value).isprintable()


def test_facts_without_end_are_refused() -> None:
    with pytest.raises(DeploymentError, match="more than 256 values of 'gpu'"):
        parse_facts("edge", "laggard-fact gpu H100\n" * 300 + "laggard-fact complete yes\n")


@pytest.mark.parametrize(
    ("line", "field", "value"),
    [
        ("device 2: eth0; reboot    inet 10.0.0.1/24", "device", ""),
        ("device 2: a/../b    inet 10.0.0.1/24", "device", ""),
        ("device 2: eth0@if7    inet 10.0.0.1/24", "device", "eth0"),
        ("glibc glibc 9999.99999", "glibc", None),
        ("python 99999.1 /usr/bin/python3", "pythons", ()),
        ("python 3.11 python3", "pythons", ()),
        ("disk_free disk 1 1 " + "9" * 30 + " 1% /", "free_bytes", 0),
    ],
)
def test_an_unusable_fact_is_left_out(line: str, field: str, value: object) -> None:
    facts = parse_facts("edge", f"laggard-fact {line}\nlaggard-fact complete yes\n")
    assert getattr(facts, field) == value
