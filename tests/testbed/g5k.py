"""What a stand-in Grid'5000 does: schedules jobs, lends nodes to them, deploys on nodes, and takes
everything back.

Requests change its state under a lock; a thread of its own looks at the clock, and another one
works on the nodes, in order.
"""

from __future__ import annotations

import queue
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from tests.testbed import oar, reference
from tests.testbed.faults import Fault, Faults
from tests.testbed.machines import Machines
from tests.testbed.oar import Job, RefusedError, Timing

_TICK_S = 0.05
_FIRST_JOB = 1_800_001


@dataclass
class Deployment:
    """A run of kadeploy; `done` when the nodes have been worked on."""

    uid: str
    site: str
    user: str
    environment: str
    nodes: tuple[str, ...]
    vlan: str | None
    created_at: float
    failing: tuple[str, ...] = ()
    done: bool = False

    def status(self, now: float, timing: Timing) -> Literal["processing", "terminated"]:
        """As the API shows it."""
        return (
            "terminated"
            if self.done and now >= self.created_at + timing.deploying_s
            else "processing"
        )

    def as_json(self, now: float, timing: Timing) -> dict[str, object]:
        """The deployment as the API shows it, with each node's result at the end."""
        status = self.status(now, timing)
        result = {
            name: {"macro": None, "micro": None, "state": "KO" if name in self.failing else "OK"}
            for name in self.nodes
        }
        return {
            "uid": self.uid,
            "site_uid": self.site,
            "user_uid": self.user,
            "environment": self.environment,
            "nodes": list(self.nodes),
            "status": status,
            "created_at": int(self.created_at),
            "updated_at": int(now),
            "result": result if status == "terminated" else None,
            "links": [],
        }


@dataclass(frozen=True)
class Held:
    """A job that still holds, or waits for, resources."""

    site: str
    uid: int
    name: str
    state: str
    nodes: tuple[str, ...]


@dataclass
class Grid5000:
    """The state of all sites.

    Args:
        names: the nodes that can be lent; the others of the facts are busy for ever.
        machines: what is done to nodes.
        faults: what goes wrong.
        timing: how long things take.
        user: who owns everything.
    """

    names: Sequence[str]
    machines: Machines
    faults: Faults
    timing: Timing = field(default_factory=Timing)
    user: str = "jdoe"

    def __post_init__(self) -> None:
        self._lock = threading.RLock()
        self._jobs: dict[int, Job] = {}
        self._deployments: dict[str, Deployment] = {}
        self._in_vlan: dict[str, str] = {}
        self._unclean: set[str] = set()
        self._opened: set[int] = set()
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._stop = threading.Event()
        self.broken: list[BaseException] = []
        self._threads = [
            threading.Thread(target=target, name=name, daemon=True)
            for name, target in (("clock", self._watch_the_clock), ("nodes", self._work_on_nodes))
        ]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Stop; whatever is being done to nodes is finished first."""
        self._stop.set()
        self._work.put(None)
        for thread in self._threads:
            thread.join()

    def submit(self, site: str, wish: Mapping[str, Any]) -> Job:
        """Take a job in.

        Raises:
            RefusedError: OAR would refuse it.
        """
        now = time.time()
        request = oar.parse_request(str(wish.get("resources", "")))
        self._check(
            site, request, tuple(wish.get("types") or ()), str(wish.get("queue") or "default")
        )
        with self._lock:
            job = Job(
                uid=_FIRST_JOB + len(self._jobs),
                site=site,
                user=self.user,
                name=str(wish.get("name", "")),
                types=tuple(wish.get("types") or ()),
                queue=str(wish.get("queue") or "default"),
                project=str(wish.get("project") or "default"),
                command=str(wish.get("command", "")),
                request=request,
                submitted_at=now,
            )
            date = oar.parse_date(str(wish["reservation"])) if wish.get("reservation") else None
            if self.faults.take(Fault.RESERVATION_NOT_VALID):
                raise _not_valid((date or now) + 300)
            if date is not None:
                self._reserve(job, date, now)
            self._jobs[job.uid] = job
        return job

    def delete(self, site: str, uid: int) -> bool:
        """Begin to end a job; whether it was not already over.

        Raises:
            KeyError: there is no such job.
        """
        with self._lock:
            job = self.job(site, uid)
            if job.ends_at is not None:
                return False
            self._end(
                job,
                time.time(),
                "FRAG_JOB_REQUEST",
                f"User {self.user} requested to frag the job {uid}",
            )
            return True

    def job(self, site: str, uid: int) -> Job:
        """A job of a site; KeyError where there is none."""
        job = self._jobs[uid]
        if job.site != site:
            raise KeyError(uid)
        return job

    def jobs(self, site: str) -> tuple[Job, ...]:
        """All jobs ever of a site, the newest first."""
        with self._lock:
            return tuple(job for job in reversed(self._jobs.values()) if job.site == site)

    def held(self) -> tuple[Held, ...]:
        """All jobs that are not over."""
        now = time.time()
        with self._lock:
            states = [(job, job.state(now, self.timing)) for job in self._jobs.values()]
        return tuple(
            Held(job.site, job.uid, job.name, state, job.nodes)
            for job, state in states
            if state not in oar.ENDED
        )

    def deploy(self, site: str, wish: Mapping[str, Any]) -> Deployment:
        """Start a deployment on nodes of a running job of type `deploy`.

        Raises:
            RefusedError: they are not.
        """
        nodes = tuple(str(name) for name in wish.get("nodes") or ())
        if not nodes or not wish.get("environment"):
            raise RefusedError(
                "The deployment you are trying to submit is not valid: nodes and environment are"
                " needed"
            )
        vlan = None if wish.get("vlan") is None else str(wish["vlan"])
        with self._lock:
            now = time.time()
            lent = {
                name for job in self._running(now) if "deploy" in job.types for name in job.nodes
            }
            vlans = {each for job in self._running(now) for each in job.vlans}
            if not lent.issuperset(nodes) or (vlan is not None and vlan not in vlans):
                raise RefusedError(
                    "Cannot launch deployment: not yours to deploy on:"
                    f" {sorted(set(nodes) - lent)}, VLAN {vlan}"
                )
            failing = self._failing(nodes)
            uid = f"D-{uuid.uuid4()}"
            deployment = Deployment(
                uid, site, self.user, str(wish["environment"]), nodes, vlan, now, failing
            )
            self._deployments[uid] = deployment
        self._work.put(lambda: self._carry_out(deployment))
        return deployment

    def deployment(self, site: str, uid: str) -> Deployment:
        """A deployment of a site; KeyError where there is none."""
        deployment = self._deployments[uid]
        if deployment.site != site:
            raise KeyError(uid)
        return deployment

    def deployments(self, site: str) -> tuple[Deployment, ...]:
        """All deployments ever of a site, the newest first."""
        with self._lock:
            return tuple(each for each in reversed(self._deployments.values()) if each.site == site)

    def move_adapters(self, vlan: str, adapters: Sequence[str]) -> dict[str, dict[str, str]]:
        """Put network adapters, named such as `gemini-1-eth1.lyon.grid5000.fr`, into a VLAN."""
        with self._lock:
            known = {name for site in reference.load() for name in reference.node_names(site)}
            result = {}
            for adapter in adapters:
                host, _, domain = adapter.partition(".")
                base = "-".join(host.split("-")[:2])
                if f"{base}.{domain}" not in known:
                    result[adapter] = {"status": "failure", "message": "Unknown node"}
                elif self._in_vlan.get(adapter) == vlan:
                    result[adapter] = {"status": "unchanged", "message": "Node already in vlan"}
                else:
                    self._in_vlan[adapter] = vlan
                    result[adapter] = {"status": "success", "message": "Successfully added to vlan"}
            return result

    def adapters_in(self, vlan: str) -> tuple[str, ...]:
        """The adapters that were put into a VLAN."""
        with self._lock:
            return tuple(sorted(name for name, number in self._in_vlan.items() if number == vlan))

    def status(self, site: str, cluster: str = "") -> dict[str, object]:
        """Which nodes are free, and who has the others."""
        now = time.time()
        with self._lock:
            jobs = [job for job in self.jobs(site) if job.state(now, self.timing) not in oar.ENDED]
            return {
                "nodes": {
                    name: self._node_status(name, [job for job in jobs if name in job.nodes], now)
                    for name in reference.node_names(site, cluster)
                }
            }

    def _node_status(self, name: str, jobs: Sequence[Job], now: float) -> dict[str, object]:
        shown = [
            {
                key: value
                for key, value in oar.as_json(job, now, self.timing, resources=False).items()
                if key != "events"
            }
            for job in jobs
        ]
        if name not in self.names:
            eternity = {
                "uid": 1,
                "user": "other",
                "state": "running",
                "queue": "default",
                "walltime": 10**9,
            }
            return {"hard": "alive", "soft": "busy", "reservations": [eternity | {"started_at": 1}]}
        busy = any(job["state"] == "running" for job in shown)
        return {"hard": "alive", "soft": "busy" if busy else "free", "reservations": shown}

    def _check(
        self, site: str, request: oar.Request, types: Sequence[str], queue_name: str
    ) -> None:
        """What OAR's admission rules refuse at once."""
        clusters = reference.load()[site]["clusters"]
        for group in request.nodes:
            names = (
                {group.cluster}
                if group.cluster
                else {name.partition("-")[0] for name in group.servers}
            )
            unknown = names - set(clusters)
            fitting = [name for name in reference.node_names(site) if group.fits(name)]
            if unknown or group.count > len(fitting):
                raise RefusedError("There are not enough resources for your request")
            for facts in (clusters[name]["facts"] for name in names):
                if facts["exotic"] and "exotic" not in types:
                    raise RefusedError(
                        f"[ADMISSION RULE] cluster {facts['uid']} needs the job type exotic"
                    )
                if queue_name not in ("besteffort", *facts["queues"]):
                    raise RefusedError(
                        f"[ADMISSION RULE] cluster {facts['uid']} is not in queue {queue_name}"
                    )
        if request.vlans and "deploy" not in types:
            raise RefusedError("[ADMISSION RULE] VLANs need the job type deploy")

    def _reserve(self, job: Job, date: float, now: float) -> None:
        """Give a job its place at a date, or refuse it with the date from which it could have
        one."""
        if date < now:
            raise RefusedError("Reservation too old")
        start = date if self.timing.honours_reservations else now + self.timing.waiting_s
        if not self._place(job, start):
            ends = [
                self._end_of(other) for other in self._jobs.values() if self._end_of(other) > start
            ]
            raise _not_valid(max([date, *ends]) + 60)
        job.reservation = date

    def _place(self, job: Job, start: float) -> bool:
        """Give a job nodes and networks that nobody has while it would run."""
        if self.faults.peek(Fault.JOB_NEVER_STARTS) is not None:
            return job.reservation is None
        end = start + job.request.walltime_s
        others = [
            each
            for each in self._jobs.values()
            if each is not job and self._overlaps(each, start, end)
        ]
        taken = {name for each in others for name in each.nodes} | self._unclean
        domain = f".{job.site}.{reference.DOMAIN}"
        free = [name for name in self.names if name.endswith(domain) and name not in taken]
        nodes = oar.allocate(job.request.nodes, free)
        known = [
            number
            for number in reference.load()[job.site]["facts"]["kavlans"]
            if number != "default"
        ]
        taken_vlans = [number for each in others if each.site == job.site for number in each.vlans]
        vlans = oar.vlan_numbers(job.request.vlans, known, taken_vlans)
        if nodes is None or vlans is None:
            return False
        job.nodes, job.vlans = nodes, vlans
        job.subnets = tuple(
            f"10.{128 + job.uid % 16}.{4 * number}.0/22" for number in range(job.request.subnets)
        )
        job.starts_at = start
        return True

    def _end_of(self, job: Job) -> float:
        if job.ends_at is not None:
            return job.ends_at
        runs_at = job.runs_at(self.timing)
        return 0.0 if runs_at is None else runs_at + job.request.walltime_s

    def _overlaps(self, job: Job, start: float, end: float) -> bool:
        return job.starts_at is not None and job.starts_at < end and self._end_of(job) > start

    def _running(self, now: float) -> Iterator[Job]:
        return (job for job in self._jobs.values() if job.state(now, self.timing) == "running")

    def _failing(self, nodes: Sequence[str]) -> tuple[str, ...]:
        expected = self.faults.peek(Fault.DEPLOYMENT_FAILS)
        if expected is None or (expected.node and expected.node not in nodes):
            return ()
        self.faults.take(Fault.DEPLOYMENT_FAILS, node=expected.node)
        return (expected.node or nodes[0],)

    def _end(self, job: Job, now: float, kind: str, description: str) -> None:
        job.note(now, kind, description)
        job.ends_at = now + self.timing.killing_s
        if job.starts_at is not None and job.starts_at <= now:
            nodes = job.nodes
            self._unclean.update(nodes)
            self._work.put(lambda: self._take_back(nodes))

    def _take_back(self, nodes: Sequence[str]) -> None:
        self.machines.release(nodes)
        with self._lock:
            self._unclean.difference_update(nodes)
            hosts = tuple(f"{name.partition('.')[0]}-" for name in nodes)
            self._in_vlan = {
                name: vlan for name, vlan in self._in_vlan.items() if not name.startswith(hosts)
            }

    def _carry_out(self, deployment: Deployment) -> None:
        well = [name for name in deployment.nodes if name not in deployment.failing]
        for name in deployment.failing:
            self.machines.fail(name)
        self.machines.deploy(well, deployment.environment, deployment.vlan)
        deployment.done = True

    def _watch_the_clock(self) -> None:
        while not self._stop.wait(_TICK_S):
            with self._lock:
                self._tick(time.time())

    def _tick(self, now: float) -> None:
        for job in self._jobs.values():
            if job.ends_at is not None:
                continue
            if job.starts_at is None and now >= job.submitted_at + self.timing.waiting_s:
                self._place(job, now)
            if job.starts_at is not None and now >= job.starts_at and job.uid not in self._opened:
                self._opened.add(job.uid)
                self._open(job)
            if job.state(now, self.timing) == "running":
                self._strike(job, now - (job.runs_at(self.timing) or now), now)

    def _open(self, job: Job) -> None:
        if "deploy" not in job.types:
            for name in job.nodes:
                self._work.put(lambda name=name: self.machines.open(name))  # type: ignore[misc]

    def _strike(self, job: Job, running_s: float, now: float) -> None:
        """What becomes of a running job: the end of its walltime, and faults."""
        killed = self.faults.peek(Fault.KILLED_BY_WALLTIME)
        early = killed is not None and running_s >= killed.delay_s
        if early:
            self.faults.take(Fault.KILLED_BY_WALLTIME)
        if early or running_s >= job.request.walltime_s:
            self._end(job, now, "WALLTIME", f"[sarko] Job {job.uid} has reached its walltime")
        silent = self.faults.peek(Fault.NODE_SILENT)
        if (
            silent is not None
            and running_s >= silent.delay_s
            and (not silent.node or silent.node in job.nodes)
        ):
            self.faults.take(Fault.NODE_SILENT, node=silent.node)
            name = silent.node or job.nodes[0]
            self._work.put(lambda: self.machines.silence(name))

    def _work_on_nodes(self) -> None:
        while (task := self._work.get()) is not None:
            try:
                task()
            except (OSError, RuntimeError, KeyError) as error:
                self.broken.append(error)


def _not_valid(date: float) -> RefusedError:
    return RefusedError(
        f"Reservation not valid --> KO (This reservation could run at {oar.date_of(date)})"
    )
