"""How a stand-in node comes up: what it is to be, its files, and the script that furnishes its
namespaces."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

USER = "jdoe"
USER_ID = 11000
STANDARD_ENVIRONMENT = "debian11-std"
HOST_KEY = "host_key"
DEPLOYED_HOST_KEY = "deployed_host_key"

_REPOSITORY = Path(__file__).resolve().parents[2]
_PATH = "/run/testbed/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

_SSHD_CONFIG = f"""\
AddressFamily inet
HostKey /run/testbed/host_key
PidFile none
UsePAM no
UseDNS no
StrictModes no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
AuthorizedKeysFile .ssh/authorized_keys
MaxStartups 1000
MaxSessions 1000
PrintMotd no
PrintLastLog no
Subsystem sftp internal-sftp
SetEnv PATH={_PATH}
"""

_SUDO = """\
#!/bin/sh
[ $# -gt 0 ] || set -- /bin/sh
exec /run/testbed/bin/become-root --reuid=0 --regid=0 --clear-groups -- "$@"
"""

# `$1` is the node's staging folder, `$2` the name that its root device shows under, `$3` its host
# name, `$4` its disk, `$5` its home, `$6` what it must not see, `$7` the workers' environment in the
# system's image, if any. Further arguments are folders that stay visible.
_BOOT = """\
set -eu
stage=$1 device=$2 name=$3 disk=$4 home=$5 hidden=$6 environment=$7
shift 7
read -r pid rest < /proc/self/stat
mount -t tmpfs -o mode=0755 layers "$stage/layers"
mkdir "$stage/layers/upper" "$stage/layers/work"
mount -t overlay -o "lowerdir=/,upperdir=$stage/layers/upper,workdir=$stage/layers/work" "$device" "$stage/system"
cd "$stage/system"
mount -t proc proc proc
mount -t sysfs sysfs sys
mount --rbind /dev dev
for folder in tmp dev/shm; do mount -t tmpfs -o mode=1777 tmpfs "$folder"; done
mount -t tmpfs -o mode=0755 tmpfs run
mount -t tmpfs -o mode=0700 tmpfs root
mount --bind "$disk" var/tmp
mount --bind "$home" home
if [ -n "$environment" ]; then
    base=var/tmp/laggard-root/${environment##*/}
    mkdir -m 0700 -p var/tmp/laggard-root
    mkdir -p "$base"
    mount --bind "$environment" "$base"
    mount -o remount,bind,ro "$base"
fi
if [ -d ".$hidden" ]; then mount -t tmpfs tmpfs ".$hidden"; fi
for folder; do mkdir -p ".$folder"; mount --bind "$folder" ".$folder"; done
cp -r "$stage/etc/." etc
cp -r "$stage/root/." root
cp -r "$stage/run/." run
cp /usr/bin/setpriv run/testbed/bin/become-root
chmod 4755 run/testbed/bin/become-root
mkdir -p run/sshd old
hostname "$name"
echo "$pid" > "$stage/pid"
pivot_root . old
cd /
umount -l old
rmdir old
SSHD -D -e -f /run/testbed/sshd_config < /dev/null &
while :; do sleep 3600 & wait || :; done
"""


# An offset can be set only between unshare(CLONE_NEWTIME) and the first process in the new
# namespace.
_SKEW = """\
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
if libc.unshare(0x80) < 0:
    raise OSError(ctypes.get_errno(), "no time namespace")
with open("/proc/self/timens_offsets", "w") as offsets:
    offsets.write(sys.argv[1])
os.execvp(sys.argv[2], sys.argv[2:])
"""


@dataclass(frozen=True)
class NodeSpec:
    """What a node is to be.

    Attributes:
        name: its host name, such as `gemini-1.lyon.grid5000.fr`.
        address: its IPv4 address on `eth0`, inside 172.16.0.0/12.
        site: nodes of one site share `/home`; empty: it shares with nobody.
        clock_offset_s: what its CLOCK_MONOTONIC shows more than the controller's, in seconds.
        prefix_length: of its address.
        vlans: its address with prefix length in each VLAN, by VLAN number, such as `{"4":
            "10.12.5.1/18"}`.
        bare: whether its system's image lacks the workers' environment that those of others have.
    """

    name: str
    address: str
    site: str = ""
    clock_offset_s: float = 0.0
    prefix_length: int = 16
    vlans: Mapping[str, str] = field(default_factory=dict)
    bare: bool = False

    def vlan_name(self, vlan: str) -> str:
        """The name it answers to in a VLAN, as Grid'5000 makes it."""
        host, _, domain = self.name.partition(".")
        return f"{host}-kavlan-{vlan}.{domain}"


@dataclass(frozen=True)
class Boot:
    """How a node comes up.

    Attributes:
        root_key: whether root may log in from the start.
        users: whether the ordinary user may log in.
        environment: what `/etc/grid5000/release` says.
        deployed: whether `/` lies on a third partition, as kadeploy leaves it.
        home: whether `/home` is that of the site; otherwise it is empty.
    """

    root_key: bool = True
    users: bool = True
    environment: str = STANDARD_ENVIRONMENT
    deployed: bool = False
    home: bool = True


def program(name: str) -> str | None:
    """Where a program is, administrators' ones included."""
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


def boot_command(
    spec: NodeSpec,
    boot: Boot,
    network: Path,
    stage: Path,
    places: Sequence[Path],
    environment: Path | None,
) -> list[str]:
    """The command that is a node as long as it runs.

    Args:
        spec: the node.
        boot: how it comes up.
        network: file that its network namespace is bound to.
        stage: folder with its files, see `stage_files`.
        places: what becomes its `/var/tmp` and its `/home`, then folders of the controller that it
            sees where they are.
        environment: the workers' environment, if it is in the system's image; the folder has its
            name on nodes.
    """
    disk, home, *shown = (str(place) for place in places)
    device = "/dev/sda3" if boot.deployed else "/dev/sda2"
    script = _BOOT.replace("SSHD", shlex.quote(program("sshd") or "sshd"))
    arguments = [str(stage), device, spec.name, disk, home, str(_REPOSITORY)]
    arguments += [str(environment or ""), *shown]
    kinds = ("--mount", "--uts", "--ipc", "--pid", "--fork", "--kill-child")
    inside = ["nsenter", f"--net={network}", "unshare", *kinds]
    return [*_clock(spec.clock_offset_s), *inside, "/bin/sh", "-c", script, "boot", *arguments]


def stage_files(stage: Path, folder: Path, spec: NodeSpec, boot: Boot) -> None:
    """Lay out what the boot script copies into the node."""
    for name in ("layers", "system", "home", "etc/grid5000", "root/.ssh", "run/testbed/bin"):
        (stage / name).mkdir(parents=True)
    for name, text in _accounts().items():
        (stage / "etc" / name).write_text(text, encoding="utf-8")
    (stage / "etc/shadow").chmod(0o640)
    (stage / "etc/hostname").write_text(f"{spec.name}\n", encoding="ascii")
    shutil.copy("/etc/hosts", stage / "etc/hosts")
    (stage / "etc/grid5000/release").write_text(f"{boot.environment}\n", encoding="ascii")
    if not boot.users:
        (stage / "etc/nologin").write_text(
            "This node is not yours: no running job of yours has it.\n", encoding="ascii"
        )
    authorized = stage / "root/.ssh/authorized_keys"
    authorized.write_bytes((folder / "id_ed25519.pub").read_bytes() if boot.root_key else b"")
    (stage / "run/testbed/sshd_config").write_text(_SSHD_CONFIG, encoding="ascii")
    # A deployed system has other host keys than the standard one, as on Grid'5000.
    host_key = DEPLOYED_HOST_KEY if boot.deployed else HOST_KEY
    shutil.copy(folder / host_key, stage / "run/testbed/host_key")
    sudo = stage / "run/testbed/bin/sudo-g5k"
    sudo.write_text(_SUDO, encoding="ascii")
    sudo.chmod(0o755)


def _accounts() -> Mapping[str, str]:
    """The machine's users without their passwords and with the node's own."""
    known = Path("/etc/passwd").read_text(encoding="utf-8").splitlines()
    kept = [line for line in known if line.partition(":")[0] not in ("sshd", USER)]
    users = [
        *kept,
        "sshd:x:65500:65534::/run/sshd:/usr/sbin/nologin",
        f"{USER}:x:{USER_ID}:{USER_ID}::/home/{USER}:/bin/bash",
    ]
    shadow = [f"{line.partition(':')[0]}:*:19000:0:99999:7:::" for line in users]
    groups = Path("/etc/group").read_text(encoding="utf-8").rstrip("\n")
    return {
        "passwd": "\n".join(users) + "\n",
        "shadow": "\n".join(shadow) + "\n",
        "group": f"{groups}\n{USER}:x:{USER_ID}:\n",
    }


def _clock(offset_s: float) -> tuple[str, ...]:
    """Runs the command after it with another CLOCK_MONOTONIC for its children; see
    time_namespaces(7)."""
    if offset_s == 0:
        return ()
    seconds, nanoseconds = divmod(round(offset_s * 1e9), 10**9)
    return (sys.executable, "-I", "-c", _SKEW, f"monotonic {seconds} {nanoseconds}\n")
