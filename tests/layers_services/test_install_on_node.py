"""The script that makes an environment on a node, run here: whole or not at all, whatever was
there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from laggard.layers_services.environment import install_on_node
from laggard.layers_services.environment.install_on_node import (
    ANSWER_MARK,
    InstallAnswer,
    Request,
    install_environment,
)
from tests.layers_services.tiny_wheels import request_for, write_wheel


@pytest.fixture
def store(tmp_path: Path) -> Path:
    folder = tmp_path / "store"
    folder.mkdir()
    return folder


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return tmp_path / "base"


def tiny(store: Path, base: Path) -> Request:
    return request_for(
        store, base, write_wheel(store, "laggard"), write_wheel(store, "other", "2.0")
    )


def state(answer: InstallAnswer) -> str:
    return answer["state"]


def python(answer: InstallAnswer, code: str) -> str:
    done = subprocess.run(
        [answer["python"], "-c", code], check=False, capture_output=True, text=True
    )
    return done.stdout.strip() or done.stderr


def test_is_built_once_and_works(store: Path, base: Path) -> None:
    request = tiny(store, base)
    first, second = install_environment(request), install_environment(request)
    assert (state(first), state(second)) == ("built", "ready")
    assert first["python"] == str(base / "e1/bin/python")
    said = python(
        first, "import other, sys; print(other.__version__, sys.prefix, sys.version_info[:2])"
    )
    assert said == f"2.0 {base / 'e1'} {sys.version_info[:2]}"
    assert Path(first["runs"]).is_dir()
    assert sorted(path.name for path in base.iterdir()) == ["e1", "runs"]
    assert base.stat().st_mode & 0o777 == 0o700


def test_python_may_compile_what_it_imports(store: Path, base: Path) -> None:
    request = tiny(store, base)
    python(
        install_environment(request), "import sys; sys.dont_write_bytecode = False; import other"
    )
    assert list(base.rglob("other/__pycache__"))
    assert state(install_environment(request)) == "ready"


@pytest.mark.parametrize("damage", ["removed", "shortened", "complete", "python", "all"])
def test_what_is_not_whole_is_made_anew(store: Path, base: Path, damage: str) -> None:
    request = tiny(store, base)
    install_environment(request)
    environment = base / "e1"
    (module,) = environment.rglob("other/__init__.py")
    if damage == "removed":
        module.unlink()
    elif damage == "shortened":
        module.write_text("")
    elif damage == "complete":
        (environment / "complete").unlink()
    elif damage == "python":
        (environment / "bin/python").unlink()
    else:
        for path in [*environment.rglob("*.py"), environment / "complete"]:
            path.unlink()
    answer = install_environment(request)
    assert state(answer) == "built"
    assert python(answer, "import other; print(other.__version__)") == "2.0"
    assert sorted(path.name for path in base.iterdir()) == ["e1", "runs"]


def test_wheels_go_where_the_format_says(store: Path, base: Path) -> None:
    files = {
        "other/bin/helper": "#!/bin/sh\n",
        "other-2.0.data/scripts/tool": "#!python\nprint('tool', __import__('other').__version__)\n",
        "other-2.0.data/purelib/beside.py": "x = 1\n",
        "other-2.0.data/platlib/compiled.py": "x = 2\n",
        "other-2.0.data/data/share/note": "note",
        "other-2.0.data/headers/other.h": "",
    }
    request = request_for(
        store, base, write_wheel(store, "laggard"), write_wheel(store, "other", "2.0", files=files)
    )
    answer = install_environment(request)
    assert python(answer, "import beside, compiled; print(beside.x, compiled.x)") == "1 2"
    environment = base / "e1"
    assert (environment / "share/note").read_text() == "note"
    assert [*(environment / "include").rglob("other.h")]
    (helper,) = environment.rglob("other/bin/helper")
    assert os.access(helper, os.X_OK)
    tool = environment / "bin/tool"
    ran = subprocess.run([tool], check=True, capture_output=True, text=True)
    assert ran.stdout == "tool 2.0\n"


@pytest.mark.parametrize(
    "name",
    ["../evil", "a/../../evil", "/etc/evil", "other-2.0.data/strange/evil", "other-2.0.data/data"],
)
def test_a_wheel_stays_inside(store: Path, base: Path, name: str) -> None:
    evil = write_wheel(store, "other", "2.0", files={name: "evil"})
    install_environment(request_for(store, base, write_wheel(store, "laggard"), evil))
    outside = [path for path in base.parent.rglob("evil") if base / "e1" not in path.parents]
    assert outside == []
    assert not Path("/etc/evil").exists()
    assert {path.name for path in base.iterdir()} <= {"runs", "e1"}


def test_says_what_is_missing_and_what_is_wrong(store: Path, base: Path) -> None:
    request = tiny(store, base)
    laggard, other, _ = sorted(store.glob("*.whl"))
    laggard.unlink()
    data = other.read_bytes()
    other.write_bytes(b"x" * len(data))
    assert install_environment(request)["missing"] == [laggard.name, other.name]
    assert install_environment(request)["corrupt"] == [other.name]
    other.write_bytes(data[:-1])
    assert install_environment(request)["corrupt"] == [other.name]


def test_another_store_serves_as_well(store: Path, base: Path, tmp_path: Path) -> None:
    request = tiny(store, base)
    _, other, _ = sorted(store.glob("*.whl"))
    second = tmp_path / "second"
    second.mkdir()
    (second / other.name).write_bytes(other.read_bytes())
    other.write_bytes(b"broken")
    request["stores"] = [str(tmp_path / "nowhere"), str(store), str(second)]
    assert state(install_environment(request)) == "built"


def test_the_environment_is_tried(store: Path, base: Path) -> None:
    answer = install_environment(request_for(store, base, write_wheel(store, "other")))
    assert state(answer) == "refused"
    assert "No module named 'laggard'" in answer["reason"]
    assert not (base / "e1").exists()


def test_what_no_run_has_used_for_long_is_removed(store: Path, base: Path) -> None:
    install_environment({**tiny(store, base), "environment": "used"})
    install_environment({**tiny(store, base), "environment": "unused"})
    for name in ("used", "unused"):
        os.utime(base / name / "complete", (0, 0))
    assert state(install_environment({**tiny(store, base), "environment": "used"})) == "ready"
    assert state(install_environment(tiny(store, base))) == "built"
    assert sorted(path.name for path in base.iterdir()) == ["e1", "runs", "used"]


def test_an_environment_in_a_read_only_image_is_used(store: Path, base: Path) -> None:
    request = tiny(store, base)
    assert state(install_environment(request)) == "built"
    mounted = 'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" && exec "$@"'
    program = (sys.executable, install_on_node.__file__, json.dumps(request))
    command = ("unshare", "--map-root-user", "--mount", "sh", "-ec", mounted, str(base), *program)
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert json.loads(said.partition(ANSWER_MARK)[2])["state"] == "ready"


def test_too_little_space(store: Path, base: Path) -> None:
    request = tiny(store, base)
    request["unpacked_bytes"] = 1 << 60
    answer = install_environment(request)
    assert state(answer) == "refused"
    assert "the disk is full" in answer["reason"]


def test_a_folder_of_another_user_is_not_trusted(store: Path, base: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    base.symlink_to(elsewhere)
    assert "belongs to another user" in install_environment(tiny(store, base))["reason"]
    if os.geteuid() == 0:
        base.unlink()
        base.mkdir()
        os.chown(base, 65534, 65534)
        assert "belongs to another user" in install_environment(tiny(store, base))["reason"]


HOLDER = """
import sys, time
from laggard.layers_services.environment.install_on_node import _locked_folder
from pathlib import Path
path, lock = _locked_folder(Path(sys.argv[1]))
print(path, flush=True)
sys.stdin.read()
"""


def test_a_dead_build_is_removed_and_a_live_one_kept(store: Path, base: Path) -> None:
    request = tiny(store, base)
    base.mkdir(mode=0o700)
    holders = [
        subprocess.Popen(
            [sys.executable, "-c", HOLDER, str(base)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    live, dead = (Path(holder.stdout.readline().strip()) for holder in holders if holder.stdout)
    (dead / "environment").mkdir()
    holders[1].kill()
    holders[1].wait()
    assert dead.is_dir()
    assert state(install_environment(request)) == "built"
    assert (live.is_dir(), dead.exists()) == (True, False)
    for holder in holders:
        holder.communicate()


def _command(request: Request) -> Sequence[str]:
    return [sys.executable, "-I", install_on_node.__file__, json.dumps(request)]


def test_many_at_once(store: Path, base: Path) -> None:
    request = tiny(store, base)
    running = [
        subprocess.Popen(_command(request), stdout=subprocess.PIPE, text=True) for _ in range(6)
    ]
    said = [process.communicate()[0] for process in running]
    answers = [json.loads(text.rpartition(ANSWER_MARK)[2]) for text in said]
    assert {state(answer) for answer in answers} <= {"built", "ready"}
    assert python(answers[0], "import other; print(other.__version__)") == "2.0"
    assert sorted(path.name for path in base.iterdir()) == ["e1", "runs"]


@pytest.mark.parametrize("commands", range(3))
def test_killed_at_any_time_it_leaves_nothing_in_the_way(
    store: Path, base: Path, commands: int
) -> None:
    """Killed by itself after so many commands have run."""
    request = tiny(store, base)
    files = {f"many/{i}.py": "x = 1\n" for i in range(40)}
    many = write_wheel(store, "many", files=files)
    request = request_for(store, base, *sorted(store.glob("laggard*.whl")), many)
    code = (
        "import os, signal, sys, json; from laggard.layers_services.environment import"
        " install_on_node as i\nrun, seen = i._run, []\ndef counting(*command):\n   "
        f" seen.append(1)\n    if len(seen) > {commands}: os.kill(os.getpid(), signal.SIGKILL)\n   "
        " return run(*command)\ni._run = counting\ni.install_environment(json.loads(sys.argv[1]))\n"
    )
    died = subprocess.run(
        [sys.executable, "-c", code, json.dumps(request)], check=False, capture_output=True
    )
    assert died.returncode == -9
    assert not (base / "e1").exists()
    assert state(install_environment(request)) == "built"
    assert sorted(path.name for path in base.iterdir()) == ["e1", "runs"]
