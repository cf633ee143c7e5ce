"""`laggard schedule`: cluster files and traces in, schedules out; bad ones are one message."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from laggard.cli.main import main
from laggard.core.errors import InputError
from laggard.jobs.job_trace import read_jobs

CLUSTER = """\
types: {fast: {count: 2, price: 2.0}, slow: {count: 4, price: 0.5}}
round: 10s
reallocate: 30s
jobs:
  - {name: a, steps: 400, throughput: {fast: 4.0, slow: 1.0}}
  - {name: b, steps: 200, scale: 2, throughput: {fast: 2.0, slow: 1.5}}
  - {name: c, steps: 300, arrival: 20s, priority: 2, throughput: {slow: 3.0}}
"""
GAVEL_LINE = "{kind}\tpython3 main.py\tvision\t--steps\t1\t{steps}\t{scale}\t1\t-1.0\t{arrival}\n"


def schedule(path: Path, *arguments: str) -> dict[str, object]:
    found = CliRunner().invoke(main, ["schedule", str(path), "--json", *arguments])
    assert found.exit_code == 0, found.output
    document: dict[str, object] = json.loads(found.stdout)
    return document


def test_policies_are_compared(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text(CLUSTER)
    figure = tmp_path / "turns.svg"
    found = CliRunner().invoke(main, ["schedule", str(path), "--policy=all", f"--figure={figure}"])
    assert found.exit_code == 0, found.output
    assert "finish_time_fairness" in found.stdout
    assert "note: 1 of 3 jobs cannot run on fast" in found.stdout
    assert "<svg" in figure.read_text()
    document = schedule(path)
    (only,) = document["schedules"]
    assert only["policy"] == "max_min_fairness"
    done = [
        sum(job["received_s"][kind] * speed for kind, speed in speeds.items())
        for job, speeds in zip(
            only["jobs"],
            ({"fast": 4.0, "slow": 1.0}, {"fast": 2.0, "slow": 1.5}, {"slow": 3.0}),
            strict=True,
        )
    ]
    assert done == pytest.approx([400, 200, 300])
    assert all(0 < part <= 1 for part in only["utilization"].values())


def test_a_csv_and_gavels_format_have_the_same_jobs(tmp_path: Path) -> None:
    types = "types: {fast: {count: 2}, slow: {count: 4}}\n"
    (tmp_path / "jobs.csv").write_text(
        "name,arrival_s,scale,steps,fast,slow\none,0,1,5000,4.0,1.0\nother,50,2,2000,2.0,0\n"
    )
    (tmp_path / "jobs.trace").write_text(
        GAVEL_LINE.format(kind="one", steps=5000, scale=1, arrival=0)
        + GAVEL_LINE.format(kind="other", steps=2000, scale=2, arrival=50)
    )
    speeds = {
        "fast": {"('one', 1)": {"null": 4.0}, "('other', 2)": {"null": 2.0, "('one', 2)": [1, 1]}},
        "slow": {"('one', 1)": {"null": 1.0}, "('other', 2)": {"null": 0.0}},
    }
    (tmp_path / "speeds.json").write_text(json.dumps(speeds))
    (tmp_path / "csv.yaml").write_text(types + "trace: jobs.csv\n")
    (tmp_path / "gavel.yaml").write_text(types + "trace: jobs.trace\nthroughputs: speeds.json\n")
    first, other = (
        schedule(tmp_path / f"{name}.yaml")["schedules"][0] for name in ("csv", "gavel")
    )
    assert [job["finish_s"] for job in first["jobs"]] == [job["finish_s"] for job in other["jobs"]]
    assert first["jobs"][0]["name"] == "one"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("jobs:", "trace: x.csv\njobs:"), "either `jobs` or a `trace`"),
        (("scale: 2", "scale: 9"), "needs 9 devices"),
        (("name: b", "name: a"), "two jobs have this name"),
        (("arrival: 20s", "arrival: -3s"), "arrival"),
        (("count: 2", "count: 0"), "cluster.yaml:1:"),
        (("round: 10s", "round: 10 parsecs"), "cluster.yaml:2:"),
        (("throughput: {slow: 3.0}", "throughput: {slow: 0}"), "runs on no type"),
        (
            ("throughput: {slow: 3.0}", "throughput: {other: 2}"),
            "no throughput on any of fast, slow",
        ),
        (("round: 10s", "round: 10s\npreemption: 20s"), "longer rounds"),
        (("round: 10s", "round: 10s\npolicy: fairest"), "no policy has this name"),
        (("fast: 2.0", "fast: {1: 1.0}"), "no throughput on 2 fast, which is its scale"),
        (("fast: 2.0", "fast: {0: 1.0, 2: 2.0}"), "give at least 1 device"),
        (("jobs:", "pairs: [{jobs: [a, z], throughput: {fast: [1, 1]}}]\njobs:"), "z is not the"),
        (("jobs:", "pairs: [{jobs: [a, c], throughput: {slow: [1]}}]\njobs:"), "cluster.yaml:4:"),
        (("jobs:", "policy: las\nobjective: cost\njobs:"), "either a `policy` or an `objective`"),
        (("jobs:", "objective: speed\njobs:"), "cluster.yaml:4:"),
        (("jobs:", "teams: {x: {weight: 2}}\njobs:"), "a: its team is missing"),
        (("name: a", "team: x, name: a"), "a: its team is x, and `teams` has none"),
        (("jobs:", "teams: {x: {weight: 0}}\njobs:"), "cluster.yaml:4:"),
    ],
)
def test_bad_input_is_one_message(tmp_path: Path, change: tuple[str, str], message: str) -> None:
    path = tmp_path / "cluster.yaml"
    assert change[0] in CLUSTER
    path.write_text(CLUSTER.replace(*change))
    found = CliRunner().invoke(main, ["schedule", str(path)])
    assert found.exit_code == 2, found.output
    assert message in found.output
    assert "Traceback" not in found.output


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("jobs.csv", "name,steps\na,1\n", "jobs.csv:1: needs the columns"),
        ("jobs.csv", "name,steps,fast\na,many,1\n", "jobs.csv:2: "),
        ("jobs.csv", "name,steps,fast\na,1,-1\n", "jobs.csv:2: a: "),
        ("jobs.trace", "one\ttwo\n", "has 2 cells"),
        ("jobs.trace", "", "has no jobs"),
        ("jobs.trace", GAVEL_LINE.format(kind="?", steps=1, scale=1, arrival=0), "add it"),
    ],
)
def test_bad_traces_are_one_message(tmp_path: Path, name: str, content: str, message: str) -> None:
    (tmp_path / name).write_text(content)
    (tmp_path / "speeds.json").write_text('{"fast": {"(\'one\', 1)": {"null": 1.0}}}')
    speeds = "throughputs: speeds.json\n" if name.endswith("trace") else ""
    path = tmp_path / "cluster.yaml"
    path.write_text(f"types: {{fast: {{count: 2}}}}\ntrace: {name}\n{speeds}")
    found = CliRunner().invoke(main, ["schedule", str(path)])
    assert found.exit_code == 2, found.output
    assert message in found.output


SHARED = """\
types: {t: {count: 2}}
round: 10s
reallocate: 10s
policy: share
jobs:
  - {name: a, steps: 400, throughput: {t: {1: 4.0, 2: 4.4}}}
  - {name: b, steps: 300, throughput: {t: 3.0}}
  - {name: c, steps: 200, throughput: {t: 2.0}}
pairs:
  - {jobs: [c, b], throughput: {t: [1.6, 2.7]}}
"""


def test_jobs_share_a_device_if_their_file_says_that_they_may(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text(SHARED)
    (shared,) = schedule(path)["schedules"]
    # b and c take 300 / 2.7 s and then what c has left at its full speed, and a runs beside them.
    finish_s = {job["name"]: job["finish_s"] for job in shared["jobs"]}
    assert finish_s["a"] == pytest.approx(100.0, abs=10)
    assert finish_s["b"] == pytest.approx(111.0, abs=10)
    assert finish_s["c"] == pytest.approx(125.0, abs=20)
    (alone,) = schedule(path, "--policy=fifo")["schedules"]
    assert shared["makespan_s"] < alone["makespan_s"]


def test_curves_that_gain_more_speed_than_devices_are_kept_and_said(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text(SHARED.replace("2: 4.4", "2: 9.0"))
    found = CliRunner().invoke(main, ["schedule", str(path)])
    assert "note: on t, a gain more speed than devices, which is kept as measured" in found.stdout


def test_pairs_and_curves_are_read_from_gavels_format(tmp_path: Path) -> None:
    (tmp_path / "jobs.trace").write_text(
        "".join(GAVEL_LINE.format(kind=kind, steps=400, scale=1, arrival=0) for kind in "aab")
    )
    both = {"null": 2.0, "('b', 1)": [1.9, 0.9], "('a', 2)": [9.0, 9.0]}
    speeds = {"t": {"('a', 1)": both, "('a', 2)": {"null": 3.0}, "('b', 1)": {"null": 1.0}}}
    (tmp_path / "speeds.json").write_text(json.dumps(speeds))
    found = read_jobs(tmp_path / "jobs.trace", tmp_path / "speeds.json", ["t"])
    assert found.pairs == {("a", "b"): {"t": (1.9, 0.9)}}
    assert [job.get_curve("t") for job in found.jobs] == [{1: 2.0, 2: 3.0}] * 2 + [{1: 1.0}]
    speeds["t"]["('a', 1)"]["('b', 1)"] = [1.9]
    (tmp_path / "speeds.json").write_text(json.dumps(speeds))
    with pytest.raises(InputError, match="are not two numbers"):
        read_jobs(tmp_path / "jobs.trace", tmp_path / "speeds.json", ["t"])


@pytest.mark.parametrize(
    ("objective", "policy"),
    [("makespan", "makespan"), ("cost", "cost"), ("fairness", "max_min_fairness")],
)
def test_an_objective_is_that_of_a_policy(tmp_path: Path, objective: str, policy: str) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text(CLUSTER + f"objective: {objective}\n")
    assert schedule(path)["schedules"] == schedule(path, f"--policy={policy}")["schedules"]


def test_a_curve_of_one_point_is_kept_and_said(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text(SHARED)
    note = "b and 1 more can have one number of devices only"
    assert note in schedule(path)["notes"]
    path.write_text(SHARED.replace("{1: 4.0, 2: 4.4}", "4.0"))
    assert note not in str(schedule(path)["notes"])


def test_pairs_may_name_kinds_of_jobs(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text(SHARED)
    (by_name,) = schedule(path)["schedules"]
    kinds = SHARED.replace("name: b,", "name: b, kind: x,").replace("name: c,", "name: c, kind: y,")
    path.write_text(kinds.replace("[c, b]", "[y, x]"))
    assert schedule(path)["schedules"] == [by_name]


def test_teams_share_by_their_weights(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    jobs = "".join(
        f"  - {{name: {team}{n}, team: {team}, steps: 1000, throughput: {{t: 1}}}}\n"
        for team in ("many", "few")
        for n in range(4)
    )
    path.write_text(
        "types: {t: {count: 4}}\nround: 10s\nreallocate: 10s\npolicy: hierarchical\n"
        "teams: {many: {weight: 1}, few: {weight: 3}}\njobs:\n" + jobs
    )
    (only,) = schedule(path)["schedules"]
    finish_s = {job["name"]: job["finish_s"] for job in only["jobs"]}
    # Three of four devices for 4000 steps, and then all of them for the other team.
    assert finish_s["few0"] == pytest.approx(4000 / 3, rel=0.03)
    assert finish_s["many0"] == pytest.approx(2000, rel=0.03)


def test_a_page_shows_all_jobs_and_what_fairness_costs(tmp_path: Path) -> None:
    path, page = tmp_path / "cluster.yaml", tmp_path / "page.html"
    path.write_text(CLUSTER.replace("name: a,", 'name: "<a>",'))
    schedule(path, "--policy=las", "--policy=makespan", f"--report={page}")
    text = page.read_text()
    assert "Under las, all jobs have ended after" in text
    assert "the fairest" in text
    assert "&lt;a&gt;" in text
    assert "<a>" not in text
    assert "1 of 3 jobs cannot run on fast" in text
    assert 'src="page.svg"' in text
    assert "<svg" in (tmp_path / "page.svg").read_text()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--report", "page.pdf"), "give a file that ends in .html"),
        (("--report", "missing/page.html"), "its folder does not exist"),
        (("--hosts", "machines.yaml"), "--hosts: valid only with --on ssh, not without it"),
        (("--on", "local"), "has no `layers`"),
    ],
)
def test_options_that_mean_nothing_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "cluster.yaml"
    path.write_text(CLUSTER)
    found = CliRunner().invoke(main, ["schedule", str(path), *words])
    assert found.exit_code == 2, found.output
    assert message in found.output
