"""Agent of one node: `python -m laggard.remote.agent.main`, started over SSH.

Standard input and output connect the agent to its controller. The agent ends when this connection
closes or the controller is silent for longer than its lease. It then removes the node's processes,
queues and limits, so nothing remains after a killed controller or a closed laptop. A janitor does
this for an agent that is killed or stopped.

The run's folder with the collected data stays unless the controller has sent `leave`.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from pydantic import JsonValue

from laggard.core.errors import DeploymentError, LaggardError
from laggard.core.virtual_time import Dilation
from laggard.layers_services.local.janitor import Janitor, run_name
from laggard.layers_services.local.launch import ForkServer
from laggard.network_emulation.compute import (
    ShareController,
    open_shares,
    prepare_cgroups,
    run_folders,
    sweep_cgroups,
)
from laggard.network_emulation.compute.cpu_plan import usable_cores
from laggard.network_emulation.compute.measure import verify_shares
from laggard.remote.agent.host_limits import HostLimits
from laggard.remote.agent.messages import (
    AgentFailed,
    AgentMessage,
    AgentPlan,
    AgentReply,
    AgentRequest,
    AgentStarted,
    ImportsDone,
    KeepAlive,
    format_line,
    parse_controller_message,
)
from laggard.remote.agent.node_clock import NodeClock
from laggard.remote.agent.node_training import NodeTraining
from laggard.remote.agent.request_handlers import (
    RequestHandler,
    RequestHandlers,
    record_processes,
)
from laggard.workloads.plan import ENVIRONMENT, PRELOAD

POLL_S = 0.004
IMPORT_TIMEOUT_S = 300.0
_REAL_TIME = Dilation(1.0)


def main() -> int:
    """Serve one run on this node and return the exit status."""
    line = _ControllerChannel()
    # These signals would end the agent before it has cleaned up. It ends when its connection
    # closes.
    for number in (signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    try:
        plan = AgentPlan.model_validate_json(line.read_first_line())
        with ExitStack() as stack:
            _Agent(plan, line, stack).run()
    except LaggardError as error:
        line.write(AgentFailed(error=str(error)))
        return error.exit_status
    except Exception as error:  # noqa: BLE001 - the last place that can report to the controller
        line.write(AgentFailed(error=f"a bug in Laggard: {error!r}\n{traceback.format_exc()}"))
        return 1
    return 0


class _ControllerChannel:
    """Connection to the controller over standard input and output.

    Everything else that prints to standard output goes to standard error instead.
    """

    def __init__(self) -> None:
        self._out = os.dup(1)
        os.dup2(2, 1)
        self._pending = b""
        self.closed = False

    def write(self, message: AgentMessage) -> None:
        content = memoryview(f"{format_line(message)}\n".encode())
        while content and not self.closed:
            try:
                content = content[os.write(self._out, content) :]
            except (BrokenPipeError, ConnectionResetError):
                self.closed = True

    def read_first_line(self) -> str:
        """Return the first line, waiting until it arrives."""
        while b"\n" not in self._pending:
            if not self._read():
                raise DeploymentError(
                    "the controller closed the connection before it sent a plan; its own output"
                    " has the cause"
                )
        return self._pop_line()

    def read(self, timeout_s: float, others: Sequence[int] = ()) -> list[str]:
        """Return the lines that have arrived, waiting for the first if necessary.

        The wait ends after `timeout_s` seconds, or when one of the descriptors in `others` is
        readable.
        """
        if 0 in select.select([0, *others], [], [], timeout_s)[0] and not self._read():
            self.closed = True
        lines = []
        while b"\n" in self._pending:
            lines.append(self._pop_line())
        return lines

    def _read(self) -> bool:
        content = os.read(0, 1 << 16)
        self._pending += content
        return bool(content)

    def _pop_line(self) -> str:
        line, _, self._pending = self._pending.partition(b"\n")
        return line.decode()


class _Agent:
    """Agent that serves one run: handles requests and reports updates until the run ends."""

    def __init__(self, plan: AgentPlan, line: _ControllerChannel, stack: ExitStack) -> None:
        self._plan, self._channel, self._stack = plan, line, stack
        folder = Path(plan.folder)
        for name in ("workers", "logs"):
            (folder / name).mkdir(parents=True)
        # It also acts if this agent is killed, or is stopped when its connection closes.
        janitor = stack.enter_context(Janitor.start(connection=0))
        janitor.watch(run_folders(run_name()))
        record_processes(folder, janitor)
        self._request_handlers = RequestHandlers(plan.host, plan.address, folder, janitor)
        os.environ.update(ENVIRONMENT)
        self._server = stack.enter_context(
            ForkServer.start(PRELOAD, log=folder / "logs" / f"imports-{plan.host}.log")
        )
        self._clock = NodeClock(plan.reference_address, plan.address, folder)
        stack.callback(self._clock.close)
        self._limits = HostLimits(plan, self._clock)
        stack.callback(self._limits.close)
        self._shares: ShareController | None = None
        self._training: NodeTraining | None = None
        self._last_line_s = time.monotonic()
        self._is_finished = False
        self._handlers: Mapping[str, RequestHandler] = {
            **self._request_handlers.list_handlers(),
            **self._limits.list_handlers(),
            "wait_imports": self._wait_for_imports,
            "compare_clocks": self._compare_clocks,
            "apply_shares": self._apply_shares,
            "set_share": self._set_share,
            "start_processes": self._start_processes,
            "begin_training": self._begin_training,
            "start_joining": self._start_joining,
            "kill_rank": self._kill_rank,
            "end_training": self._end_training,
            "finalize_clock": self._finalize_clock,
            "leave": self._remove_run_folder,
        }

    def run(self) -> None:
        self._channel.write(AgentStarted(host=self._plan.host, pid=os.getpid()))
        while not self._is_finished and not self._channel.closed:
            for text in self._channel.read(POLL_S, self._clock.descriptors()):
                self._handle_line(text)
                # The time is taken after the request, which may take longer than the lease.
                self._last_line_s = time.monotonic()
            self._clock.step()
            if self._training is not None:
                for update in self._training.poll_updates():
                    self._channel.write(update)
            if self._shares is not None:
                self._shares.check_alive()
            if time.monotonic() - self._last_line_s > self._plan.lease_s:
                raise DeploymentError(
                    f"{self._plan.host}: no message from the controller for"
                    f" {self._plan.lease_s:g} s; the agent ends"
                )

    def _handle_line(self, text: str) -> None:
        message = parse_controller_message(text)
        if isinstance(message, AgentRequest):
            self._channel.write(self._handle_request(message))
        elif not isinstance(message, KeepAlive) and self._training is not None:
            answer = self._training.apply_update(message)
            if answer is not None:
                self._channel.write(answer)

    def _handle_request(self, request: AgentRequest) -> AgentReply:
        argument = request.argument if isinstance(request.argument, dict) else {}
        try:
            return AgentReply(
                number=request.number, result=self._handlers[request.operation](argument)
            )
        except (LaggardError, OSError) as error:
            return AgentReply(number=request.number, error=str(error))

    def _wait_for_imports(self, _: Mapping[str, JsonValue]) -> JsonValue:
        seconds = self._server.wait_ready(IMPORT_TIMEOUT_S)
        self._channel.write(ImportsDone(import_s=seconds))
        return seconds

    def _compare_clocks(self, argument: Mapping[str, JsonValue]) -> JsonValue:
        """Compare this node's clock with the head's and return the bound on the error, in ns.

        With `go_on` in the argument, the comparison continues periodically.
        """
        error_ns = self._clock.compare()
        if argument.get("go_on"):
            self._clock.start_periodic_exchanges()
        return error_ns

    def _apply_shares(self, _: Mapping[str, JsonValue]) -> JsonValue:
        """Limit this host to its share from now on and return the fidelity checks."""
        host, share = self._plan.host, self._plan.share
        if share is None:
            return []
        # Remove the cgroups that a killed run has left on this node.
        sweep_cgroups()
        cgroups = prepare_cgroups([host], run_name())
        if cgroups is not None:
            self._stack.callback(cgroups.remove)
            self._stack.callback(cgroups.close)
        cores = usable_cores()
        self._shares = open_shares(
            {host: share}, cgroups, {host: cores[self._plan.core % len(cores)]}
        )
        self._stack.callback(self._shares.close)
        return [
            check.model_dump(mode="json")
            for check in verify_shares({host: share}, self._shares, _REAL_TIME)
        ]

    def _set_share(self, argument: Mapping[str, JsonValue]) -> JsonValue:
        """Change the share and return when the change was in effect, reference clock."""
        if self._shares is None:
            raise DeploymentError(
                f"{self._plan.host}: the CPU share cannot be changed, because the run has set none"
            )
        return self._clock.to_reference(
            self._shares.set_share(self._plan.host, float(str(argument["share"])))
        )

    def _start_processes(self, _: Mapping[str, JsonValue]) -> JsonValue:
        self._training = NodeTraining(
            self._plan, self._server, self._clock, self._shares, self._limits
        )
        self._training.start()
        return None

    def _begin_training(self, _: Mapping[str, JsonValue]) -> JsonValue:
        if self._training is not None:
            self._training.begin()
        return None

    def _start_joining(self, argument: Mapping[str, JsonValue]) -> JsonValue:
        """Start the process of a rank that joins the training."""
        self._require_training().start_joining(int(str(argument["rank"])))
        return None

    def _kill_rank(self, argument: Mapping[str, JsonValue]) -> JsonValue:
        """Kill the process of a rank and return whether it was running."""
        return self._require_training().kill_rank(int(str(argument["rank"])))

    def _require_training(self) -> NodeTraining:
        if self._training is None:
            raise DeploymentError(f"{self._plan.host}: no training runs on this node")
        return self._training

    def _end_training(self, _: Mapping[str, JsonValue]) -> JsonValue:
        """End the link sampler and return whether no process of the training is left."""
        if self._training is None:
            return True
        self._training.end()
        return self._training.has_ended

    def _finalize_clock(self, _: Mapping[str, JsonValue]) -> JsonValue:
        """Compare clocks a last time; the run's folder does not change after this.

        After a failure, processes may still run, and files that grow cannot be fetched.
        """
        if self._training is not None:
            self._training.end_processes()
        self._clock.finalize()
        return None

    def _remove_run_folder(self, _: Mapping[str, JsonValue]) -> JsonValue:
        """Remove the run's folder after all its files were fetched, and end the agent.

        An agent that ends without this request keeps the folder, so that a later controller can
        fetch it.
        """
        self._is_finished = True
        os.chdir("/")
        shutil.rmtree(self._plan.folder, ignore_errors=True)
        return None


if __name__ == "__main__":
    sys.exit(main())
