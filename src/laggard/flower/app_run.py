"""Run of a Flower app in the hosts of an emulation: SuperLink, SuperNodes, and the app itself."""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import BaseModel, Field, ValidationError

from laggard.core.errors import DeploymentError
from laggard.core.files.output_files import write_json, write_text
from laggard.core.hosts import Host
from laggard.core.node_values import MessageText, ShortText
from laggard.flower.app_programs import AppPrograms
from laggard.flower.host_programs import HostProgram, HostPrograms
from laggard.flower.message_log import ROUND, SENDING, ProgramLine
from laggard.layers_services.local.namespaces import HostNamespaces
from laggard.run.run_context import RunContext
from laggard.workloads.output.worker_output import WorkerOutputDir, append_line

APP, SUPERLINK = "app", "superlink"
"""Names of the programs of the server's host."""

_HOMES = Path("/run/flower")
"""Folder of the programs' files, in the sandbox's own tmpfs, which disappears with the sandbox."""

_LATE_START = "[/v1/runtime/pull-task-input]"
"""Request that a SuperNode refuses if a ClientApp begins too late, and no other one in an error."""

_FLOWER_START_S, _MOST_LATE_STARTS = 30, 3

_START_CPU_S, _START_S = 20.0, 60.0
"""CPU time that a program may take to start, and the time that comes on top of it."""


Model = TypeVar("Model", bound=BaseModel)


class _Node(BaseModel):
    status: ShortText


class _NodeList(BaseModel):
    nodes: Annotated[tuple[_Node, ...], Field(max_length=100_000)] = ()


class RunState(BaseModel):
    """State of a run, as `flwr list` prints it."""

    status: ShortText
    details: MessageText = Field(default="", alias="status-details")


class _RunList(BaseModel):
    runs: Annotated[tuple[RunState, ...], Field(max_length=1000)] = ()


def lines_path(output_dir: WorkerOutputDir) -> Path:
    """Return the JSON lines of what all programs of a run wrote."""
    return output_dir.folder / "flower_lines.jsonl"


def state_path(output_dir: WorkerOutputDir) -> Path:
    """Return the JSON file with the state in which the app ended."""
    return output_dir.folder / "flower_state.json"


@dataclass
class AppRun:
    """Run of an app.

    Attributes:
        context: run of Laggard that it belongs to.
        programs: programs of the app's environment.
        server: host of the SuperLink and of the server app.
        clients: hosts of the SuperNodes.
    """

    context: RunContext
    programs: AppPrograms
    server: Host
    clients: tuple[Host, ...]
    _superlink: HostProgram = field(init=False)
    _supernodes: list[HostProgram] = field(default_factory=list)
    _late_starts: Counter[str] = field(default_factory=Counter)

    def run(self, namespaces: HostNamespaces) -> None:
        """Start Flower, and run the app to its end.

        Args:
            namespaces: namespaces of the hosts.

        Raises:
            DeploymentError: Flower does not start, its server ends, or the app fails.
        """
        self.context.output_dir.folder.mkdir()
        with HostPrograms(self.context.folder, namespaces, self._write_line) as hosts:
            self._start(hosts)
            cli = self._make_home("cli")
            write_text(cli / "config.toml", self.programs.format_configuration())
            environment = self.programs.create_environment(cli)
            self._wait_for_supernodes(hosts, environment)
            app = hosts.start(APP, self.server, self.programs.run_app(), environment, is_held=False)
            status = hosts.wait(app, self._require_progress)
            if status:
                raise DeploymentError(
                    f"`flwr run {self.programs.app.flower}` ended with status {status}:"
                    f" {_last_line(app)} — logs/{APP}.log has all of its output"
                )
            self._require_completed(hosts, environment)

    def _start(self, hosts: HostPrograms) -> None:
        self._superlink = hosts.start(
            SUPERLINK,
            self.server,
            self.programs.start_superlink(),
            self.programs.create_environment(self._make_home(SUPERLINK)),
        )
        for number, host in enumerate(self.clients):
            self._supernodes.append(
                hosts.start(
                    host.name,
                    host,
                    self.programs.start_supernode(number, len(self.clients)),
                    self.programs.create_environment(self._make_home(host.name)),
                )
            )

    def _wait_for_supernodes(self, hosts: HostPrograms, environment: Mapping[str, str]) -> None:
        """Wait until all clients are known to the server: an app may begin with two of them."""
        limit_s = self._compute_start_limit_s()
        ends_s = time.monotonic() + limit_s
        online = 0
        while online < len(self.clients):
            if time.monotonic() > ends_s:
                raise DeploymentError(
                    f"{online} of {len(self.clients)} SuperNodes are connected after {limit_s:.0f}"
                    " s — see the files of the others in logs/, or give their hosts more CPU"
                )
            listing = hosts.start(
                "list", self.server, self.programs.list_supernodes(), environment, is_held=False
            )
            hosts.wait(listing, self._require_all)
            nodes = _parse(_NodeList, listing).nodes
            online = sum(each.status == "online" for each in nodes)

    def _compute_start_limit_s(self) -> float:
        scenario, dilation = self.context.scenario, self.context.dilation
        least = min(dilation.real_share(scenario.shares[host.name]) for host in scenario.hosts)
        return _START_S + _START_CPU_S / min(least, 1.0)

    def _require_all(self) -> None:
        self._require_server()
        for program in self._supernodes:
            if program.status is not None:
                raise DeploymentError(
                    f"the SuperNode of {program.name} ended with status {program.status}:"
                    f" {_last_line(program)} — logs/{program.name}.log has all of its output"
                )

    def _require_progress(self) -> None:
        """Require that clients can answer: Flower restarts for ever what begins too late."""
        self._require_server()
        for name, times in self._late_starts.items():
            if times >= _MOST_LATE_STARTS:
                share = self.context.dilation.real_share(self.context.scenario.shares[name])
                raise DeploymentError(
                    f"{name} has {share:.0%} of a core, and its ClientApp did not begin within the"
                    f" {_FLOWER_START_S} s that Flower gives it, {times} times in a row — give the"
                    " host more CPU in heterogeneity.yaml; a fifth of a core is usually enough"
                )

    def _require_server(self) -> None:
        program = self._superlink
        if program.status is not None:
            raise DeploymentError(
                f"the SuperLink on {self.server.name} ended with status {program.status}:"
                f" {_last_line(program)} — logs/{SUPERLINK}.log has all of its output"
            )

    def _require_completed(self, hosts: HostPrograms, environment: Mapping[str, str]) -> None:
        listing = hosts.start(
            "list", self.server, self.programs.list_runs(), environment, is_held=False
        )
        hosts.wait(listing, self._require_server)
        runs = _parse(_RunList, listing).runs
        if not runs:
            raise DeploymentError(f"the SuperLink does not know the run — see logs/{SUPERLINK}.log")
        write_json(state_path(self.context.output_dir), runs[0].model_dump())
        if runs[0].status != "finished:completed":
            raise DeploymentError(
                f"the Flower app ended as {runs[0].status}: {runs[0].details} — logs/{APP}.log has"
                " its output"
            )

    def _make_home(self, name: str) -> Path:
        home = _HOMES / name
        home.mkdir(parents=True)
        return home

    def _write_line(self, line: ProgramLine) -> None:
        if line.program == APP and (round_line := ROUND.search(line.text)):
            self.context.journal.display.show_message(round_line[0])
        if _LATE_START in line.text and line.program in self.context.scenario.shares:
            self._late_starts[line.program] += 1
        elif SENDING.search(line.text):
            self._late_starts.pop(line.program, None)
        append_line(
            lines_path(self.context.output_dir),
            {"program": line.program, "at_ns": line.at_ns, "text": line.text},
        )


def _parse(model: type[Model], program: HostProgram) -> Model:
    """Return what a program printed as JSON; an empty value if it printed something else."""
    text = "\n".join(program.lines)
    try:
        return model.model_validate(json.loads(text[max(text.find("{"), 0) :]))
    except (ValueError, ValidationError, RecursionError):
        return model()


def _last_line(program: HostProgram) -> str:
    """Return the last line with a word in it, without the frame that `flwr` draws around errors."""
    lines = [each.strip(" │") for each in program.lines if re.search(r"\w", each)]
    return lines[-1] if lines else "it wrote nothing"
