"""Topologies of two real kinds of machines, and files that are none.

The matrix of hwloc is that of a POWER8 with four P100 (open-mpi/hwloc,
`tests/hwloc/xml/power8gpudistances.xml`); that of nvidia-smi is a DGX-1V's.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from laggard.core.errors import InputError
from laggard.core.run_schema import FidelityCheck
from laggard.jobs.place_devices import format_placement, place_devices
from laggard.jobs.topology_file import read_topology
from laggard.workloads.scheduling.ring_placement import place_ring
from tests.command_line import SMALL

HWLOC = """<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE topology SYSTEM "hwloc2.dtd">
<topology version="2.0">
  <object type="Machine">
    <object type="OSDev" gp_index="332" name="cuda0"/><object type="OSDev" gp_index="333" name="cuda1"/>
    <object type="OSDev" gp_index="334" name="cuda2"/><object type="OSDev" gp_index="335" name="cuda3"/>
  </object>
  <distances2 type="NUMANode" nbobjs="2" name="NUMALatency">
    <indexes length="4">0 1 </indexes><u64values length="12">10 40 40 10 </u64values>
  </distances2>
  <distances2hetero nbobjs="6" kind="25" name="NVLinkBandwidth">
    <indexes length="62">OSDev:332 OSDev:333 OSDev:334 OSDev:335 Package:3 Package:134 </indexes>
    <u64values length="44">1000000 40000 0 0 40000 0 40000 1000000 0 0 </u64values>
    <u64values length="38">40000 0 0 0 1000000 40000 0 40000 0 0 </u64values>
    <u64values length="48">40000 1000000 0 40000 40000 40000 0 0 1000000 0 </u64values>
    <u64values length="26">0 0 40000 40000 0 1000000 </u64values>
  </distances2hetero>
</topology>
"""
NVIDIA = """\
\tGPU0\tGPU1\tGPU2\tGPU3\tGPU4\tGPU5\tGPU6\tGPU7\tCPU Affinity
GPU0\t X \tNV1\tNV1\tNV2\tNV2\tSYS\tSYS\tSYS\t0-19,40-59
GPU1\tNV1\t X \tNV2\tNV1\tSYS\tNV2\tSYS\tSYS\t0-19,40-59
GPU2\tNV1\tNV2\t X \tNV2\tSYS\tSYS\tNV1\tSYS\t0-19,40-59
GPU3\tNV2\tNV1\tNV2\t X \tSYS\tSYS\tSYS\tNV1\t0-19,40-59
GPU4\tNV2\tSYS\tSYS\tSYS\t X \tNV1\tNV1\tNV2\t20-39,60-79
GPU5\tSYS\tNV2\tSYS\tSYS\tNV1\t X \tNV2\tNV1\t20-39,60-79
GPU6\tSYS\tSYS\tNV1\tSYS\tNV1\tNV2\t X \tNV2\t20-39,60-79
GPU7\tSYS\tSYS\tSYS\tNV1\tNV2\tNV1\tNV2\t X \t20-39,60-79

Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes
"""


def read(tmp_path: Path, name: str, text: str) -> tuple[tuple[str, ...], np.ndarray]:
    path = tmp_path / name
    path.write_text(text)
    found = read_topology(path)
    return found.names, found.rates_gb_per_s


def test_gpus_of_a_power8_are_linked_in_pairs(tmp_path: Path) -> None:
    names, rates = read(tmp_path, "power8.xml", HWLOC)
    assert names == ("cuda0", "cuda1", "cuda2", "cuda3")
    expected = np.zeros((4, 4))
    expected[0, 1] = expected[1, 0] = expected[2, 3] = expected[3, 2] = 40.0
    assert (rates == expected).all()
    assert place_ring(rates, 2).rate == 40.0
    with pytest.raises(InputError, match="use fewer devices"):
        place_ring(rates, 4)


def test_nvidias_matrix_has_the_rings_of_a_dgx(tmp_path: Path) -> None:
    path = tmp_path / "topo.txt"
    path.write_text(NVIDIA)
    found = read_topology(path)
    assert len(found.names) == 8
    assert (found.rates_gb_per_s == found.rates_gb_per_s.T).all()
    assert "6 GB/s are assumed for a path SYS" in found.notes
    rings = [place_ring(found.rates_gb_per_s, size).rate for size in range(2, 9)]
    assert rings == [50.0, 25.0, 25.0, 25.0, 25.0, 25.0, 50.0]


def test_a_csv_has_rates(tmp_path: Path) -> None:
    names, rates = read(tmp_path, "t.csv", "a,b\n0,3.5\n2,0\n")
    assert names == ("a", "b")
    assert rates.tolist() == [[0, 3.5], [2, 0]]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("t.xml", "<topology/>", "no matrix NVLinkBandwidth"),
        ("t.xml", "<topology", "is not XML"),
        ("t.xml", '<!DOCTYPE t [<!ENTITY a "b">]><topology/>', "entities"),
        ("t.xml", HWLOC.replace("1000000 40000 0 0 40000 0", "1000000 40000"), "numbers for 6"),
        ("t.txt", "nothing", "no line of GPU0"),
        ("t.txt", "\n".join(NVIDIA.splitlines()[:5]), "missing or too short"),
        ("t.txt", NVIDIA.replace("NV2", "XY2"), "is no path"),
        ("t.csv", "a,b\n0,1\n", "no square"),
        ("t.csv", "a,b\n0,x\n1,0\n", "is no rate"),
        ("t.csv", "a,b\n0,-1\n1,0\n", "negative or not finite"),
        ("t.csv", "a,b\n0,inf\n1,0\n", "negative or not finite"),
        ("t.csv", "a,a\n0,1\n1,0\n", "same name"),
        ("t.csv", "a\n0\n", "has 1 devices"),
    ],
)
def test_what_is_no_topology_is_refused(tmp_path: Path, name: str, text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read(tmp_path, name, text)


def test_the_hosts_of_a_run_have_the_rates_that_it_measured(tmp_path: Path) -> None:
    (tmp_path / "scenario").mkdir()
    networks = """
networks:
  - {src: "cloud.*", dst: "edge.*", delay: 1ms, rate: 100mbit, symmetric: true}
"""
    for name, text in {**SMALL, "network.yaml": networks}.items():
        (tmp_path / "scenario" / name).write_text(text)
    cloud, edge, far = "cloud.trainer.1.1", "edge.trainer.1.1", "edge.trainer.1.2"
    check = FidelityCheck(
        kind="rate", src=cloud, dst=edge, requested=100, measured=80, unit="Mbit/s", tolerance=5,
        ok=False,
    )  # fmt: skip
    (tmp_path / "fidelity.json").write_text(json.dumps([check.model_dump()]))
    found = read_topology(tmp_path)
    assert found.names == (cloud, edge, far)
    # The edge hosts have no limit between them.
    assert 8000 * found.rates_gb_per_s == pytest.approx(
        np.array([[0, 80, 100], [100, 0, 200], [100, 200, 0]])
    )
    assert found.notes[0] == "5 of 6 links were not measured: as planned"
    placed = place_devices(found, sizes=[2])
    assert "2        200 Mbit/s    edge.trainer.1.1 edge.trainer.1.2" in format_placement(placed)
    with pytest.raises(InputError, match="is no folder of a run"):
        read_topology(tmp_path / "scenario")
