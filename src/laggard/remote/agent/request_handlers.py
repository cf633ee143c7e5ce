"""Handlers of an agent's requests: measure, run commands, list files, read the clock.

Each handler takes and returns JSON values.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from pydantic import JsonValue, TypeAdapter

from laggard.core.errors import EmulationError
from laggard.core.provenance.fingerprint import describe_machine
from laggard.layers_services.local.janitor import Janitor, is_running, run_name
from laggard.network_emulation.fidelity.measure import EchoProbe, ProbeEndpoint, measure_rtt
from laggard.network_emulation.fidelity.probes.apart import FlowProbe, Sink, send_flow
from laggard.remote.agent.messages import SENT_FILES
from laggard.workloads.output.worker_output import write_whole

CURRENT_NETWORK_NAMESPACE = Path("/proc/self/ns/net")
_COMMAND_TIMEOUT_S = 60.0
_PROCESSES_FILE = "agent_processes"
_END_TIMEOUT_S = 30.0
_POLL_S = 0.02
_FLOW = TypeAdapter(FlowProbe)
_ECHOES = TypeAdapter(list[EchoProbe])
_ADDRESSES = TypeAdapter(dict[str, str])

RequestHandler = Callable[[Mapping[str, JsonValue]], JsonValue]


class RequestHandlers:
    """Handlers of the requests that concern neither the training nor the shares.

    Args:
        host: name of the host that this node is.
        address: address of the node on the experiment network.
        folder: folder of the run on this node.
    """

    def __init__(self, host: str, address: str, folder: Path, janitor: Janitor) -> None:
        self._host, self._address, self._folder, self._janitor = host, address, folder, janitor
        self._sinks: dict[int, Sink] = {}

    def list_handlers(self) -> Mapping[str, RequestHandler]:
        """Return the handlers, by operation name."""
        return {
            "fingerprint": self.fingerprint,
            "measure_round_trips": self.measure_round_trips,
            "open_sink": self.open_sink,
            "receive": self.receive,
            "send": self.send,
            "run_command": self.run_command,
            "undo_at_end": self.undo_at_end,
            "manifest": self.report_manifest,
            "read_clock": self.read_clock,
        }

    def fingerprint(self, _: Mapping[str, JsonValue]) -> JsonValue:
        """Return the description of this machine."""
        return {**describe_machine()}

    def read_clock(self, _: Mapping[str, JsonValue]) -> JsonValue:
        """Return CLOCK_MONOTONIC of this node, in ns."""
        return time.monotonic_ns()

    def measure_round_trips(self, argument: Mapping[str, JsonValue]) -> JsonValue:
        """Return the median round trip of an empty packet to each peer, in real ms.

        The value is null if no packet came back. `argument` has `probes` (`EchoProbe`s from this
        host), `addresses` of the peers, and `busy`.
        """
        probes = _ECHOES.validate_python(argument["probes"])
        addresses = {self._host: self._address, **_ADDRESSES.validate_python(argument["addresses"])}
        endpoints = {
            name: ProbeEndpoint(CURRENT_NETWORK_NAMESPACE, address)
            for name, address in addresses.items()
        }
        measured = measure_rtt(probes, endpoints, busy=bool(argument["busy"]))
        return {dst: value for (_, dst), value in measured.items()}

    def open_sink(self, argument: Mapping[str, JsonValue]) -> JsonValue:
        """Open the receiving end of a flow and return its port."""
        sink = Sink(self._address, _FLOW.validate_python(argument["probe"]).transport)
        self._sinks[sink.port] = sink
        return sink.port

    def receive(self, argument: Mapping[str, JsonValue]) -> JsonValue:
        """Receive a flow on an open sink and close it; return Mbit/s, or a number of datagrams."""
        with self._sinks.pop(int(str(argument["port"]))) as sink:
            return sink.receive(_FLOW.validate_python(argument["probe"]))

    def send(self, argument: Mapping[str, JsonValue]) -> JsonValue:
        """Send a flow to a sink on another node."""
        destination = str(argument["address"]), int(str(argument["port"]))
        send_flow(self._address, destination, _FLOW.validate_python(argument["probe"]))
        return None

    def run_command(self, argument: Mapping[str, JsonValue]) -> JsonValue:
        """Run a command without a shell and return its output.

        `argument` has the command's `words`, and `text` for its standard input.

        Raises:
            EmulationError: the command failed, or took too long.
        """
        words = _parse_words(argument["words"])
        try:
            done = subprocess.run(
                words,
                input=str(argument.get("text", "")),
                capture_output=True,
                text=True,
                timeout=_COMMAND_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise EmulationError(
                f"{self._host}: {' '.join(words)} did not end within {_COMMAND_TIMEOUT_S:g} s"
            ) from error
        if done.returncode != 0:
            raise EmulationError(
                f"{self._host}: {' '.join(words)} failed: {done.stderr.strip() or done.returncode}"
            )
        return done.stdout

    def undo_at_end(self, argument: Mapping[str, JsonValue]) -> JsonValue:
        """Register a command that runs when the agent ends, whatever ends it."""
        self._janitor.undo(_parse_words(argument["words"]))
        return None

    def report_manifest(self, _: Mapping[str, JsonValue]) -> JsonValue:
        """Return size and SHA-256 of every file that the run left on this node."""
        return build_manifest(self._folder)


def build_manifest(folder: Path) -> JsonValue:
    """Return size and SHA-256 of every file to fetch, by its path below the run's folder."""
    files = sorted(
        path for path in folder.rglob("*") if path.is_file() and _is_fetched(path, folder)
    )
    return {
        str(path.relative_to(folder)): {
            "size_bytes": path.stat().st_size,
            "sha256": _hash_file(path),
        }
        for path in files
    }


def _parse_words(value: JsonValue) -> list[str]:
    assert isinstance(value, list)
    return [str(word) for word in value]


def _is_fetched(path: Path, folder: Path) -> bool:
    """Return whether a file is fetched: no data that was sent or prepared, memory or snapshot."""
    relative = path.relative_to(folder)
    passing = relative.is_relative_to("workers/data") or relative.is_relative_to("drives")
    is_snapshot = relative.name.lstrip(".").startswith("snapshot-")
    return not (passing or is_snapshot) and relative.name not in {
        "heartbeat",
        "start_barrier",
        "progress_board",
        *SENT_FILES.values(),
        _PROCESSES_FILE,
    }


def record_processes(folder: Path, janitor: Janitor) -> None:
    """Write the names of the agent and its janitor into the run's folder, for `end_agent`."""
    write_whole(folder / _PROCESSES_FILE, f"{run_name()} {janitor.name}".encode())


def end_agent(folder: Path) -> None:
    """End the agent of a run, if it still runs, and wait for the end of all its processes."""
    try:
        agent, janitor = (folder / _PROCESSES_FILE).read_text().split()
    except OSError:
        return
    with suppress(ProcessLookupError):
        if is_running(agent):
            os.kill(int(agent.partition("-")[0]), signal.SIGKILL)
    deadline_s = time.monotonic() + _END_TIMEOUT_S
    while is_running(janitor) and time.monotonic() < deadline_s:
        time.sleep(_POLL_S)


def main() -> None:
    """Print the manifest of a folder, for a controller that lost its agent here.

    The agent may be stopped, and its processes may still write, so they are ended first.
    """
    folder = Path(sys.argv[1])
    end_agent(folder)
    sys.stdout.write(json.dumps(build_manifest(folder)))


def _hash_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


if __name__ == "__main__":
    main()
