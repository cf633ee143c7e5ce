"""The control socket of an emulation: only processes of one user talk over it, within bounds."""

from __future__ import annotations

import io
import json
import os
import signal
import socket
import stat
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.console import Console

from laggard.cli.main import main
from laggard.core import linux
from laggard.core.errors import DeploymentError, InputError, LaggardError, RunFolderError
from laggard.emulate import control_socket
from laggard.emulate.control_messages import (
    ControlRequest,
    EnterReply,
    ErrorReply,
    HoldReply,
    LinksReply,
)
from laggard.emulate.control_socket import (
    SOCKET_NAME,
    ControlReply,
    ControlSocket,
    InvalidReplyError,
    RefusedRequestError,
    request_entry,
    send_request,
)
from laggard.emulate.host_shell import run_in_host, select_environment
from laggard.emulate.links_table import build_links_table
from laggard.layers_services.local.joining import open_namespaces
from tests.faults import Fault, holds
from tests.users import NOBODY

HOLD = ControlRequest(action="hold", host="edge.*")
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be other users")


@contextmanager
def forked(body: Callable[[], None], uid: int | None = None) -> Iterator[int]:
    """Run a function in a process of another user until the end of the block."""
    ready, wake = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            if uid is not None:
                os.setgroups([])
                os.setgid(uid)
                os.setuid(uid)
            os.dup2(wake, 99)
            body()
            status = 0
        finally:
            os._exit(status)
    os.close(wake)
    try:
        os.read(ready, 1)
        yield pid
    finally:
        os.close(ready)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def serve(folder: Path) -> Callable[[], None]:
    """Return a function that serves like an emulation."""

    def body() -> None:
        with ControlSocket(folder) as control:
            os.write(99, b"1")
            while True:
                control.serve(
                    60, lambda request, pid: iter([ControlReply(HoldReply(held=pid > 0))])
                )

    return body


def answer(
    folder: Path,
    data: bytes,
    files: Callable[[], list[int]] = list,
    listen_as: int | None = None,
) -> Callable[[], None]:
    """Return a function that answers every request with these bytes and descriptors."""

    def body() -> None:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(folder / SOCKET_NAME))
        (folder / SOCKET_NAME).chmod(0o600)
        if listen_as is not None:
            os.setuid(listen_as)
        # The kernel remembers the user that calls listen().
        listener.listen()
        os.write(99, b"1")
        while True:
            connection, _ = listener.accept()
            connection.recv(1 << 16)
            descriptors = files()
            if descriptors:
                socket.send_fds(connection, [data], descriptors)
            else:
                connection.sendall(data)
            connection.close()

    return body


@pytest.fixture
def folder(open_folder: Path) -> Path:
    """A run folder of the tests' user."""
    path = open_folder / "run"
    path.mkdir()
    (path / "run.json").write_text("{}")
    path.chmod(0o755)
    return path


def assert_helps(error: LaggardError, *words: str) -> None:
    assert " — " in str(error)
    for word in words:
        assert word in str(error), error


def test_the_same_user(folder: Path) -> None:
    folder.chmod(0o2777)
    with forked(serve(folder)):
        assert send_request(folder, HOLD, HoldReply) == HoldReply(held=True)
        # The server takes the right from others, or they could replace the socket.
        assert stat.S_IMODE(folder.stat().st_mode) == 0o2755
        assert stat.S_IMODE((folder / SOCKET_NAME).stat().st_mode) == 0o600


@holds(Fault.STRANGER_AT_SOCKET)
@needs_root
@pytest.mark.parametrize("command", [("ssh", "--run"), ("links",)])
def test_root_uses_no_emulation_of_another_user(command: tuple[str, ...], folder: Path) -> None:
    os.chown(folder, NOBODY, NOBODY)
    with forked(serve(folder), NOBODY):
        with pytest.raises(InputError) as refused:
            run_in_host(folder, "edge.*", ("true",))
        assert_helps(refused.value, str(folder), f"user id {NOBODY}", "root (user id 0)", "run is")
        host = ("edge.*", "true") if command[0] == "ssh" else ()
        result = CliRunner().invoke(main, [*command, str(folder), *host])
        assert result.exit_code == 2
        assert "only emulations of your own user are used" in result.output


@needs_root
def test_a_socket_of_another_user_in_an_own_folder(folder: Path) -> None:
    with forked(answer(folder, b'{"held":true}\n')):
        os.chown(folder / SOCKET_NAME, NOBODY, NOBODY)
        with pytest.raises(InputError) as refused:
            send_request(folder, HOLD, HoldReply)
    assert_helps(refused.value, "control.sock is owned by", f"user id {NOBODY}")


@holds(Fault.STRANGER_AT_SOCKET)
@needs_root
def test_a_process_of_another_user_behind_an_own_socket(folder: Path) -> None:
    with forked(answer(folder, b'{"held":true}\n', listen_as=NOBODY)):
        assert (folder / SOCKET_NAME).stat().st_uid == 0
        with pytest.raises(InputError) as refused:
            send_request(folder, HOLD, HoldReply)
    assert_helps(refused.value, "its emulation is run by", f"user id {NOBODY}")


@holds(Fault.STRANGER_AT_SOCKET)
@needs_root
@pytest.mark.parametrize(("uid", "accepted"), [(NOBODY, True), (0, True), (NOBODY - 1, False)])
def test_the_server_accepts_its_user_and_root(uid: int, accepted: bool, folder: Path) -> None:
    os.chown(folder, NOBODY, NOBODY)
    received = folder / "received"
    received.touch()
    received.chmod(0o666)

    def ask() -> None:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(folder / SOCKET_NAME))
            connection.sendall(HOLD.model_dump_json().encode() + b"\n")
            received.write_bytes(connection.recv(1 << 16))
        os.write(99, b"1")

    with forked(serve(folder), NOBODY):
        (folder / SOCKET_NAME).chmod(0o666)
        with forked(ask, uid):
            pass
    document = json.loads(received.read_text())
    assert document == {"held": True} if accepted else "another user" in document["error"]


@pytest.mark.parametrize("mode", [0o775, 0o777, 0o757])
def test_a_folder_that_others_may_write_to(mode: int, folder: Path) -> None:
    with forked(answer(folder, b'{"held":true}\n')):
        folder.chmod(mode)
        with pytest.raises(InputError) as refused:
            send_request(folder, HOLD, HoldReply)
        assert_helps(refused.value, f"mode {mode:04o}", f"chmod go-w {folder}")
        # The advice works.
        folder.chmod(mode & ~0o022)
        assert send_request(folder, HOLD, HoldReply).held


def test_a_socket_that_others_may_write_to(folder: Path) -> None:
    with forked(answer(folder, b'{"held":true}\n')):
        (folder / SOCKET_NAME).chmod(0o666)
        with pytest.raises(InputError) as refused:
            send_request(folder, HOLD, HoldReply)
    assert_helps(refused.value, "mode 0666", "chmod go-w")


@pytest.mark.parametrize("kind", ["missing", "file", "pipe", "link", "nobody listens"])
def test_no_emulation(kind: str, folder: Path) -> None:
    path = folder / SOCKET_NAME
    if kind == "file":
        path.write_text("")
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "link":
        path.symlink_to("/run/other.sock")
    elif kind == "nobody listens":
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path))
        path.chmod(0o600)
    with pytest.raises(InputError, match=r"emulat.* — "):
        send_request(folder, HOLD, HoldReply)


INVALID_REPLIES = {
    "nothing": b"\n",
    "no JSON": b"held\n",
    "no object": b"[true]\n",
    "another type": b'{"held":"\x1b[2J"}\n',
    "a missing field": b"{}\n",
    "an unknown field": b'{"held":true,"run":"rm"}\n',
    "bad UTF-8": b'{"held":"\xfc"}\n',
    "deep": b"[" * 100_000 + b"\n",
    "long": b'{"held":' + b" " * 5000 + b"true}\n",
    "status 0": b'{"error":"x","status":0}\n',
    "status 256": b'{"error":"x","status":256}\n',
    "status text": b'{"error":"x","status":"1"}\n',
    "no status": b'{"error":"x"}\n',
}


@pytest.mark.parametrize("name", INVALID_REPLIES)
def test_invalid_replies(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_socket, "_MAX_REPLY_BYTES", 4096)
    serving = forked(answer(folder, INVALID_REPLIES[name]))
    with serving, pytest.raises(InvalidReplyError) as refused:
        send_request(folder, HOLD, HoldReply)
    assert_helps(refused.value, "not valid", "laggard emulate")
    assert len(str(refused.value)) < 1000
    assert str(refused.value).isprintable()


def test_a_cut_reply(folder: Path) -> None:
    with forked(answer(folder, b'{"held":')), pytest.raises(RunFolderError, match="no emulation"):
        send_request(folder, HOLD, HoldReply)


def test_a_refusal_cannot_control_a_terminal(folder: Path) -> None:
    refusal = json.dumps({"error": "\x1b[2Jno\nhost", "status": 2}).encode() + b"\n"
    with forked(answer(folder, refusal)), pytest.raises(RefusedRequestError) as refused:
        send_request(folder, HOLD, HoldReply)
    assert str(refused.value) == "\\x1b[2Jno\nhost"
    assert refused.value.exit_status == 2


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("host", "edge\n"),
        ("host", "../../x"),
        ("host", ""),
        ("host", "x" * 300),
        ("address", "example.org"),
        ("ipv6", "10.0.0.1"),
        ("home", "relative"),
        ("home", "/a/../b"),
        ("temporary", "/\x1b[2J"),
        ("LD_PRELOAD", "/tmp/x.so"),
    ],
)
def test_what_a_host_may_not_be(field: str, value: str) -> None:
    document = {"host": "edge.trainer.1.1", "address": "10.0.0.1"}
    EnterReply.model_validate_json(json.dumps(document))
    with pytest.raises(ValueError, match=field):
        EnterReply.model_validate_json(json.dumps({**document, field: value}))


ENTRY = EnterReply(host="edge.trainer.1.1", address="10.0.0.1")
_ENTER = ENTRY.model_dump_json().encode() + b"\n"
_KINDS = ("user", "mnt", "ipc", "pid", "net", "uts")


def open_own(kinds: tuple[str, ...] = _KINDS) -> list[int]:
    return [os.open(f"/proc/self/ns/{kind}", os.O_RDONLY) for kind in kinds]


def in_new_namespaces(flags: int, kinds: tuple[str, ...]) -> list[int]:
    """Return own namespaces, of which some are those of a process that is not the server."""
    descriptors, (ready, wake) = open_own(), os.pipe()
    pid = os.fork()
    if pid == 0:
        linux.unshare(flags)
        os.write(wake, b"1")
        signal.pause()
    os.read(ready, 1)
    for kind in kinds:
        other = os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY)
        os.dup2(other, descriptors[_KINDS.index(kind)])
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return descriptors


ENTERABLE: dict[str, tuple[Callable[[], list[int]], str]] = {
    "none": (list, "0 descriptors"),
    "five": (lambda: open_own(_KINDS[:5]), "5 descriptors"),
    "seven": (lambda: open_own((*_KINDS, "net")), "7 descriptors"),
    "files": (lambda: [os.open("/dev/null", os.O_RDONLY) for _ in range(6)], "ioctl"),
    "another order": (lambda: open_own(_KINDS[::-1]), "another kind"),
    "another mount namespace": (
        lambda: in_new_namespaces(linux.CLONE_NEWUSER | linux.CLONE_NEWNS, ("mnt",)),
        "mnt namespace of another process",
    ),
    "another user namespace": (
        lambda: in_new_namespaces(linux.CLONE_NEWUSER, ("user",)),
        "user namespace of another process",
    ),
    "another sandbox's network": (
        lambda: in_new_namespaces(linux.CLONE_NEWUSER | linux.CLONE_NEWNET, ("net",)),
        "a host of another sandbox",
    ),
}


@pytest.mark.parametrize("name", ENTERABLE)
def test_namespaces_that_are_not_entered(name: str, folder: Path) -> None:
    files, reason = ENTERABLE[name]
    before = set(Path("/proc/self/fd").iterdir())
    with forked(answer(folder, _ENTER, files)), pytest.raises(LaggardError) as refused:
        request_entry(folder, "edge.*")
    assert isinstance(refused.value, DeploymentError | InvalidReplyError)
    if reason != "ioctl":
        assert_helps(refused.value, reason)
    assert set(Path("/proc/self/fd").iterdir()) == before


def test_own_namespaces_are_entered(folder: Path) -> None:
    with forked(answer(folder, _ENTER, open_own)), ExitStack() as undo:
        entry, descriptors = request_entry(folder, "edge.*")
        for descriptor in descriptors:
            undo.callback(os.close, descriptor)
        assert entry == ENTRY
        assert not any(os.get_inheritable(descriptor) for descriptor in descriptors)
    net, uts = (Path(f"/proc/self/ns/{kind}") for kind in ("net", "uts"))
    with open_namespaces(net, uts) as own:
        assert len(own) == len(_KINDS)


def test_only_some_variables_are_passed() -> None:
    passed = {
        "TERM": "xterm",
        "LANG": "C",
        "LC_TIME": "C",
        "PATH": "/bin",
        "USER": "me",
        "SHELL": "/bin/sh",
        "TZ": "UTC",
        "PYTHONPATH": "/lib",
        "VIRTUAL_ENV": "/venv",
    }
    kept_back = {"AWS_SECRET_ACCESS_KEY": "x", "LD_PRELOAD": "x", "BASH_ENV": "x", "LC": "x"}
    entry = ENTRY.model_copy(update={"home": "/run/home"})
    assert select_environment({**passed, **kept_back, "HOME": "/root"}, entry) == {
        **passed,
        "HOME": "/run/home",
        "LAGGARD_HOST": "edge.trainer.1.1",
        "LAGGARD_ADDRESS": "10.0.0.1",
    }


@pytest.mark.parametrize("host", ["x" * 501, "a\0b", "\udcfc", "\x1b[2J"])
def test_strange_names_of_hosts(host: str, folder: Path) -> None:
    with pytest.raises(InputError) as refused:
        run_in_host(folder, host, ("true",))
    assert_helps(refused.value, "at most 500 printable characters")
    assert str(refused.value).isprintable()


def test_names_in_the_table_are_no_markup() -> None:
    constraint = {
        "delay_ms": 5,
        "jitter_ms": 1,
        "rate_mbps": None,
        "loss_percent": 0,
        "distribution": "[link=x]y[/link]",
        "burst_packets": 1,
    }
    link = {
        "src_layer": "[red]cloud",
        "dst_layer": "edge\x1b[2J",
        "pairs": [["[/]a", "b"], ["c", "d"]],
        "requested": constraint,
        "current": {**constraint, "delay_ms": 7},
        "requested_rtt_ms": 10,
        "rtt_ms": None,
        "carried_mbps": 0,
        "dropped": 0,
    }
    reply = LinksReply.model_validate_json(json.dumps({"links": [link]}))
    text = io.StringIO()
    Console(file=text, width=200).print(build_links_table(reply.links))
    for shown in ("2 x [red]cloud → edge\\x1b[2J", "[link=x]y[/link]"):
        assert shown in text.getvalue()
    assert "\x1b" not in text.getvalue()


def test_errors_of_the_server_are_typed() -> None:
    assert ErrorReply(error="x" * (1 << 20), status=2).error == "x" * (1 << 17)
