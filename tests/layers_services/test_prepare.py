"""Preparing nodes: what is decided without them, and the whole of it on nodes with real SSH
servers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from laggard.core.errors import DeploymentError
from laggard.core.hosts import Host
from laggard.layers_services.environment.gpus import Gpu
from laggard.layers_services.environment.install_on_node import ANSWER_MARK
from laggard.layers_services.environment.node_facts import Interpreter, NodeFacts
from laggard.layers_services.environment.prepare import (
    _parse_answer,
    _to_prepared_node,
    install_command,
    platforms,
)
from laggard.layers_services.environment.wheels import Platform, Wheel, WheelSet
from laggard.layers_services.machine import Access, Machine
from tests.testbed.nodes import lacking
from tests.testbed.scripts import Scripts

FACTS = NodeFacts(
    host="edge.trainer.1.1",
    user="root",
    pythons=(Interpreter((3, 11), "/usr/bin/python3"),),
    architecture="x86_64",
    glibc=(2, 36),
    cores=4,
    cpu="",
    memory_bytes=1 << 30,
    kernel="6.1",
    governor="",
    smt="",
    disk="",
    free_bytes=1 << 40,
    netem=True,
    device="eth0",
    ipv6=(),
    root=True,
    gpus=(),
    infiniband=(),
)


def test_platforms_that_differ_in_their_c_library_share_the_older_ones_wheels() -> None:
    nodes = {
        "old": replace(FACTS, glibc=(2, 31)),
        "new": replace(FACTS, glibc=(2, 41)),
        "board": replace(FACTS, architecture="aarch64"),
        "gpu": replace(FACTS, gpus=(Gpu("H100", (9, 0), 580),)),
        "old gpu": replace(FACTS, gpus=(Gpu("P100", (6, 0), 580),)),
        "newest": replace(FACTS, pythons=(Interpreter((3, 13), "/p"), Interpreter((3, 9), "/q"))),
    }
    assert platforms(nodes, (3, 11)) == {
        "old": Platform((3, 11), "x86_64", (2, 31)),
        "new": Platform((3, 11), "x86_64", (2, 31)),
        "board": Platform((3, 11), "aarch64", (2, 36)),
        "gpu": Platform((3, 11), "x86_64", (2, 36), "cuda"),
        "old gpu": Platform((3, 11), "x86_64", (2, 31)),
        "newest": Platform((3, 13), "x86_64", (2, 36)),
    }


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"architecture": "riscv64"}, "riscv64: wheels exist only for x86_64 and aarch64"),
        ({"architecture": ""}, "unknown architecture"),
        ({"glibc": None}, "no GNU C library"),
        ({"pythons": ()}, "Python found: none; workers need 3.11 to 3.13"),
        (
            {"pythons": (Interpreter((3, 9), "/p"), Interpreter((3, 14), "/q"))},
            "Python found: 3.9, 3.14;",
        ),
    ],
)
def test_nodes_that_cannot_run_workers_are_all_named(change: dict[str, Any], said: str) -> None:
    unfit = replace(FACTS, **change)
    with pytest.raises(DeploymentError) as caught:
        platforms({"one": unfit, "two": FACTS, "three": unfit}, (3, 11))
    first, *named = str(caught.value).splitlines()
    assert first == "2 of 3 nodes cannot run workers:"
    assert [line.split(":")[0].strip() for line in named] == ["one", "three"]
    assert said in named[0]


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "[]",
        "[" * 100_000,
        '{"state": "ready"}',
        '{"state": "owned", "python": "/p", "runs": "/r"}',
        '{"state": "ready", "python": "p", "runs": "/r"}',
        '{"state": "ready", "python": "/p", "runs": "/r/../.."}',
        '{"state": "ready", "python": "/p\\ntouch x", "runs": "/r"}',
        '{"state": "ready", "python": "/' + "p" * 2000 + '", "runs": "/r"}',
        '{"state": "ready", "python": "/p", "runs": "/r", "more": 1}',
        '{"state": "missing", "missing": [1]}',
        '{"state": "missing", "missing": ["' + '", "'.join(map(str, range(2000))) + '"]}',
        '{"state": "missing", "missing": ["' + "w" * 600 + '"]}',
    ],
)
def test_a_garbled_answer_is_refused_with_its_node(answer: str) -> None:
    node = Machine(Host("edge", "edge", "trainer", 1, 1), Access("10.0.0.1"))
    with pytest.raises(
        DeploymentError, match=r"^edge: the answer about its environment is garbled"
    ):
        _to_prepared_node(node, _parse_answer("edge", f"hello\n{ANSWER_MARK}{answer}\n"))


@pytest.mark.parametrize("wrong", ["a b", "-oProxyCommand=x", "a\nProxyCommand x", ""])
def test_an_address_cannot_become_a_setting_of_ssh(wrong: str) -> None:
    for settings in ({"address": wrong}, {"address": "a", "user": wrong}):
        with pytest.raises(DeploymentError, match="is no user, address or jump host of ssh"):
            Access(**settings)
    with pytest.raises(DeploymentError, match="unprintable"):
        Access("a", options=("Port=1\nProxyCommand x",))


def test_the_command_fits_into_one_argument() -> None:
    """Linux allows 128 KiB; CUDA's set has some forty wheels with long names."""
    name = "nvidia_cuda_nvrtc_cu13-13.0.88-py3-none-manylinux2010_x86_64.manylinux_2_12_x86_64.whl"
    names = ("uv-0.13.9-py3-none-manylinux_2_17_x86_64.whl", *[name] * 40)
    files = tuple(Wheel(Path("/cache") / each, 1, f"{i:064d}") for i, each in enumerate(names))
    versions = {f"nvidia-cuda-nvrtc-cu13-{i}": "13.0.88" for i in range(40)}
    wheels = WheelSet(Platform((3, 11), "x86_64", (2, 36), "cuda"), files, versions, 1, "0" * 16)
    command = install_command("/usr/bin/python3", wheels, ("/home/me", "~"), "")
    assert command.startswith("/usr/bin/python3 -I -c ")
    assert len(command) < 100_000


HEAD = """
    import os, shutil, sys
    from contextlib import contextmanager
    from pathlib import Path
    index, cache = Path.cwd() / "index", Path.cwd() / "cache"
    os.environ |= {"PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": "/dev/null", "PIP_FIND_LINKS": str(index)}

    import enoslib
    from laggard.core.errors import LaggardError
    from laggard.layers_services.compile import compile_hosts
    from laggard.layers_services.ssh.enoslib_roles import enoslib_roles_of
    from laggard.layers_services.ssh.inventory import assign, parse_inventory
    from laggard.layers_services.model import LayersServices
    from laggard.layers_services.environment.node_facts import query_nodes
    from laggard.layers_services.environment.prepare import platforms, prepare, site_stores
    from laggard.layers_services.ssh.remote_task import run_on_nodes
    from laggard.layers_services.environment.wheels import Platform, wheel_set
    from tests.layers_services.tiny_wheels import pack_installed, write_uv_wheel
    from tests.testbed.nodes import USER, USER_ID, NodeSpec, machines, start_nodes
    from tests.testbed.scripts import in_sandbox

    names = ["gemini-1.lyon.grid5000.fr", "gemini-2.lyon.grid5000.fr", "chifflot-1.lille.grid5000.fr"]
    hosts = compile_hosts(LayersServices.model_validate({
        "environment": {"g5k": {}},
        "layers": [{"name": "edge", "services": [{"name": "trainer", "quantity": 3}]}],
    }))
    first, second, third = (host.name for host in hosts)
    pack_installed(index, "psutil", "cp36-abi3-linux_x86_64")
    pack_installed(index, "pyroute2")
    write_uv_wheel(index)
    wheels = wheel_set(Platform(sys.version_info[:2], os.uname().machine, (2, 36)), ("psutil", "pyroute2"), cache)

    class Bed:
        def __init__(self, nodes):
            self.nodes = nodes
            self.machines = machines(hosts, nodes)
            self.roles, _ = enoslib_roles_of(self.machines)
            self.facts = query_nodes(self.machines, self.roles)
            self.stores = site_stores(self.machines, USER)

        def prepare(self, base="", stores=None):
            self.prepared = prepare(
                self.machines, self.roles, self.facts, {host.name: wheels for host in hosts}, stores, base
            )
            built = [node.built for node in self.prepared.nodes.values()]
            return [self.prepared.tasks, self.prepared.shipments, self.prepared.sent_bytes, built]

        def store(self, name):
            return self.nodes.home(name) / USER / ".laggard/wheels"

        def on(self, name, command):
            return run_on_nodes(self.roles, {name: command}, "testing")[name].strip()

    def error_of(function):
        try:
            function()
        except LaggardError as error:
            return str(error)

    @contextmanager
    def bed_here():
        specs = [NodeSpec(name, f"172.30.0.{i}", name.split(".")[1]) for i, name in enumerate(names, 1)]
        with start_nodes(specs, Path.cwd() / "nodes", squashed=True) as nodes:
            yield Bed(nodes)
"""

needs_nodes = pytest.mark.skipif(lacking() is not None, reason=str(lacking()))


@pytest.fixture(scope="module")
def scripts() -> Iterator[Scripts]:
    with Scripts(HEAD) as scripts:
        yield scripts


@needs_nodes
@pytest.mark.long
def test_wheels_travel_once_per_site(scripts: Scripts) -> None:
    answer = scripts.answer("""
    def look(bed):
        found = {"size": wheels.size, "first": bed.prepare(stores=bed.stores), "again": bed.prepare(stores=bed.stores)}
        node = bed.prepared.nodes[third]
        found["paths"] = [node.python, node.runs]
        code = "import laggard.core.span_schema as s, psutil, sys; print(psutil.__version__, s.__file__, sys.version_info[:2])"
        found["says"] = bed.on(third, f"{node.python} -c '{code}' && test -d {node.runs} && stat -c %a {node.runs}/..")
        found["versions"] = dict(wheels.versions)
        bed.on(second, "find /var/tmp/laggard-root -name _common.py -delete")
        found["mended"] = bed.prepare(stores=bed.stores)
        found["own homes"] = bed.prepare("/var/tmp/other", site_stores(bed.machines, "stranger"))
        found["facts"] = [[facts.device, facts.root, facts.user] for facts in bed.facts.values()]
        found["platforms"] = len(set(platforms(bed.facts, sys.version_info[:2]).values()))
        return found
    in_sandbox(bed_here, look)
""")
    size, environment = answer["size"], Path(answer["paths"][0]).parents[1]
    assert answer["first"] == [2, 2, 2 * size, [True] * 3]
    assert answer["again"] == [1, 0, 0, [False] * 3]
    assert answer["mended"] == [1, 0, 0, [False, True, False]]
    assert answer["own homes"] == [
        3,
        3,
        3 * size,
        [True] * 3,
    ]  # nobody else can log in, and root's home is not shared
    assert str(environment.parent) == "/var/tmp/laggard-root"
    assert answer["paths"][1] == "/var/tmp/laggard-root/runs"
    version, file, *_ = answer["says"].split()
    assert version == answer["versions"]["psutil"]
    assert file.startswith(str(environment))
    assert answer["says"].splitlines()[-1] == "700"
    assert answer["facts"] == [["eth0", True, "root"]] * 3
    assert answer["platforms"] == 1


@needs_nodes
@pytest.mark.long
def test_what_went_wrong_before_is_made_good(scripts: Scripts) -> None:
    """Transfers that broke off are resumed, wrong files replaced; two runs may prepare the same
    nodes at once."""
    answer = scripts.answer("""
    def look(bed):
        bed.prepare(stores=bed.stores)
        largest = max(wheels.files, key=lambda wheel: wheel.size)
        half = largest.size // 2
        lyon, lille = bed.store(names[0]), bed.store(names[2])
        whole = (lyon / largest.stored_name).read_bytes()
        part = lyon / f"{largest.stored_name}.part"
        part.write_bytes(whole[:half])
        (lyon / largest.stored_name).unlink()
        (lille / largest.stored_name).write_bytes(b"x" * largest.size)
        for path in (part, lille / largest.stored_name):
            os.chown(path, USER_ID, USER_ID)
        resumed = bed.prepare("/var/tmp/two", bed.stores)
        part.write_bytes(b"x" * half)
        (lyon / largest.stored_name).unlink()
        os.chown(part, USER_ID, USER_ID)
        misled = bed.prepare("/var/tmp/three", bed.stores)
        for store in (lyon, lille):
            shutil.rmtree(store)
        other = os.fork()
        try:
            both = bed.prepare("/var/tmp/four", bed.stores)[3]
        finally:
            if other == 0:
                os._exit(0 if both is not None else 1)
        status = os.waitstatus_to_exitcode(os.waitpid(other, 0)[1])
        return [largest.size, half, resumed, misled, len(both), status, bed.prepare("/var/tmp/four", bed.stores)[:2]]
    in_sandbox(bed_here, look)
""")
    size, half, resumed, misled, both, status, afterwards = answer
    assert resumed == [2, 2, size - half + size, [True] * 3]
    assert misled[0] == 3
    assert misled[3] == [True] * 3
    assert (both, status, afterwards) == (3, 0, [1, 0])


@needs_nodes
@pytest.mark.long
def test_nodes_that_cannot_be_prepared_are_named(scripts: Scripts) -> None:
    answer = scripts.answer("""
    def look(bed):
        bed.on(second, "mkdir /small && mount -t tmpfs -o size=100k none /small")
        little = error_of(lambda: bed.prepare("/small/base", bed.stores))
        bed.on(second, "umount /small && mount -t tmpfs -o size=67600k none /small")
        bed.on(first, "chown daemon /small 2>/dev/null || mkdir -m 755 /small && chown daemon /small")
        less = error_of(lambda: bed.prepare("/small", bed.stores))
        failed = error_of(lambda: run_on_nodes(bed.roles, {first: "echo {{ this }}; exit 3", third: "true"}, "testing"))
        for name in names[1:]:
            bed.nodes.kill_ssh(name)
        unreachable = error_of(lambda: query_nodes(bed.machines, bed.roles))
        return [little, less, failed, unreachable]
    in_sandbox(bed_here, look)
""")
    little, less, failed, unreachable = answer
    one, two, three = (f"edge.trainer.1.{i}" for i in (1, 2, 3))
    assert little.startswith(
        f"1 of 3 nodes could not be prepared:\n  {two}: the disk is full: /small/base has 0 MB free"
    )
    assert f"{one}: /small belongs to another user" in less
    assert (
        failed == f"testing failed on 1 of 2 nodes:\n  {one}: failed, exit status 3: {{{{ this }}}}"
    )
    assert unreachable.startswith("querying node facts failed on 2 of 3 nodes:\n")
    assert f"{two}: cannot be reached: " in unreachable
    assert f"{three}: cannot be reached: " in unreachable
    assert unreachable.count("Connection refused") + unreachable.count("closed") >= 2
    assert "check that `ssh` can connect" in unreachable


INVENTORY = """\
machines:
- {ssh: gemini-1.lyon.grid5000.fr, key: id_ed25519}
- {ssh: chifflot-1.lille.grid5000.fr, key: id_ed25519, gateway: "root@172.30.0.1:22", hosts: "*.3"}
- {address: 172.30.0.2, key: id_ed25519}
"""


@needs_nodes
@pytest.mark.long
def test_a_gateway_is_jumped_over(scripts: Scripts) -> None:
    answer = scripts.answer(f"""
    def look(bed):
        inventory = parse_inventory({INVENTORY!r}, Path.cwd() / "nodes/inventory.yaml")
        bed.machines = assign(inventory, hosts)
        bed.roles, networks = enoslib_roles_of(bed.machines)
        seen = run_on_nodes(bed.roles, {{host.name: "echo $SSH_CONNECTION" for host in hosts}}, "testing")
        return [
            {{name: said.split()[0] for name, said in seen.items()}},
            bed.prepare(), [machine.host.address for machine in bed.machines], [str(n.network) for n in networks["experiment"]],
        ]
    in_sandbox(bed_here, look)
""")
    came_from, prepared, addresses, networks = answer
    assert came_from["edge.trainer.1.3"] == "172.30.0.1"
    assert came_from["edge.trainer.1.1"] == came_from["edge.trainer.1.2"] != "172.30.0.1"
    assert prepared[3] == [True] * 3
    assert addresses == ["172.30.0.1", "172.30.0.2", "172.30.0.3"]
    assert networks == ["172.30.0.0/30"]
