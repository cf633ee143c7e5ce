"""Round trips, rates and CPU shares together under Debian's own kernel, emulated by QEMU.

    apt-get install qemu-system-x86 busybox-static cpio kmod
    python benchmarks/netem_machine.py [dilation ...]

The user-mode kernel of the tests has netem, but its processor clock counts in steps of 10 ms. This
machine has both netem and exact clocks, on two processors about ten times slower than the host's;
dilation compensates for that. The machine reads the host's files, writes only to its memory, and
has no network. Debian's kernel is downloaded, not installed.
"""

from __future__ import annotations

import json
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Sequence
from pathlib import Path

from netem_fidelity import Series

REPOSITORY = Path(__file__).resolve().parents[1]
SCENARIOS = ("quickstart",)
DILATIONS = ("8",)
MODULES = (
    "virtio_pci", "9pnet_virtio", "9p", "overlay", "veth", "bridge", "ifb",
    "sch_htb", "sch_netem", "sch_ingress", "cls_u32", "cls_matchall", "act_mirred",
)  # fmt: skip
LIMIT_S = 1200

INIT = """\
#!/bin/busybox sh
b=/bin/busybox
$b mount -t proc proc /proc; $b mount -t sysfs sys /sys; $b mount -t devtmpfs dev /dev
for module in /modules/*; do $b insmod $module || echo "cannot load $module"; done
$b mount -t 9p -o trans=virtio,version=9p2000.L,msize=1048576,cache=loose,ro host /host
$b mount -t tmpfs memory /memory
$b mkdir /memory/upper /memory/work /memory/root
$b mount -t overlay overlay -o lowerdir=/host,upperdir=/memory/upper,workdir=/memory/work /memory/root
r=/memory/root
for folder in proc sys dev; do $b mount --move /$folder $r/$folder; done
$b mkdir -p $r/dev/shm; $b mount -t tmpfs tmpfs $r/dev/shm; $b mount -t tmpfs tmpfs $r/run
$b mount -t cgroup2 cgroup2 $r/sys/fs/cgroup
$b mkdir $r/run/home
exec $b chroot $r /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/run/home PYTHONDONTWRITEBYTECODE=1 PYTHON -c '
import base64
exec(base64.b64decode("SCRIPT"))
'
"""

INSIDE = """
import itertools, json, os, pathlib, subprocess, sys, traceback

def say(text):
    print("..", text, pathlib.Path("/proc/uptime").read_text().split()[0], file=sys.stderr, flush=True)

def measure(name, factor):
    from laggard.scenario.load import load_scenario
    from laggard.layers_services.local import sandbox
    from laggard.layers_services.local.janitor import run_name
    from laggard.network_emulation.compute.cgroups import prepare_cgroups
    from laggard.network_emulation.compute.cpu_plan import plan_cpus, usable_cores
    scenario = load_scenario(pathlib.Path(REPOSITORY, "experiments", name))
    cpu = plan_cpus(scenario.peak_shares, usable_cores(), 0.5, float(factor))
    cgroups = prepare_cgroups(scenario.shares, run_name())
    assert cgroups is not None
    read, write = os.pipe()
    assert sandbox.run_in_sandbox(lambda: inside(scenario, cpu, cgroups, write)) == 0
    cgroups.close()
    cgroups.remove()
    os.close(write)
    with os.fdopen(read) as stream:
        return {"scenario": name, "dilation": factor, "checks": json.load(stream)}

def inside(scenario, cpu, cgroups, answer):
    from laggard.layers_services.local.namespaces import create_namespaces
    from laggard.layers_services.local.provider import enoslib_roles, use_namespace_connection
    use_namespace_connection()
    from laggard.network_emulation.compute import open_shares
    from laggard.network_emulation.compute.measure import verify_shares
    from laggard.network_emulation.links.plan_links import dilate_links
    from laggard.network_emulation.fidelity.verify_links import verify_links
    from laggard.network_emulation.links.netem import NetemBackend
    from laggard.network_emulation.links.tcp_settings import configure_tcp_of
    from laggard.core.virtual_time import Dilation
    dilation = Dilation(cpu.dilation)
    namespaces = create_namespaces(scenario.hosts, "bridge")
    plan = dilate_links(scenario.links, dilation)
    configure_tcp_of(namespaces.paths, dilation)
    roles, networks = enoslib_roles(plan.hosts)
    NetemBackend.start(plan, roles, networks, namespaces.ports, deployment="direct")
    say("links")
    checks = verify_links(scenario.links, namespaces.paths, dilation)
    say("shares")
    real = {host: dilation.real_share(share) for host, share in scenario.shares.items()}
    shares = open_shares(real, cgroups, cpu.cpus)
    checks += verify_shares(real, shares, dilation)
    shares.close()
    with os.fdopen(answer, "w") as stream:
        json.dump([check.model_dump(mode="json") for check in checks], stream)
    return 0

try:
    subprocess.run(("ip", "link", "set", "lo", "up"), check=True)
    for name, factor in itertools.product(SCENARIOS, DILATIONS):
        print("<<result>>" + json.dumps(measure(name, factor)) + "<</result>>", flush=True)
except BaseException:
    traceback.print_exc()
os.sync()
pathlib.Path("/proc/sysrq-trigger").write_text("o")
"""


def fetch_kernel(folder: Path) -> tuple[Path, Path]:
    """Download Debian's kernel; return its image and module folder with listed dependencies."""
    shown = subprocess.run(
        ("apt-cache", "depends", "linux-image-amd64"), check=True, capture_output=True, text=True
    ).stdout
    package = next(line.split()[-1] for line in shown.splitlines() if "Depends:" in line)
    subprocess.run(
        ("apt-get", "download", "-qq", package), check=True, cwd=folder, stderr=subprocess.DEVNULL
    )
    subprocess.run(("dpkg-deb", "-x", str(next(folder.glob("*.deb"))), str(folder)), check=True)
    version = package.removeprefix("linux-image-")
    subprocess.run(("/usr/sbin/depmod", "-b", str(folder), version), check=True)
    return folder / "boot" / f"vmlinuz-{version}", folder / "lib" / "modules" / version


def in_order(modules: Path, wanted: Sequence[str]) -> list[Path]:
    """Return the files of modules and their dependencies, each after its dependencies."""
    needs = {}
    for line in (modules / "modules.dep").read_text().splitlines():
        path, _, rest = line.partition(":")
        needs[path] = rest.split()
    by_name = {Path(path).name.removesuffix(".ko").replace("-", "_"): path for path in needs}
    # A line of modules.dep lists the dependency to load first at its end.
    files = [path for name in wanted for path in (*reversed(needs[by_name[name]]), by_name[name])]
    return [modules / path for path in dict.fromkeys(files)]


def pack(folder: Path, modules: Sequence[Path], dilations: Sequence[str]) -> Path:
    """Create the initial file system: busybox, modules, and the script to run."""
    import base64

    root = folder / "initial"
    for name in ("bin", "proc", "sys", "dev", "host", "memory", "modules"):
        (root / name).mkdir(parents=True)
    shutil.copy("/bin/busybox", root / "bin")
    # Numbered, because the init script loads them in the order of their names.
    for number, module in enumerate(modules):
        shutil.copy(module, root / "modules" / f"{number:02d}.ko")
    script = INSIDE.replace("REPOSITORY", repr(str(REPOSITORY)))
    script = script.replace("SCENARIOS", repr(SCENARIOS)).replace(
        "DILATIONS", repr(tuple(dilations))
    )
    # Encoded, because the init script quotes it.
    coded = base64.b64encode(textwrap.dedent(script).encode()).decode()
    (root / "init").write_text(
        INIT.replace("PYTHON -c", f"{sys.executable} -c").replace("SCRIPT", coded)
    )
    (root / "init").chmod(0o755)
    names = "\n".join(str(path.relative_to(root)) for path in sorted(root.rglob("*")))
    packed = subprocess.run(
        ("cpio", "-o", "-H", "newc", "--quiet"),
        check=True,
        cwd=root,
        input=names.encode(),
        stdout=subprocess.PIPE,
    ).stdout
    (folder / "initial.cpio").write_bytes(packed)
    return folder / "initial.cpio"


def boot(kernel: Path, initial: Path) -> list[Series]:
    """Boot the machine and return the results that it printed."""
    command = (
        "qemu-system-x86_64", "-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2", "-m", "4G", "-no-reboot",
        "-display", "none", "-nodefaults", "-serial", "stdio", "-kernel", str(kernel), "-initrd", str(initial),
        "-append", "console=ttyS0 quiet mitigations=off panic=-1",
        "-fsdev", "local,id=host,path=/,security_model=none,readonly=on,multidevs=remap",
        "-device", "virtio-9p-pci,fsdev=host,mount_tag=host",
    )  # fmt: skip
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as machine:
        try:
            said = machine.communicate(timeout=LIMIT_S)[0]
        except subprocess.TimeoutExpired:
            machine.kill()
            said = machine.communicate()[0]
    printed = said.decode(errors="replace").replace("\r", "")
    found = re.findall("<<result>>(.*?)<</result>>", printed, re.DOTALL)
    if not found:
        sys.exit(f"the machine printed no result; end of its console output:\n{printed[-6000:]}")
    return [json.loads(text.replace("\n", "")) for text in found]


def row(series: Series) -> str:
    """Format one row of the table."""
    checks = series["checks"]
    trips = [abs(each["measured"] - each["requested"]) for each in checks if each["kind"] == "rtt"]
    rates = [
        100 * (each["measured"] / each["requested"] - 1)
        for each in checks
        if each["kind"] == "rate"
    ]
    shares = [
        100 * abs(each["measured"] / each["requested"] - 1)
        for each in checks
        if each["kind"] == "cpu"
    ]
    cells = [
        series["scenario"],
        series["dilation"],
        f"{len(trips)}: {statistics.median(trips):.2f}, {max(trips):.2f}",
        f"{len(rates)}: {statistics.median(rates):+.1f}, {min(rates):+.1f}",
        f"{len(shares)}: {statistics.median(shares):.1f}, {max(shares):.1f}",
        f"{sum(not each['ok'] for each in checks)} of {len(checks)}",
    ]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Print a table."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        kernel, modules = fetch_kernel(folder)
        found = boot(kernel, pack(folder, in_order(modules, MODULES), sys.argv[1:] or DILATIONS))
    print(
        "| scenario | D | round trips: median, worst error, ms | rates: median, lowest, % | CPU"
        " slowdowns of 1, 10, 100 ms phases: median, worst error, % | out of tolerance |"
    )
    print("|---|---|---|---|---|---|")
    for series in found:
        print(row(series))


if __name__ == "__main__":
    main()
