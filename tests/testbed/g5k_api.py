"""A stand-in Grid'5000 behind its REST API, as python-grid5000 and the Grid5000 provider of EnOSlib call it.

Paths, payloads, status codes and errors (plain text) are those of grid5000/g5k-api; the facts are Grid'5000's own. The server runs
in a process of its own: whoever forks, as Ansible does, had better have one thread.
"""

from __future__ import annotations

import base64
import json
import math
import multiprocessing
import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.managers import BaseManager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from tests.testbed import oar, reference
from tests.testbed.faults import Fault, Faults, Injection
from tests.testbed.g5k import Grid5000, Held, Lent, Machines, Paper
from tests.testbed.nodes import USER, start_nodes
from tests.testbed.oar import Job, RefusedError, Timing

PASSWORD = "correct-horse"
_TEXT = "text/plain; charset=utf-8"
_JSON = "application/json; charset=utf-8"


@dataclass(frozen=True)
class Call:
    """A request and the status it was answered with."""

    method: str
    path: str
    status: int


@dataclass(frozen=True)
class Answer:
    """What goes back: JSON, or a text where it is an error."""

    status: HTTPStatus
    content: object = ""


@dataclass(frozen=True)
class Asked:
    """A request, taken apart."""

    parts: tuple[str, ...]
    query: Mapping[str, str]
    body: Any


class NotFoundError(Exception):
    """There is nothing under this path."""


class Api:
    """The requests that Grid'5000 answers, on one state."""

    def __init__(self, grid: Grid5000) -> None:
        self._grid = grid
        anything = "([^/]+)"
        site = f"/sites/{anything}"
        cluster = f"{site}/clusters/{anything}"
        routes: list[tuple[str, str, Callable[[Asked], Answer]]] = [
            ("GET", "/sites", self._sites),
            ("GET", site, lambda asked: _found(_site(asked)["facts"])),
            ("GET", f"{site}/clusters", lambda asked: _items(c["facts"] for c in _site(asked)["clusters"].values())),
            ("GET", cluster, lambda asked: _found(_cluster(asked)["facts"])),
            ("GET", f"{cluster}/nodes", lambda asked: _items(_cluster(asked)["nodes"].values())),
            (
                "GET",
                f"{cluster}/nodes/{anything}",
                lambda asked: _found(_pick(_cluster(asked)["nodes"], asked.parts[2])),
            ),
            ("GET", f"{site}/status", lambda asked: _found(self._grid.status(_known(asked)))),
            ("GET", f"{cluster}/status", self._cluster_status),
            ("GET", f"{site}/servers", lambda asked: _items(_site(asked)["servers"].values())),
            ("GET", f"{site}/servers/{anything}", lambda asked: _found(_pick(_site(asked)["servers"], asked.parts[1]))),
            ("GET", f"{site}/jobs", self._jobs),
            ("POST", f"{site}/jobs", self._submit),
            ("GET", f"{site}/jobs/{anything}", self._job),
            ("DELETE", f"{site}/jobs/{anything}", self._delete),
            ("GET", f"{site}/metrics", _metrics),
            ("GET", f"{site}/vlans", lambda asked: _items(_vlan(number) for number in _vlans(asked))),
            ("GET", f"{site}/vlans/{anything}", lambda asked: _found(_vlan(_known_vlan(asked)))),
            ("GET", f"{site}/vlans/{anything}/nodes", self._nodes_in_vlan),
            ("POST", f"{site}/vlans/{anything}/nodes", self._move_into_vlan),
            ("GET", f"{site}/deployments", self._deployments),
            ("POST", f"{site}/deployments", self._deploy),
            ("GET", f"{site}/deployments/{anything}", self._deployment),
        ]
        self._routes = [(method, re.compile(path), answer) for method, path, answer in routes]

    def answer(self, method: str, target: str, body: bytes) -> Answer:
        """Answer one request."""
        split = urlsplit(target)
        path = unquote(split.path).rstrip("/")
        query = {key: values[-1] for key, values in parse_qs(split.query).items()}
        try:
            content = json.loads(body) if body else None
            for known, pattern, answer in self._routes:
                if known == method and (found := pattern.fullmatch(path)):
                    return answer(Asked(found.groups(), query, content))
        except RefusedError as error:
            reason = f"Request to http://oar/oarapi/jobs.json failed with status 400: {error}"
            return Answer(HTTPStatus.BAD_REQUEST, reason)
        except (NotFoundError, KeyError):
            return Answer(HTTPStatus.NOT_FOUND, "Not Found")
        except json.JSONDecodeError:
            return Answer(HTTPStatus.BAD_REQUEST, "Bad Request")
        return Answer(HTTPStatus.NOT_FOUND, "Not Found")

    def _sites(self, _asked: Asked) -> Answer:
        return _items(site["facts"] for site in reference.load().values())

    def _cluster_status(self, asked: Asked) -> Answer:
        _cluster(asked)
        return _found(self._grid.status(asked.parts[0], asked.parts[1]))

    def _shown(self, job: Job, *, resources: bool = True) -> Mapping[str, object]:
        return oar.as_json(job, time.time(), self._grid.timing, resources=resources)

    def _jobs(self, asked: Asked) -> Answer:
        resources = asked.query.get("resources", "no") != "no"
        shown = [self._shown(job, resources=resources) for job in self._grid.jobs(_known(asked))]
        for key in ("name", "user", "queue", "project"):
            if key in asked.query:
                shown = [job for job in shown if job[key] == asked.query[key]]
        if "state" in asked.query:
            # The API writes states in small letters and compares them capitalised: `toLaunch` is never found.
            states = {state.strip().lower() for state in asked.query["state"].split(",")} - {"tolaunch"}
            shown = [job for job in shown if job["state"] in states]
        return _items(shown)

    def _submit(self, asked: Asked) -> Answer:
        job = self._grid.submit(_known(asked), asked.body or {})
        return Answer(HTTPStatus.CREATED, self._shown(job))

    def _job(self, asked: Asked) -> Answer:
        return _found(self._shown(self._grid.job(_known(asked), _number(asked.parts[1]))))

    def _delete(self, asked: Asked) -> Answer:
        uid = _number(asked.parts[1])
        if not self._grid.delete(_known(asked), uid):
            raise RefusedError(f"Cannot frag {uid} ; This job was already killed.")
        return Answer(HTTPStatus.ACCEPTED)

    def _nodes_in_vlan(self, asked: Asked) -> Answer:
        number = _known_vlan(asked)
        return _items({"uid": name, "vlan": number} for name in self._grid.adapters_in(number))

    def _move_into_vlan(self, asked: Asked) -> Answer:
        number = _known_vlan(asked)
        if not isinstance(asked.body, list) or not asked.body:
            return Answer(HTTPStatus.UNPROCESSABLE_ENTITY, "Missing node list")
        return _found(self._grid.move_adapters(number, [str(name) for name in asked.body]))

    def _deployments(self, asked: Asked) -> Answer:
        return _items(each.as_json(time.time(), self._grid.timing) for each in self._grid.deployments(_known(asked)))

    def _deploy(self, asked: Asked) -> Answer:
        deployment = self._grid.deploy(_known(asked), asked.body or {})
        return Answer(HTTPStatus.CREATED, deployment.as_json(time.time(), self._grid.timing))

    def _deployment(self, asked: Asked) -> Answer:
        deployment = self._grid.deployment(_known(asked), asked.parts[1])
        return _found(deployment.as_json(time.time(), self._grid.timing))


def _found(content: object) -> Answer:
    return Answer(HTTPStatus.OK, content)


def _items(each: Iterator[object] | Sequence[object]) -> Answer:
    items = list(each)
    return Answer(HTTPStatus.OK, {"total": len(items), "offset": 0, "items": items, "links": []})


def _pick(things: Mapping[str, Any], name: str) -> Any:
    if name not in things:
        raise NotFoundError(name)
    return things[name]


def _known(asked: Asked) -> str:
    _site(asked)
    return asked.parts[0]


def _site(asked: Asked) -> reference.Facts:
    return _pick(reference.load(), asked.parts[0])  # type: ignore[no-any-return]


def _cluster(asked: Asked) -> reference.Facts:
    return _pick(_site(asked)["clusters"], asked.parts[1])  # type: ignore[no-any-return]


def _number(text: str) -> int:
    if not text.isdigit():
        raise NotFoundError(text)
    return int(text)


def _vlans(asked: Asked) -> list[str]:
    return list(_site(asked)["facts"]["kavlans"])


def _known_vlan(asked: Asked) -> str:
    # The production network is `default` in the facts and DEFAULT in the API.
    number = asked.parts[1]
    _pick(_site(asked)["facts"]["kavlans"], number.lower())
    return number


def power_watts(node: str) -> float:
    """What a node of the stand-in draws all the time, by the short name that kwollect knows it by."""
    return 100.0 + 10.0 * int(node.rsplit("-", 1)[1])


def _metrics(asked: Asked) -> Answer:
    """Kwollect: a bare list, a reading a second, for power alone."""
    _site(asked)
    nodes, metrics = (asked.query[key].split(",") for key in ("nodes", "metrics"))
    begin_s, end_s = (float(asked.query[key]) for key in ("start_time", "end_time"))
    return _found(
        [
            {
                "timestamp": datetime.fromtimestamp(second, UTC).isoformat(),
                "device_id": node,
                "metric_id": metric,
                "value": power_watts(node),
                "labels": {"_device_orig": [f"{node}-meter"]},
            }
            for metric in metrics
            if metric.endswith("_power_watt")
            for node in nodes
            for second in range(math.ceil(begin_s), math.floor(end_s) + 1)
        ]
    )


def _vlan(number: str) -> Mapping[str, object]:
    kind = oar.vlan_kind(number) if number.isdigit() else number
    return {"uid": number, "type": kind, "links": []}


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
            disable_nagle_algorithm = True  # else every payload waits 40 ms for its headers to be acknowledged

            def do_GET(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                body = self.rfile.read(length)
                known = self.headers.get("Authorization") == f"Basic {expected}"
                answer = server.answer(self.command, self.path, body, known=known)
                text = isinstance(answer.content, str)
                payload = str(answer.content).encode() if text else json.dumps(answer.content).encode()
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
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
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

    def __init__(self, folder: Path | None, counts: Mapping[str, int], timing: Timing, shown: Sequence[Path]) -> None:
        specs = reference.pool(counts)
        self._faults = Faults()
        self._nodes = None if folder is None else start_nodes(specs, folder, Lent.idle, shown, squashed=True)
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
        """Jobs that hold, or wait for, resources; RuntimeError where the stand-in itself has failed."""
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
        account = {"uri": self.url, "username": USER, "password": password, "verify_ssl": True, **settings}
        home.mkdir(exist_ok=True)
        (home / ".python-grid5000.yaml").write_text(json.dumps(account), encoding="utf-8")
        keys = home / ".ssh"
        keys.mkdir(mode=0o700, exist_ok=True)
        if self.key.exists():
            shutil.copy(self.key, keys / "id_rsa")
            shutil.copy(self.key.with_suffix(".pub"), keys / "id_rsa.pub")


@contextmanager
def stand_in(
    folder: Path | None, counts: Mapping[str, int], timing: Timing | None = None, shown: Sequence[Path] = ()
) -> Iterator[StandIn]:
    """A stand-in Grid'5000 that lends real nodes, inside laggard's sandbox; or, without a folder, nodes on paper, anywhere.

    With nodes, begin it before this process has several threads.

    Args:
        folder: where the nodes keep keys, homes, disks and logs; None: there are no nodes behind the names.
        counts: how many nodes of each cluster can be lent; of all other nodes somebody else is the user.
        timing: how long the stages of jobs and deployments take.
        shown: folders of the controller that the nodes see where they are.
    """
    with _service(folder, counts, timing or Timing(), shown) as service:
        yield StandIn(service.url(), (folder or Path(os.devnull)) / "id_ed25519", service)


@contextmanager
def _service(folder: Path | None, counts: Mapping[str, int], timing: Timing, shown: Sequence[Path]) -> Iterator[Any]:
    """A `Service` in a process of its own where there are nodes, otherwise in this one."""
    with ExitStack() as stack:
        if folder is None:
            service: Any = Service(folder, counts, timing, shown)
        else:
            manager = _Manager(ctx=multiprocessing.get_context("fork"))
            manager.start()
            stack.callback(manager.shutdown)
            service = manager.Service(folder, dict(counts), timing, tuple(shown))  # type: ignore[attr-defined]
        stack.callback(service.close)
        yield service
