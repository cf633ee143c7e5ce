"""A stand-in for Chameleon's APIs (Keystone, Blazar, Nova, Neutron, Glance), with faults."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

SECRET = "chameleon secret"
TOKEN = "token-of-the-stand-in"
REGION = "CHI@Test"
NODE_TYPES = {"compute_skylake": 3, "gpu_rtx_6000": 1}
SERVICES = ("reservation", "compute", "network", "image")


class ChameleonFault(Enum):
    """A way in which Chameleon fails its users."""

    UNAUTHORIZED = "the credentials are refused"
    SERVER_ERRORS = "the first two requests of each path are answered 503, later ones well"
    LEASE_ANSWER_LOST = "the lease is made, and its answer is a 502"
    NOT_ENOUGH_NODES = "the lease is refused with 400"
    NEVER_BEGINS = "the lease stays PENDING"
    LEASE_FAILS = "the lease goes to ERROR"
    NO_IMAGE = "the image is not there"
    SERVER_ANSWER_LOST = "a server is made, and its answer is a 502"
    DEPLOYMENT_FAILS = "a server goes to ERROR"
    NEVER_DEPLOYS = "a server stays in BUILD"
    NO_ADDRESS = "no address of the Internet is left"
    GARBLED = "the list of servers is not one"
    END_FAILS = "the first requests to end a lease are answered 503"
    ADDRESS_STAYS = "the first requests to give an address back are answered 503"


@dataclass
class ChameleonStandIn:
    """The state of all services.

    Attributes:
        fault: what goes wrong.
        calls: service, method and path of every request, with identities left out.
    """

    fault: ChameleonFault | None = None
    calls: list[tuple[str, str, str]] = field(default_factory=list)
    leases: dict[str, dict[str, Any]] = field(default_factory=dict)
    servers: dict[str, dict[str, Any]] = field(default_factory=dict)
    addresses: dict[str, dict[str, Any]] = field(default_factory=dict)
    failures: dict[tuple[str, str], int] = field(default_factory=dict)

    @property
    def held(self) -> int:
        """Number of leases, servers and addresses."""
        return len(self.leases) + len(self.servers) + len(self.addresses)

    def answer(self, service: str, method: str, path: str, body: Any) -> tuple[int, Any]:
        where, _, query = path.partition("?")
        plain = re.sub(r"(lease|server|address)-\d+", "ID", where)
        self.calls.append((service, method, plain))
        if self._fails(method, plain):
            return 503, {"error": {"message": "try later"}}
        handlers = {
            ("reservation", "GET"): self._show_leases,
            ("reservation", "POST"): self._make_lease,
            ("reservation", "DELETE"): self._end_lease,
            ("compute", "GET"): self._show_compute,
            ("compute", "POST"): self._make_server,
            ("network", "GET"): self._show_network,
            ("network", "POST"): self._make_address,
            ("network", "DELETE"): self._end_address,
            ("image", "GET"): self._show_images,
        }
        return handlers[service, method](where, query, body)

    def _fails(self, method: str, path: str) -> bool:
        ends = {
            ChameleonFault.END_FAILS: ("DELETE", "/leases/ID"),
            ChameleonFault.ADDRESS_STAYS: ("DELETE", "/v2.0/floatingips/ID"),
        }
        often_fails = self.fault is ChameleonFault.SERVER_ERRORS and method != "POST"
        if not often_fails and ends.get(self.fault) != (method, path):
            return False
        self.failures[method, path] = self.failures.get((method, path), 0) + 1
        return self.failures[method, path] <= 2

    def _show_leases(self, path: str, query: str, body: Any) -> tuple[int, Any]:
        if path == "/leases":
            return 200, {"leases": list(self.leases.values())}
        lease = self.leases.get(path.rpartition("/")[2])
        if lease is None:
            return 404, {"error_message": "lease not found"}
        if lease["status"] == "PENDING" and self.fault is not ChameleonFault.NEVER_BEGINS:
            failed = self.fault is ChameleonFault.LEASE_FAILS
            lease["status"] = "ERROR" if failed else "ACTIVE"
        return 200, {"lease": lease}

    def _make_lease(self, path: str, query: str, body: Any) -> tuple[int, Any]:
        reservations = []
        for number, wanted in enumerate(body["reservations"]):
            node_type = json.loads(wanted["resource_properties"])[2]
            assert wanted["resource_type"] == "physical:host"
            few = wanted["max"] > NODE_TYPES.get(node_type, 0)
            if few or self.fault is ChameleonFault.NOT_ENOUGH_NODES:
                return 400, {"error_message": "Not enough hosts available"}
            reservations.append({**wanted, "id": f"reservation-{number}", "status": "pending"})
        identity = f"lease-{len(self.leases)}"
        lease = {"id": identity, "name": body["name"], "status": "PENDING"}
        self.leases[identity] = {**lease, "reservations": reservations}
        if self.fault is ChameleonFault.LEASE_ANSWER_LOST:
            return 502, {"error_message": "bad gateway"}
        return 201, {"lease": self.leases[identity]}

    def _end_lease(self, path: str, query: str, body: Any) -> tuple[int, Any]:
        if self.leases.pop(path.rpartition("/")[2], None) is None:
            return 404, {"error_message": "lease not found"}
        self.servers.clear()
        return 200, {}

    def _show_compute(self, path: str, query: str, body: Any) -> tuple[int, Any]:
        if path == "/flavors":
            return 200, {"flavors": [{"id": "flavor-1", "name": "baremetal"}]}
        if self.fault is ChameleonFault.GARBLED:
            return 200, {"servers": [{"id": "../../etc/passwd"}]}
        failed = self.fault is ChameleonFault.DEPLOYMENT_FAILS
        for server in self.servers.values():
            if self.fault is not ChameleonFault.NEVER_DEPLOYS:
                server["status"] = "ERROR" if failed else "ACTIVE"
        return 200, {"servers": list(self.servers.values())}

    def _make_server(self, path: str, query: str, body: Any) -> tuple[int, Any]:
        assert body["os:scheduler_hints"]["reservation"].startswith("reservation-")
        assert body["server"]["key_name"] == "my-key"
        number = len(self.servers)
        identity = f"server-{number}"
        address = {"addr": f"10.140.80.{10 + number}", "version": 4}
        self.servers[identity] = {
            "id": identity,
            "name": body["server"]["name"],
            "status": "BUILD",
            "addresses": {"sharednet1": [address]},
        }
        if self.fault is ChameleonFault.SERVER_ANSWER_LOST:
            return 502, {"error": {"message": "bad gateway"}}
        return 202, {"server": {"id": identity}}

    def _show_network(self, path: str, query: str, body: Any) -> tuple[int, Any]:
        if path == "/v2.0/networks":
            name = query.removeprefix("name=")
            return 200, {"networks": [{"id": f"network-{name}", "name": name}]}
        if path == "/v2.0/ports":
            return 200, {
                "ports": [{"id": "port-of-" + query.removeprefix("device_id="), "name": ""}]
            }
        return 200, {"floatingips": list(self.addresses.values())}

    def _make_address(self, path: str, query: str, body: Any) -> tuple[int, Any]:
        if self.fault is ChameleonFault.NO_ADDRESS:
            return 409, {"NeutronError": {"message": "No more IP addresses available"}}
        wanted = body["floatingip"]
        assert wanted["floating_network_id"] == "network-public"
        identity = f"address-{len(self.addresses)}"
        made = {"id": identity, "floating_ip_address": "127.0.0.1", **wanted}
        self.addresses[identity] = made
        return 201, {"floatingip": made}

    def _end_address(self, path: str, query: str, body: Any) -> tuple[int, Any]:
        found = self.addresses.pop(path.rpartition("/")[2], None)
        return (204, None) if found else (404, {})

    def _show_images(self, path: str, query: str, body: Any) -> tuple[int, Any]:
        name = query.removeprefix("name=")
        images = [{"id": "image-1", "name": name}]
        return 200, {"images": [] if self.fault is ChameleonFault.NO_IMAGE else images}

    def issue_token(self, body: Any, root: str) -> tuple[int, Any]:
        """Answer Keystone's request for a token, with the catalog of all services."""
        credential = body["auth"]["identity"]["application_credential"]
        if credential["secret"] != SECRET or self.fault is ChameleonFault.UNAUTHORIZED:
            return 401, {"error": {"code": 401, "message": "Unauthorized"}}
        catalog = [
            {
                "type": service,
                "id": service,
                "name": service,
                "endpoints": [
                    {
                        "id": f"{service}-1",
                        "interface": "public",
                        "region": REGION,
                        "region_id": REGION,
                        "url": f"{root}/{service}",
                    }
                ],
            }
            for service in SERVICES
        ]
        return 201, {
            "token": {
                "methods": ["application_credential"],
                "expires_at": "2999-01-01T00:00:00.000000Z",
                "issued_at": "2026-01-01T00:00:00.000000Z",
                "user": {"id": "u", "name": "tester", "domain": {"id": "d", "name": "D"}},
                "project": {"id": "p", "name": "P", "domain": {"id": "d", "name": "D"}},
                "catalog": catalog,
                "roles": [],
            }
        }


@contextmanager
def serve_chameleon(stand_in: ChameleonStandIn) -> Iterator[dict[str, str]]:
    """Serve all APIs on loopback; yields the settings that an RC file would have."""

    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            length = int(self.headers.get("Content-Length", 0))
            body = json.loads(self.rfile.read(length)) if length else None
            root = f"http://127.0.0.1:{self.server.server_address[1]}"
            headers = {}
            if self.path == "/identity/v3/auth/tokens":
                status, document = stand_in.issue_token(body, root)
                headers = {"X-Subject-Token": TOKEN}
            elif self.path.startswith("/identity"):
                link = {"rel": "self", "href": f"{root}/identity/v3/"}
                version = {"id": "v3.14", "status": "stable", "links": [link]}
                status, document = 200, {"version": version}
            elif self.headers.get("X-Auth-Token") != TOKEN:
                status, document = 401, {}
            else:
                _, service, rest = self.path.split("/", 2)
                status, document = stand_in.answer(service, self.command, f"/{rest}", body)
            self._send(status, document, headers)

        def _send(self, status: int, document: Any, headers: dict[str, str]) -> None:
            content = b"" if document is None else json.dumps(document).encode()
            self.send_response(status)
            for name, value in {"Content-Type": "application/json", **headers}.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_DELETE = _answer  # noqa: N815 - the base class looks for these

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - so named there
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield {
                "OS_AUTH_URL": f"http://127.0.0.1:{server.server_port}/identity/v3",
                "OS_AUTH_TYPE": "v3applicationcredential",
                "OS_APPLICATION_CREDENTIAL_ID": "credential-1",
                "OS_APPLICATION_CREDENTIAL_SECRET": SECRET,
                "OS_REGION_NAME": REGION,
            }
        finally:
            server.shutdown()
