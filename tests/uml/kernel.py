"""Runs a Python script as root inside Debian's user-mode Linux kernel, which has netem where the
host's may not.

The kernel boots in about three seconds on the host's own file system, unprivileged, as an ordinary
process. The script starts in a writable /run/home, everything else of the host's files being
read-only, with the loopback device up and the wanted kernel modules loaded (no kmod needed); it
answers by `result(value)`, JSON through the console. Everything runs under a time limit, and ends
with the process.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

KERNEL = "linux.uml"
MODULES = Path("/usr/lib/uml/modules")
REPOSITORY = Path(__file__).resolve().parents[2]
LINK_MODULES = (
    "veth",
    "bridge",
    "ifb",
    "sch_htb",
    "sch_netem",
    "sch_ingress",
    "cls_u32",
    "cls_matchall",
    "act_mirred",
)

_BEGIN, _END = "<<result>>", "<</result>>"


def missing() -> str:
    """Why no user-mode kernel can boot here; empty where one can."""
    if shutil.which(KERNEL) is None or not MODULES.is_dir():
        return "needs Debian's user-mode-linux package"
    if shutil.which("gcc") is None:
        return "needs gcc and libc6-dev, for what lets that kernel run on this processor (xstate.c)"
    return ""


def boot(
    script: str,
    folder: Path,
    *,
    modules: Sequence[str] = LINK_MODULES,
    memory: str = "1G",
    limit_s: float = 100.0,
) -> object:
    """Run a script inside the kernel and return what it passed to `result`.

    Args:
        script: Python source; `result(value)` is in scope, and `laggard` can be imported.
        folder: an empty folder of the host, for the start files.
        modules: kernel modules to load first.
        memory: the kernel's memory.
        limit_s: when to give up.

    Raises:
        AssertionError: the script raised, gave no result, or took too long; carries the console.
    """
    init = _write_start_files(script, folder, modules)
    command = (
        KERNEL, f"mem={memory}", "root=/dev/root", "rootfstype=hostfs", "rootflags=/", "ro", "con=null",
        "con0=null,fd:1", "ssl=null", "quiet", f"init={init}", f"umid=laggard-{os.getpid()}-{folder.name[-20:]}",
        f"uml_dir={folder}/",
    )  # fmt: skip
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=folder,
        start_new_session=True, env={**os.environ, "TMPDIR": str(folder), "LD_PRELOAD": str(_build_xstate(folder))},
    )  # fmt: skip
    try:
        console = process.communicate(timeout=limit_s)[0].decode(errors="replace")
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        console = process.communicate()[0].decode(errors="replace")
        raise AssertionError(f"no end after {limit_s} s; console:\n{console[-6000:]}") from None
    found = re.search(f"{_BEGIN}(.*?){_END}", console, re.DOTALL)
    assert found, f"no result; console:\n{console[-6000:]}"
    return json.loads(re.sub(r"[\r\n]", "", found[1]))


def _build_xstate(folder: Path) -> Path:
    library = folder / "xstate.so"
    source = Path(__file__).with_name("xstate.c")
    subprocess.run(["gcc", "-O1", "-shared", "-fPIC", "-o", library, source], check=True)
    return library


def _write_start_files(script: str, folder: Path, modules: Sequence[str]) -> Path:
    body = folder / "script.py"
    preamble = f"""
        import ctypes, json, os, pathlib, sys
        sys.path[:0] = {[str(REPOSITORY / "src"), *sys.path]!r}
        _FINIT_MODULE = 313
        def load_modules(names):
            root = pathlib.Path({str(MODULES)!r}, os.uname().release)
            lines = (root / "modules.dep").read_text().splitlines()
            needs = {{pathlib.Path(l.split(":")[0]).stem: l.replace(":", "").split() for l in lines}}
            for name in names:
                for path in reversed(needs[name]):
                    with (root / path).open("rb") as module:
                        ctypes.CDLL(None).syscall(_FINIT_MODULE, module.fileno(), b"", 0)
        def result(value):
            os.write(1, ("{_BEGIN}" + json.dumps(value) + "{_END}\\n").encode())
    """
    load = f"load_modules({list(modules)!r})\n"
    body.write_text(textwrap.dedent(preamble) + load + textwrap.dedent(script), encoding="utf-8")
    init = folder / "init.sh"
    init.write_text(
        textwrap.dedent(f"""\
        #!/bin/sh
        export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8
        mount -t proc proc /proc; mount -t sysfs sysfs /sys; mount -t tmpfs tmpfs /run
        mkdir -p /run/netns; mount -t devtmpfs devtmpfs /dev 2>/dev/null
        mkdir -p /dev/shm /dev/pts; mount -t tmpfs tmpfs /dev/shm; mount -t devpts devpts /dev/pts
        mkdir -p /run/home && export HOME=/run/home && cd /run/home
        ip link set lo up
        {sys.executable} -u {body} 2>&1
        poweroff -f 2>/dev/null || echo o > /proc/sysrq-trigger
        """),
        encoding="utf-8",
    )
    init.chmod(0o755)
    return init
