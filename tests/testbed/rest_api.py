"""What Grid'5000's REST API answers, as python-grid5000 and the Grid5000 provider of EnOSlib call
it.

Paths, payloads, status codes and errors (plain text) are those of grid5000/g5k-api; the facts are
Grid'5000's own.
"""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from tests.testbed import oar, reference
from tests.testbed.g5k import Grid5000
from tests.testbed.oar import Job, RefusedError


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
            (
                "GET",
                f"{site}/clusters",
                lambda asked: _items(c["facts"] for c in _site(asked)["clusters"].values()),
            ),
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
            (
                "GET",
                f"{site}/servers/{anything}",
                lambda asked: _found(_pick(_site(asked)["servers"], asked.parts[1])),
            ),
            ("GET", f"{site}/jobs", self._jobs),
            ("POST", f"{site}/jobs", self._submit),
            ("GET", f"{site}/jobs/{anything}", self._job),
            ("DELETE", f"{site}/jobs/{anything}", self._delete),
            ("GET", f"{site}/metrics", _metrics),
            (
                "GET",
                f"{site}/vlans",
                lambda asked: _items(_vlan(number) for number in _vlans(asked)),
            ),
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
            # The API writes states in small letters and compares them capitalised: `toLaunch` is
            # never found.
            states = {state.strip().lower() for state in asked.query["state"].split(",")} - {
                "tolaunch"
            }
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
        return _items(
            each.as_json(time.time(), self._grid.timing)
            for each in self._grid.deployments(_known(asked))
        )

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
    """What a node of the stand-in draws all the time, by the short name that kwollect knows it
    by."""
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
