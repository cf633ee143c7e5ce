"""Stand-in machines: namespaces with a real SSH server each, made inside laggard's sandbox.

    controller (the sandbox's own namespaces) ── bridge `testbed` ── eth0 of every node

A node has network, mount, PID, IPC and host-name namespaces of its own, and a time namespace where
its clock is to be wrong. Its root file system is an overlay of the machine's, so nothing written on
a node reaches the machine or another node; `/tmp` and `/run` are its own too, `/var/tmp` is its own
folder on a real disk, `/root` is empty but for its keys, and the controller's repository is out of
sight. `/home` is shared by the nodes of a site, as on Grid'5000, and may refuse root, as NFS does
there.

Two may log in by key: root, and an ordinary user who has `sudo-g5k`. Without root's key on a node,
as on a freshly reserved Grid'5000 node, only the user can, and only where the node is not shut.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from laggard.core import linux
from laggard.core.hosts import Host
from laggard.layers_services.machine import Access, Machine
from tests.testbed import networks
from tests.testbed.boot import (
    DEPLOYED_HOST_KEY,
    HOST_KEY,
    STANDARD_ENVIRONMENT,
    USER,
    USER_ID,
    Boot,
    NodeSpec,
    boot_command,
    program,
    stage_files,
)
from tests.testbed.squash import show_without_root

__all__ = [
    "STANDARD_ENVIRONMENT",
    "USER",
    "USER_ID",
    "Boot",
    "Node",
    "NodeSpec",
    "Nodes",
    "lacking",
    "machines",
    "start_nodes",
]

_STAGE = Path("/run/testbed")
_DEADLINE_S = 20.0


@dataclass(frozen=True)
class Node:
    """A running node.

    Attributes:
        spec: what was asked for.
        pid: its first process, as the controller sees it.
        namespace: file that its network namespace is bound to.
        port: the bridge's end of its link.
        access: how root reaches it.
    """

    spec: NodeSpec
    pid: int
    namespace: Path
    port: str
    access: Access


def lacking() -> str | None:
    """Why nodes cannot be made here; None when they can."""
    if os.geteuid() != 0:
        return "needs root: an SSH server cannot change users in a namespace with one user"
    programs = {
        "sshd": "openssh-server",
        "ssh-keygen": "openssh-client",
        "unshare": "util-linux",
        "setpriv": "util-linux",
        "nsenter": "util-linux",
    }
    missing = [
        f"{name} (apt-get install {package})"
        for name, package in programs.items()
        if program(name) is None
    ]
    if missing:
        return f"needs {', '.join(missing)}"
    if "overlay" not in Path("/proc/filesystems").read_text(encoding="ascii"):
        return "needs a kernel with overlayfs"
    return None


class Nodes:
    """Nodes that are up; a context manager that takes them down."""

    def __init__(
        self, folder: Path, shown: Sequence[Path], *, squashed: bool, environment: Path | None
    ) -> None:
        self.folder = folder
        self.key = folder / "id_ed25519"
        self._shown = tuple(shown)
        self._environment = environment
        self._squashed = squashed
        self._specs: dict[str, NodeSpec] = {}
        self._ports: dict[str, str] = {}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[Node]:
        return (self.node(name) for name in self._specs)

    def node(self, name: str) -> Node:
        """A node by its name; KeyError where there is none."""
        spec = self._specs[name]
        pid = int((_STAGE / name / "pid").read_text(encoding="ascii"))
        return Node(spec, pid, networks.NETNS / name, self._ports[name], self.access(name))

    def access(self, name: str, user: str = "root") -> Access:
        """How a user reaches a node from the controller."""
        known = f"UserKnownHostsFile={self.folder / 'known_hosts'}"
        options = (known, "StrictHostKeyChecking=yes", "IdentitiesOnly=yes")
        return Access(self._specs[name].address, user=user, key=self.key, options=options)

    def home(self, name: str) -> Path:
        """Where the controller sees the folder that is `/home` on a node."""
        return self.folder / "homes" / (self._specs[name].site or name)

    def log(self, name: str) -> str:
        """What the node's SSH server said."""
        return (self.folder / "logs" / name).read_text(encoding="utf-8", errors="replace")

    def kill_ssh(self, name: str) -> None:
        """End a node's SSH server and sessions: connections are refused from now on; other
        processes of the node go on."""
        for pid in _processes_of(self.node(name).pid, "sshd"):
            _kill(pid)

    def unplug(self, name: str) -> None:
        """Cut a node's link: nothing is answered any more, open connections hang."""
        networks.set_port(self._ports[name], "down")

    def plug(self, name: str) -> None:
        """Join an unplugged node's link again."""
        networks.set_port(self._ports[name], "up")

    def crash(self, name: str) -> None:
        """Take a node down with all its processes, at once."""
        process = self._processes.pop(name, None)
        if process is None:
            return
        if process.poll() is None and (_STAGE / name / "pid").exists():
            _kill(self.node(name).pid)
        process.kill()
        process.wait()

    def reboot(self, names: Sequence[str], boot: Boot) -> None:
        """Take nodes down and bring them up anew, with empty disks; they answer SSH when
        this returns."""
        for name in names:
            self.crash(name)
            shutil.rmtree(self._disk(name))
        self.start(names, boot)

    def start(self, names: Sequence[str], boot: Boot) -> None:
        """Bring up nodes that are down; they answer SSH when this returns."""
        for name in names:
            self._processes[name] = self._boot(self._specs[name], boot)
        for name in names:
            self._await_ssh(name)

    def move(self, name: str, vlan: str | None) -> None:
        """Give `eth0` of a node its address in a VLAN, or with None the one in the production
        network, and no other."""
        spec = self._specs[name]
        address, _, prefix = (
            spec.vlans[vlan] if vlan else f"{spec.address}/{spec.prefix_length}"
        ).partition("/")
        with networks.inside(networks.NETNS / name):
            networks.address(address, int(prefix))

    def add(self, specs: Sequence[NodeSpec]) -> None:
        """Make the networks, names and folders of further nodes."""
        networks.create_networks(specs, len(self._specs))
        for number, spec in enumerate(specs, len(self._specs)):
            self._specs[spec.name] = spec
            self._ports[spec.name] = networks.port(number)
            self._furnish_home(spec)
        _name_nodes(tuple(self._specs.values()))

    def close(self) -> None:
        """Take all nodes down."""
        for name in tuple(self._processes):
            self.crash(name)

    def _seen_home(self, spec: NodeSpec) -> Path:
        """What nodes mount on `/home`: the site's folder, or a view of it that refuses root."""
        home = self.home(spec.name)
        view = _STAGE / "homes" / home.name
        if not self._squashed:
            return home
        if not view.is_dir():
            view.mkdir(parents=True)
            show_without_root(home, view)
        return view

    def _disk(self, name: str) -> Path:
        return self.folder / "disks" / name

    def _furnish_home(self, spec: NodeSpec) -> None:
        keys = self.home(spec.name) / USER / ".ssh"
        if keys.is_dir():
            return
        keys.mkdir(parents=True)
        public = self.key.with_suffix(".pub")
        for name in ("authorized_keys", "id_rsa.pub"):
            shutil.copy(public, keys / name)
        for path in (keys.parent, keys, *keys.iterdir()):
            os.chown(path, USER_ID, USER_ID)

    def _boot(self, spec: NodeSpec, boot: Boot) -> subprocess.Popen[bytes]:
        stage = _STAGE / spec.name
        shutil.rmtree(stage, ignore_errors=True)
        disk = self._disk(spec.name)
        disk.mkdir(parents=True, exist_ok=True)
        disk.chmod(0o1777)
        stage_files(stage, self.folder, spec, boot)
        home = self._seen_home(spec) if boot.home else stage / "home"
        with (self.folder / "logs" / spec.name).open("ab") as output:
            return subprocess.Popen(
                boot_command(
                    spec,
                    boot,
                    networks.NETNS / spec.name,
                    stage,
                    (disk, home, *self._shown),
                    None if spec.bare else self._environment,
                ),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # a Ctrl-C at the controller is not for nodes
            )

    def _await_ssh(self, name: str) -> None:
        deadline = time.monotonic() + _DEADLINE_S
        address = self._specs[name].address
        while not _answers(address):
            if self._processes[name].poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{name} does not answer SSH at {address}:\n{self.log(name)}")
            time.sleep(0.02)


def start_nodes(
    specs: Sequence[NodeSpec],
    folder: Path,
    boot: Boot | None = None,
    shown: Sequence[Path] = (),
    *,
    squashed: bool = False,
    environment: Path | None = None,
) -> Nodes:
    """Bring nodes up, inside laggard's sandbox; they answer SSH when this returns.

    Afterwards their names resolve in the controller's mount namespace and on the nodes, and plain
    `ssh NAME` works there.

    Args:
        specs: the nodes; names and addresses are unique.
        folder: where keys, homes, disks and logs go; on a real disk.
        boot: how they come up; None lets root and the user log in at once.
        shown: folders of the controller that the nodes see where they are, in spite of all that is
            hidden from them.
        squashed: whether root can make nothing in `/home` (see `squash`), as where it is NFS.
        environment: the workers' environment, for nodes in whose system's image it is.

    Raises:
        RuntimeError: a node did not come up; carries its log.
    """
    if not networks.NETNS.is_dir():
        raise RuntimeError(
            f"{networks.NETNS} does not exist: nodes are made inside laggard's sandbox only"
        )
    for name in ("logs", "homes", "disks"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    folder.chmod(0o755)
    _STAGE.mkdir(exist_ok=True)
    _make_keys(folder)
    networks.create_bridge()
    nodes = Nodes(folder, shown, squashed=squashed, environment=environment)
    try:
        nodes.add(specs)
        nodes.start([spec.name for spec in specs], boot or Boot())
    except BaseException:
        nodes.close()
        raise
    return nodes


def machines(hosts: Sequence[Host], nodes: Nodes) -> tuple[Machine, ...]:
    """Host i on node i, with the node's address.

    Raises:
        ValueError: there are fewer nodes than hosts.
    """
    ready = list(nodes)
    if len(ready) < len(hosts):
        raise ValueError(f"{len(hosts)} hosts need as many nodes; there are {len(ready)}")
    return tuple(
        Machine(
            replace(host, address=node.spec.address),
            node.access,
            node.spec.site,
            _cluster(node.spec.name),
        )
        for host, node in zip(hosts, ready, strict=False)
    )


def _cluster(name: str) -> str:
    return name.partition("-")[0] if name.endswith(".grid5000.fr") else ""


def _make_keys(folder: Path) -> None:
    """One key pair for all users, one for the SSH servers of each kind of system."""
    for name in ("id_ed25519", HOST_KEY, DEPLOYED_HOST_KEY):
        if not (folder / name).exists():
            keygen = [
                "ssh-keygen",
                "-q",
                "-t",
                "ed25519",
                "-N",
                "",
                "-C",
                f"{USER}@testbed",
                "-f",
                str(folder / name),
            ]
            subprocess.run(keygen, check=True, stdin=subprocess.DEVNULL)
    public = [
        (folder / f"{name}.pub").read_text(encoding="ascii")
        for name in (HOST_KEY, DEPLOYED_HOST_KEY)
    ]
    known = "".join(f"* {each}" for each in public)
    (folder / "known_hosts").write_text(known, encoding="ascii")
    settings = [
        "Host *",
        f"    IdentityFile {folder / 'id_ed25519'}",
        f"    UserKnownHostsFile {folder / 'known_hosts'}",
        "    StrictHostKeyChecking yes",
        "    BatchMode yes",
        "    ConnectTimeout 10",
    ]
    _cover(Path("/etc/ssh/ssh_config"), "\n".join(settings) + "\n")


def _cover(target: Path, text: str) -> None:
    """Show `text` in the place of a file that exists, in this mount namespace."""
    if not target.exists():
        return
    cover = _STAGE / f"{target.name}.{time.monotonic_ns()}"
    cover.write_text(text, encoding="utf-8")
    linux.mount(str(cover), str(target), "", linux.MS_BIND)


def _answers(address: str) -> bool:
    try:
        with socket.create_connection((address, 22), timeout=1.0) as connection:
            return connection.recv(4) == b"SSH-"
    except OSError:
        return False


def _kill(pid: int) -> None:
    """Kill a process that need not be a child of this one, and wait for its end."""
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        signal.pidfd_send_signal(process, signal.SIGKILL)
        if not select.select([process], [], [], _DEADLINE_S)[0]:
            raise RuntimeError(f"process {pid} of a node does not end although it was killed")
    finally:
        os.close(process)


def _processes_of(first: int, name: str) -> list[int]:
    """Processes of a name in the PID namespace of a node's first process."""
    namespace = Path(f"/proc/{first}/ns/pid").readlink()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if (folder / "ns/pid").readlink() == namespace and (
                folder / "comm"
            ).read_text().strip() == name:
                found.append(int(folder.name))
        except FileNotFoundError:
            continue  # ended while we looked
    return found


def _name_nodes(specs: Sequence[NodeSpec]) -> None:
    lines = ["127.0.0.1\tlocalhost"]
    for spec in specs:
        lines.append(f"{spec.address}\t{spec.name} {spec.name.partition('.')[0]}")
        lines += [
            f"{address.partition('/')[0]}\t{spec.vlan_name(vlan)}"
            for vlan, address in spec.vlans.items()
        ]
    _cover(Path("/etc/hosts"), "\n".join(lines) + "\n")
