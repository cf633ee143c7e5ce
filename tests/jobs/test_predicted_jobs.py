"""Jobs that are workloads on the layers of a continuum: their speeds are predicted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from laggard.cli.main import main
from laggard.jobs.cluster_file import load_cluster
from laggard.workloads.scheduling.registry import POLICIES
from tests.scenario.scenario_folders import write

LAYERS = """\
environment: {job_name: jobs, walltime: "00:10:00", g5k: {job_type: [], cluster: paradoxe}}
layers:
  - {name: cloud, services: [{name: trainer, quantity: 2}]}
  - {name: edge, services: [{name: trainer, quantity: 3}]}
"""
NETWORK = """\
networks:
  - {src: "edge.*", dst: "edge.*", delay: 20ms, rate: 5mbit}
"""
HETEROGENEITY = """\
deterministic:
  - {hosts: "edge.*", cpu: 20%}
"""
WORKLOAD = """\
model: mlp
dataset: digits
batch_size: 32
placement: {workers: ["cloud.*"]}
stop: {steps: 50}
"""
CLUSTER = """\
layers: continuum
prices: {cloud: 0.2, edge: 0.05}
round: 5s
reallocate: 5s
jobs:
  - {name: one, workload: train.yaml}
  - {name: two, workload: train.yaml, scale: 2, steps: 80, arrival: 1s}
"""


@pytest.fixture
def cluster(tmp_path: Path) -> Path:
    write(
        tmp_path / "continuum",
        {
            "layers_services": LAYERS,
            "network": NETWORK,
            "heterogeneity": HETEROGENEITY,
            "workflow": "[]\n",
            "workload": WORKLOAD.replace("mlp", "cnn"),
        },
    )
    (tmp_path / "train.yaml").write_text(WORKLOAD)
    path = tmp_path / "cluster.yaml"
    path.write_text(CLUSTER)
    return path


def test_speeds_follow_the_shares_and_links_of_a_layer(cluster: Path) -> None:
    found = load_cluster(cluster)
    assert [(each.name, each.count, each.price_per_hour) for each in found.types] == [
        ("cloud", 2, 0.2),
        ("edge", 3, 0.05),
    ]
    one, two = found.jobs
    assert (one.steps, two.steps) == (50, 80)
    assert sorted(one.get_curve("edge")) == sorted(two.get_curve("edge")) == [1, 2]
    # The steps of one job are measured once, so that a fifth of a core is a fifth of its speed.
    assert one.throughput["cloud"] / one.throughput["edge"] == pytest.approx(5.0, rel=0.01)
    # Two hosts of the edge have a round trip for every part of the gradients.
    assert two.get_curve("edge")[2] < 1 / 0.040


def test_a_schedule_says_that_speeds_are_predicted(cluster: Path) -> None:
    found = CliRunner().invoke(main, ["schedule", str(cluster), "--policy", "all", "--json"])
    assert found.exit_code == 0, found.output
    document = json.loads(found.stdout)
    assert "the throughput of one, two is predicted from steps on this machine" in document["notes"]
    assert len(document["schedules"]) == len(POLICIES)
    assert all(each["makespan_s"] > 1 for each in document["schedules"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("layers: continuum\n", "layers: continuum\ntypes: {t: {count: 1}}\n"), "`types` or"),
        (("layers: continuum\nprices: {cloud: 0.2, edge: 0.05}\n", ""), "`types` or `layers`"),
        (("layers: continuum", "types: {t: {count: 1}}"), "`prices` are those of `layers`"),
        (
            ("layers: continuum\nprices: {cloud: 0.2, edge: 0.05}", "types: {t: {count: 1}}"),
            "trains on the `layers` of a scenario",
        ),
        (("cloud: 0.2", "fog: 0.2"), "fog is no layer — the layers are cloud, edge"),
        (("scale: 2", "scale: 4"), "needs 4 hosts of a layer, which has 3 at most"),
        (("workload: train.yaml}", "workload: none.yaml}"), "none.yaml"),
        (("workload: train.yaml}", "workload: broken.yaml}"), "broken.yaml:1:1: modle"),
        (("workload: train.yaml}", "workload: endless.yaml}"), "has no stop.steps — give `steps`"),
        (("workload: train.yaml}", "steps: 4}"), "neither a `throughput` nor a `workload`"),
        (("workload: train.yaml}", "throughput: {cloud: 2.0}}"), "one: has no `steps`"),
        (("layers: continuum", "layers: nowhere"), "nowhere"),
    ],
)
def test_bad_input_is_one_message(cluster: Path, change: tuple[str, str], message: str) -> None:
    (cluster.parent / "broken.yaml").write_text("modle: mlp\ndataset: digits\n")
    (cluster.parent / "endless.yaml").write_text(WORKLOAD.replace("steps: 50", "time: 5s"))
    assert change[0] in CLUSTER
    cluster.write_text(CLUSTER.replace(*change))
    found = CliRunner().invoke(main, ["schedule", str(cluster)])
    assert found.exit_code == 2, found.output
    assert message in found.output
    assert "Traceback" not in found.output
