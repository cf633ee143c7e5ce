"""Output of Flower's programs, read as messages of clients and rounds of an app.

The lines are those that a SuperNode and the strategies of `flwr.serverapp` write since Flower 1.22;
an app with a loop of its own has messages, and no rounds.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

TRAIN, EVALUATE = "train", "evaluate"
ROUND = re.compile(r"\[ROUND (\d{1,9})(?:/\d{1,9})?\]")
"""Begin of a round, as strategies announce it."""

SENDING = re.compile(r"Sending: (\w{1,40}) message")
"""Begin of a client's answer."""

_COLOR = re.compile(r"\x1b\[[0-9;]*m|\x1b|\[\d+m(?=[A-Z])")
_LEVEL = re.compile(r"^(DEBUG|INFO|WARNING|ERROR|CRITICAL)\s*:\s*")
_RECEIVING = re.compile(r"Receiving: (\w{1,40}) message")
_SAMPLED = re.compile(r"configure_(train|evaluate): Sampled (\d{1,9}) nodes")
_RESULTS = re.compile(
    r"aggregate_(train|evaluate): Received (\d{1,9}) results and (\d{1,9}) failures"
)
_METRICS = re.compile(r"Aggregated MetricRecord: \{(.*)\}")
_METRIC = re.compile(r"'([^']{1,100})': (-?(?:\d[\d.]*(?:e[+-]?\d+)?|inf)|nan)")


@dataclass(frozen=True)
class ProgramLine:
    """Line that a program wrote.

    Attributes:
        program: name of the program.
        at_ns: time at which it was read, by CLOCK_MONOTONIC.
        text: the line.
    """

    program: str
    at_ns: int
    text: str


@dataclass(frozen=True)
class ClientMessage:
    """Message of the server app that a client answered; times are CLOCK_MONOTONIC.

    Attributes:
        client: number of the client.
        kind: `train`, `evaluate` or another one.
        began_ns: time at which the client began to receive it.
        received_ns: time at which it had it.
        computed_ns: time at which its answer was computed; None if it never was.
        sent_ns: time at which the answer was sent; None if it never was.
        failed: whether the client reported an error in between.
    """

    client: int
    kind: str
    began_ns: int
    received_ns: int
    computed_ns: int | None = None
    sent_ns: int | None = None
    failed: bool = False


@dataclass(frozen=True)
class AppRound:
    """Round as the strategy of a server app reports it.

    Attributes:
        number: its number, from 1.
        began_ns: time of its first line.
        aggregated_ns: time at which the answers of its training were aggregated; None if never.
        sampled: clients that it selected to train; None if unknown.
        results: answers that were used; None if unknown.
        failures: answers that were not.
        metrics: aggregated metrics by kind of message.
    """

    number: int
    began_ns: int
    aggregated_ns: int | None = None
    sampled: int | None = None
    results: int | None = None
    failures: int = 0
    metrics: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


def read_messages(client: int, lines: Iterable[ProgramLine]) -> tuple[ClientMessage, ...]:
    """Read the messages of a client from the output of its SuperNode.

    Args:
        client: number of the client.
        lines: its output, in order.
    """
    messages: list[ClientMessage] = []
    for line in lines:
        level, text = _split_level(line.text)
        if received := _RECEIVING.search(text):
            messages.append(ClientMessage(client, received[1], line.at_ns, line.at_ns))
        elif not messages or messages[-1].sent_ns is not None:
            continue
        elif text.startswith("Received successfully"):
            messages[-1] = replace(messages[-1], received_ns=line.at_ns)
        elif SENDING.search(text):
            messages[-1] = replace(messages[-1], computed_ns=line.at_ns)
        elif text.startswith("Sent successfully"):
            computed_ns = messages[-1].computed_ns or line.at_ns
            messages[-1] = replace(messages[-1], computed_ns=computed_ns, sent_ns=line.at_ns)
        elif level == "ERROR":
            messages[-1] = replace(messages[-1], failed=True)
    return tuple(messages)


def read_rounds(lines: Iterable[ProgramLine]) -> tuple[AppRound, ...]:
    """Read the rounds of an app from the output of `flwr run --stream`, in order."""
    rounds: list[AppRound] = []
    kind = TRAIN
    for line in lines:
        _, text = _split_level(line.text)
        if began := ROUND.search(text):
            rounds.append(AppRound(int(began[1]), line.at_ns))
        elif not rounds:
            continue
        elif sampled := _SAMPLED.search(text):
            if sampled[1] == TRAIN:
                rounds[-1] = replace(rounds[-1], sampled=int(sampled[2]))
        elif results := _RESULTS.search(text):
            kind = results[1]
            if kind == TRAIN:
                rounds[-1] = replace(
                    rounds[-1],
                    aggregated_ns=line.at_ns,
                    results=int(results[2]),
                    failures=int(results[3]),
                )
        elif metrics := _METRICS.search(text):
            values = {name: float(value) for name, value in _METRIC.findall(metrics[1])}
            rounds[-1] = replace(rounds[-1], metrics={**rounds[-1].metrics, kind: values})
    return tuple(rounds)


def _split_level(text: str) -> tuple[str, str]:
    """Return the level of a line, or "", and the text after it without colors."""
    plain = _COLOR.sub("", text).strip()
    level = _LEVEL.match(plain)
    return ("", plain) if level is None else (level[1], plain[level.end() :].strip())
