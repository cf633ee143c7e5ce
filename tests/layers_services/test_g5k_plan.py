from __future__ import annotations

import json
from datetime import datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import settings

from laggard.core.corrections.model_problems import validate_model
from laggard.core.edits import apply_edits
from laggard.core.errors import ScenarioError
from laggard.core.yaml_source import parse_yaml
from laggard.layers_services.compile import compile_hosts, role_names
from laggard.layers_services.g5k.description import describe_g5k
from laggard.layers_services.g5k.plan import plan_g5k
from laggard.layers_services.g5k.request import G5kOptions, G5kPlan, parse_job, seconds_of
from laggard.layers_services.model import LayersServices

steady = settings(derandomize=True, deadline=None)
NIGHT = datetime(2026, 11, 23, 20, tzinfo=ZoneInfo("Europe/Paris"))
GOOD = """\
environment:
  walltime: "02:00:00"
  g5k:
    cluster: gros
    job_type: [exotic]
layers:
- name: cloud
  services:
  - {name: trainer, cluster: gemini, quantity: 2, roles: [monitoring]}
- name: edge
  services:
  - {name: trainer, quantity: 3, repeat: 1}
  - {name: gateway, servers: [gros-7.nancy.grid5000.fr, chifflot-2.lille.grid5000.fr, gros-5.nancy.grid5000.fr]}
"""


def plan(text: str, options: G5kOptions | None = None) -> G5kPlan:
    source = parse_yaml(text, "layers_services.yaml")
    return plan_g5k(validate_model(source, LayersServices), options, source)


def refused(text: str, options: G5kOptions | None = None) -> list[str]:
    with pytest.raises(ScenarioError) as caught:
        plan(text, options)
    return [str(problem) for problem in caught.value.problems]


def test_a_plan() -> None:
    planned = plan(GOOD)
    assert [(g.site, g.cluster, g.nodes, g.servers) for g in planned.groups] == [
        ("lyon", "gemini", 2, ()),
        ("nancy", "gros", 3, ()),
        ("nancy", "gros", 2, ("gros-7.nancy.grid5000.fr", "gros-5.nancy.grid5000.fr")),
        ("lille", "chifflot", 1, ("chifflot-2.lille.grid5000.fr",)),
        ("nancy", "gros", 3, ()),
    ]
    assert planned.groups[2].hosts == ("edge.gateway.2.1", "edge.gateway.2.3")
    assert planned.groups[3].hosts == ("edge.gateway.2.2",)
    assert planned.groups[0].roles == ("cloud", "trainer", "1_1", "monitoring")
    assert planned.sites == ("lyon", "nancy", "lille")
    assert [(n.kind, n.site) for n in planned.networks] == [("prod", s) for s in planned.sites]
    assert [group.network for group in planned.groups[:2]] == ["network_lyon", "network_nancy"]
    assert (planned.nodes, planned.walltime, planned.node_hours) == (11, "02:00:00", 22.0)
    assert planned.job_types == ("exotic",)
    assert planned.queue == "default"
    assert planned.reservation is None
    assert not planned.deployed
    assert [(use.cluster, use.nodes, use.of_nodes) for use in planned.uses()] == [
        ("gemini", 2, 2),
        ("gros", 8, 124),
        ("chifflot", 1, 8),
    ]


def test_every_host_is_in_one_group_that_answers_to_its_roles() -> None:
    planned = plan(GOOD)
    hosts = {
        host.name: host
        for host in compile_hosts(validate_model(parse_yaml(GOOD, "l"), LayersServices))
    }
    assert sorted(name for group in planned.groups for name in group.hosts) == sorted(hosts)
    for group in planned.groups:
        for name in group.hosts:
            assert role_names(hosts[name])[1:] == group.roles


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (
            G5kOptions(walltime="62:00:00"),
            {"walltime": "62:00:00", "walltime_s": 62 * 3600, "node_hours": 682.0},
        ),
        (G5kOptions(walltime="168:00:00"), {"walltime_s": 168 * 3600}),
        (G5kOptions(reservation="2027-01-29 19:00:00"), {"reservation": "2027-01-29 19:00:00"}),
        (G5kOptions(queue="besteffort"), {"queue": "besteffort"}),
        (G5kOptions(project="laggards"), {"project": "laggards"}),
        (G5kOptions(job_types=("night", "exotic")), {"job_types": ("exotic", "night")}),
        (
            G5kOptions(env_name="debian12-nfs"),
            {"env_name": "debian12-nfs", "job_types": ("exotic", "deploy"), "deployed": True},
        ),
    ],
)
def test_the_command_line_goes_first(options: G5kOptions, expected: dict[str, object]) -> None:
    planned = plan(GOOD, options)
    assert {name: getattr(planned, name) for name in expected} == expected


def test_what_the_file_says_of_the_reservation() -> None:
    g5k = """\
    walltime: "23:00:00"
    reservation: "2027-01-29 19:00:00"
    job_type: [exotic, deploy]
    env_name: debian12-nfs
    key_name: /keys/mine.pub
    monitor: prom_.*
    ipv6: true
    firewall_rules: [{services: [trainer], ports: [80]}]
"""
    planned = plan(GOOD.replace("    job_type: [exotic]\n", g5k))
    assert (planned.walltime, planned.reservation) == ("23:00:00", "2027-01-29 19:00:00")
    assert planned.start is not None
    assert planned.start.isoformat() == "2027-01-29T19:00:00+01:00"
    assert (planned.env_name, planned.key, planned.monitor) == (
        "debian12-nfs",
        "/keys/mine.pub",
        "prom_.*",
    )
    assert [str(warning).partition(":")[2].partition(" ")[0] for warning in planned.warnings] == [
        "12:21:",
        "11:11:",
    ]


@pytest.mark.parametrize(
    ("old", "new", "sites", "kind"),
    [
        ("", "", ("lyon", "nancy", "lille"), "kavlan-global"),
        ("cluster: gemini", "cluster: gros", ("nancy",), "kavlan"),
    ],
)
def test_a_vlan_of_its_own(old: str, new: str, sites: tuple[str, ...], kind: str) -> None:
    text = GOOD.replace(old, new) if old else GOOD
    if len(sites) == 1:
        text = text.replace("chifflot-2.lille", "gros-6.nancy")
    planned = plan(text, G5kOptions(kavlan=True, env_name="debian12-nfs"))
    assert planned.sites == sites
    assert [(network.kind, network.site) for network in planned.networks] == [(kind, sites[0])]
    assert {group.network for group in planned.groups} == {"network_kavlan"}


HERE = "layers_services.yaml"
ENVIRONMENT = "    cluster: gros\n    job_type: [exotic]\n"


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            "cluster: gemini", "cluster: geminy",
            [(f"{HERE}:9:30: cluster: geminy: Grid'5000 has no cluster `geminy` (reference data of 2026-03-23)"
             " — the most similar name is `gemini`, 2 nodes at lyon")],
        ),
        (
            "cluster: gros\n", "cluster: paradox\n",
            [(f"{HERE}:4:14: cluster: paradox: Grid'5000 has no cluster `paradox` (reference data of 2026-03-23)"
             " — the most similar name is `paradoxe`, 64 nodes at rennes")],
        ),
        (
            "cluster: gros\n", "cluster: zzzzzzzz\n",
            [(f"{HERE}:4:14: cluster: zzzzzzzz: Grid'5000 has no cluster `zzzzzzzz` (reference data of 2026-03-23)"
             " — for example `gros` (nancy, 124), `paradoxe` (rennes, 64), `clervaux` (luxembourg, 48)")],
        ),
        (
            "job_type: [exotic]", "job_type: []",
            [(f"{HERE}:9:30: cluster gemini: gemini is exotic: only jobs of type `exotic` get its nodes"
             " — write `job_type: [exotic]` under `g5k:`")],
        ),
        (
            "gemini, quantity: 2", "gemini, quantity: 3",
            [(f"{HERE}:9:48: 3 nodes of gemini: gemini, at lyon, has 2 nodes"
             " — use at most 2, or choose `orion` at lyon, which has 3")],
        ),
        (
            "quantity: 3, repeat: 1", "quantity: 3, repeat: 99",
            [(f"{HERE}:12:31: 302 nodes of gros: gros, at nancy, has 124 nodes"
             " — use at most 124, and place the rest on other clusters")],
        ),
        (
            "cluster: gemini", "cluster: graffiti",
            [(f"{HERE}:9:30: cluster graffiti: graffiti is not in the default queue but in abaca and production"
             " — write `queue: production` under `g5k:`, or choose another cluster")],
        ),
        (
            "job_type: [exotic]", "job_type: [exotic]\n    queue: production",
            [(f"{HERE}:4:14: cluster gros: gros is not in the production queue but in default"
             " — write `queue: default` under `g5k:`, or choose another cluster"),
             (f"{HERE}:10:30: cluster gemini: gemini is not in the production queue but in default"
             " — write `queue: default` under `g5k:`, or choose another cluster"),
             (f"{HERE}:14:30: cluster chifflot: chifflot is not in the production queue but in default"
             " — write `queue: default` under `g5k:`, or choose another cluster")],
        ),
        (
            ENVIRONMENT, "    job_type: [exotic]\n",
            [(f"{HERE}:11:5: service trainer: no cluster or servers are given for this service"
             " — add `cluster:` here, or to `g5k:` for all services")],
        ),
        (
            "gros-7.nancy", "gros-125.nancy",
            [f"{HERE}:13:31: gros-125.nancy.grid5000.fr: gros has the nodes 1-124 — write gros-124.nancy.grid5000.fr, for example"],
        ),
        (
            "gros-7.nancy", "gros-7.lyon",
            [f"{HERE}:13:31: gros-7.lyon.grid5000.fr: gros is at nancy — write gros-7.nancy.grid5000.fr"],
        ),
        (
            "gros-7.nancy.grid5000.fr", "gros-7",
            [(f"{HERE}:13:31: gros-7: a server name has the form cluster-number.site.grid5000.fr"
             " — write gros-7.nancy.grid5000.fr")],
        ),
        (
            "gros-7.nancy.grid5000.fr", "localhost",
            [(f"{HERE}:13:31: localhost: a server name has the form cluster-number.site.grid5000.fr"
             " — write gros-1.nancy.grid5000.fr, for example")],
        ),
        (
            "gros-7.nancy.grid5000.fr", "grosse-7.nancy.grid5000.fr",
            [(f"{HERE}:13:31: grosse-7.nancy.grid5000.fr: Grid'5000 has no cluster `grosse`"
             " (reference data of 2026-03-23) — the most similar name is `gros`, 124 nodes at nancy; write gros-7.nancy.grid5000.fr, for example")],
        ),
        (
            "gros-5.nancy", "gros-7.nancy",
            [(f"{HERE}:13:30: gros-7.nancy.grid5000.fr: a machine can be used for one host only"
             " — name each server once and do not use `repeat`")],
        ),
        (
            "job_type: [exotic]", "job_type: [exotic, deploy]",
            [(f'{HERE}:5:15: environment.g5k.job_type: ["exotic", "deploy"]: a job of type `deploy` needs a system'
             " to deploy — add `env_name: debian12-nfs`, or remove `deploy`")],
        ),
        (
            "job_type: [exotic]", 'job_type: [exotic]\n    reservation: "2027-02-30 19:00:00"',
            [(f"{HERE}:6:18: reservation: 2027-02-30 19:00:00: a reservation date is YYYY-MM-DD HH:MM:SS in Paris time"
             " — write 2027-01-31 19:00:00, for example")],
        ),
        (
            "  g5k:", "  iotlab: {}\n  g5k:",
            [(f"{HERE}:10:5: service trainer: it is for FIT IoT-LAB, which Laggard does not support"
             " — write `environment: g5k` and a cluster"),
             (f"{HERE}:13:5: service trainer: it is for FIT IoT-LAB, which Laggard does not support"
             " — write `environment: g5k` and a cluster"),
             (f"{HERE}:14:5: service gateway: it is for FIT IoT-LAB, which Laggard does not support"
             " — write `environment: g5k` and a cluster")],
        ),
        (
            "quantity: 3,", "quantity: 3, environment: chameleonedge,",
            [(f"{HERE}:12:47: service trainer: it is for Chameleon Edge, which Laggard does not support"
             " — write `environment: g5k` and a cluster")],
        ),
        (
            "  g5k:\n    cluster: gros\n    job_type: [exotic]\n", "  chameleoncloud:\n    cluster: gpu\n",
            [(f"{HERE}:4:5: chameleoncloud: this scenario is for Chameleon Cloud; among E2Clab's testbeds Laggard"
             " supports only Grid'5000 — add `g5k: {cluster: ...}`, or run it with --on ssh or --on local")],
        ),
    ],
)  # fmt: skip
def test_what_grid5000_would_refuse(old: str, new: str, said: list[str]) -> None:
    assert old in GOOD
    assert refused(GOOD.replace(old, new, 1)) == said


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            G5kOptions(walltime="62h"),
            "--walltime: 62h: a walltime is HH:MM:SS and greater than 0",
        ),
        (
            G5kOptions(walltime="00:00:00"),
            "--walltime: 00:00:00: a walltime is HH:MM:SS and greater than 0",
        ),
        (
            G5kOptions(reservation="tonight"),
            "--reservation: tonight: a reservation date is YYYY-MM-DD HH:MM:SS",
        ),
        (
            G5kOptions(queue="productio"),
            "--queue: productio: the queues are default, production, besteffort, testing",
        ),
        (
            G5kOptions(kavlan=True),
            "--kavlan: nodes in a VLAN are unreachable until a system is deployed on them",
        ),
        (
            G5kOptions(jobs=("1234",)),
            "--job: 1234: the scenario uses 3 sites and needs the site of each job",
        ),
        (G5kOptions(jobs=("lyon-1",)), "--job: lyon-1: a job has the form number or site:number"),
        (G5kOptions(jobs=("rennes:1",)), "--job: rennes:1: the scenario has no machines at rennes"),
        (
            G5kOptions(jobs=("lyon:1", "lille:2")),
            "--job: lyon:1 lille:2: no job is given for nancy",
        ),
        (G5kOptions(jobs=("lyon:1", "lyon:2", "lille:2", "nancy:3")), "two jobs at lyon"),
    ],
)
def test_what_the_command_line_may_not_say(options: G5kOptions, said: str) -> None:
    assert any(said in line for line in refused(GOOD, options))


def test_jobs_to_use() -> None:
    planned = plan(GOOD, G5kOptions(jobs=("lille:3", "lyon:1", "nancy:22")))
    assert [str(job) for job in planned.reused] == ["lille:3", "lyon:1", "nancy:22"]
    one_site = GOOD.replace("gemini, quantity: 2", "gros").replace(
        "chifflot-2.lille", "gros-6.nancy"
    )
    assert [str(job) for job in plan(one_site, G5kOptions(jobs=("7",))).reused] == ["nancy:7"]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("00:00:01", 1), ("62:00:00", 223200), ("1:00:00", 0), ("00:60:00", 0), ("", 0)],
)
def test_walltimes(text: str, seconds: int) -> None:
    assert seconds_of(text) == seconds


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("12", ("", 12)),
        ("lyon:12", ("lyon", 12)),
        ("lyon:0", None),
        ("Lyon:1", None),
        ("lyon:1 ", None),
        ("", None),
    ],
)
def test_jobs_as_written(text: str, parsed: tuple[str, int] | None) -> None:
    assert parse_job(text) == parsed


@pytest.mark.parametrize(
    ("settings", "service"),
    [
        ("cluster: gross", "quantity: 1"),
        ("cluster: zzzzzz", "quantity: 1"),
        ("cluster: gros", "cluster: parasillo"),
        ("cluster: gros", "servers: [gros-1]"),
        ("cluster: gros", "servers: [gros-999]"),
        ("cluster: gros", "servers: [somewhere]"),
        ("cluster: gros", "servers: [gros-1.lyon.grid5000.fr]"),
        ("cluster: gros", "servers: [gros-999.nancy.grid5000.fr]"),
        ("cluster: gros", "servers: [grosso-1.nancy.grid5000.fr]"),
        ("cluster: gros", "cluster: graffiti"),
        ("cluster: gemini", "quantity: 1"),
        ("cluster: gros, walltime: '00:00:00'", "quantity: 1"),
        ("cluster: gros, reservation: '2026-13-41 25:00:00'", "quantity: 1"),
        ("cluster: gros, job_type: [deploy]", "quantity: 1"),
    ],
)
def test_the_suggested_fix_of_a_refused_plan_is_accepted(settings: str, service: str) -> None:
    text = (
        f"environment: {{g5k: {{{settings}}}}}\n"
        f"layers: [{{name: edge, services: [{{name: trainer, {service}}}]}}]\n"
    )
    source = parse_yaml(text, "layers_services.yaml")
    with pytest.raises(ScenarioError) as caught:
        plan(text)
    (problem,) = caught.value.problems
    assert all(str(edit.value).strip("[]'") in problem.fix for edit in problem.edits)
    corrected = apply_edits(source.value, problem.edits)
    plan(json.dumps(corrected))


@pytest.mark.parametrize(
    ("env_name", "version"),
    [
        ("debian10-nfs", "3.7"),
        ("debian10-x64-big", "3.7"),
        ("debian11-min", "3.9"),
        ("ubuntu2204-nfs", "3.10"),
        ("centos8-min", "3.6"),
        ("debian12-nfs", ""),
        ("ubuntu2404-min", ""),
        ("debian13-nfs", ""),
        ("my-own-system", ""),
    ],
)
@pytest.mark.parametrize("by_option", [False, True])
def test_a_system_without_a_python_for_workers_is_reported(
    env_name: str, version: str, by_option: bool
) -> None:
    setting = "" if by_option else f", env_name: {env_name}, job_type: [deploy]"
    text = GOOD.replace("    job_type: [exotic]\n", "").replace(
        "  g5k:\n    cluster: gros\n", f"  g5k: {{cluster: gros{setting}}}\n"
    )
    options = G5kOptions(env_name=env_name if by_option else None, job_types=("exotic",))
    warnings = describe_g5k(plan(text, options), NIGHT).warnings
    assert len(warnings) == bool(version)
    rule = f"this system has Python {version}, and workers need Python 3.11 to 3.13"
    place = "--env-name" if by_option else "layers_services.yaml:3:34"
    assert [w for w in warnings if w.startswith(place) and rule in w and "debian12-nfs" in w] == [
        *warnings
    ]


def test_the_description_as_text() -> None:
    lines = list(describe_g5k(plan(GOOD), NIGHT, start="now").format_lines())
    assert lines[0] == "Grid'5000, 3 sites: 11 nodes for 02:00:00, 22 node-hours"
    assert lines[1].split()[:6] == ["lyon", "gemini", "2", "nodes", "cloud.trainer.1.1", "to"]
    assert "8 x Tesla V100-SXM2-32GB" in lines[1]
    assert lines[3].split()[:6] == ["nancy", "gros-7,", "gros-5", "2", "nodes", "edge.gateway.2.1"]
    assert (
        "  default queue; job types exotic; standard system of the nodes; production network;"
        " starts as soon as possible" in lines
    )
    assert "usage policy: allowed" in lines
    assert "start: now" in lines
    assert any(
        line.startswith("host keys of the nodes: Grid'5000's API publishes none; accepted at first")
        for line in lines
    )
    assert lines[-1] == "clusters as of 2026-03-23; nothing has been reserved"


def test_the_description_of_a_reservation_that_the_policy_forbids() -> None:
    described = describe_g5k(plan(GOOD, G5kOptions(walltime="20:00:00")), NIGHT)
    assert not described.allowed
    assert "usage policy: not allowed" in described.format_lines()
    assert json.loads(described.model_dump_json())["usage"][0]["ok"] is False


def test_the_description_of_a_job_that_is_there() -> None:
    described = describe_g5k(plan(GOOD, G5kOptions(jobs=("lille:3", "lyon:1", "nancy:22"))), NIGHT)
    lines = list(described.format_lines())
    assert (
        "  existing jobs: lille:3 and lyon:1 and nancy:22, which keep running afterwards" in lines
    )
    assert not any(line.startswith("usage policy") for line in lines)
