"""Collection of a Flower app's run: the output of its programs becomes tables like a training's."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from laggard.core.errors import RunFolderError
from laggard.core.files.input_files import JsonDocument
from laggard.core.files.output_files import write_json, write_text
from laggard.core.hosts import Host
from laggard.core.node_values import NodeMessage, Number
from laggard.core.run_schema import RoundAnswer, RoundResult
from laggard.core.span_schema import NOBODY
from laggard.core.virtual_time import Dilation
from laggard.flower.app_run import APP, lines_path
from laggard.flower.client_rounds import ClientRound, classify, group_rounds
from laggard.flower.message_log import (
    EVALUATE,
    AppRound,
    ClientMessage,
    ProgramLine,
    read_messages,
    read_rounds,
)
from laggard.virtual.client_trace import ClientStep, ClientTrace
from laggard.workloads.clients.round_record import write_round
from laggard.workloads.output.training_end import TrainingEnd
from laggard.workloads.output.worker_output import (
    WorkerOutputDir,
    append_line,
    read_lines,
    write_whole,
)
from laggard.workloads.tracing.collect import collect
from laggard.workloads.tracing.step_result import UNKNOWN

FLOWER_FILE = "flower.json"
_REASON = "the Flower app chose it"
_SAMPLES = 1
"""Samples of an answer: how many an app trains on is its own affair, so an answer counts as one."""

_NS = 1e9


class _RecordedLine(NodeMessage):
    program: str
    at_ns: Number
    text: str


_LINES = TypeAdapter(tuple[_RecordedLine, ...])


@dataclass(frozen=True)
class AppTrace:
    """Rounds and messages of a Flower app, read from the output of its programs.

    Attributes:
        rounds: rounds of the app, as its clients saw them.
        messages: messages of all clients, of every kind.
        reports: rounds as the app reports them.
        end_ns: time of its last answer or report.
    """

    rounds: tuple[ClientRound, ...]
    messages: tuple[ClientMessage, ...]
    reports: tuple[AppRound, ...]
    end_ns: int

    @property
    def zero_ns(self) -> int:
        """Return the time at which the first client got a message to train."""
        return self.rounds[0].messages[0].began_ns


def read_app_trace(lines: Sequence[ProgramLine], clients: Sequence[Host]) -> AppTrace | None:
    """Return what the output of a run says; None if no client got a message to train.

    Args:
        lines: output of all programs, in order of time.
        clients: hosts of the clients, in order of their numbers.
    """
    by_program: Mapping[str, list[ProgramLine]] = defaultdict(list)
    for line in lines:
        by_program[line.program].append(line)
    messages = [
        message
        for client, host in enumerate(clients)
        for message in read_messages(client, by_program[host.name])
    ]
    reports = read_rounds(by_program[APP])
    rounds = group_rounds(messages, reports)
    if not rounds:
        return None
    times_ns = [each.sent_ns or each.received_ns for each in messages]
    times_ns += [each.aggregated_ns or each.began_ns for each in reports]
    return AppTrace(rounds, tuple(messages), reports, max(times_ns))


def collect_app(
    folder: Path,
    output_dir: WorkerOutputDir,
    clients: Sequence[Host],
    dilation: Dilation,
    cpu_shares: Mapping[str, float],
) -> TrainingEnd | None:
    """Write the tables, `federated.json`, `flower.json` and the logs of a run.

    Args:
        folder: run folder.
        output_dir: folder with the output of the programs.
        clients: hosts of the clients.
        dilation: ratio of real to virtual time.
        cpu_shares: virtual share of one core, by host name.

    Returns:
        The statement about its end; None if no client got a message to train.

    Raises:
        RunFolderError: the output is damaged.
    """  # fmt: skip
    lines = _read_lines(lines_path(output_dir))
    _write_logs(folder / "logs", lines)
    trace = read_app_trace(lines, clients)
    if trace is None:
        return None
    _write_streams(output_dir, trace, len(clients), dilation)
    done = _write_end(output_dir, trace, dilation)
    collect(output_dir.folder, folder, clients, dilation, cpu_shares)
    write_json(folder / FLOWER_FILE, _build_document(trace, clients, dilation))
    return done


def _read_lines(path: Path) -> tuple[ProgramLine, ...]:
    try:
        lines = _LINES.validate_python(read_lines(path))
    except (ValueError, ValidationError) as error:
        raise RunFolderError(
            f"{path}: the output of Flower's programs is damaged — {error}"
        ) from error
    return tuple(ProgramLine(each.program, each.at_ns, each.text) for each in lines)


def _write_logs(logs: Path, lines: Sequence[ProgramLine]) -> None:
    texts: Mapping[str, list[str]] = defaultdict(list)
    for line in lines:
        texts[line.program].append(line.text)
    for program, own in texts.items():
        write_text(logs / f"{program}.log", "\n".join([*own, ""]))


def _write_streams(
    output_dir: WorkerOutputDir, trace: AppTrace, clients: int, dilation: Dilation
) -> None:
    """Write the rows that clients of our own would have written."""
    write_whole(output_dir.zero, json.dumps({"zero_ns": trace.zero_ns}).encode())
    client_trace = ClientTrace(output_dir, 0, clients * _SAMPLES, 1, server=clients)
    for client in range(clients):
        _write_client(client_trace, trace, client)
    client_trace.close()
    for each in trace.rounds:
        answers = tuple(_describe_answer(message, dilation) for message in each.messages)
        write_round(output_dir, RoundResult(round=each.number, answers=answers), each.ended_ns)
        if each.accuracy is not None:
            rank = each.answered[-1].client if each.answered else 0
            append_line(
                output_dir.evaluations,
                {"step": each.number, "rank": rank, "accuracy": each.accuracy},
            )


def _describe_answer(message: ClientMessage, dilation: Dilation) -> RoundAnswer:
    outcome, took_s = classify(message), None
    if outcome == "accepted" and message.sent_ns is not None:
        took_s = dilation.virtual_s((message.sent_ns - message.began_ns) / _NS)
    return RoundAnswer(rank=message.client, reason=_REASON, outcome=outcome, took_s=took_s)


def _write_client(client_trace: ClientTrace, trace: AppTrace, client: int) -> None:
    """Write the steps of a client: each ends when it has the model of its next one."""
    own = [
        (each, message)
        for each in trace.rounds
        for message in each.messages
        if message.client == client
    ]
    evaluations = [
        (each.began_ns / _NS, each.sent_ns / _NS)
        for each in trace.messages
        if each.client == client and each.kind == EVALUATE and each.sent_ns is not None
    ]
    begun_ns = trace.zero_ns
    for (each, message), (_, following) in zip(own, [*own[1:], (None, None)], strict=True):
        if message.computed_ns is None or message.sent_ns is None:
            continue
        next_ns, ended_ns = (
            (trace.end_ns, trace.end_ns)
            if following is None
            else (following.began_ns, following.received_ns)
        )
        is_accepted = classify(message) == "accepted"
        step = ClientStep(
            client, each.number, _SAMPLES, begun_ns / _NS, message.received_ns / _NS, each.number
        )
        step.computed_s, step.handled_s = message.computed_ns / _NS, message.sent_ns / _NS
        step.loss = each.loss
        step.applied_version = each.number + 1 if is_accepted else UNKNOWN
        step.evaluations = tuple(
            (began_s, ended_s)
            for began_s, ended_s in evaluations
            if step.handled_s <= began_s and ended_s <= next_ns / _NS
        )
        last = each.answered[-1].client if each.answered else client
        waited_for = NOBODY if last == client else last
        client_trace.finish_step(step, next_ns / _NS, ended_ns / _NS, waited_for)
        begun_ns = ended_ns


def _write_end(output_dir: WorkerOutputDir, trace: AppTrace, dilation: Dilation) -> TrainingEnd:
    accuracies = [each.accuracy for each in trace.rounds if each.accuracy is not None]
    done = TrainingEnd(
        stopped_by="steps",
        steps=len(trace.rounds),
        samples=sum(len(each.answered) for each in trace.rounds) * _SAMPLES,
        accuracy=accuracies[-1] if accuracies else None,
        evaluations=len(accuracies),
        zero_ns=trace.zero_ns,
        end_ns=trace.end_ns,
        paused_ns=0,
        makespan_s=dilation.virtual_s((trace.end_ns - trace.zero_ns) / _NS),
        versions=len(trace.rounds),
    )
    write_whole(output_dir.done, done.model_dump_json().encode())
    return done


def _build_document(
    trace: AppTrace, clients: Sequence[Host], dilation: Dilation
) -> dict[str, JsonDocument]:
    """Build `flower.json`: the rounds, their metrics, and the messages of each client."""

    def second(at_ns: int | None) -> float | None:
        return None if at_ns is None else dilation.virtual_s((at_ns - trace.zero_ns) / _NS)

    rounds: list[JsonDocument] = [
        {
            "round": each.number,
            "sampled": each.sampled,
            "results": each.results,
            "failures": each.failures,
            "metrics": {kind: dict(values) for kind, values in each.metrics.items()},
        }
        for each in trace.reports
    ]
    messages: list[JsonDocument] = [
        {
            "client": clients[each.client].name,
            "kind": each.kind,
            "began_s": second(each.began_ns),
            "received_s": second(each.received_ns),
            "computed_s": second(each.computed_ns),
            "sent_s": second(each.sent_ns),
            "failed": each.failed,
        }
        for each in trace.messages
    ]
    return {"rounds": rounds, "messages": messages}
