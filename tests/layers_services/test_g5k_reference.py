"""Reference data of Grid'5000: consistent, of every node, and as a plan describes it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laggard.layers_services.g5k.description import describe_g5k
from laggard.layers_services.g5k.reference import (
    format_number_ranges,
    load_reference,
    parse_server,
    spelled_out,
)
from tests.layers_services.g5k_servers import EXCERPT, describe_node, plan_hardware
from tests.layers_services.test_g5k_plan import NIGHT, plan

steady = settings(derandomize=True, deadline=None)


@steady
@given(st.sets(st.integers(1, 200)))
def test_node_numbers_keep(numbers: set[int]) -> None:
    assert spelled_out(format_number_ranges(numbers)) == tuple(sorted(numbers))


def test_the_shipped_reference_is_consistent() -> None:
    known = load_reference()
    assert len(known.by_name) == len(known.clusters) > 150
    assert len(known.commit) == 40
    for cluster in known.clusters:
        assert cluster.nodes > 0
        for hardware in cluster.hardware:
            assert hardware.cores > 0
            assert hardware.memory_gib > 0
            assert hardware.ethernet_gbps > 0
            assert hardware.ethernets > 0
        numbered = [n for each in cluster.hardware for n in spelled_out(each.numbers)]
        assert len(set(numbered)) == len(numbered) == cluster.nodes
        # Usage rules count the nodes of a cluster as equal.
        assert len({hardware.cores for hardware in cluster.hardware}) == 1
        assert len({hardware.architecture for hardware in cluster.hardware}) == 1
        assert cluster.queues
        numbers = spelled_out(cluster.numbers)
        assert parse_server(cluster.server(numbers[0])) == (cluster.name, numbers[0], cluster.site)
        assert {n for limited in cluster.longest_hours for n in spelled_out(limited)} <= set(
            numbers
        )
        assert cluster.nodes_for(cluster.longest_s(cluster.nodes)) == cluster.nodes


@pytest.mark.parametrize(
    ("name", "facts"),
    [
        (
            "gemini",
            {
                "site": "lyon",
                "nodes": 2,
                "exotic": True,
                "queues": ("default",),
                "power_meter": "wattmetre",
            },
        ),
        (
            "chifflot",
            {"site": "lille", "nodes": 8, "has_gpus": True, "exotic": False},
        ),
        (
            "graffiti",
            {"site": "nancy", "nodes": 12, "numbers": "1-11,13", "queues": ("abaca", "production")},
        ),
        ("parasilo", {"site": "rennes", "nodes": 25, "architecture": "x86_64", "has_gpus": False}),
        ("estats", {"site": "toulouse", "nodes": 12, "architecture": "aarch64", "exotic": True}),
    ],
)
def test_facts_of_some_clusters(name: str, facts: dict[str, object]) -> None:
    cluster = load_reference().by_name[name]
    assert {key: getattr(cluster, key) for key in facts} == facts


def test_longest_walltimes_of_the_production_queue() -> None:
    graffiti = load_reference().by_name["graffiti"]  # three nodes give 24 h, three 48 h, six a week
    assert [graffiti.longest_s(nodes) / 3600 for nodes in (1, 6, 7, 9, 10, 12, 13)] == [
        168,
        168,
        48,
        48,
        24,
        24,
        0,
    ]
    assert [graffiti.nodes_for(hours * 3600) for hours in (24, 25, 49, 169)] == [12, 9, 6, 0]


NODES = json.loads(EXCERPT.read_text(encoding="utf-8"))["nodes"]


@pytest.mark.parametrize("server", sorted(NODES))
def test_a_named_server_has_the_hardware_of_its_own_document(server: str, tmp_path: Path) -> None:
    assert plan_hardware(tmp_path, server, NODES[server]) == describe_node(NODES[server])


MIXED = """\
environment:
  g5k: {queue: production}
layers:
- {name: edge, services: [{name: trainer, SERVERS}]}
"""


@pytest.mark.parametrize(
    ("servers", "hardware"),
    [
        (
            "servers: [graffiti-13.nancy.grid5000.fr, graffiti-2.nancy.grid5000.fr]",
            (
                "graffiti-{2}: 16 cores, 128 GiB, 4 x GeForce RTX 2080 Ti, 10 Gbit/s, x86_64,"
                " metered; graffiti-{13}: 16 cores, 128 GiB, 4 x Quadro RTX 6000, 10 Gbit/s,"
                " x86_64, metered"
            ),
        ),
        (
            "cluster: abacus22",
            (
                "abacus22-{1-2}: 48 cores, 512 GiB, 3 x A40, 10 Gbit/s, x86_64; abacus22-{3}: 48"
                " cores, 512 GiB, 1 x A40, 10 Gbit/s, x86_64"
            ),
        ),
    ],
)
def test_nodes_that_differ_are_described_one_by_one(servers: str, hardware: str) -> None:
    described = describe_g5k(plan(MIXED.replace("SERVERS", servers)), NIGHT)
    assert [machines.hardware for machines in described.machines] == [hardware]
