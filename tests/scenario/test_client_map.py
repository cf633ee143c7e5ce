"""Maps of clients: who has which samples, from a CSV file of the scenario."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laggard.core.errors import InputError, LaggardError
from laggard.scenario.load import load_scenario
from laggard.scenario.named_files.client_map import parse_owners
from laggard.workloads.clients.client_partition import ClientPartition
from laggard.workloads.datasets import open_data, prepare_data
from laggard.workloads.streams.plan_partition import plan_partition
from tests.virtual.federated_scenario import SHARES, write_federated

HOSTS = ("edge.a.1.1", "edge.a.1.1", "edge.a.1.2")


@given(st.dictionaries(st.integers(0, 99), st.integers(0, 2), min_size=1), st.randoms())
def test_each_sample_has_the_client_of_its_row(owners: dict[int, int], random: object) -> None:
    text = io.StringIO()
    rows = csv.writer(text)
    rows.writerow(("sample", "label", "client"))
    entries = [*owners.items()]
    random.shuffle(entries)  # type: ignore[attr-defined]
    for sample, client in entries:
        # A host with one worker is named as well as numbered.
        rows.writerow((sample, "any", "edge.a.1.2" if client == 2 and sample % 2 else client))
    found = parse_owners(text.getvalue().encode(), "clients.csv", HOSTS)
    assert len(found) == max(owners) + 1
    assert {n: owner for n, owner in enumerate(found) if owner >= 0} == owners


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "clients.csv:1: the columns are missing, and client, sample must be among them"),
        ("client\n0\n", "the columns are client, and"),
        ("client,sample\n", "has no sample"),
        ("client,sample\n0\n", "clients.csv:2: the line has not the columns"),
        ("client,sample\n0,0\n3,1\n", "clients.csv:3: there is no client 3 — give a number from"),
        ("client,sample\n0,-1\n", "'-1' is no number of a sample"),
        ("client,sample\n0,99999999\n", "'99999999' is no number of a sample"),
        ("client,sample\n0,1\n1,1\n", "sample 1 has two clients"),
        ("client,sample\nedge.a.1.3,1\n", "no client is on a host 'edge.a.1.3' — "),
        ("client,sample\nedge.a.1.1,1\n", "2 clients are on the host edge.a.1.1 — give their"),
        ('client,sample\n"0,1', "is no CSV file"),
    ],
)
def test_a_wrong_map_says_where(text: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_owners(text.encode(), "clients.csv", HOSTS)
    assert message in str(caught.value)


def test_bytes_that_are_no_text_are_refused() -> None:
    with pytest.raises(InputError, match="is not text in UTF-8"):
        parse_owners(b"client,sample\n0,\xff\n", "clients.csv", HOSTS)


def write_map(folder: Path, rows: dict[int, int | str]) -> Path:
    write_federated(folder, {"births": {"clients": "clients.csv"}})
    lines = "".join(f"{client},{sample}\n" for sample, client in rows.items())
    (folder / "clients.csv").write_text(f"client,sample\n{lines}")
    return folder


def plan(folder: Path, output: Path) -> ClientPartition:
    scenario = load_scenario(folder)
    prepare_data(scenario.workload, output)
    data = open_data(scenario.workload, output)
    tiers = tuple(host.layer for host in scenario.ranks)
    partition = plan_partition(scenario.workload, data, len(scenario.ranks), tiers)
    assert isinstance(partition, ClientPartition)
    return partition


def test_clients_train_on_the_samples_of_their_map(tmp_path: Path) -> None:
    rows: dict[int, int | str] = {5: 0, 3: 0, 1436: "edge.client.1.2", 7: 2}
    partition = plan(write_map(tmp_path / "scenario", rows), tmp_path)
    found = [partition.list_samples(rank).tolist() for rank in range(len(SHARES))]
    assert found == [[3, 5], [1436], [7], []]


def test_a_sample_that_the_dataset_lacks_is_told(tmp_path: Path) -> None:
    folder = write_map(tmp_path / "scenario", {1437: 0})
    with pytest.raises(LaggardError, match="sample 1437 has a worker, and the dataset has 1437"):
        plan(folder, tmp_path)


def test_a_map_that_is_missing_or_wrong_is_told_at_its_key(tmp_path: Path) -> None:
    folder = write_map(tmp_path / "scenario", {0: 9})
    with pytest.raises(LaggardError, match=r"births.clients.*there is no client 9"):
        load_scenario(folder)
    (folder / "clients.csv").unlink()
    with pytest.raises(LaggardError, match=r"births.clients.*put the clients file"):
        load_scenario(folder)


def test_workers_are_sent_the_owners_and_not_the_file(tmp_path: Path) -> None:
    scenario = load_scenario(write_map(tmp_path / "scenario", {1: 3, 0: 1}))
    births = scenario.workload.births
    assert births is not None
    assert (births.clients, births.owners) == (None, (1, 3))
    kind = type(scenario.workload)
    assert kind.model_validate_json(scenario.workload.model_dump_json(by_alias=True)) == (
        scenario.workload
    )


def test_all_samples_of_a_stream_have_a_worker(tmp_path: Path) -> None:
    stream = {"tasks": 2, "births": {"owners": [0, 1, -1]}}
    replaced = {"births": None, "strategy": "allreduce", "stream": stream}
    scenario = load_scenario(write_federated(tmp_path / "scenario", replaced))
    prepare_data(scenario.workload, tmp_path)
    data = open_data(scenario.workload, tmp_path)
    with pytest.raises(InputError, match="sample 2 has no worker"):
        plan_partition(scenario.workload, data, 4, ("edge",) * 4)
