"""Output of Flower 1.42, as its programs wrote it, and what it says of messages and rounds."""

from __future__ import annotations

import math

import pytest

from laggard.flower.message_log import ProgramLine, read_messages, read_rounds

SUPERNODE = """
\x1b[92mINFO \x1b[0m:      Starting Flower SuperNode
\x1b[93mWARNING \x1b[0m:   Option `--insecure` was set. Starting insecure channel to 10.77.0.1:8000.
INFO:     Uvicorn running on http://127.0.0.1:9094 (Press CTRL+C to quit)
\x1b[92mINFO \x1b[0m:      [RUN 12144048426772682647]
\x1b[92mINFO \x1b[0m:      Receiving: train message (ID: 091d03b21b3792a1cc1c6fe4ff5eaa95)
\x1b[92mINFO \x1b[0m:      Received successfully
\x1b[92mINFO \x1b[0m:      Start `flwr-clientapp` process
\x1b[92mINFO \x1b[0m:      [RUN 12144048426772682647]
\x1b[92mINFO \x1b[0m:      Sending: train message (ID: 758511098184624462e4153b561c3bf6)
\x1b[92mINFO \x1b[0m:      Sent successfully
\x1b[92mINFO \x1b[0m:      Receiving: evaluate message (ID: 79320bcdeaddc92cc29be4598344a068)
\x1b[92mINFO \x1b[0m:      Received successfully
\x1b[91mERROR \x1b[0m:     ClientApp raised an exception
\x1b[92mINFO \x1b[0m:      Sending: evaluate message (ID: e28422de171ea39c429c0bf54dac9977)
\x1b[92mINFO \x1b[0m:      Sent successfully
\x1b[92mINFO \x1b[0m:      Receiving: train message (ID: 0123)
"""

APP = """
Using SuperLink: laggard (10.77.0.1:8000)
Successfully started run 12144048426772682647
\x1b[92mINFO \x1b[0m:      Starting FedAvg strategy:
\x1b[92mINFO \x1b[0m:      [ROUND 1/2]
\x1b[92mINFO \x1b[0m:      configure_train: Sampled 7 nodes (out of 8)
\x1b[92mINFO \x1b[0m:      aggregate_train: Received 6 results and 1 failures
\x1b[92mINFO \x1b[0m:      \t└──> Aggregated MetricRecord: {'train_loss': 0.13560133427381516}
\x1b[92mINFO \x1b[0m:      configure_evaluate: Sampled 2 nodes (out of 8)
\x1b[92mINFO \x1b[0m:      aggregate_evaluate: Received 2 results and 0 failures
\x1b[92mINFO \x1b[0m:      \t└──> Aggregated MetricRecord: {'eval_loss': nan, 'eval_acc': 9.5e-01, 'n': -3}
\x1b[92mINFO \x1b[0m:      [ROUND 2/2]
\x1b[92mINFO \x1b[0m:      configure_train: Sampled 7 nodes (out of 8)
"""


def lines(text: str) -> list[ProgramLine]:
    return [ProgramLine("p", i, line) for i, line in enumerate(text.splitlines())]


def test_messages_of_a_client_have_the_times_of_its_lines() -> None:
    first, second, third = read_messages(3, lines(SUPERNODE))
    assert (first.client, first.kind, first.failed) == (3, "train", False)
    assert (first.began_ns, first.received_ns, first.computed_ns, first.sent_ns) == (5, 6, 9, 10)
    assert (second.kind, second.failed, second.sent_ns) == ("evaluate", True, 15)
    assert (third.kind, third.computed_ns, third.sent_ns) == ("train", None, None)


def test_rounds_have_what_their_strategy_says() -> None:
    first, second = read_rounds(lines(APP))
    assert (first.number, first.began_ns, first.aggregated_ns) == (1, 4, 6)
    assert (first.sampled, first.results, first.failures) == (7, 6, 1)
    assert first.metrics["train"] == {"train_loss": 0.13560133427381516}
    assert math.isnan(first.metrics["evaluate"].pop("eval_loss"))  # type: ignore[attr-defined]
    assert first.metrics["evaluate"] == {"eval_acc": 0.95, "n": -3.0}
    assert (second.sampled, second.results, second.aggregated_ns) == (7, None, None)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\x1b[",
        "Sent successfully",
        "Received successfully\nSending: train message",
        "{" * 4000,
        "[ROUND 99999999999999999999/1]",
        "Aggregated MetricRecord: {'a': 1}",
    ],
)
def test_other_output_says_nothing(text: str) -> None:
    assert read_messages(0, lines(text)) == ()
    assert read_rounds(lines(text)) == ()
