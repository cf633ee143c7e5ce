"""Requests to Chameleon's APIs: leases (Blazar), servers (Nova), addresses (Neutron), images.

Objects of a run are found by its unique name, so that nothing is left when an answer is lost.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, IPvAnyAddress

from laggard.core.errors import DeploymentError, InputError
from laggard.layers_services.chameleon.plan import ChameleonPlan
from laggard.layers_services.testbed_requests import (
    SERVER_ERROR,
    Model,
    Patience,
    ServerFailure,
    parse_answer,
    repeat_request,
)

if TYPE_CHECKING:
    from keystoneauth1.exceptions import HttpError
    from keystoneauth1.session import Session

NETWORK = "sharednet1"
"""Network of all nodes of a site, with a router to the Internet."""

_FLAVOR = "baremetal"
_OUTSIDE = "public"
# The images allow only their own user to log in; shaping of links needs root.
_USER_DATA = base64.b64encode(b"#cloud-config\ndisable_root: false\n").decode()
_UNAUTHORIZED, _NOT_FOUND = 401, 404
_MOST = 10_000
_MOST_SAID = 400

Identity = Annotated[str, Field(pattern=r"^[A-Za-z0-9-]{1,64}$")]
Service = Literal["reservation", "compute", "network", "image"]
Method = Literal["GET", "POST", "DELETE"]


class _ReplyPart(BaseModel):
    model_config = ConfigDict(frozen=True)


class LeaseReservation(_ReplyPart):
    """Nodes of one type within a lease."""

    id: Identity
    resource_properties: Annotated[str, Field(max_length=_MOST)] = ""


class Lease(_ReplyPart):
    """Lease, which is Blazar's word for a reservation."""

    id: Identity
    name: Annotated[str, Field(max_length=255)]
    status: Annotated[str | None, Field(max_length=50)] = None
    reservations: Annotated[tuple[LeaseReservation, ...], Field(max_length=_MOST)] = ()


class Address(_ReplyPart):
    """Address of a server in a network."""

    addr: IPvAnyAddress
    version: int = 4


class CloudServer(_ReplyPart):
    """Node with an image that is, or was, deployed."""

    id: Identity
    name: Annotated[str, Field(max_length=255)] = ""
    status: Annotated[str, Field(max_length=50)] = ""
    addresses: Mapping[str, tuple[Address, ...]] = {}


class _Named(_ReplyPart):
    id: Identity
    name: str = ""


class _FloatingAddress(_ReplyPart):
    id: Identity
    floating_ip_address: IPvAnyAddress
    description: str = ""


class _Leases(_ReplyPart):
    leases: Annotated[tuple[Lease, ...], Field(max_length=_MOST)]


class _OneLease(_ReplyPart):
    lease: Lease


class _Servers(_ReplyPart):
    servers: Annotated[tuple[CloudServer, ...], Field(max_length=_MOST)]


class _OneServer(_ReplyPart):
    server: CloudServer


class _NamedObjects(_ReplyPart):
    flavors: Annotated[tuple[_Named, ...], Field(max_length=_MOST)] = ()
    images: Annotated[tuple[_Named, ...], Field(max_length=_MOST)] = ()
    networks: Annotated[tuple[_Named, ...], Field(max_length=_MOST)] = ()
    ports: Annotated[tuple[_Named, ...], Field(max_length=_MOST)] = ()


class _FloatingAddresses(_ReplyPart):
    floatingips: Annotated[tuple[_FloatingAddress, ...], Field(max_length=_MOST)]


class _OneFloatingAddress(_ReplyPart):
    floatingip: _FloatingAddress


@dataclass(frozen=True)
class ChameleonClient:
    """Client of the APIs of one site.

    Attributes:
        session: session with the user's credentials.
        region: name of the site, such as CHI@UC; empty for the only one.
        patience: limits of requests.
    """

    session: Session
    region: str
    patience: Patience = field(default_factory=Patience)

    def lease(self, plan: ChameleonPlan, name: str) -> None:
        """Ask for a lease that begins now; if the answer is lost, the lease is found by its name.

        Raises:
            DeploymentError: Chameleon refuses it.
        """
        end = datetime.now(UTC) + timedelta(minutes=plan.minutes)
        body = {
            "name": name,
            "start_date": "now",
            "end_date": end.strftime("%Y-%m-%d %H:%M"),
            "reservations": [
                {
                    "resource_type": "physical:host",
                    "min": len(group.hosts),
                    "max": len(group.hosts),
                    "resource_properties": f'["==", "$node_type", "{group.node_type}"]',
                    "hypervisor_properties": "",
                }
                for group in plan.groups
            ],
            "events": [],
        }
        try:
            self._send("POST", "reservation", "/leases", "the lease", body)
        except ServerFailure as error:
            if not self.find_leases(name):
                raise DeploymentError(f"Chameleon, the lease: {error}") from error

    def find_leases(self, name: str) -> tuple[Lease, ...]:
        """Return the leases of a name, also those that have ended."""
        listed = self._get("reservation", "/leases", "the leases", _Leases).leases
        return tuple(lease for lease in listed if lease.name == name)

    def look(self, lease: Lease) -> Lease:
        """Return a lease in its present state."""
        path = f"/leases/{lease.id}"
        return self._get("reservation", path, f"lease {lease.id}", _OneLease).lease

    def deploy(self, name: str, plan: ChameleonPlan, reservation: LeaseReservation) -> CloudServer:
        """Deploy the image on a node of a reservation, and return the server, which is not ready.

        Raises:
            DeploymentError: Chameleon refuses it, or knows no such image.
        """
        server = {
            "name": name,
            "imageRef": self._find("image", f"/v2/images?name={plan.image}", "images", plan.image),
            "flavorRef": self._find("compute", "/flavors", "flavors", _FLAVOR),
            "key_name": plan.key_name,
            "networks": [{"uuid": self._find_network(NETWORK)}],
            "user_data": _USER_DATA,
        }
        body = {"server": server, "os:scheduler_hints": {"reservation": reservation.id}}
        return self._make("compute", "/servers", f"server {name}", body, _OneServer).server

    def find_servers(self, name: str) -> tuple[CloudServer, ...]:
        """Return the servers whose names begin with a name."""
        shown = self._get("compute", "/servers/detail", "the servers", _Servers).servers
        return tuple(server for server in shown if server.name.startswith(f"{name}-"))

    def open_address(self, server: CloudServer, name: str) -> str:
        """Give a server an address that can be reached from the Internet, and return it.

        Raises:
            DeploymentError: Chameleon refuses it.
        """
        path = f"/v2.0/ports?device_id={server.id}"
        ports = self._get("network", path, "the ports", _NamedObjects).ports
        if not ports:
            raise DeploymentError(f"Chameleon: server {server.name} has no port in a network")
        body = {
            "floatingip": {
                "floating_network_id": self._find_network(_OUTSIDE),
                "port_id": ports[0].id,
                "description": name,
            }
        }
        made = self._make(
            "network", "/v2.0/floatingips", "an address of the Internet", body, _OneFloatingAddress
        )
        return str(made.floatingip.floating_ip_address)

    def close_addresses(self, name: str) -> None:
        """Give all addresses of a run back."""
        for each in self._list_addresses(name):
            self._delete("network", f"/v2.0/floatingips/{each.id}", "the end of an address")

    def end_leases(self, name: str) -> None:
        """End the leases of a run, and with them their servers."""
        for lease in self.find_leases(name):
            self._delete("reservation", f"/leases/{lease.id}", f"the end of lease {lease.id}")

    def holds_nothing(self, name: str) -> bool:
        """Return whether Chameleon lists no lease, server or address of a run any more."""
        leases = [each for each in self.find_leases(name) if each.status != "TERMINATED"]
        return not (leases or self.find_servers(name) or self._list_addresses(name))

    def _list_addresses(self, name: str) -> tuple[_FloatingAddress, ...]:
        listed = self._get("network", "/v2.0/floatingips", "the addresses", _FloatingAddresses)
        return tuple(each for each in listed.floatingips if each.description == name)

    def _find_network(self, name: str) -> str:
        return self._find("network", f"/v2.0/networks?name={name}", "networks", name)

    def _find(
        self,
        service: Service,
        path: str,
        kind: Literal["flavors", "images", "networks"],
        name: str,
    ) -> str:
        """Return the identity of the object of a name."""
        listed: tuple[_Named, ...] = getattr(
            self._get(service, path, f"the {kind}", _NamedObjects), kind
        )
        for each in listed:
            if each.name == name:
                return each.id
        site = self.region or "this site"
        raise DeploymentError(f"{name}: {site} of Chameleon has none of its {kind} of this name")

    def _get(self, service: Service, path: str, what: str, kind: type[Model]) -> Model:
        return parse_answer(kind, self._repeat("GET", service, path, what), "Chameleon")

    def _delete(self, service: Service, path: str, what: str) -> None:
        self._repeat("DELETE", service, path, what)

    def _make(
        self, service: Service, path: str, what: str, body: object, kind: type[Model]
    ) -> Model:
        """Send a request that must not be repeated, since it would make a second object."""
        try:
            shown = self._send("POST", service, path, what, body)
        except ServerFailure as error:
            raise DeploymentError(f"Chameleon, {what}: {error}") from error
        return parse_answer(kind, shown, "Chameleon")

    def _repeat(self, method: Method, service: Service, path: str, what: str) -> object:
        def request() -> object:
            return self._send(method, service, path, what)

        return repeat_request(request, f"Chameleon, {what}", self.patience)

    def _send(
        self, method: Method, service: Service, path: str, what: str, body: object = None
    ) -> object:
        """Send a request and return the document of its answer.

        Raises:
            ServerFailure: the server failed, or did not answer.
            InputError: the credentials are refused.
            DeploymentError: the request is refused.
        """
        from keystoneauth1 import exceptions

        try:
            answer = self.session.request(
                path,
                method,
                endpoint_filter={
                    "service_type": service,
                    "interface": "public",
                    "region_name": self.region or None,
                },
                json=body,
            )
            return answer.json() if answer.content else {}
        except exceptions.HttpError as error:
            if error.http_status >= SERVER_ERROR:
                raise ServerFailure(f"the server failed with status {error.http_status}") from error
            if method == "DELETE" and error.http_status == _NOT_FOUND:
                return {}
            raise _explain(error, what) from error
        except (exceptions.ConnectionError, ValueError) as error:
            raise ServerFailure(f"no answer: {error}") from error
        except exceptions.ClientException as error:
            raise DeploymentError(f"Chameleon, {what}: {error}") from error


def _explain(error: HttpError, what: str) -> DeploymentError | InputError:
    if error.http_status == _UNAUTHORIZED:
        return InputError(
            f"Chameleon refuses the credentials ({what}) — download an RC file of an application"
            " credential that has not expired"
        )
    said = " ".join(_find_reason(error).split())
    return DeploymentError(f"Chameleon refuses {what}: {said[:_MOST_SAID]}")


def _find_reason(error: HttpError) -> str:
    """Return the reason that a service gave.

    Blazar writes {"error_message": "..."}, Neutron {"NeutronError": {"message": "..."}}, and Nova
    names the error: {"forbidden": {"message": "..."}}. keystoneauth reads none of these.
    """
    try:
        shown = error.response.json() if error.response is not None else None
    except ValueError:
        shown = None
    if isinstance(shown, dict):
        for part in (shown, *(each for each in shown.values() if isinstance(each, dict))):
            said = part.get("error_message", part.get("message"))
            if isinstance(said, str):
                return said
    return str(error)
