"""Plan of one process's endpoint in the exchange of messages; pure."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

Backend = Literal["gloo", "nccl"]
"""Library that carries the collectives."""

FIRST_PORT = 28400
"""Port of node 0; a node listens on this port plus its number."""


class EndpointPlan(BaseModel):
    """Plan of one node's endpoint.

    The nodes are the ranks, with their numbers, and then the server, if there is one.

    Attributes:
        node: number of the node.
        addresses: addresses of all nodes, `address:port` on the experiment network.
        public_keys: public keys of all nodes; no other key is accepted (CURVE, Z85).
        secret_key: secret key of this node.
        timeout_s: real seconds after which a node that does not answer is an error.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    node: int = Field(ge=0)
    addresses: tuple[str, ...]
    public_keys: tuple[str, ...] = Field(repr=False)
    secret_key: str = Field(repr=False)
    timeout_s: float = Field(gt=0)
