"""A stand-in Grid'5000: its REST API on loopback, and nodes that can be lent.

The server runs in a process of its own: whoever forks, as Ansible does, had better have one thread.
"""

from __future__ import annotations

import base64
import json
import multiprocessing
import os
import shutil
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.managers import BaseManager
from pathlib import Path
from typing import Any

from tests.testbed import reference
from tests.testbed.faults import Fault, Faults, Injection
from tests.testbed.g5k import Grid5000, Held
from tests.testbed.machines import Lent, Machines, Paper
from tests.testbed.nodes import USER, start_nodes
from tests.testbed.oar import Timing
from tests.testbed.rest_api import Answer, Api

PASSWORD = "correct-horse"
_TEXT = "text/plain; charset=utf-8"
_JSON = "application/json; charset=utf-8"


@dataclass(frozen=True)
class Call:
    """A request and the status it was answered with."""

    method: str
    path: str
    status: int


class Server:
    """The API on a port of 127.0.0.1, answering in threads."""

    def __init__(self, grid: Grid5000, faults: Faults, password: str = PASSWORD) -> None:
        self._api = Api(grid)
        self._faults = faults
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self.calls: list[Call] = []
        expected = base64.b64encode(f"{grid.user}:{password}".encode()).decode()
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = (
                True  # else every payload waits 40 ms for its headers to be acknowledged
            )

            def do_GET(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                body = self.rfile.read(length)
                known = self.headers.get("Authorization") == f"Basic {expected}"
                answer = server.answer(self.command, self.path, body, known=known)
                text = isinstance(answer.content, str)
                payload = (
                    str(answer.content).encode() if text else json.dumps(answer.content).encode()
                )
                try:
                    self.send_response(answer.status)
                    self.send_header("Content-Type", _TEXT if text else _JSON)
                    self.send_header("Content-Length", str(len(payload)))
                    self.end_headers()
                    self.wfile.write(payload)
                except (BrokenPipeError, ConnectionResetError):
                    self.close_connection = True  # the client did not wait for a slow answer

            do_POST = do_DELETE = do_GET  # noqa: N815 - the base class looks for these names

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - so named in the base class
                """The calls are kept instead."""

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"
        self._thread = threading.Thread(
            target=self._http.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True
        )
        self._thread.start()

    def answer(self, method: str, target: str, body: bytes, *, known: bool) -> Answer:
        """Answer one request, or go wrong as injected."""
        slow = self._faults.take(Fault.SLOW_ANSWERS, method)
        if slow is not None:
            self._closing.wait(slow.delay_s)
        answer = self._failure(method, known=known) or self._api.answer(method, target, body)
        with self._lock:
            self.calls.append(Call(method, target, int(answer.status)))
        return answer

    def _failure(self, method: str, *, known: bool) -> Answer | None:
        if not known or self._faults.take(Fault.UNAUTHORIZED, method) is not None:
            return Answer(HTTPStatus.UNAUTHORIZED, "Authorization Required")
        if self._faults.take(Fault.SERVER_ERRORS, method) is not None:
            return Answer(HTTPStatus.INTERNAL_SERVER_ERROR, "Internal Server Error")
        if method == "DELETE" and self._faults.take(Fault.RELEASE_FAILS) is not None:
            return Answer(HTTPStatus.SERVICE_UNAVAILABLE, "Server Unavailable")
        return None

    def close(self) -> None:
        """Stop answering."""
        self._closing.set()
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()


class Service:
    """A whole stand-in in this process: nodes, state, server."""

    def __init__(
        self,
        folder: Path | None,
        counts: Mapping[str, int],
        timing: Timing,
        shown: Sequence[Path],
        environment: Path | None,
    ) -> None:
        specs = reference.pool(counts)
        self._faults = Faults()
        self._nodes = (
            None
            if folder is None
            else start_nodes(
                specs, folder, Lent.idle, shown, squashed=True, environment=environment
            )
        )
        machines: Machines = Paper() if self._nodes is None else Lent(self._nodes)
        self._grid = Grid5000([spec.name for spec in specs], machines, self._faults, timing, USER)
        self._server = Server(self._grid, self._faults)

    def url(self) -> str:
        return self._server.url

    def held_jobs(self) -> tuple[Held, ...]:
        self._raise_broken()
        return self._grid.held()

    def calls(self) -> tuple[Call, ...]:
        return tuple(self._server.calls)

    def inject(self, injection: Injection) -> None:
        self._faults.inject(injection)

    def clear_faults(self) -> None:
        self._faults.clear()

    def kill_ssh(self, name: str) -> None:
        self._real().kill_ssh(name)

    def unplug(self, name: str) -> None:
        self._real().unplug(name)

    def plug(self, name: str) -> None:
        self._real().plug(name)

    def crash(self, name: str) -> None:
        self._real().crash(name)

    def log(self, name: str) -> str:
        return str(self._real().log(name))

    def home(self, name: str) -> Path:
        return Path(self._real().home(name))

    def close(self) -> None:
        self._server.close()
        self._grid.close()
        if self._nodes is not None:
            self._nodes.close()
        self._raise_broken()

    def _real(self) -> Any:
        if self._nodes is None:
            raise RuntimeError("this stand-in has its nodes on paper only")
        return self._nodes

    def _raise_broken(self) -> None:
        if self._grid.broken:
            raise RuntimeError(f"the stand-in could not work on its nodes: {self._grid.broken}")


class _Manager(BaseManager):
    """Runs a `Service` in a process of its own."""


_Manager.register("Service", Service)


@dataclass(frozen=True)
class StandIn:
    """A running stand-in Grid'5000, as its tests see it.

    Attributes:
        url: of the API; nothing else of it can be reached without the account.
        key: private key of the user, who is `nodes.USER`; plain `ssh` finds it.
    """

    url: str
    key: Path
    _service: Any

    def held_jobs(self) -> tuple[Held, ...]:
        """Jobs that hold, or wait for, resources; RuntimeError where the stand-in itself has
        failed."""
        return tuple(self._service.held_jobs())

    def calls(self) -> tuple[Call, ...]:
        """All requests so far."""
        return tuple(self._service.calls())

    def inject(self, fault: Fault, **details: Any) -> None:
        """Let something go wrong from now on; `details` are those of `faults.Injection`."""
        self._service.inject(Injection(fault, **details))

    def clear_faults(self) -> None:
        """Let no further fault strike; a silent node stays silent."""
        self._service.clear_faults()

    def kill_ssh(self, name: str) -> None:
        """See `nodes.Nodes.kill_ssh`."""
        self._service.kill_ssh(name)

    def unplug(self, name: str) -> None:
        """See `nodes.Nodes.unplug`."""
        self._service.unplug(name)

    def plug(self, name: str) -> None:
        """See `nodes.Nodes.plug`."""
        self._service.plug(name)

    def crash(self, name: str) -> None:
        """See `nodes.Nodes.crash`."""
        self._service.crash(name)

    def log(self, name: str) -> str:
        """What a node's SSH server said."""
        return str(self._service.log(name))

    def home(self, name: str) -> Path:
        """Where `/home` of a node's site is here."""
        return Path(self._service.home(name))

    def write_account(self, home: Path, password: str = PASSWORD, **settings: float) -> None:
        """Make `home` the home folder of the user on the controller: API account and SSH keys.

        Args:
            home: becomes HOME of whatever uses the testbed.
            password: of the API.
            settings: further ones of python-grid5000, such as `timeout` in seconds.
        """
        account = {
            "uri": self.url,
            "username": USER,
            "password": password,
            "verify_ssl": True,
            **settings,
        }
        home.mkdir(exist_ok=True)
        (home / ".python-grid5000.yaml").write_text(json.dumps(account), encoding="utf-8")
        keys = home / ".ssh"
        keys.mkdir(mode=0o700, exist_ok=True)
        if self.key.exists():
            shutil.copy(self.key, keys / "id_rsa")
            shutil.copy(self.key.with_suffix(".pub"), keys / "id_rsa.pub")


@contextmanager
def stand_in(
    folder: Path | None,
    counts: Mapping[str, int],
    timing: Timing | None = None,
    shown: Sequence[Path] = (),
    environment: Path | None = None,
) -> Iterator[StandIn]:
    """A stand-in Grid'5000 that lends real nodes, inside laggard's sandbox; or, without a folder,
    nodes on paper, anywhere.

    With nodes, begin it before this process has several threads.

    Args:
        folder: where the nodes keep keys, homes, disks and logs; None: there are no nodes behind
            the names.
        counts: how many nodes of each cluster can be lent; of all other nodes somebody else is the
            user.
        timing: how long the stages of jobs and deployments take.
        shown: folders of the controller that the nodes see where they are.
        environment: the workers' environment, for nodes in whose system's image it is.
    """
    with _service(folder, counts, timing or Timing(), shown, environment) as service:
        yield StandIn(service.url(), (folder or Path(os.devnull)) / "id_ed25519", service)


@contextmanager
def _service(
    folder: Path | None,
    counts: Mapping[str, int],
    timing: Timing,
    shown: Sequence[Path],
    environment: Path | None,
) -> Iterator[Any]:
    """A `Service` in a process of its own where there are nodes, otherwise in this one."""
    with ExitStack() as stack:
        if folder is None:
            service: Any = Service(folder, counts, timing, shown, environment)
        else:
            manager = _Manager(ctx=multiprocessing.get_context("fork"))
            manager.start()
            stack.callback(manager.shutdown)
            service = manager.Service(folder, dict(counts), timing, tuple(shown), environment)  # type: ignore[attr-defined]
        stack.callback(service.close)
        yield service
