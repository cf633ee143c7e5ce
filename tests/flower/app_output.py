"""Output that Flower's programs would write if clients computed for given times."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from laggard.flower.message_log import ProgramLine

TRANSFER_S, EVALUATION_S = 0.1, 0.5


def write_output(
    clients: Sequence[str], compute_s: Sequence[float], rounds: int, begin_s: float
) -> list[ProgramLine]:
    """Lines of a run in which every round samples all clients, in order of time."""
    lines, now_s = [], begin_s
    for number in range(1, rounds + 1):
        lines += list(_say("app", now_s, f"[ROUND {number}/{rounds}]"))
        sampled = f"configure_train: Sampled {len(clients)} nodes (out of {len(clients)})"
        lines += list(_say("app", now_s, sampled))
        for name, taken_s in zip(clients, compute_s, strict=True):
            lines += list(_answer(name, "train", now_s, taken_s))
        now_s += max(compute_s) + 2 * TRANSFER_S
        results = f"aggregate_train: Received {len(clients)} results and 0 failures"
        lines += list(_say("app", now_s, results))
        loss = f"Aggregated MetricRecord: {{'train_loss': {1 / number}}}"
        lines += list(_say("app", now_s, loss))
        for name in clients:
            lines += list(_answer(name, "evaluate", now_s, EVALUATION_S))
        now_s += EVALUATION_S + 2 * TRANSFER_S
        lines += list(_say("app", now_s, "aggregate_evaluate: Received 3 results and 0 failures"))
        accuracy = f"Aggregated MetricRecord: {{'eval_acc': {1 - 0.5 / number}}}"
        lines += list(_say("app", now_s, accuracy))
        now_s += 0.01
    return sorted(lines, key=lambda each: each.at_ns)


def _answer(name: str, kind: str, now_s: float, taken_s: float) -> Iterator[ProgramLine]:
    received_s, computed_s = now_s + TRANSFER_S, now_s + TRANSFER_S + taken_s
    yield from _say(name, now_s, f"Receiving: {kind} message (ID: 01ab)")
    yield from _say(name, received_s, "Received successfully")
    yield from _say(name, computed_s, f"Sending: {kind} message (ID: 02ab)")
    yield from _say(name, computed_s + TRANSFER_S, "Sent successfully")


def _say(program: str, at_s: float, text: str) -> Iterator[ProgramLine]:
    yield ProgramLine(program, round(at_s * 1e9), f"\x1b[92mINFO \x1b[0m:      {text}")
