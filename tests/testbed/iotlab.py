"""A stand-in for the API of FIT IoT-LAB, as its client uses it (iotlabcli 3.3), with faults."""

from __future__ import annotations

import base64
import json
import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

USER, PASSWORD = "tester", "iot secret"
ACTIVE = ("Waiting", "toLaunch", "Launching", "Running", "Finishing")


class IotlabFault(Enum):
    """A way in which IoT-LAB fails its users."""

    UNAUTHORIZED = "every request is answered 401"
    SERVER_ERRORS = "the first requests are answered 500, later ones well"
    ANSWER_LOST = "the reservation is made, and its answer is a 502"
    NO_BOARDS = "the reservation is refused with 400"
    NEVER_BEGINS = "the experiment stays in `Waiting`"
    ENDS_AT_ONCE = "the experiment goes to `Error` instead of `Running`"
    TOO_FEW_BOARDS = "the experiment has one board less than was asked for"
    GARBLED = "the list of boards is not one"
    END_FAILS = "the first requests to end an experiment are answered 503"


@dataclass
class IotlabStandIn:
    """The server's state.

    Attributes:
        boards: full name, site and kind of every board.
        fault: what goes wrong.
        calls: method and path of every request.
    """

    boards: Sequence[tuple[str, str, str]]
    fault: IotlabFault | None = None
    calls: list[tuple[str, str]] = field(default_factory=list)
    experiments: dict[int, dict[str, Any]] = field(default_factory=dict)
    failures: int = 2

    @property
    def held(self) -> list[int]:
        """Experiments that hold boards, or will."""
        return [number for number, each in self.experiments.items() if each["state"] in ACTIVE]

    def answer(self, method: str, path: str, body: bytes, *, known: bool) -> tuple[int, Any]:
        self.calls.append((method, path.partition("?")[0]))
        if not known or self.fault is IotlabFault.UNAUTHORIZED:
            return 401, {"message": "Unauthorized"}
        if self.fault is IotlabFault.SERVER_ERRORS and self._fails():
            return 500, {"message": "Internal error"}
        return self._answer(method, path, body)

    def _answer(self, method: str, path: str, body: bytes) -> tuple[int, Any]:
        if method == "POST" and path == "/api/experiments":
            return self._submit(body)
        if method == "GET" and path.startswith("/api/experiments?"):
            items = [each for each in self.experiments.values() if each["state"] in ACTIVE]
            return 200, {"items": items}
        found = re.fullmatch(r"/api/experiments/(\d+)(/nodes)?", path)
        if found is None or int(found[1]) not in self.experiments:
            return 404, {"message": "no such experiment"}
        experiment = self.experiments[int(found[1])]
        if method == "DELETE":
            if self.fault is IotlabFault.END_FAILS and self._fails():
                return 503, {"message": "busy"}
            experiment["state"] = "Terminated"
            return 200, {"id": experiment["id"], "status": "Delete request registered"}
        return 200, self._list_boards(experiment) if found[2] else self._look(experiment)

    def _fails(self) -> bool:
        self.failures -= 1
        return self.failures >= 0

    def _submit(self, body: bytes) -> tuple[int, Any]:
        # The description is the one part of the form that is JSON.
        wanted = json.loads(body[body.index(b"{") : body.rindex(b"}") + 1])
        if self.fault is IotlabFault.NO_BOARDS:
            return 400, {"message": "Reservation not valid --> KO"}
        number = 1000 + len(self.experiments)
        self.experiments[number] = {
            "id": number, "name": wanted["name"], "state": "Waiting",
            "boards": self._choose(wanted),
        }  # fmt: skip
        if self.fault is IotlabFault.ANSWER_LOST:
            return 502, {"message": "Bad gateway"}
        return 200, {"id": number}

    def _choose(self, wanted: dict[str, Any]) -> list[tuple[str, str, str]]:
        chosen: list[tuple[str, str, str]] = []
        for each in wanted["nodes"]:
            if isinstance(each, str):
                chosen += [board for board in self.boards if board[0] == each]
                continue
            kind = each["properties"]["site"], each["properties"]["archi"]
            free = [board for board in self.boards if board[1:] == kind and board not in chosen]
            chosen += free[: each["nbnodes"]]
        return chosen

    def _look(self, experiment: dict[str, Any]) -> Any:
        if experiment["state"] == "Waiting" and self.fault is not IotlabFault.NEVER_BEGINS:
            ends = self.fault is IotlabFault.ENDS_AT_ONCE
            experiment["state"] = "Error" if ends else "Running"
        return {key: experiment[key] for key in ("name", "state")}

    def _list_boards(self, experiment: dict[str, Any]) -> Any:
        if self.fault is IotlabFault.GARBLED:
            return {"items": [{"network_address": "../../etc/passwd", "site": 7}]}
        boards = experiment["boards"]
        if self.fault is IotlabFault.TOO_FEW_BOARDS:
            boards = boards[:-1]
        return {
            "items": [
                {"network_address": name, "site": site, "archi": archi, "state": "Alive"}
                for name, site, archi in boards
            ]
        }


@contextmanager
def serve_iotlab(stand_in: IotlabStandIn) -> Iterator[str]:
    """Serve the API on loopback; yields its address, for IOTLAB_API_URL."""

    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            login = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
            known = self.headers.get("Authorization") == f"Basic {login}"
            status, document = stand_in.answer(self.command, self.path, body, known=known)
            content = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_DELETE = _answer  # noqa: N815 - the base class looks for these

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - so named there
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/api/"
        finally:
            server.shutdown()
