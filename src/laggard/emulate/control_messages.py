"""Requests to a running emulation and its replies, with the type and the bounds of every value.

A reply decides which program runs where, perhaps as root, and is shown on a terminal. Therefore
both sides check what the other one sends, although both belong to the same user.
"""

from __future__ import annotations

import ipaddress
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from laggard.core.node_values import (
    Count,
    MessageText,
    NodeMessage,
    NodePath,
    Real,
    ShortText,
)

MAX_PATTERN_LENGTH = 500
"""Largest number of characters of a host pattern in a request."""


def _require_ipv4(text: str) -> str:
    return str(ipaddress.IPv4Address(text))


def _require_ipv6(text: str) -> str:
    return str(ipaddress.IPv6Address(text))


HostName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,254}$")]


class ControlRequest(NodeMessage):
    """Request to `enter` a host, `hold` the sender to a CPU share, or list the `links`."""

    action: Literal["enter", "hold", "links"]
    host: Annotated[str, Field(max_length=MAX_PATTERN_LENGTH)] = ""
    interactive: bool = False


class EnterReply(NodeMessage):
    """Host to enter; descriptors of its namespaces come with it.

    Attributes:
        host: name of the host.
        address: IPv4 address of the host.
        ipv6: IPv6 address of the host, if it has one.
        home: writable home folder in the sandbox; None for that of the sender.
        temporary: writable temporary folder in the sandbox; None for that of the sender.
    """

    host: HostName
    address: Annotated[str, AfterValidator(_require_ipv4)]
    ipv6: Annotated[str, AfterValidator(_require_ipv6)] | None = None
    home: NodePath | None = None
    temporary: NodePath | None = None


class HoldReply(NodeMessage):
    """Answer to `hold`: whether the sender is limited to the host's CPU share."""

    held: bool


class ConstraintDocument(NodeMessage):
    """Constraint of a link in virtual units, as `laggard links --json` prints it."""

    delay_ms: Real
    jitter_ms: Real
    rate_mbps: Real | None
    loss_percent: Real
    distribution: ShortText
    burst_packets: Real


class LinkDocument(NodeMessage):
    """Group of equal links in virtual units, as `laggard links --json` prints it."""

    src_layer: ShortText
    dst_layer: ShortText
    pairs: Annotated[tuple[tuple[ShortText, ShortText], ...], Field(min_length=1)]
    requested: ConstraintDocument
    current: ConstraintDocument
    requested_rtt_ms: Real
    rtt_ms: Real | None
    carried_mbps: Real
    dropped: Count


class LinksReply(NodeMessage):
    """Answer to `links`."""

    links: tuple[LinkDocument, ...]


class ErrorReply(NodeMessage):
    """Reason why a request is refused, and the exit status for it."""

    error: MessageText
    status: Annotated[int, Field(strict=True, ge=1, le=255)]
