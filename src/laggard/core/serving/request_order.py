"""Order in which a device serves requests for several networks, decided at every border of blocks.

The rules are those that H. Fan et al. compare in "Sparse-DySta: Sparsity-Aware Dynamic and Static
Scheduling for Sparse Multi-DNN Workloads", MICRO 2023 (arXiv 2310.11096), in the form of the code
that they published. PREMA is the rule of Y. Choi and M. Rhu, HPCA 2020, with equal priorities.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

RequestOrderName = Literal["fcfs", "sjf", "prema", "static", "dynamic", "sparsity_aware"]
"""`fcfs` serves the first request first, `sjf` the shortest one, `prema` the shortest of those that
have waited long, `static` the shortest one with a share of its deadline. `dynamic` counts what is
left of each, and `sparsity_aware` also how much faster than expected its blocks have been."""

REQUEST_ORDERS: tuple[RequestOrderName, ...] = get_args(RequestOrderName)

SLACK_WEIGHT = 0.01
"""Seconds of a request's work that weigh as much as a second of its slack: the paper's beta."""


@dataclass(frozen=True)
class WaitingRequest:
    """Request that a device could go on with.

    Attributes:
        number: number of the request; the lower one is served first, of two that are alike.
        arrived_s: time at which it arrived.
        deadline_s: time at which it must be answered; infinite without a deadline.
        alone_s: seconds that the device is expected to take for all of it.
        left_s: expected seconds of the blocks that are left.
        paused_s: time since which it waits: of its arrival, or of the end of its last block.
        pace: seconds of its last block as a part of those expected; 1 before its first one.
    """

    number: int
    arrived_s: float
    deadline_s: float
    alone_s: float
    left_s: float
    paused_s: float
    pace: float = 1.0


def choose_request(
    order: RequestOrderName, waiting: Sequence[WaitingRequest], now_s: float
) -> WaitingRequest:
    """Return the request whose next block a device computes.

    Args:
        order: rule of the device.
        waiting: requests that it has begun or could begin, at least one.
        now_s: present time.

    Examples:
        >>> long = WaitingRequest(0, 0.0, math.inf, alone_s=2.0, left_s=2.0, paused_s=0.0)
        >>> short = WaitingRequest(1, 0.5, math.inf, alone_s=1.0, left_s=1.0, paused_s=0.5)
        >>> choose_request("fcfs", [long, short], now_s=1.0).number
        0
        >>> choose_request("sjf", [long, short], now_s=1.0).number
        1
    """
    if order == "prema":
        waiting = _list_entitled(waiting, now_s)
    return min(waiting, key=lambda each: (_score(order, each, len(waiting), now_s), each.number))


def _score(order: RequestOrderName, request: WaitingRequest, count: int, now_s: float) -> float:
    """Return how late a request's turn comes; the lowest score is served first."""
    if order == "fcfs":
        return request.arrived_s
    if order == "prema":
        return request.left_s
    if order == "sjf":
        return request.alone_s
    if order == "static":
        own_s = request.deadline_s - request.arrived_s
        return request.alone_s + SLACK_WEIGHT * _count_slack(own_s - request.alone_s)
    left_s = request.left_s * (request.pace if order == "sparsity_aware" else 1.0)
    slack_s = _count_slack(request.deadline_s - now_s - left_s)
    # Who was interrupted long ago comes later: to go on with the last one saves a switch.
    interrupted = (now_s - request.paused_s) / max(request.alone_s, 1e-12) / count
    return left_s + SLACK_WEIGHT * (slack_s + interrupted)


def _count_slack(slack_s: float) -> float:
    """Return a slack that can be weighed: none if it is used up, or if there is no deadline."""
    return max(slack_s, 0.0) if slack_s < math.inf else 0.0


def _list_entitled(waiting: Sequence[WaitingRequest], now_s: float) -> Sequence[WaitingRequest]:
    """Return the requests that have as many of PREMA's tokens as the largest number, rounded down.

    A request gets tokens for the time that it waits, as a part of its own length.
    """
    tokens = [1.0 + (now_s - each.arrived_s) / max(each.alone_s, 1e-12) for each in waiting]
    threshold = math.floor(max(tokens))
    return [each for each, own in zip(waiting, tokens, strict=True) if own >= threshold]
