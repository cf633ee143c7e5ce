"""Plan of one process's place in the exchange of messages; pure."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

Backend = Literal["gloo", "nccl"]
"""Library that carries the collectives."""

FIRST_PORT = 28400
"""A node listens on this port plus its number."""


class EndpointPlan(BaseModel):
    """One node's place in the exchange. Nodes are the ranks, by their number, and after them the
    server, if there is one.

    Attributes:
        node: its number.
        addresses: of all nodes, `address:port` on the experiment network.
        public_keys: of all nodes, and nobody else is listened to (CURVE, Z85).
        secret_key: the node's own.
        timeout_s: real seconds after which a node that does not answer is an error.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    node: int = Field(ge=0)
    addresses: tuple[str, ...]
    public_keys: tuple[str, ...] = Field(repr=False)
    secret_key: str = Field(repr=False)
    timeout_s: float = Field(gt=0)
